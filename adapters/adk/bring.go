package adk

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	// broughtKey is the key of a record that each commit of Bring sets in the session: see noted.
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
// service shows the state of users and apps with their sessions only: without a session, Bring does not find it. If the other
// service can't read what it lists, Bring ends with its error.
func (s *Sessions) Bring(ctx context.Context, from session.Service, o adapter.BringOptions, apps ...string) (*adapter.Brought, error) {
	out := &adapter.Brought{}
	for _, app := range apps {
		listed, err := from.List(ctx, &session.ListRequest{AppName: app})
		if err != nil {
			return out, fmt.Errorf("adk: the other service: %w", err)
		}
		n := sessionNotes{states: s.states, id: adapter.Short(adapter.Join(broughtRoot, "sessions", app), turnstone.MaxSessionID), known: map[string]bool{}}
		if err := n.read(ctx); err != nil {
			return out, fmt.Errorf("adk: %w", err)
		}
		all := &owner{names: []string{app}, prefix: session.KeyPrefixApp}
		owners, users := []*owner{}, map[string]*owner{}
		for _, of := range listed.Sessions {
			out.Found++
			b := bringing{Sessions: s, from: from, of: of, id: adapter.Join(sessionRoot, app, of.UserID(), of.ID()), note: n, dry: o.DryRun, out: out}
			err := b.bring(ctx)
			switch {
			case refused(err):
				out.Different = append(out.Different, fmt.Sprintf("session %q of user %q: %v", of.ID(), of.UserID(), err))
			case err != nil:
				return out, fmt.Errorf("adk: session %q of user %q: %w", of.ID(), of.UserID(), err)
			}
			user := users[of.UserID()]
			if user == nil {
				user = &owner{names: []string{app, of.UserID()}, prefix: session.KeyPrefixUser}
				owners, users[of.UserID()] = append(owners, user), user
			}
			all.add(&b)
			user.add(&b)
		}
		for _, of := range append(owners, all) {
			err := s.bringState(ctx, from, n, of, o.DryRun, out)
			if name := strings.Join(of.names, "/"); refused(err) {
				out.Different = append(out.Different, fmt.Sprintf("state of %s: %v", name, err))
			} else if err != nil {
				return out, fmt.Errorf("adk: state of %q: %w", name, err)
			}
		}
	}
	slices.Sort(out.Different)
	return out, nil
}

// elsewhere is an error of the other service. It says nothing of what is here, whatever it matches.
type elsewhere struct{ error }

func (e elsewhere) Unwrap() error { return e.error }

// current returns a session of another service as it is now, with that many of its last events, or all if events is 0. It
// returns nil if somebody has deleted the session since it was listed.
func current(ctx context.Context, from session.Service, of session.Session, events int) (session.Session, error) {
	r, err := from.Get(ctx, &session.GetRequest{AppName: of.AppName(), UserID: of.UserID(), SessionID: of.ID(), NumRecentEvents: events})
	if err == nil {
		return r.Session, nil
	}
	left, listing := from.List(ctx, &session.ListRequest{AppName: of.AppName(), UserID: of.UserID()})
	if listing == nil && !slices.ContainsFunc(left.Sessions, func(s session.Session) bool { return s.ID() == of.ID() }) {
		return nil, nil
	}
	return nil, fmt.Errorf("the other service: %w", elsewhere{err})
}

// sessionNotes are the notes of an app: a state that has a value for each session that Bring has brought.
type sessionNotes struct {
	states *adapter.States
	id     string
	known  map[string]bool // by the keys of values
}

// noteKey returns the key of a session's value: a hash, which names no user who is erased.
func noteKey(of session.Session) string { return sumOf([]byte(adapter.Join("", of.UserID(), of.ID()))) }

func (n sessionNotes) read(ctx context.Context) error {
	known, err := n.states.Read(ctx, n.id)
	for key := range known {
		n.known[key] = true
	}
	return err
}

// add makes a commit to a session, and notes the session with the same commit.
func (n sessionNotes) add(ctx context.Context, of session.Session, c turnstone.SessionCommit) (turnstone.Result, error) {
	var changes []adapter.StateChange
	if !n.known[noteKey(of)] {
		changes = []adapter.StateChange{{ID: n.id, Values: []turnstone.RecordChange{{Key: noteKey(of), Expect: turnstone.NoRecord}}}}
	}
	results, err := n.states.Commit(ctx, changes, c)
	if conflicts(err) && errors.Is(err, turnstone.ErrRecordConflict) { // Perhaps another Bring has noted it.
		err = cmp.Or(n.read(ctx), err)
	}
	if err != nil {
		return turnstone.Result{}, err
	}
	n.known[noteKey(of)] = true
	return results[0], nil
}

// conflicts reports whether an error says that somebody else has changed or deleted a session. Bring looks at it again then.
func conflicts(err error) bool {
	other := errors.Is(err, turnstone.ErrConflict) || errors.Is(err, turnstone.ErrRecordConflict) || adapter.Gone(err)
	return other && !errors.Is(err, turnstone.ErrOutcomeUnknown) && !errors.As(err, new(elsewhere))
}

// refused reports whether an error says that this store refuses what the other service has.
func refused(err error) bool { return adapter.Refused(err) && !errors.As(err, new(elsewhere)) }

// noted is the content of the record that Bring keeps in a session. Its number of events never falls: an event that a host takes
// back does not come again.
type noted struct {
	hosts  bool   // A host had made the session.
	at     string // the time of the source's last update, or begun or recent
	events int    // that were brought
}

func notedIn(r turnstone.Record) (n noted) {
	value, hosts := strings.CutPrefix(string(r.Value), byHost)
	at, events, _ := strings.Cut(value, " ")
	n = noted{hosts: hosts, at: at}
	n.events, _ = strconv.Atoi(events)
	return n
}

// set returns the change that notes it instead of a record, or where there is none.
func (n noted) set(instead turnstone.Record) turnstone.RecordChange {
	value := fmt.Sprint(n.at, " ", n.events)
	if n.hosts {
		value = byHost + value
	}
	return turnstone.RecordChange{Key: broughtKey, Value: []byte(value), Expect: cmp.Or(instead.Version, turnstone.NoRecord)}
}

// bringing is the work of Bring on a session.
type bringing struct {
	*Sessions
	from session.Service
	of   session.Session // as the other service lists it
	id   string
	note sessionNotes
	dry  bool
	out  *adapter.Brought

	changed bool // something here
}

// bring brings a session, but not one that was brought before and that a host has deleted since. It reads the session here first,
// then the other service, and stores only if the session here has not changed meanwhile. So it replaces nothing newer.
func (b *bringing) bring(ctx context.Context) error {
	for {
		err := b.once(ctx)
		if conflicts(err) {
			continue
		}
		if err == nil && !b.changed {
			b.out.Unchanged++
		}
		return err
	}
}

func (b *bringing) once(ctx context.Context) error {
	h, r, st, err := b.there(ctx)
	if err != nil {
		return err
	}
	was := notedIn(r)
	if was.at == updated(b.of) {
		return nil
	}
	if b.note.known[noteKey(b.of)] && was.at == "" {
		return nil // A host has deleted it, and may have made another one.
	}
	want, err := b.wanted(ctx)
	if err != nil || want == nil {
		return err
	}
	both := adapter.Common(st.Nodes, nodesOf(want.events))
	// A host may have gone back behind what was brought, or have other events.
	if len(st.Nodes) < was.events || both < min(len(st.Nodes), len(want.events)) {
		b.differs()
		return nil
	}
	is := noted{hosts: was.hosts || h != nil && was.at == "", at: begun, events: was.events}
	// If a host has made it here, or has gone on, the state is what the host has made of it.
	goesOn := len(st.Nodes) > len(want.events) || is.hosts
	parts := adapter.InCommits(want.events[both:], func(e brought) int { return len(e.node.Payload) })
	if len(parts) == 0 && !goesOn && !bytes.Equal(st.Contents[statePart], want.state) {
		parts = [][]brought{nil} // It is the state alone that has changed.
	}
	if b.dry {
		b.changed, b.out.Brought = len(parts) > 0, b.out.Brought+len(want.events)-both
		return nil
	}
	checkpoint := map[string][]byte{}
	if want.late {
		checkpoint[adapter.LatePart] = nil
	}
	if !goesOn {
		checkpoint[statePart] = want.state
	}
	revision := st.Revision
	for _, some := range parts {
		c := turnstone.SessionCommit{Session: h, Commit: turnstone.Commit{Expected: revision, Turn: rand.Text(), Nodes: nodesOf(some), Usage: usageOf(some), Checkpoint: checkpoint}}
		if h == nil {
			c.Create = &turnstone.Request{ID: b.id, Metadata: head.Metadata{Group: adapter.Join(sessionRoot, b.of.AppName(), b.of.UserID())}}
		}
		both += len(some)
		is.events = max(is.events, both)
		c.Records = []turnstone.RecordChange{is.set(r)}
		result, err := b.note.add(ctx, b.of, c)
		if err != nil {
			return err
		}
		b.changed, b.out.Brought, revision = true, b.out.Brought+len(some), result.Revision
		if h == nil {
			if h, err = b.store.Session(ctx, b.id); err != nil {
				return err
			}
		}
		if r, err = record(ctx, h); err != nil {
			return err
		}
		if notedIn(r) != is { // Another Bring has gone on, or a host has made another session of that id.
			return turnstone.ErrRecordConflict
		}
	}
	if st, err = h.Load(ctx, turnstone.Scope{Parts: []string{statePart}}); err != nil {
		return err
	}
	if adapter.Common(st.Nodes, nodesOf(want.events)) < len(want.events) || !goesOn && !bytes.Equal(st.Contents[statePart], want.state) {
		b.differs()
		return nil
	}
	if is.at, is.events = want.at, max(is.events, len(want.events)); is == notedIn(r) {
		return nil
	}
	_, err = b.note.add(ctx, b.of, turnstone.SessionCommit{Session: h, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{is.set(r)}}})
	return err
}

func (b *bringing) differs() {
	b.changed, b.out.Different = true, append(b.out.Different, b.id)
}

// whole is a session of another service.
type whole struct {
	events []brought
	state  []byte // the content of statePart
	late   bool   // one of the events is late
	at     string // when the source has updated it last, or recent
}

// wanted returns the session as it is now. It returns nil if there is none.
func (b *bringing) wanted(ctx context.Context) (*whole, error) {
	is, err := current(ctx, b.from, b.of, 0)
	if is == nil || err != nil {
		return nil, err
	}
	w := &whole{at: updated(is)}
	if time.Since(is.LastUpdateTime()) < time.Minute {
		w.at = recent
	}
	own := maps.Collect(is.State().All())
	maps.DeleteFunc(own, func(key string, _ any) bool { // bringState brings them.
		return strings.HasPrefix(key, session.KeyPrefixApp) || strings.HasPrefix(key, session.KeyPrefixUser)
	})
	d, err := deltaOf(own)
	if err != nil {
		return nil, unstorable(err)
	}
	if w.state, err = json.Marshal(d.own); err != nil {
		return nil, unstorable(err)
	}
	for e := range is.Events().All() {
		n, err := nodeOf(e)
		if err != nil {
			return nil, unstorable(err)
		}
		w.events, w.late = append(w.events, brought{n, usage(e)}), w.late || adapter.Late(e.Timestamp)
	}
	return w, nil
}

// updated returns the time of the last update of a session in the source, as it is noted: see noted.at.
func updated(of session.Session) string { return of.LastUpdateTime().UTC().Format(time.RFC3339Nano) }

// record returns the record of broughtKey, or the zero record if there is none.
func record(ctx context.Context, h turnstone.Persistence) (turnstone.Record, error) {
	r, err := h.Record(ctx, broughtKey)
	if errors.Is(err, turnstone.ErrRecordNotFound) {
		return turnstone.Record{}, nil
	}
	return r, err
}

// there returns the session here, the record of broughtKey and, if something may have to be brought, the events and the state.
// The session is nil if there is none.
func (b *bringing) there(ctx context.Context) (turnstone.Persistence, turnstone.Record, *turnstone.State, error) {
	st, none := &turnstone.State{}, turnstone.Record{}
	h, err := b.store.Session(ctx, b.id)
	if adapter.Gone(err) {
		return nil, none, st, nil
	}
	if err != nil {
		return nil, none, nil, err
	}
	r, err := record(ctx, h)
	if err == nil && notedIn(r).at != updated(b.of) {
		st, err = h.Load(ctx, turnstone.Scope{Parts: []string{statePart}})
	}
	if adapter.Gone(err) {
		return nil, none, &turnstone.State{}, nil
	}
	return h, r, st, err
}

// knowsState returns an error if nobody knows the state that a session had at an event: of what Bring has brought, the other
// service tells the last state only. wanted reports whether a node has that event; nil stands for the time before all events.
func knowsState(ctx context.Context, h turnstone.Persistence, wanted func(*turnstone.Node) bool) error {
	r, err := record(ctx, h)
	if err != nil || r.Version == "" {
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
	had := notedIn(r)
	if upto < uint64(had.events) || had.at == begun && upto == uint64(had.events) {
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
