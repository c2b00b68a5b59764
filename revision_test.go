package turnstone_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// Each call that takes a revision treats 0, RevisionZero, the head's, one beyond it and AnyRevision as docs/contract.md says.
func TestR22_RevisionsMeanOneThing(t *testing.T) {
	const beyond = 4
	read := func(s *turnstone.Session, scope turnstone.Scope) (string, error) {
		st, err := s.Load(ctx, scope)
		if err != nil {
			return "", err
		}
		n := 0
		for _, nerr := range s.Nodes(ctx, scope) {
			if err = nerr; err == nil {
				n++
			}
		}
		if n != len(st.Nodes) {
			err = errors.Join(err, fmt.Errorf("Nodes has %d, Load %d", n, len(st.Nodes)))
		}
		return fmt.Sprint(n), err
	}
	calls := []struct {
		name string
		call func(*turnstone.Store, *turnstone.Session, head.Revision) (string, error)
		want [5]string // of 0, RevisionZero, the head's, beyond, AnyRevision; an error if it begins with "!"
	}{
		{"At", func(_ *turnstone.Store, s *turnstone.Session, r head.Revision) (string, error) {
			return read(s, turnstone.Scope{At: r})
		}, [5]string{"3", "0", "3", "!gone", "!invalid"}},
		{"After", func(_ *turnstone.Store, s *turnstone.Session, r head.Revision) (string, error) {
			return read(s, turnstone.Scope{After: r})
		}, [5]string{"3", "!invalid", "0", "!gone", "!invalid"}},
		{"Checkpoint", func(_ *turnstone.Store, s *turnstone.Session, r head.Revision) (string, error) {
			parts, err := s.Checkpoint(ctx, r)
			return string(parts["p"]), err
		}, [5]string{"3", "", "3", "!gone", "!invalid"}},
		{"Log", func(_ *turnstone.Store, s *turnstone.Session, r head.Revision) (string, error) {
			n := 0
			for _, err := range s.Log(ctx, r) {
				if err != nil {
					return "", err
				}
				n++
			}
			return fmt.Sprint(n), nil
		}, [5]string{"3", "3", "0", "!gone", "!invalid"}},
		{"Watch", func(_ *turnstone.Store, s *turnstone.Session, r head.Revision) (string, error) {
			waits, cancel := context.WithTimeout(ctx, 20*time.Millisecond) // at the head it would wait for ever
			defer cancel()
			if r != 3 {
				waits = ctx
			}
			n := 0
			for _, err := range s.Watch(waits, r) {
				if r == 3 && errors.Is(err, context.DeadlineExceeded) {
					break
				}
				if err != nil {
					return "", err
				}
				if n++; n == 3 {
					break
				}
			}
			return fmt.Sprint(n), nil
		}, [5]string{"3", "3", "0", "!gone", "!invalid"}},
		{"Keep", func(_ *turnstone.Store, s *turnstone.Session, r head.Revision) (string, error) {
			return "", s.Keep(ctx, fmt.Sprint("kept", uint64(r)), r)
		}, [5]string{"", "!gone", "", "!gone", "!invalid"}},
		{"ForkAt", func(st *turnstone.Store, _ *turnstone.Session, r head.Revision) (string, error) {
			f, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("fork", uint64(r)), Parent: "a", ForkAt: r})
			if err != nil {
				return "", err
			}
			return read(f, turnstone.Scope{})
		}, [5]string{"3", "0", "3", "!gone", "!invalid"}},
		{"Expected", func(st *turnstone.Store, s *turnstone.Session, r head.Revision) (string, error) {
			first, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("first", uint64(r))})
			if err == nil {
				_, err = first.Commit(ctx, turnstone.Commit{Expected: r, Nodes: saying([]byte("x"))})
			}
			return "", err
		}, [5]string{"", "", "!conflict", "!conflict", ""}},
	}
	for _, c := range calls {
		t.Run(c.name, func(t *testing.T) {
			_, st := onMemory(t, nil)
			s := create(t, st, turnstone.Request{ID: "a"})
			for n := range 3 {
				commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("x")), Checkpoint: map[string][]byte{"p": fmt.Append(nil, n+1)}})
			}
			for i, r := range []head.Revision{0, turnstone.RevisionZero, 3, beyond, turnstone.AnyRevision} {
				got, err := c.call(st, s, r)
				switch {
				case errors.Is(err, turnstone.ErrRevisionNotFound):
					got = "!gone"
				case errors.Is(err, turnstone.ErrInvalid):
					got = "!invalid"
				case errors.Is(err, turnstone.ErrConflict):
					got = "!conflict"
				case err != nil:
					got = err.Error()
				}
				if got != c.want[i] {
					t.Errorf("%v: %q, want %q (%v)", r, got, c.want[i], err)
				}
			}
		})
	}
}
