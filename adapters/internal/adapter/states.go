package adapter

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

const (
	// statePrefix is what the keys of records begin with that are values of state.
	statePrefix = "state/"
	// maxStates is how many handles are kept.
	maxStates = 10_000
)

// States keeps the states of users and apps, which several sessions share. A state is the records of a session of its
// own. That session is made when the state gets its first value, and no prune deletes it. A value has at most
// turnstone.MaxRecord bytes, and a key has at most 506 bytes. States is safe for concurrent use.
type States struct {
	store turnstone.Factory
	group string

	mu      sync.Mutex                       // guards handles
	handles map[string]turnstone.Persistence // by the ids of their sessions
}

// NewStates returns the states whose sessions are in a group.
func NewStates(store turnstone.Factory, group string) *States {
	return &States{store: store, group: group, handles: map[string]turnstone.Persistence{}}
}

// A StateChange is what changes of the state in one session. Key is that of a value, and an action of
// turnstone.RecordChange says what becomes of it.
type StateChange struct {
	ID     string
	Values []turnstone.RecordChange
}

// Commit makes changes of states and commits to other sessions in one batch, and returns the results of the commits.
func (s *States) Commit(ctx context.Context, changes []StateChange, own ...turnstone.SessionCommit) ([]turnstone.Result, error) {
	commits := own[:len(own):len(own)]
	var ids []string
	for _, change := range changes {
		if len(change.Values) == 0 {
			continue
		}
		c := turnstone.SessionCommit{RecordsOnly: true}
		for _, v := range change.Values {
			v.Key = statePrefix + v.Key
			c.Records = append(c.Records, v)
		}
		commits, ids = append(commits, c), append(ids, change.ID)
	}
	if len(commits) == 0 {
		return nil, nil
	}
	for i := range commits { // before sessions are made
		if err := commits[i].Check(); err != nil {
			return nil, err
		}
	}
	for again := false; ; {
		for i, id := range ids {
			h, err := s.handle(ctx, id)
			if err != nil {
				return nil, err
			}
			commits[len(own)+i].Session = h
		}
		results, err := s.store.CommitAll(ctx, commits...)
		switch {
		case err == nil:
			return results[:len(own)], nil
		case Gone(err) && !again && len(ids) > 0 && !errors.Is(err, turnstone.ErrOutcomeUnknown):
			again = true // Somebody has deleted one of the states.
			s.mu.Lock()
			clear(s.handles)
			s.mu.Unlock()
		default:
			return nil, err
		}
	}
}

// handle returns the session of a state, which it makes if there is none.
func (s *States) handle(ctx context.Context, id string) (turnstone.Persistence, error) {
	s.mu.Lock()
	h := s.handles[id]
	s.mu.Unlock()
	if h != nil {
		return h, nil
	}
	// Using a state changes nothing in this session: without KeepAll a prune could take it for inactive.
	h, _, err := s.store.Create(ctx, turnstone.Request{ID: id, Metadata: head.Metadata{Group: s.group, Retention: head.KeepAll}})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.handles) >= maxStates {
		clear(s.handles)
	}
	s.handles[id] = h
	return h, nil
}

// Read returns the values of a state, by their keys: none if it has none. No value is nil.
func (s *States) Read(ctx context.Context, id string) (map[string][]byte, error) {
	out := map[string][]byte{}
	h, err := s.store.Session(ctx, id)
	for q := (turnstone.RecordQuery{Prefix: statePrefix, Limit: turnstone.MaxPage}); err == nil; {
		var page turnstone.RecordPage
		if page, err = h.Records(ctx, q); err != nil {
			break
		}
		for _, r := range page.Records {
			out[strings.TrimPrefix(r.Key, statePrefix)] = append([]byte{}, r.Value...)
		}
		if q.After = page.Next; q.After == "" {
			return out, nil
		}
	}
	if Gone(err) {
		return nil, nil
	}
	return nil, err
}
