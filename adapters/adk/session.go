package adk

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/adk/v2/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
)

// A Session is a session as it was read, with what was appended to it since. It is safe for concurrent use.
type Session struct {
	handle        turnstone.Persistence
	app, user, id string

	appending sync.Mutex   // held while an event is appended; only the holder changes the fields below
	mu        sync.RWMutex // guards the fields below
	revision  head.Revision
	own       state          // the session's own state, as it is stored; it is replaced, not changed
	state     map[string]any // what State shows
	events    events
	updated   time.Time
}

var _ session.Session = (*Session)(nil)

// ID implements session.Session.
func (s *Session) ID() string { return s.id }

// AppName implements session.Session.
func (s *Session) AppName() string { return s.app }

// UserID implements session.Session.
func (s *Session) UserID() string { return s.user }

// State implements session.Session. What is set in it directly is not stored: the state delta of an event is.
func (s *Session) State() session.State { return (*shown)(s) }

// Events implements session.Session. Events that are appended later are not among those that it returns.
func (s *Session) Events() session.Events {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.events
}

// LastUpdateTime implements session.Session: it is the time of the last event, if there is one.
func (s *Session) LastUpdateTime() time.Time {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.updated
}

// Persistence returns the session in the store, for what the kit has no calls for: forks, earlier revisions, watches.
// A commit that others make to it makes s stale, and a node that is no event makes the session unreadable here.
func (s *Session) Persistence() turnstone.Persistence { return s.handle }

// load reads the session's own state, and events.
func (s *Session) load(ctx context.Context, scope turnstone.Scope) (*turnstone.State, error) {
	st, err := s.handle.Load(ctx, scope)
	if err != nil {
		return nil, err
	}
	s.revision, s.updated, s.own = st.Revision, st.Time, state{}
	if part, ok := st.Contents[statePart]; ok { // else the session was not made by this package
		if err := json.Unmarshal(part, &s.own); err != nil || s.own == nil {
			return nil, fmt.Errorf("adk: session %q: part %q is no state: %w", s.id, statePart, err)
		}
	}
	return st, s.add(st.Nodes)
}

// loadSince reads the events again, at least those from a time on. st is what load has returned.
func (s *Session) loadSince(ctx context.Context, st *turnstone.State, since time.Time) error {
	nodes, err := adapter.Newest(ctx, s.handle, cmp.Or(st.Revision, turnstone.RevisionZero), func(n *turnstone.Node) bool {
		return adapter.Before(n, since, st.Contents)
	})
	if err != nil {
		return err
	}
	s.events = nil
	return s.add(nodes)
}

// add adds the events of nodes.
func (s *Session) add(nodes []turnstone.Node) error {
	for _, n := range nodes {
		var e session.Event
		if err := json.Unmarshal(n.Payload, &e); err != nil {
			return fmt.Errorf("adk: session %q: node %s is no event: %w", s.id, n.ID, err)
		}
		if err := retype(n.Payload, &e); err != nil {
			return fmt.Errorf("adk: session %q: node %s: %w", s.id, n.ID, err)
		}
		s.events, s.updated = append(s.events, &e), e.Timestamp
	}
	return nil
}

// retype gives the values of an event's state delta the types that they had.
func retype(payload []byte, e *session.Event) (err error) {
	if !slices.ContainsFunc(slices.Collect(maps.Values(e.Actions.StateDelta)), adapter.Untyped) {
		return nil
	}
	var stored struct {
		Actions struct {
			StateDelta map[string]json.RawMessage `json:"stateDelta"`
		} `json:"actions"`
	}
	if err := json.Unmarshal(payload, &stored); err != nil {
		return err
	}
	for k, v := range stored.Actions.StateDelta {
		if e.Actions.StateDelta[k], err = adapter.Unmarshal(v); err != nil {
			return fmt.Errorf("the state %q: %w", k, err)
		}
	}
	return nil
}

type events []*session.Event

func (e events) Len() int { return len(e) }

func (e events) At(i int) *session.Event {
	if i < 0 || i >= len(e) {
		return nil
	}
	return e[i]
}

func (e events) All() iter.Seq[*session.Event] {
	return func(yield func(*session.Event) bool) {
		for _, event := range e {
			if !yield(event) {
				return
			}
		}
	}
}

// shown is what State shows of a session.
type shown Session

func (s *shown) Get(key string) (any, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if v, ok := s.state[key]; ok {
		return v, nil
	}
	return nil, session.ErrStateKeyNotExist
}

func (s *shown) Set(key string, value any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state[key] = value
	return nil
}

func (s *shown) All() iter.Seq2[string, any] {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.All(maps.Clone(s.state))
}
