package adk

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"sync"
	"time"

	"google.golang.org/adk/v2/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// A Session is a session as it was read, with what was appended to it since. It is safe for concurrent use.
type Session struct {
	handle        turnstone.Persistence
	app, user, id string

	mu       sync.RWMutex // guards what follows
	revision head.Revision
	own      map[string]any // the session's own state, as it is stored; it is replaced, not changed
	state    map[string]any // what State shows
	events   events
	updated  time.Time
}

var _ session.Session = (*Session)(nil)

// ID implements session.Session.
func (s *Session) ID() string { return s.id }

// AppName implements session.Session.
func (s *Session) AppName() string { return s.app }

// UserID implements session.Session.
func (s *Session) UserID() string { return s.user }

// State implements session.Session. What is set in it directly is not stored: the state delta of an event is.
func (s *Session) State() session.State { return (*state)(s) }

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

// Persistence returns the session in the store, for what the kit has no calls for: forks, earlier revisions, watches. Who commits to it by
// himself makes s stale.
func (s *Session) Persistence() turnstone.Persistence { return s.handle }

// readState reads the state of a session that a list has shown, and no more of its history than what came since.
func (s *Session) readState(ctx context.Context, i *turnstone.Info) error {
	st, err := s.handle.Load(ctx, turnstone.Scope{After: i.Revision, Parts: []string{statePart}})
	if err != nil {
		return err
	}
	s.revision, s.updated = st.Revision, st.Time
	return s.setOwn(st.Contents[statePart])
}

// setOwn sets the session's own state.
func (s *Session) setOwn(part []byte) error {
	if part != nil { // else the session was not made by this package
		if err := json.Unmarshal(part, &s.own); err != nil {
			return fmt.Errorf("adk: session %q: part %q is no state: %w", s.id, statePart, err)
		}
	}
	if s.own == nil {
		s.own = map[string]any{}
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

// state is what State shows of a session.
type state Session

func (s *state) Get(key string) (any, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if v, ok := s.state[key]; ok {
		return v, nil
	}
	return nil, session.ErrStateKeyNotExist
}

func (s *state) Set(key string, value any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state[key] = value
	return nil
}

func (s *state) All() iter.Seq2[string, any] {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.All(maps.Clone(s.state))
}
