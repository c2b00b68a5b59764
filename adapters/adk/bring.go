package adk

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
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
	// broughtKey is the key of the record that says what Bring has brought of a session: the time when the source updated it
	// last, a space, and the number of events.
	broughtKey = "migrated"
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
		note := adapter.Short(adapter.Join(broughtRoot, "sessions", app), turnstone.MaxSessionID)
		known, err := s.states.Read(ctx, note)
		if err != nil {
			return out, fmt.Errorf("adk: %w", err)
		}
		for _, of := range listed.Sessions {
			out.Found++
			key := recordKey("", of.UserID(), of.ID())
			_, before := known[key]
			d, here, err := s.bring(ctx, from, of, before, o, out)
			if err == nil && here && !before && !o.DryRun {
				_, err = s.states.Commit(ctx, []adapter.StateChange{{ID: note, Values: []turnstone.RecordChange{{Key: key}}}})
			}
			switch {
			case errors.Is(err, turnstone.ErrInvalid), errors.Is(err, turnstone.ErrLimit): // The store has limits.
				out.Different = append(out.Different, fmt.Sprintf("session %q of user %q: %v", of.ID(), of.UserID(), err))
			case err != nil:
				return out, fmt.Errorf("adk: session %q of user %q: %w", of.ID(), of.UserID(), err)
			}
			if d.all == nil {
				continue // Its state can't be stored.
			}
			shared[adapter.Join(sessionRoot, app)], shared[adapter.Join(sessionRoot, app, of.UserID())] = d.app, d.user
		}
		for id, values := range shared {
			switch err := s.bringState(ctx, id, values, o, out); {
			case errors.Is(err, turnstone.ErrInvalid), errors.Is(err, turnstone.ErrLimit):
				out.Different = append(out.Different, fmt.Sprintf("state of %s: %v", strings.Join(adapter.Names(id), "/"), err))
			case err != nil:
				return out, fmt.Errorf("adk: state %q: %w", id, err)
			}
		}
	}
	slices.Sort(out.Different)
	return out, nil
}

// bring brings a session, unless a host has deleted one that was brought before. It returns what the session shows of states,
// or the zero delta if no store can keep that, and whether the session is here as it is there.
func (s *Sessions) bring(ctx context.Context, from session.Service, listed session.Session, before bool, o adapter.BringOptions, out *adapter.Brought) (d delta, here bool, err error) {
	app, user, name := listed.AppName(), listed.UserID(), listed.ID()
	id := adapter.Join(sessionRoot, app, user, name)
	shown := map[string]any{}
	for k, v := range listed.State().All() {
		shown[k] = v
	}
	if d, err = deltaOf(shown); err != nil {
		return delta{}, false, unstorable(err)
	}
	stands := listed.LastUpdateTime().UTC().Format(time.RFC3339Nano)
	for {
		h, noted, st, err := s.standing(ctx, id)
		if err != nil {
			return d, false, err
		}
		noted, hosts := strings.CutPrefix(noted, byHost)
		noted, number, _ := strings.Cut(noted, " ")
		if noted == stands {
			out.Unchanged++
			return d, true, nil
		}
		if h == nil && before {
			out.Unchanged++
			return d, false, nil // A host has deleted it.
		}
		whole, err := from.Get(ctx, &session.GetRequest{AppName: app, UserID: user, SessionID: name})
		if err != nil {
			left, listing := from.List(ctx, &session.ListRequest{AppName: app, UserID: user})
			if listing == nil && !slices.ContainsFunc(left.Sessions, func(of session.Session) bool { return of.ID() == name }) {
				out.Unchanged++
				return d, false, nil // Somebody has deleted it since it was listed.
			}
			return d, false, fmt.Errorf("the other service: %w", err)
		}
		var want []brought
		late := false
		for e := range whole.Session.Events().All() {
			n, err := nodeOf(e)
			if err != nil {
				return d, false, unstorable(err)
			}
			want, late = append(want, brought{n, usage(e)}), late || adapter.Late(e.Timestamp)
		}
		both := adapter.Common(st.Nodes, nodesOf(want))
		// A host may have gone back behind what was brought, or have other events.
		if had, _ := strconv.Atoi(number); len(st.Nodes) < had || both < min(len(st.Nodes), len(want)) {
			out.Different = append(out.Different, id)
			return d, false, nil
		}
		if o.DryRun {
			out.Brought += len(want) - both
			return d, false, nil
		}
		part, err := json.Marshal(d.own)
		if err != nil {
			return d, false, unstorable(err)
		}
		checkpoint := map[string][]byte{}
		if late {
			checkpoint[adapter.LatePart] = nil
		}
		// If a host has made it here, or has gone on, the state is what the host has made of it.
		hosts = hosts || h != nil && noted == ""
		goesOn := len(st.Nodes) > len(want) || hosts
		if !goesOn {
			checkpoint[statePart] = part
		}
		parts := adapter.InCommits(want[both:], func(e brought) int { return len(e.node.Payload) })
		if len(parts) == 0 && !goesOn {
			parts = [][]brought{nil} // It is the state alone that has changed.
		}
		r := turnstone.Request{ID: id, Metadata: head.Metadata{Group: adapter.Join(sessionRoot, app, user)}}
		if h, err = s.add(ctx, r, h, st.Revision, parts, checkpoint); err != nil {
			if errors.Is(err, turnstone.ErrConflict) && !errors.Is(err, turnstone.ErrOutcomeUnknown) {
				continue // Somebody else has added events.
			}
			return d, false, err
		}
		if st, err = h.Load(ctx, turnstone.Scope{Parts: []string{statePart}}); err != nil {
			return d, false, err
		}
		out.Brought += len(want) - both
		if adapter.Common(st.Nodes, nodesOf(want)) < len(want) || !goesOn && !bytes.Equal(st.Contents[statePart], part) {
			out.Different = append(out.Different, id)
			return d, false, nil
		}
		note := fmt.Sprint(stands, " ", len(want))
		if hosts {
			note = byHost + note
		}
		_, err = h.ChangeRecords(ctx, turnstone.RecordChange{Key: broughtKey, Value: []byte(note)})
		return d, err == nil, err
	}
}

// standing returns the session of an id with its events, and up to where it was brought. The session is nil if there is none.
func (s *Sessions) standing(ctx context.Context, id string) (turnstone.Persistence, string, *turnstone.State, error) {
	h, err := s.store.Session(ctx, id)
	if adapter.Gone(err) {
		return nil, "", &turnstone.State{}, nil
	}
	if err != nil {
		return nil, "", nil, err
	}
	st, err := h.Load(ctx, turnstone.Scope{Records: []string{broughtKey}})
	if err != nil {
		return nil, "", nil, err
	}
	return h, string(st.Records[broughtKey].Value), st, nil
}

// add makes a commit of each part to a session, which the first one makes if h is nil. It returns the session.
func (s *Sessions) add(ctx context.Context, r turnstone.Request, h turnstone.Persistence, at head.Revision, parts [][]brought, checkpoint map[string][]byte) (turnstone.Persistence, error) {
	for _, some := range parts {
		c := turnstone.SessionCommit{Session: h, Commit: turnstone.Commit{Expected: at, Turn: rand.Text(), Usage: usageOf(some), Checkpoint: checkpoint}}
		for _, e := range some {
			c.Nodes = append(c.Nodes, e.node)
		}
		if h == nil {
			c.Create = &r
			c.Commit.Records = []turnstone.RecordChange{{Key: broughtKey, Value: []byte("begun")}}
		}
		results, err := s.store.CommitAll(ctx, c)
		if err != nil {
			return nil, err
		}
		at = results[0].Revision
		if h == nil {
			if h, err = s.store.Session(ctx, r.ID); err != nil {
				return nil, err
			}
		}
	}
	return h, nil
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
	_, number, done := strings.Cut(strings.TrimPrefix(string(r.Value), byHost), " ")
	had, _ := strconv.ParseUint(number, 10, 64)
	if !done || upto < had {
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

// bringState sets the values of a state that are not there, or that were brought and have changed in the source since. It
// never replaces what somebody sets meanwhile.
func (s *Sessions) bringState(ctx context.Context, id string, values state, o adapter.BringOptions, out *adapter.Brought) error {
	note := adapter.Short(adapter.Join(broughtRoot, id), turnstone.MaxSessionID)
	for {
		versions, err := s.states.Versions(ctx, id)
		if err != nil {
			return err
		}
		there, err := s.states.Read(ctx, id)
		if err != nil {
			return err
		}
		brought, err := s.states.Read(ctx, note)
		if err != nil {
			return err
		}
		var changes []turnstone.RecordChange
		var others []string
		for _, c := range values.changes() {
			has, known := there[c.Key]
			switch {
			case known && bytes.Equal(has, c.Value):
			case known && string(brought[c.Key]) != sumOf(has):
				others = append(others, fmt.Sprintf("state %q of %s", c.Key, strings.Join(adapter.Names(id), "/")))
			default:
				if c.Expect = versions[c.Key]; c.Expect == "" {
					c.Expect = turnstone.NoRecord
				}
				changes = append(changes, c)
			}
		}
		again := false
		if !o.DryRun {
			again, err = s.setStates(ctx, id, note, changes, func(c turnstone.RecordChange, err error) {
				others = append(others, fmt.Sprintf("state %q of %s: %v", c.Key, strings.Join(adapter.Names(id), "/"), err))
			})
		}
		if err != nil || !again {
			out.Different = append(out.Different, others...)
			return err
		}
	}
}

// setStates sets values of a state, and notes them. It calls refused for those that the store refuses. again says that
// somebody has set one of them meanwhile.
func (s *Sessions) setStates(ctx context.Context, id, note string, changes []turnstone.RecordChange, refused func(turnstone.RecordChange, error)) (again bool, err error) {
	for _, some := range adapter.InCommits(changes, func(c turnstone.RecordChange) int { return len(c.Value) }) {
		var notes []turnstone.RecordChange
		for _, c := range some {
			notes = append(notes, turnstone.RecordChange{Key: c.Key, Value: []byte(sumOf(c.Value))})
		}
		_, err := s.states.Commit(ctx, []adapter.StateChange{{ID: id, Values: some}, {ID: note, Values: notes}})
		switch bad := errors.Is(err, turnstone.ErrInvalid) || errors.Is(err, turnstone.ErrLimit); {
		case err == nil:
		case bad && len(some) == 1:
			refused(some[0], err)
		case bad:
			for _, c := range some {
				if again, err := s.setStates(ctx, id, note, []turnstone.RecordChange{c}, refused); again || err != nil {
					return again, err
				}
			}
		case errors.Is(err, turnstone.ErrRecordConflict) && !errors.Is(err, turnstone.ErrOutcomeUnknown):
			return true, nil
		default:
			return false, err
		}
	}
	return false, nil
}

func sumOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])[:32]
}
