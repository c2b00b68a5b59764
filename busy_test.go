package turnstone_test

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
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// R12: a call ends however busy its session is: here somebody else commits to it before
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

// R10: a head that is rolled back between the two looks of one read is damage, as it is
// before the first.
func TestR10_AHeadThatIsRolledBackWhileItIsReadIsNoticed(t *testing.T) {
	for _, back := range []int{1, 2} { // revisions
		e := memory.New()
		writer := create(t, openStore(t, e, &turnstone.Options{NoAutoSeal: true}), turnstone.Request{ID: "s"})
		var heads []engine.Pair // of each revision
		turn := func() {
			commitTo(t, writer, turnstone.Commit{Nodes: saying([]byte("x"))})
			for p, err := range e.Scan(ctx, engine.Range{}) {
				if err != nil {
					t.Fatal(err)
				}
				if p.Key[4] == keys.Head {
					heads = append(heads, p)
				}
			}
		}
		turn()
		turn()
		f := &enginetest.Faulty{Engine: e}
		s, err := openStore(t, f, &turnstone.Options{NoAutoSeal: true}).Session(ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		turn() // s does not know
		f.Plan = before(2, func() {
			old := heads[len(heads)-1-back]
			if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{old}}); err != nil {
				t.Error(err)
			}
		})
		var damage *record.CorruptError
		if i, err := s.Info(ctx); !errors.As(err, &damage) {
			t.Errorf("back by %d: revision %d, %v", back, i.Revision, err)
		}
	}
}
