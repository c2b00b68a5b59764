package adapter

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

const (
	// statePrefix is what the keys of records begin with that are values of state.
	statePrefix = "state/"
	// largeKey is the key of the directory of large values. It sorts before the keys of values.
	largeKey = "state-large"
	// partPrefix is what the keys of records begin with that have a part of a large value.
	partPrefix = "part/"
	// MaxState is how many bytes a value has at most. turnstone.MaxCommitBytes limits what changes at once, compressed: a
	// value of 1 MiB fits alone, whatever it is.
	MaxState = 200 * turnstone.MaxRecord
)

// States keeps the states of users and apps, which several sessions share. Each state is stored as the records of a
// session of its own. That session is made when the state gets its first value, and no prune deletes it. A value that is
// too large for one record is stored in several, and the directory, which is a record as well, says in how many. Each
// commit checks that nobody has changed the directory since it was read. A key has at most 506 bytes. States is safe for
// concurrent use.
type States struct {
	store turnstone.Factory
	group string
	known remembered[*state]
}

// A state is what was read of the session of one state.
type state struct {
	handle  turnstone.Persistence   // nil if there is no session
	large   map[string]large        // by the keys of values
	version turnstone.RecordVersion // of the directory
}

// A large is the entry of a large value in the directory.
type large struct {
	ID      string // is in the keys of the records that have the value
	Records int
}

func (l large) key(i int) string { return fmt.Sprintf("%s%s/%03d", partPrefix, l.ID, i) }

// NewStates returns the states whose sessions are in a group.
func NewStates(store turnstone.Factory, group string) *States {
	return &States{store: store, group: group}
}

// A StateChange is what changes of the state in one session. Key is that of a value, and an action of
// turnstone.RecordChange says what becomes of it.
type StateChange struct {
	ID     string
	Values []turnstone.RecordChange
}

// Commit makes changes of states and commits to other sessions in one batch, and returns the results of the commits.
func (s *States) Commit(ctx context.Context, changes []StateChange, own ...turnstone.SessionCommit) ([]turnstone.Result, error) {
	changes = slices.DeleteFunc(slices.Clone(changes), func(c StateChange) bool { return len(c.Values) == 0 })
	if len(changes) == 0 && len(own) == 0 {
		return nil, nil
	}
	store, err := storeOf(ctx, s.store)
	if err != nil {
		return nil, err
	}
	for again := false; ; {
		commits := own[:len(own):len(own)]
		for _, change := range changes {
			st, err := s.state(ctx, place{store, change.ID})
			if err != nil {
				return nil, err
			}
			c := turnstone.SessionCommit{Session: st.handle, RecordsOnly: true}
			if c.Records, err = st.records(change.Values); err != nil {
				return nil, err
			}
			commits = append(commits, c)
		}
		for i := range commits { // before sessions are made
			if err := commits[i].Check(); err != nil {
				return nil, err
			}
		}
		for i := range commits[len(own):] {
			if c := &commits[len(own)+i]; c.Session == nil {
				h, err := s.create(ctx, changes[i].ID)
				if err != nil {
					return nil, err
				}
				c.Session = h
			}
		}
		results, err := s.store.CommitAll(ctx, commits...)
		var conflict *turnstone.RecordConflictError
		switch {
		case err == nil:
			for i, c := range commits[len(own):] {
				if c.Records[len(c.Records)-1].Action == turnstone.SetRecord { // The directory has changed.
					s.forget(store, changes[i])
				}
			}
			return results[:len(own)], nil
		case errors.As(err, &conflict) && conflict.Key == largeKey && !errors.Is(err, turnstone.ErrOutcomeUnknown):
			s.forget(store, changes...)
		case Gone(err) && !again && len(changes) > 0 && !errors.Is(err, turnstone.ErrOutcomeUnknown):
			again = true // Somebody has deleted one of the states.
			s.forget(store, changes...)
		default:
			return nil, err
		}
	}
}

// records returns what changes of the records when values change.
func (st *state) records(values []turnstone.RecordChange) ([]turnstone.RecordChange, error) {
	var out []turnstone.RecordChange
	named, same := maps.Clone(st.large), true
	for _, v := range values {
		if err := check(v); err != nil {
			return nil, err
		}
		if v.Action == turnstone.CheckRecord {
			out = append(out, turnstone.RecordChange{Key: statePrefix + v.Key, Action: v.Action, Expect: v.Expect})
			continue
		}
		old, was := named[v.Key]
		whole := v.Value
		l := large{ID: old.ID}
		if len(whole) > turnstone.MaxRecord {
			v.Value = nil // The record stays, so that a reader of all keys finds this one while the value changes its place.
			if !was {
				l.ID = rand.Text()
			}
			for part := range slices.Chunk(whole, turnstone.MaxRecord) {
				out = append(out, turnstone.RecordChange{Key: l.key(l.Records), Value: part})
				l.Records++
			}
			named[v.Key] = l
		} else {
			delete(named, v.Key)
		}
		same = same && !was && l.Records == 0
		for i := l.Records; i < old.Records; i++ {
			out = append(out, turnstone.RecordChange{Key: old.key(i), Action: turnstone.DeleteRecord})
		}
		v.Key = statePrefix + v.Key
		out = append(out, v)
	}
	if len(out) >= turnstone.MaxRecords {
		return nil, &turnstone.LimitError{Limit: "values and parts of large ones", Where: "state", Have: int64(len(out)), Max: turnstone.MaxRecords - 1}
	}
	last := turnstone.RecordChange{Key: largeKey, Action: turnstone.CheckRecord, Expect: st.version}
	if !same {
		value, err := json.Marshal(named)
		if err != nil {
			return nil, err
		}
		last.Action, last.Value = turnstone.SetRecord, value
	}
	return append(out, last), nil
}

// check returns an error that speaks of a value of state, and not of a record.
func check(v turnstone.RecordChange) error {
	where := fmt.Sprintf("state %.80q", v.Key)
	switch {
	case len(v.Key) > turnstone.MaxRecordKey-len(statePrefix):
		return &turnstone.LimitError{Limit: "key bytes", Where: where, Have: int64(len(v.Key)), Max: int64(turnstone.MaxRecordKey - len(statePrefix))}
	case len(v.Value) > MaxState:
		return &turnstone.LimitError{Limit: "value bytes", Where: where, Have: int64(len(v.Value)), Max: MaxState}
	case strings.ContainsRune(v.Key, 0):
		return &turnstone.InvalidError{Where: where, Reason: "the key has a zero byte"}
	case !utf8.ValidString(v.Key):
		return &turnstone.InvalidError{Where: where, Reason: "the key is not UTF-8"}
	}
	return nil
}

// state returns what is known of a state, which it reads if nothing is.
func (s *States) state(ctx context.Context, at place) (*state, error) {
	if st, found := s.known.get(at); found {
		return st, nil
	}
	st := &state{version: turnstone.NoRecord, large: map[string]large{}}
	h, err := s.store.Session(ctx, at.id)
	if Gone(err) {
		return st, nil
	}
	if err != nil {
		return nil, err
	}
	st.handle = h
	switch r, err := h.Record(ctx, largeKey); {
	case err == nil:
		err := st.named(r)
		if err != nil {
			return nil, err
		}
	case !errors.Is(err, turnstone.ErrRecordNotFound):
		if Gone(err) {
			return &state{version: turnstone.NoRecord, large: map[string]large{}}, nil
		}
		return nil, err
	}
	if at.store != nil {
		s.known.set(at, st)
	}
	return st, nil
}

// named reads the directory.
func (st *state) named(r turnstone.Record) error {
	st.version, st.large = r.Version, map[string]large{}
	if err := json.Unmarshal(r.Value, &st.large); err != nil {
		return fmt.Errorf("the record %q of a state is no directory of large values: %w", largeKey, err)
	}
	return nil
}

// create makes the session of a state.
func (s *States) create(ctx context.Context, id string) (turnstone.Persistence, error) {
	// Using a state changes nothing in this session: without KeepAll a prune could take it for inactive.
	h, _, err := s.store.Create(ctx, turnstone.Request{ID: id, Metadata: head.Metadata{Group: s.group, Retention: head.KeepAll}})
	return h, err
}

// forget forgets what is known of the states that change.
func (s *States) forget(store turnstone.Factory, changes ...StateChange) {
	for _, c := range changes {
		s.known.forget(place{store, c.ID})
	}
}

// Read returns the values of a state, by their keys: none if it has none. No value is nil.
func (s *States) Read(ctx context.Context, id string) (map[string][]byte, error) {
	h, err := s.store.Session(ctx, id)
	for err == nil {
		var out map[string][]byte
		var whole bool
		if out, whole, err = values(ctx, h); whole {
			return out, nil
		}
	}
	if Gone(err) {
		return nil, nil
	}
	return nil, err
}

// Versions returns the version of each value of a state, by the value's key. A change of the value can expect it.
func (s *States) Versions(ctx context.Context, id string) (map[string]turnstone.RecordVersion, error) {
	out := map[string]turnstone.RecordVersion{}
	h, err := s.store.Session(ctx, id)
	var found []turnstone.Record
	if err == nil {
		found, _, err = Records(ctx, h, statePrefix)
	}
	if err != nil && !Gone(err) {
		return nil, err
	}
	for _, r := range found {
		out[strings.TrimPrefix(r.Key, statePrefix)] = r.Version
	}
	return out, nil
}

// values reads the values of a state. whole is false if somebody has changed large ones meanwhile.
func values(ctx context.Context, h turnstone.Persistence) (out map[string][]byte, whole bool, err error) {
	out = map[string][]byte{}
	st := state{version: turnstone.NoRecord}
	found, pages, err := Records(ctx, h, "state")
	if err != nil {
		return nil, false, err
	}
	for _, r := range found {
		if key, ok := strings.CutPrefix(r.Key, statePrefix); ok {
			out[key] = append([]byte{}, r.Value...)
		} else if err := st.named(r); err != nil {
			return nil, false, err
		}
	}
	damaged := ""
	for key, l := range st.large {
		parts, _, err := Records(ctx, h, partPrefix+l.ID+"/")
		if err != nil {
			return nil, false, err
		}
		if len(parts) != l.Records {
			damaged = key
			break
		}
		var value []byte
		for _, r := range parts {
			value = append(value, r.Value...)
		}
		out[key] = value
	}
	if pages == 1 && st.version != turnstone.NoRecord && len(st.large) == 0 {
		return out, true, nil // One page is of one moment, and it has the directory, which is empty.
	}
	// The pages are of several moments: large values may have changed in between.
	r, err := h.Record(ctx, largeKey)
	if errors.Is(err, turnstone.ErrRecordNotFound) {
		r.Version, err = turnstone.NoRecord, nil
	}
	whole = err == nil && r.Version == st.version
	if whole && damaged != "" {
		return nil, false, fmt.Errorf("the state %q is damaged: records of it are missing", damaged)
	}
	return out, whole, err
}

// Records returns all records of a session whose keys begin with prefix, and in how many pages they came: one page is of
// one moment, and several are not.
func Records(ctx context.Context, h turnstone.Persistence, prefix string) (out []turnstone.Record, pages int, err error) {
	for q := (turnstone.RecordQuery{Prefix: prefix, Limit: turnstone.MaxPage}); ; {
		page, err := h.Records(ctx, q)
		if err != nil {
			return nil, 0, err
		}
		out, pages = append(out, page.Records...), pages+1
		if q.After = page.Next; q.After == "" {
			return out, pages, nil
		}
	}
}
