package adk

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/adk/v2/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
)

// owner is an app, or a user of an app. A service shows its state with each of its sessions.
type owner struct {
	names    []string // of the app, and of the user
	prefix   string   // of the keys of its state
	sessions []session.Session
	changed  bool // Bring has changed one of them here.
}

func (o *owner) add(b *bringing) {
	o.sessions = append(o.sessions, b.of)
	o.changed = o.changed || b.changed
}

// shownWith returns the state of the owner as it is shown with a session, and what is wrong with values that can't be stored.
func (o *owner) shownWith(of session.Session) (values state, odd []string) {
	values = state{}
	for key, v := range of.State().All() {
		if name, ok := strings.CutPrefix(key, o.prefix); ok {
			value, err := adapter.Marshal(v)
			if err != nil {
				odd = append(odd, fmt.Sprintf("state %q of %s: %v", name, strings.Join(o.names, "/"), err))
				continue
			}
			values[name] = value
		}
	}
	return values, odd
}

// now reads the state of the owner from a service. There is none if the sessions have been deleted since they were listed.
func (o *owner) now(ctx context.Context, from session.Service) (values state, odd []string, err error) {
	for _, of := range o.sessions {
		if is, err := current(ctx, from, of, 1); err != nil {
			return nil, nil, err
		} else if is != nil {
			values, odd = o.shownWith(is)
			return values, odd, nil
		}
	}
	return nil, nil, nil
}

// maxUnknown is the most sessions of a user that a proof names as not brought. A commit has at most 256 records.
const maxUnknown = 200

// A proof shows that no host has erased a user meanwhile. It holds when a state is set, or nothing is stored.
type proof struct {
	sessions []turnstone.SessionCommit
	states   []adapter.StateChange
}

// stays returns the proof that the first session of a user that is here and was brought is still here. If no session of the user
// was brought, it is the proof that none of the first maxUnknown was. If hosts have deleted all that were brought, gone is true.
func (s *Sessions) stays(ctx context.Context, n sessionNotes, o *owner) (is proof, gone bool, err error) {
	if o.prefix == session.KeyPrefixApp {
		return is, false, nil
	}
	known := func(of session.Session) bool { return n.known[noteKey(of)] }
	if !slices.ContainsFunc(o.sessions, known) { // Perhaps another Bring has brought one.
		if err := n.read(ctx); err != nil {
			return is, false, err
		}
	}
	unknown := adapter.StateChange{ID: n.id}
	for _, of := range o.sessions {
		gone = gone || known(of)
		h, err := s.store.Session(ctx, adapter.Join(sessionRoot, of.AppName(), of.UserID(), of.ID()))
		var r turnstone.Record
		if err == nil {
			r, err = record(ctx, h)
		}
		if err != nil && !adapter.Gone(err) && !adapter.Refused(err) { // A name that is refused is not here.
			return is, false, err
		}
		if err == nil && r.Version != "" {
			unchanged := turnstone.RecordChange{Key: broughtKey, Action: turnstone.CheckRecord, Expect: r.Version}
			is.sessions = []turnstone.SessionCommit{{Session: h, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{unchanged}}}}
			return is, false, nil
		}
		if len(unknown.Values) < maxUnknown {
			unknown.Values = append(unknown.Values, turnstone.RecordChange{Key: noteKey(of), Action: turnstone.CheckRecord, Expect: turnstone.NoRecord})
		}
	}
	if !gone {
		is.states = []adapter.StateChange{unknown}
	}
	return is, gone, nil
}

// standing is what is here of a state, and what was brought of it.
type standing struct {
	id, note        string                             // of the state, and of the state with a hash of each value that was brought
	values, brought map[string][]byte                  // of both
	versions, noted map[string]turnstone.RecordVersion // of these
}

func (s *Sessions) standing(ctx context.Context, o *owner) (st standing, err error) {
	st.id = adapter.Join(sessionRoot, o.names...)
	st.note = adapter.Short(adapter.Join(broughtRoot, st.id), turnstone.MaxSessionID)
	if st.noted, st.brought, err = s.versioned(ctx, st.note); err == nil {
		st.versions, st.values, err = s.versioned(ctx, st.id)
	}
	return st, err
}

// versioned returns the values of a state, with versions that are not newer.
func (s *Sessions) versioned(ctx context.Context, id string) (versions map[string]turnstone.RecordVersion, values map[string][]byte, err error) {
	if versions, err = s.states.Versions(ctx, id); err == nil {
		values, err = s.states.Read(ctx, id)
	}
	return versions, values, err
}

// stays returns the proof that a value which was brought is still here. It returns false if there is none.
func (st standing) stays() (proof, bool) {
	for key := range st.brought {
		if st.values[key] == nil {
			continue
		}
		check := func(version turnstone.RecordVersion) []turnstone.RecordChange {
			return []turnstone.RecordChange{{Key: key, Action: turnstone.CheckRecord, Expect: cmp.Or(version, turnstone.NoRecord)}}
		}
		return proof{states: []adapter.StateChange{{ID: st.id, Values: check(st.versions[key])}, {ID: st.note, Values: check(st.noted[key])}}}, true
	}
	return proof{}, false
}

// bringState sets those values of a state that are new here, and those that were brought and have changed in the source since.
// A value is new if it is not here and was never brought. bringState never replaces what somebody sets meanwhile. It brings
// nothing of a user if hosts have deleted the sessions that were brought, and the values: the user is erased.
func (s *Sessions) bringState(ctx context.Context, from session.Service, n sessionNotes, o *owner, dry bool, out *adapter.Brought) error {
	name := strings.Join(o.names, "/")
	var listed []turnstone.RecordChange
	if !o.changed && len(o.sessions) > 0 {
		if values, odd := o.shownWith(o.sessions[0]); len(odd) == 0 {
			listed = values.changes()
		}
	}
	for {
		is, gone, err := s.stays(ctx, n, o) // Before all reads: it stands for them.
		if err != nil {
			return err
		}
		st, err := s.standing(ctx, o)
		if err != nil {
			return err
		}
		if gone {
			found := false
			if is, found = st.stays(); !found {
				return nil
			}
		}
		if len(listed) > 0 && !slices.ContainsFunc(listed, func(c turnstone.RecordChange) bool { return !bytes.Equal(c.Value, st.values[c.Key]) }) {
			return nil
		}
		values, others, err := o.now(ctx, from) // After what is here, so that it is never older.
		if err != nil {
			return err
		}
		var changes []turnstone.RecordChange
		for _, c := range values.changes() {
			has, known := st.values[c.Key]
			switch {
			case known && bytes.Equal(has, c.Value):
			case !known && st.brought[c.Key] != nil: // A host has deleted it.
			case known && string(st.brought[c.Key]) != sumOf(has):
				others = append(others, fmt.Sprintf("state %q of %s", c.Key, name))
			default:
				c.Expect = cmp.Or(st.versions[c.Key], turnstone.NoRecord)
				changes = append(changes, c)
			}
		}
		again := false
		if !dry {
			b := batch{standing: st, proof: is, refused: func(c turnstone.RecordChange, err error) {
				others = append(others, fmt.Sprintf("state %q of %s: %v", c.Key, name, err))
			}}
			again, err = s.setStates(ctx, b, changes)
			if err != nil {
				return err
			}
		}
		if !again {
			out.Different = append(out.Different, others...)
			return nil
		}
	}
}

// batch is how values of a state are set.
type batch struct {
	standing
	proof   proof
	refused func(turnstone.RecordChange, error) // is called for each value that the store refuses
}

// setStates sets values of a state, and notes them. again says that somebody has set one of them meanwhile, or that the proof does
// not hold any more.
func (s *Sessions) setStates(ctx context.Context, b batch, changes []turnstone.RecordChange) (again bool, err error) {
	for _, some := range adapter.InCommits(changes, func(c turnstone.RecordChange) int { return len(c.Value) }) {
		states := []adapter.StateChange{{ID: b.id, Values: slices.Clone(some)}, {ID: b.note}}
		for _, c := range some {
			states[1].Values = append(states[1].Values, turnstone.RecordChange{Key: c.Key, Value: []byte(sumOf(c.Value)), Expect: cmp.Or(b.noted[c.Key], turnstone.NoRecord)})
		}
		for _, proof := range b.proof.states {
			i := slices.IndexFunc(states, func(of adapter.StateChange) bool { return of.ID == proof.ID })
			if i < 0 {
				i, states = len(states), append(states, adapter.StateChange{ID: proof.ID})
			}
			for _, c := range proof.Values { // What is set expects its version anyway.
				if !slices.ContainsFunc(some, func(set turnstone.RecordChange) bool { return set.Key == c.Key }) {
					states[i].Values = append(states[i].Values, c)
				}
			}
		}
		_, err := s.states.Commit(ctx, states, b.proof.sessions...)
		switch bad := adapter.Refused(err); {
		case err == nil:
		case bad && len(some) == 1:
			b.refused(some[0], err)
		case bad:
			for _, c := range some {
				if again, err := s.setStates(ctx, b, []turnstone.RecordChange{c}); again || err != nil {
					return again, err
				}
			}
		case conflicts(err):
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
