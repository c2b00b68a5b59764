package tests

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
)

var errNoConnection = errors.New("no connection")

// An unreliable engine fails one of its reads.
type unreliable struct {
	engine.Engine
	reads, fails int
}

func (u *unreliable) broken() bool {
	u.reads++
	return u.reads == u.fails
}

func (u *unreliable) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	if u.broken() {
		return nil, errNoConnection
	}
	return u.Engine.Get(ctx, keys...)
}

func (u *unreliable) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	if u.broken() {
		return func(yield func(engine.Pair, error) bool) { yield(engine.Pair{}, errNoConnection) }
	}
	return u.Engine.Scan(ctx, r)
}

// unreliableCalls are calls that read what a session has, sealed and loose.
var unreliableCalls = map[string]func(*turnstone.Store, *turnstone.Session) error{
	"load": func(_ *turnstone.Store, s *turnstone.Session) error {
		_, err := s.Load(ctx, turnstone.Scope{})
		return err
	},
	"load at": func(_ *turnstone.Store, s *turnstone.Session) error {
		for r := range head.Revision(9) {
			if _, err := s.Load(ctx, turnstone.Scope{At: r + 1, Last: 3}); err != nil {
				return err
			}
		}
		return nil
	},
	"node": func(_ *turnstone.Store, s *turnstone.Session) error {
		for r := range 9 {
			if _, err := s.NodeByKey(ctx, fmt.Sprint("k", r)); err != nil {
				return err
			}
		}
		return nil
	},
	"nodes": func(_ *turnstone.Store, s *turnstone.Session) error {
		_, err := s.NodesByKey(ctx, "k0", "k3", "k8")
		return err
	},
	"log": func(_ *turnstone.Store, s *turnstone.Session) error {
		for _, err := range s.Log(ctx, 0) {
			if err != nil {
				return err
			}
		}
		return nil
	},
	"checkpoint": func(_ *turnstone.Store, s *turnstone.Session) error {
		_, err := s.Checkpoint(ctx, 3)
		return err
	},
	"replay": func(_ *turnstone.Store, s *turnstone.Session) error {
		_, err := s.Commit(ctx, unreliableTurn(2))
		return err
	},
	"verify": func(st *turnstone.Store, _ *turnstone.Session) error {
		_, err := st.Verify(ctx, turnstone.VerifyOptions{})
		return err
	},
	"gc": func(st *turnstone.Store, _ *turnstone.Session) error {
		_, err := st.GC(ctx, gc.Options{DryRun: true})
		return err
	},
	"seal": func(_ *turnstone.Store, s *turnstone.Session) error {
		return s.Seal(ctx)
	},
}

func unreliableTurn(i int) turnstone.Commit {
	return turnstone.Commit{
		Expected: turnstone.AnyRevision, Turn: fmt.Sprint("t", i), Checkpoint: map[string][]byte{"p": fmt.Append(nil, i)},
		Nodes: []turnstone.NewNode{{Kind: "u", Key: fmt.Sprint("k", i), Payload: fmt.Append(nil, "payload ", i)}},
	}
}

func TestR16_AnErrorOfTheEngineIsNoDamage(t *testing.T) {
	base := memory.New()
	st := openStore(t, base, &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "a"})
	for i := range 9 {
		commitAt(t, s, unreliableTurn(i))
		if i == 5 {
			if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, call := range unreliableCalls {
		for fails := 1; ; fails++ {
			e := &unreliable{Engine: base}
			st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
			s := session(t, st, "a")
			e.reads, e.fails = 0, fails
			err := call(st, s)
			var corrupt *damage.CorruptError
			if e.reads < fails {
				if err != nil || fails < 2 {
					t.Errorf("%s: %d reads, %v", name, e.reads, err)
				}
				break
			}
			if err == nil && name == "replay" {
				continue // A commit that fails by what it remembers of the session reads its head, and tries again.
			}
			if !errors.Is(err, errNoConnection) || errors.As(err, &corrupt) {
				t.Errorf("%s, read %d: %v", name, fails, err)
			}
		}
	}
}
