package adk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
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

	here, deleted, changed bool // one of the sessions, as bringing has it
}

func (o *owner) add(b *bringing) {
	o.sessions = append(o.sessions, b.of)
	o.here, o.deleted, o.changed = o.here || b.here, o.deleted || b.deleted, o.changed || b.changed
}

// shownWith returns the state of the owner as it is shown with a session.
func (o *owner) shownWith(of session.Session) (state, error) {
	out := state{}
	for key, v := range of.State().All() {
		if name, ok := strings.CutPrefix(key, o.prefix); ok {
			value, err := adapter.Marshal(v)
			if err != nil {
				return nil, unstorable(fmt.Errorf("state %q: %w", key, err))
			}
			out[name] = value
		}
	}
	return out, nil
}

// now returns the state of the owner as it is now. It is empty if its sessions have been deleted since they were listed.
func (o *owner) now(ctx context.Context, from session.Service) (state, error) {
	for _, of := range o.sessions {
		if is, err := current(ctx, from, of, 1); err != nil {
			return nil, err
		} else if is != nil {
			return o.shownWith(is)
		}
	}
	return nil, nil
}

// bringState sets those values of a state that are new here, and those that were brought and have changed in the source since.
// A value is new if it is not here and was never brought. bringState never replaces what somebody sets meanwhile.
func (s *Sessions) bringState(ctx context.Context, from session.Service, o *owner, dry bool, out *adapter.Brought) error {
	id, name := adapter.Join(sessionRoot, o.names...), strings.Join(o.names, "/")
	note := adapter.Short(adapter.Join(broughtRoot, id), turnstone.MaxSessionID)
	var listed []turnstone.RecordChange
	if !o.changed && len(o.sessions) > 0 {
		values, _ := o.shownWith(o.sessions[0])
		listed = values.changes()
	}
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
		if len(listed) > 0 && !slices.ContainsFunc(listed, func(c turnstone.RecordChange) bool { return !bytes.Equal(c.Value, there[c.Key]) }) {
			return nil
		}
		values, err := o.now(ctx, from) // After what is here, so that it is never older.
		if err != nil {
			return err
		}
		var changes []turnstone.RecordChange
		var others []string
		for _, c := range values.changes() {
			has, known := there[c.Key]
			switch {
			case known && bytes.Equal(has, c.Value):
			case !known && brought[c.Key] != nil: // A host has deleted it.
			case known && string(brought[c.Key]) != sumOf(has):
				others = append(others, fmt.Sprintf("state %q of %s", c.Key, name))
			default:
				if c.Expect = versions[c.Key]; c.Expect == "" {
					c.Expect = turnstone.NoRecord
				}
				changes = append(changes, c)
			}
		}
		again := false
		if !dry {
			again, err = s.setStates(ctx, id, note, changes, func(c turnstone.RecordChange, err error) {
				others = append(others, fmt.Sprintf("state %q of %s: %v", c.Key, name, err))
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
		switch bad := adapter.Refused(err); {
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
