package adk

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/adk/v2/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
)

const (
	// broughtKey is the key of a record that each commit of Bring sets in the session. Its value is the time of the source's
	// last update, a space, and the number of events that the session has after the commit.
	broughtKey = "migrated"
	// begun stands in that record for the time until all is brought.
	begun = "begun"
	// recent stands in that record for a time of less than a minute ago: the source may add events of the same time.
	recent = "recent"
	// byHost begins the value of that record if a host had made the session before.
	byHost = "host "
	// broughtRoot begins the ids of two kinds of states. One has a hash of each value that Bring has brought of a user or an
	// app, the other a key for each session of an app that Bring has brought.
	broughtRoot = "adk-migration"
)

// Bring brings all sessions of apps from another session service, for example the kit's on a database, with the states of
// their users and of the apps. They keep their ids, events and times. A session that has other events here is left alone,
// and so is a value of state that somebody has set here. Bring does not bring again what somebody has deleted here since. A
// service shows the state of users and apps with their sessions only: without a session, Bring does not find it.
func (s *Sessions) Bring(ctx context.Context, from session.Service, o adapter.BringOptions, apps ...string) (*adapter.Brought, error) {
	out := &adapter.Brought{}
	for _, app := range apps {
		listed, err := from.List(ctx, &session.ListRequest{AppName: app})
		if err != nil {
			return out, fmt.Errorf("adk: the other service: %w", err)
		}
		shared := map[string]state{}
		n := note{states: s.states, id: adapter.Short(adapter.Join(broughtRoot, "sessions", app), turnstone.MaxSessionID), known: map[string]bool{}}
		known, err := s.states.Read(ctx, n.id)
		if err != nil {
			return out, fmt.Errorf("adk: %w", err)
		}
		for key := range known {
			n.known[key] = true
		}
		for _, of := range listed.Sessions {
			out.Found++
			d, err := s.bring(ctx, from, of, n, o, out)
			switch {
			case adapter.Refused(err):
				out.Different = append(out.Different, fmt.Sprintf("session %q of user %q: %v", of.ID(), of.UserID(), err))
			case err != nil:
				return out, fmt.Errorf("adk: session %q of user %q: %w", of.ID(), of.UserID(), err)
			}
			if d.all == nil {
				continue // Its state can't be stored.
			}
			shared[adapter.Join(sessionRoot, app)] = d.app
			if d.user != nil {
				shared[adapter.Join(sessionRoot, app, of.UserID())] = d.user
			}
		}
		for id, values := range shared {
			switch err := s.bringState(ctx, id, values, o, out); {
			case adapter.Refused(err):
				out.Different = append(out.Different, fmt.Sprintf("state of %s: %v", strings.Join(adapter.Names(id), "/"), err))
			case err != nil:
				return out, fmt.Errorf("adk: state %q: %w", id, err)
			}
		}
	}
	slices.Sort(out.Different)
	return out, nil
}

// note is the state with a value for each session of an app that Bring has brought.
type note struct {
	states *adapter.States
	id     string
	known  map[string]bool // by the keys of values
}

// noteKey returns the key of a session's value: a hash, which names no user who is erased.
func noteKey(of session.Session) string { return sumOf([]byte(adapter.Join("", of.UserID(), of.ID()))) }

// add makes a commit to a session, and notes the session with the same commit.
func (n note) add(ctx context.Context, of session.Session, c turnstone.SessionCommit) (turnstone.Result, error) {
	var changes []adapter.StateChange
	if !n.known[noteKey(of)] {
		changes = []adapter.StateChange{{ID: n.id, Values: []turnstone.RecordChange{{Key: noteKey(of), Expect: turnstone.NoRecord}}}}
	}
	results, err := n.states.Commit(ctx, changes, c)
	if err == nil || errors.Is(err, turnstone.ErrRecordConflict) { // Another Bring has noted it.
		n.known[noteKey(of)] = true
	}
	if err != nil {
		return turnstone.Result{}, err
	}
	return results[0], nil
}

// again reports whether an error says that somebody else has changed or deleted a session: Bring looks at it again then.
func again(err error) bool {
	other := errors.Is(err, turnstone.ErrConflict) || errors.Is(err, turnstone.ErrRecordConflict) || adapter.Gone(err)
	return other && !errors.Is(err, turnstone.ErrOutcomeUnknown)
}

// bring brings a session. It leaves away one that was brought before and that a host has deleted since. It returns the states
// that the session shows: the zero delta if no store can keep them, and no state of the user if a host has deleted the session.
func (s *Sessions) bring(ctx context.Context, from session.Service, listed session.Session, n note, o adapter.BringOptions, out *adapter.Brought) (d delta, err error) {
	id := adapter.Join(sessionRoot, listed.AppName(), listed.UserID(), listed.ID())
	shown := map[string]any{}
	for k, v := range listed.State().All() {
		shown[k] = v
	}
	if d, err = deltaOf(shown); err != nil {
		return delta{}, unstorable(err)
	}
	for {
		h, was, st, err := s.there(ctx, id, standing(listed))
		if err != nil {
			return d, err
		}
		noted, hosts := strings.CutPrefix(was, byHost)
		noted, number, _ := strings.Cut(noted, " ")
		if noted == standing(listed) {
			out.Unchanged++
			return d, nil
		}
		hosts = hosts || h != nil && noted == ""
		if n.known[noteKey(listed)] && (h == nil || noted == "") {
			out.Unchanged++
			d.user = nil
			return d, nil // A host has deleted it, and may have made another one.
		}
		want, late, err := wanted(ctx, from, listed)
		if err != nil {
			return d, err
		}
		if want == nil {
			out.Unchanged++
			return d, nil // Somebody has deleted it since it was listed.
		}
		both := adapter.Common(st.Nodes, nodesOf(want))
		// A host may have gone back behind what was brought, or have other events.
		if had, _ := strconv.Atoi(number); len(st.Nodes) < had || both < min(len(st.Nodes), len(want)) {
			out.Different = append(out.Different, id)
			return d, nil
		}
		part, err := json.Marshal(d.own)
		if err != nil {
			return d, unstorable(err)
		}
		// If a host has made it here, or has gone on, the state is what the host has made of it.
		goesOn := len(st.Nodes) > len(want) || hosts
		parts := adapter.InCommits(want[both:], func(e brought) int { return len(e.node.Payload) })
		if len(parts) == 0 && !goesOn && !bytes.Equal(st.Contents[statePart], part) {
			parts = [][]brought{nil} // It is the state alone that has changed.
		}
		done := func() {
			out.Brought += len(want) - both
			if len(parts) == 0 {
				out.Unchanged++
			}
		}
		if o.DryRun {
			done()
			return d, nil
		}
		checkpoint := map[string][]byte{}
		if late {
			checkpoint[adapter.LatePart] = nil
		}
		if !goesOn {
			checkpoint[statePart] = part
		}
		if h, err = s.add(ctx, listed, n, h, st, parts, checkpoint, hosts); again(err) {
			continue
		} else if err != nil {
			return d, err
		}
		if st, err = h.Load(ctx, turnstone.Scope{Parts: []string{statePart}}); again(err) {
			continue
		} else if err != nil {
			return d, err
		}
		if adapter.Common(st.Nodes, nodesOf(want)) < len(want) || !goesOn && !bytes.Equal(st.Contents[statePart], part) {
			out.Brought += len(want) - both
			out.Different = append(out.Different, id)
			return d, nil
		}
		at := standing(listed)
		if time.Since(listed.LastUpdateTime()) < time.Minute {
			at = recent
		}
		if records := progress(hosts, at, len(want)); len(parts) > 0 || string(records[0].Value) != was {
			if _, err = n.add(ctx, listed, turnstone.SessionCommit{Session: h, RecordsOnly: true, Commit: turnstone.Commit{Records: records}}); again(err) {
				continue
			}
		}
		done()
		return d, err
	}
}

// wanted returns the events of a session of another service, and whether one of them is late. It returns nil if there is no
// such session.
func wanted(ctx context.Context, from session.Service, of session.Session) (want []brought, late bool, err error) {
	whole, err := from.Get(ctx, &session.GetRequest{AppName: of.AppName(), UserID: of.UserID(), SessionID: of.ID()})
	if err != nil {
		left, listing := from.List(ctx, &session.ListRequest{AppName: of.AppName(), UserID: of.UserID()})
		if listing == nil && !slices.ContainsFunc(left.Sessions, func(s session.Session) bool { return s.ID() == of.ID() }) {
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("the other service: %w", err)
	}
	want = []brought{}
	for e := range whole.Session.Events().All() {
		n, err := nodeOf(e)
		if err != nil {
			return nil, false, unstorable(err)
		}
		want, late = append(want, brought{n, usage(e)}), late || adapter.Late(e.Timestamp)
	}
	return want, late, nil
}

// standing returns the time when the source has updated a session last, as the record of broughtKey has it.
func standing(of session.Session) string { return of.LastUpdateTime().UTC().Format(time.RFC3339Nano) }

// there returns the session of an id with its events and state, and the value of broughtKey. The session is nil if there is
// none. If the value has the time at, nothing has to be brought, and there reads no events.
func (s *Sessions) there(ctx context.Context, id, at string) (turnstone.Persistence, string, *turnstone.State, error) {
	st := &turnstone.State{}
	h, err := s.store.Session(ctx, id)
	if adapter.Gone(err) {
		return nil, "", st, nil
	}
	if err != nil {
		return nil, "", nil, err
	}
	r, err := h.Record(ctx, broughtKey)
	if errors.Is(err, turnstone.ErrRecordNotFound) {
		err = nil
	}
	noted := string(r.Value)
	if err == nil && !strings.HasPrefix(strings.TrimPrefix(noted, byHost), at+" ") {
		st, err = h.Load(ctx, turnstone.Scope{Parts: []string{statePart}})
	}
	if adapter.Gone(err) {
		return nil, "", &turnstone.State{}, nil
	}
	return h, noted, st, err
}

// add makes a commit of each part to a session with a state, and notes with it how far Bring has come. If the session is nil,
// the first commit makes it. add returns the session.
func (s *Sessions) add(ctx context.Context, listed session.Session, n note, to turnstone.Persistence, st *turnstone.State, parts [][]brought, checkpoint map[string][]byte, hosts bool) (turnstone.Persistence, error) {
	at, events := st.Revision, len(st.Nodes)
	for _, some := range parts {
		events += len(some)
		c := turnstone.SessionCommit{Session: to, Commit: turnstone.Commit{Expected: at, Turn: rand.Text(), Usage: usageOf(some), Checkpoint: checkpoint, Records: progress(hosts, begun, events)}}
		for _, e := range some {
			c.Nodes = append(c.Nodes, e.node)
		}
		group := adapter.Join(sessionRoot, listed.AppName(), listed.UserID())
		id := adapter.Join(group, listed.ID())
		if to == nil {
			c.Create = &turnstone.Request{ID: id, Metadata: head.Metadata{Group: group}}
		}
		result, err := n.add(ctx, listed, c)
		if err != nil {
			return nil, err
		}
		if at = result.Revision; to != nil {
			continue
		}
		if to, err = s.store.Session(ctx, id); err != nil {
			return nil, err
		}
	}
	return to, nil
}

// progress returns the change that sets the record of broughtKey. hosts reports whether a host had made the session.
func progress(hosts bool, at string, events int) []turnstone.RecordChange {
	value := fmt.Sprint(at, " ", events)
	if hosts {
		value = byHost + value
	}
	return []turnstone.RecordChange{{Key: broughtKey, Value: []byte(value)}}
}

// knowsState returns an error if nobody knows the state that a session had at an event: of what Bring has brought, the other
// service tells the last state only. wanted reports whether a node has that event; nil stands for the time before all events.
func knowsState(ctx context.Context, h turnstone.Persistence, wanted func(*turnstone.Node) bool) error {
	r, err := h.Record(ctx, broughtKey)
	if errors.Is(err, turnstone.ErrRecordNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	i, err := h.Info(ctx)
	if err != nil {
		return err
	}
	var upto uint64 // events, with that one
	if wanted != nil {
		found := false
		since, err := adapter.Newest(ctx, h, cmp.Or(i.Revision, turnstone.RevisionZero), func(n *turnstone.Node) bool {
			found = wanted(n)
			return found
		})
		if err != nil || !found {
			return err // Who rewinds says that there is none.
		}
		upto = i.Messages - uint64(len(since)) + 1
	}
	at, number, _ := strings.Cut(strings.TrimPrefix(string(r.Value), byHost), " ")
	had, _ := strconv.ParseUint(number, 10, 64)
	if upto < had || at == begun && upto == had {
		return &turnstone.InvalidError{Where: "rewind", Reason: "the event was brought from another service, which does not tell what the state was then"}
	}
	return nil
}

// brought is an event as it is stored, with the tokens that it adds.
type brought struct {
	node turnstone.NewNode
	used []head.Usage
}

func nodesOf(events []brought) []turnstone.NewNode {
	out := make([]turnstone.NewNode, len(events))
	for i := range events {
		out[i] = events[i].node
	}
	return out
}

// usageOf returns the tokens of events, by their models.
func usageOf(events []brought) (out []head.Usage) {
	for _, e := range events {
		for _, u := range e.used {
			i := slices.IndexFunc(out, func(had head.Usage) bool { return had.Model == u.Model })
			if i < 0 {
				i, out = len(out), append(out, head.Usage{Model: u.Model})
			}
			out[i].Input += u.Input
			out[i].Output += u.Output
			out[i].CachedInput += u.CachedInput
			out[i].Reasoning += u.Reasoning
		}
	}
	return out
}

// recordKey returns the key of a record with names of any length.
func recordKey(of string, names ...string) string {
	return of + adapter.Short(adapter.Join("", names...)[1:], 400)
}

// nodeOf returns the node of an event.
func nodeOf(e *session.Event) (turnstone.NewNode, error) {
	stored := *e
	if e.Actions.StateDelta != nil {
		d, err := deltaOf(e.Actions.StateDelta)
		if err != nil {
			return turnstone.NewNode{}, err
		}
		stored.Actions.StateDelta = d.all
	}
	payload, err := adapter.JSON(&stored)
	return turnstone.NewNode{Kind: kind(e), Payload: payload}, err
}

// unstorable returns an error about what a store can't keep, as one that the store itself would return.
func unstorable(err error) error {
	return &turnstone.InvalidError{Where: "a session of the other service", Reason: err.Error()}
}
