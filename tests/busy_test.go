package tests

import (
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
)

// A call ends however busy its session is: here somebody else commits to it before
// each call of the engine.
func TestR12_CallsEndHoweverBusyTheSessionIs(t *testing.T) {
	for name, call := range map[string]func(*turnstone.Session, graph.ID) error{
		"info": func(s *turnstone.Session, _ graph.ID) error { _, err := s.Info(ctx); return err },
		"load": func(s *turnstone.Session, _ graph.ID) error {
			_, err := s.Load(ctx, turnstone.Scope{})
			return err
		},
		"last": func(s *turnstone.Session, _ graph.ID) error {
			_, err := s.Load(ctx, turnstone.Scope{Last: 2})
			return err
		},
		"full": func(s *turnstone.Session, _ graph.ID) error {
			_, err := s.Load(ctx, turnstone.Scope{Full: true})
			return err
		},
		"node":       func(s *turnstone.Session, id graph.ID) error { _, err := s.Node(ctx, id); return err },
		"checkpoint": func(s *turnstone.Session, _ graph.ID) error { _, err := s.Checkpoint(ctx, 0); return err },
		"tombstone":  func(s *turnstone.Session, id graph.ID) error { return s.Tombstone(ctx, id) },
		"keep":       func(s *turnstone.Session, _ graph.ID) error { return s.Keep(ctx, "k", 0) },
		"prune":      func(s *turnstone.Session, _ graph.ID) error { _, err := s.Prune(ctx, 1); return err },
		"gc":         func(s *turnstone.Session, _ graph.ID) error { _, err := s.GC(ctx, gc.Options{}); return err },
		"vacuum":     func(s *turnstone.Session, _ graph.ID) error { _, err := s.Vacuum(ctx, gc.VacuumOptions{}); return err },
	} {
		t.Run(name, func(t *testing.T) {
			e := memory.New()
			busy := create(t, openStore(t, e, &turnstone.Options{NoAutoSeal: true}), turnstone.Request{ID: "s"})
			id := commitTo(t, busy, turnstone.Commit{Nodes: saying([]byte("first"))}).Nodes[0]
			calls := 0
			f := &enginetest.Faulty{Engine: e}
			s, err := openStore(t, f, &turnstone.Options{NoAutoSeal: true}).Session(ctx, "s")
			if err != nil {
				t.Fatal(err)
			}
			f.Plan = func(enginetest.Call) enginetest.Fault {
				if calls++; calls > 3000 {
					return enginetest.Fault{Err: fmt.Errorf("it does not end")}
				}
				commitTo(t, busy, turnstone.Commit{Nodes: saying([]byte("more"))})
				return enginetest.Fault{}
			}
			if err := call(s, id); err != nil {
				t.Errorf("after %d calls: %v", calls, err)
			}
		})
	}
}

// What a call finds may move while it reads: that is no damage.
func TestCallsBesideOthersReportNoDamage(t *testing.T) {
	prepare := func(st *turnstone.Store) {
		create(t, st, turnstone.Request{ID: "p"}, []byte("x"))
		create(t, st, turnstone.Request{ID: "f", Parent: "p"}, []byte("y"))
		create(t, st, turnstone.Request{ID: "g", Parent: "f"}, []byte("z"))
	}
	calls := map[string]func(*turnstone.Store) error{
		"rename": func(st *turnstone.Store) error { return rename(ctx, st, "f", "r") },
		"fork": func(st *turnstone.Store) error {
			_, _, err := st.Create(ctx, turnstone.Request{ID: "h", Parent: "g"})
			return err
		},
		"delete": func(st *turnstone.Store) error { return st.Delete(ctx, "f", turnstone.CascadeChildren) },
		"list": func(st *turnstone.Store) error {
			_, err := st.List(ctx, turnstone.ListOptions{Parent: "f"})
			return err
		},
		"tombstone": func(st *turnstone.Store) error {
			s, err := st.Session(ctx, "g")
			if err != nil {
				return err
			}
			l, err := s.Load(ctx, turnstone.Scope{})
			if err == nil {
				err = s.Tombstone(ctx, l.Leaf)
			}
			return err
		},
	}
	others := map[string]func(*turnstone.Store){
		"delete and vacuum": func(st *turnstone.Store) {
			err := st.Delete(ctx, "f", turnstone.KeepChildren)
			if err == nil {
				err = st.Delete(ctx, "g", turnstone.KeepChildren)
			}
			if err == nil {
				_, err = st.Vacuum(ctx, gc.VacuumOptions{})
			}
			if err != nil {
				t.Error(err)
			}
		},
		"rename": func(st *turnstone.Store) { _ = rename(ctx, st, "g", "other") },
		"seal": func(st *turnstone.Store) {
			if err := st.Seal(ctx); err != nil {
				t.Error(err)
			}
		},
	}
	for name, call := range calls {
		for beside, other := range others {
			t.Run(name+" beside "+beside, func(t *testing.T) {
				besideEachCall(t, prepare, call, other, func(_ *turnstone.Store, _ engine.Engine, err error) error {
					ok := err == nil
					for _, e := range []error{turnstone.ErrSessionNotFound, turnstone.ErrSessionDeleted, turnstone.ErrExists} {
						ok = ok || errors.Is(err, e)
					}
					if !ok {
						return errors.New("another error than that it is gone")
					}
					return nil
				})
			})
		}
	}
}
