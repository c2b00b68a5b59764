package adk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
)

// bringState sets those values of a state that are new here, and those that were brought and have changed in the source since.
// A value is new if it is not here and was never brought. bringState never replaces what somebody sets meanwhile.
func (s *Sessions) bringState(ctx context.Context, read func() (state, error), dry bool, out *adapter.Brought, of ...string) error {
	id, name := adapter.Join(sessionRoot, of...), strings.Join(of, "/")
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
		values, err := read()
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
