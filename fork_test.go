package turnstone_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// Of the turns that ended at a node the newest one that is retained gives a fork its
// checkpoint: by the floor, or because it is kept by name. If none is, the fork is
// refused.
func TestF8_OfPrunedTurnsTheNewestRetainedOneCounts(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	commit := func(s *turnstone.Session, value string, leaf turnstone.Ref, nodes ...string) turnstone.Result {
		t.Helper()
		c := turnstone.Commit{Expected: turnstone.AnyRevision, Leaf: leaf, Checkpoint: map[string][]byte{"p": []byte(value)}}
		for _, n := range nodes {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "k", Payload: []byte(n)})
		}
		r, err := s.Commit(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	n := 0
	begins := func(parent string, node graph.ID, want string) {
		t.Helper()
		n++
		f, _, err := st.Create(ctx, turnstone.Request{ID: string(rune('A' + n)), Parent: parent, ForkNode: node})
		if want == "" {
			if !errors.Is(err, turnstone.ErrRevisionPruned) {
				t.Errorf("a fork whose checkpoint is pruned: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		parts, err := f.Checkpoint(ctx, 0)
		if err != nil || string(parts["p"]) != want {
			t.Errorf("a fork of %s begins with %q, %v, want %q", parent, parts["p"], err, want)
		}
	}
	node := commit(s, "1", turnstone.Ref{}, "a").Leaf
	commit(s, "2", turnstone.Ref{})
	commit(s, "3", turnstone.Ref{})
	commit(s, "4", turnstone.Ref{}, "b")
	for name, r := range map[string]head.Revision{"one": 1, "two": 2} {
		if err := s.Keep(ctx, name, r); err != nil {
			t.Fatal(err)
		}
	}
	prune := func(s *turnstone.Session, keep turnstone.Retention) {
		t.Helper()
		if _, err := s.Prune(ctx, keep); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	prune(s, 2)
	begins("s", node, "3") // the floor
	prune(s, 1)
	begins("s", node, "2") // by name
	f := create(t, st, turnstone.Request{ID: "f", Parent: "s", ForkNode: node})
	commit(f, "5", turnstone.Ref{}, "c")
	begins("f", node, "2") // what f began with
	prune(f, 1)
	begins("f", node, "1") // of what it shares, the parent keeps revision 1
	if err := s.Release(ctx, "two"); err != nil {
		t.Fatal(err)
	}
	begins("s", node, "1")
	begins("f", node, "1")
	if err := s.Release(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	begins("s", node, "")
	begins("f", node, "")
	// A checkpoint that was empty is not missed.
	e := create(t, st, turnstone.Request{ID: "e"})
	r, err := e.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k"}}})
	if err != nil {
		t.Fatal(err)
	}
	commit(e, "later", turnstone.Ref{}, "x")
	prune(e, 1)
	if _, _, err := st.Create(ctx, turnstone.Request{ID: "of-e", Parent: "e", ForkNode: r.Leaf}); err != nil {
		t.Error(err)
	}
	// But one that is missed is not taken for that of an older turn, of an ancestor.
	prune(e, 1)
	g := create(t, st, turnstone.Request{ID: "g", Parent: "e", ForkNode: r.Leaf})
	commit(g, "6", turnstone.RefTo(r.Leaf))
	commit(g, "7", turnstone.Ref{}, "y")
	prune(g, 1)
	begins("g", r.Leaf, "")
	verify(t, st)
}

// A session is forked, by its id, while it is renamed: the fork is one of the session that had
// the id, or there is none.
func TestF5_AForkDoesNotSlipPastARename(t *testing.T) {
	created, refused := false, 0
	besideEachCall(t,
		func(st *turnstone.Store) { create(t, st, turnstone.Request{ID: "p"}, []byte("x")) },
		func(st *turnstone.Store) (err error) {
			_, created, err = st.Create(ctx, turnstone.Request{ID: "f", Parent: "p"})
			return err
		},
		func(st *turnstone.Store) {
			if err := st.Rename(ctx, "p", "q"); err != nil {
				t.Error(err)
			}
		},
		func(st *turnstone.Store, _ engine.Engine, err error) error {
			children := 1
			if err != nil {
				children = 0
				refused++
				if created || !errors.Is(err, turnstone.ErrSessionNotFound) {
					return errors.New("another error than that there is no session")
				}
			}
			parent := "q"
			if _, err := st.Session(ctx, "q"); errors.Is(err, turnstone.ErrSessionNotFound) {
				parent = "p" // the last call was over before the rename
			}
			page, err := st.List(ctx, turnstone.ListOptions{Parent: parent})
			if err != nil || len(page.Sessions) != children {
				return fmt.Errorf("children: %+v, %w", page, err)
			}
			err = st.Delete(ctx, parent, turnstone.RefuseChildren)
			if errors.Is(err, turnstone.ErrHasChildren) != (children > 0) || children == 0 && err != nil {
				return fmt.Errorf("delete: %w", err)
			}
			return nil
		})
	if refused == 0 {
		t.Error("the rename was never in the way of the fork")
	}
}
