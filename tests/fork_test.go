package tests

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/turnstonedb/turnstone/engine/enginetest"

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
		r := commitAt(t, s, c)
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
	prune := func(s *turnstone.Session, keep head.Retention) {
		t.Helper()
		prune(t, s, keep)
		vacuum(t, st)
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
	r := commitAt(t, e, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k"}}})
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
			if err := rename(ctx, st, "p", "q"); err != nil {
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

// A fork of a sealed session of 10,000 nodes writes less than 2 KB, and reads all of them.
func TestF1_AForkOfALongSessionIsSmall(t *testing.T) {
	var last atomic.Int64 // the bytes of the last batch
	e := &enginetest.Faulty{Engine: memory.New(), Plan: beforeEachApply(func(b *engine.Batch) { last.Store(int64(b.Bytes())) })}
	st := openStore(t, e, nil)
	s := create(t, st, turnstone.Request{ID: "long"})
	for i := range 2500 {
		nodes := make([]turnstone.NewNode, 4)
		for j := range nodes {
			nodes[j] = turnstone.NewNode{Kind: "text", Payload: fmt.Append(nil, i, j)}
		}
		commitAt(t, s, turnstone.Commit{Expected: head.Revision(i), Nodes: nodes})
	}
	if err := s.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	f := create(t, st, turnstone.Request{ID: "fork", Parent: "long"})
	t.Logf("a fork of 10,000 nodes writes %d bytes", last.Load())
	if last.Load() >= 2000 {
		t.Errorf("a fork writes %d bytes", last.Load())
	}
	state, err := f.Load(ctx, turnstone.Scope{})
	if err != nil || len(state.Nodes) != 10_000 {
		t.Errorf("%d nodes, %v", len(state.Nodes), err)
	}
}

// A fork at the first of two nodes of one commit sees nothing of the second one, and can't go on
// from it.
func TestF1_AForkInTheMiddleOfACommitHasTheNodesUpToThere(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	r := commitAt(t, p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Payload: []byte("1")}, {Kind: "u", Payload: []byte("2 secret")}}})
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p", ForkNode: r.Nodes[0]})
	l, err := f.Load(ctx, turnstone.Scope{Full: true})
	if err != nil || len(l.Nodes) != 1 {
		t.Error(len(l.Nodes), err)
	}
	if _, err = f.Node(ctx, r.Nodes[1]); !errors.Is(err, turnstone.ErrNodeNotFound) {
		t.Error("node after the fork node:", err)
	}
	if _, err = f.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Parent: turnstone.RefTo(r.Nodes[1])}}}); !errors.Is(err, turnstone.ErrInvalid) {
		t.Error("commit onto it:", err)
	}
}

// A fork that sets a part of its own keeps those that it began with, for a handle that was opened
// later, too.
func TestF1_AForkHasThePartsOfItsParentAndItsOwn(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	for i := range 3 {
		commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("x")), Checkpoint: map[string][]byte{"a": fmt.Append(nil, i)}})
	}
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	commitAt(t, f, turnstone.Commit{Nodes: saying([]byte("y")), Checkpoint: map[string][]byte{"b": []byte("b")}})
	f2 := session(t, st, "f")
	if l, err := f2.Load(ctx, turnstone.Scope{}); err != nil || len(l.Nodes) != 4 {
		t.Errorf("load: %+v, %v", l, err)
	}
	commitAt(t, f2, turnstone.Commit{Expected: 1, Nodes: saying([]byte("y"))})
	if parts, err := f2.Checkpoint(ctx, 0); err != nil || string(parts["a"]) != "2" || string(parts["b"]) != "b" || len(parts) != 2 {
		t.Errorf("checkpoint: %q, %v", parts, err)
	}
}

// The part that a fork began with, which its parent set at revision 1, is there at each revision
// of the fork: it is not looked for at the fork's own revision 1.
func TestF1_AForkHasThePartOfItsParentAtEachRevision(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	commitAt(t, p, turnstone.Commit{Expected: 0, Nodes: saying([]byte("x")), Checkpoint: map[string][]byte{"a": []byte("A")}})
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	commitAt(t, f, turnstone.Commit{Expected: 0, Nodes: saying([]byte("y"))})
	commitAt(t, f, turnstone.Commit{Expected: 1, Nodes: saying([]byte("y")), Checkpoint: map[string][]byte{"b": []byte("B")}})
	commitAt(t, f, turnstone.Commit{Expected: 2, Nodes: saying([]byte("y"))})
	for r := head.Revision(1); r <= 3; r++ {
		got, err := f.Checkpoint(ctx, r)
		if err != nil || string(got["a"]) != "A" {
			t.Error(r, got, err)
		}
	}
}

// A fork of a session that has no node, and so no leaf, has the checkpoint of its parent.
func TestF1_AForkOfASessionWithoutNodesHasItsCheckpoint(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	commitAt(t, p, turnstone.Commit{Checkpoint: map[string][]byte{"a": []byte("A")}})
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	c, err := f.Checkpoint(ctx, 0)
	if err != nil || len(c) != 1 || string(c["a"]) != "A" {
		t.Error(c, err)
	}
}

// A vacuum has removed a node that no retained revision leads to: no fork begins at it, and no
// fork goes on from it.
func TestAForkAtAPrunedNodeIsRefused(t *testing.T) {
	_, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	root := commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("root"))}).Leaf
	side := commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("side"))}).Leaf
	commitTo(t, p, turnstone.Commit{Nodes: sayingAfter(root, []byte("main"))})
	prune(t, p, 1)
	vacuum(t, st)
	f, _, err := st.Create(ctx, turnstone.Request{ID: "f", Parent: "p", ForkNode: side})
	if !errors.Is(err, turnstone.ErrRevisionPruned) {
		s, lerr := f.Load(ctx, turnstone.Scope{})
		t.Errorf("fork at a pruned node: %v; load gives %d nodes, %v", err, len(s.Nodes), lerr)
	}
	// A fork that was made later does not go on from it either.
	g := create(t, st, turnstone.Request{ID: "g", Parent: "p"})
	if _, err := g.Commit(ctx, turnstone.Commit{Nodes: sayingAfter(side, []byte("x"))}); !errors.Is(err, turnstone.ErrRevisionPruned) {
		t.Errorf("commit of a fork onto the parent's pruned node: %v", err)
	}
}

// A fork has pruned the checkpoint that it began with, and its parent is deleted: a fork of it at
// the node where it began is refused, or else has a checkpoint that can be read.
func TestF8_AForkAtAPrunedCheckpointIsRefused(t *testing.T) {
	_, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	at := commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("root")), Checkpoint: map[string][]byte{"a": random(9000, 1)}}).Leaf
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	commitTo(t, f, turnstone.Commit{Nodes: saying([]byte("more")), Checkpoint: map[string][]byte{"a": random(9000, 2)}})
	prune(t, f, 1)
	remove(t, st, "p")
	collect(t, st, gc.Options{})
	g, _, err := st.Create(ctx, turnstone.Request{ID: "g", Parent: "f", ForkNode: at})
	if errors.Is(err, turnstone.ErrRevisionPruned) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Checkpoint(ctx, 0); err != nil {
		t.Error("checkpoint:", err)
	}
	if _, err := st.GC(ctx, gc.Options{}); err != nil {
		t.Error("gc:", err)
	}
	verify(t, st)
}

// A clone that somebody takes for one that was cut off, and makes anew, is not deleted by the first call.
func TestF11_AFailedCloneDeletesNoOther(t *testing.T) {
	e, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	for range 3 {
		commitTo(t, p, turnstone.Commit{})
	}
	applies := 0
	slow := openStore(t, &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" {
			if applies++; applies == 3 {
				remove(t, st, "c")
				if _, err := turnstone.Clone(ctx, st.Factory(), "p", turnstone.Request{ID: "c"}); err != nil {
					t.Error(err)
				}
			}
		}
		return enginetest.Fault{}
	}}, nil)
	if _, err := turnstone.Clone(ctx, slow.Factory(), "p", turnstone.Request{ID: "c"}); !errors.Is(err, turnstone.ErrSessionDeleted) {
		t.Error(err)
	}
	if i := info(t, st, "c"); i.Revision != 3 {
		t.Errorf("the other clone is at revision %d", i.Revision)
	}
}

// A fork can have the checkpoint of any retained revision, and without one it can begin at a node whose checkpoint
// was pruned. Its batch depends on the revision: one that is pruned meanwhile is refused, also beneath a warm handle.
func TestF10_OnlyARetainedCheckpointIsTakenOver(t *testing.T) {
	var ids []graph.ID
	besideEachCall(t,
		func(st *turnstone.Store) {
			p := create(t, st, turnstone.Request{ID: "p"})
			ids = nil
			for i := range 4 {
				ids = append(ids, commitAt(t, p, turnstone.Commit{
					Expected: head.Revision(i), Nodes: saying(fmt.Append(nil, i)), Checkpoint: map[string][]byte{"a": random(9000, uint64(i))},
				}).Nodes...)
			}
			if err := p.Keep(ctx, "k", 1); err != nil {
				t.Fatal(err)
			}
		},
		func(st *turnstone.Store) error {
			for i, r := range []turnstone.Request{{ForkAt: 1}, {ForkNode: ids[1], NoCheckpoint: true}, {ForkAt: 4}, {ForkAt: 2}} {
				r.ID, r.Parent = fmt.Sprint("f", i), "p"
				if _, _, err := st.Create(ctx, r); err != nil {
					return err
				}
			}
			return nil
		},
		func(st *turnstone.Store) {
			prune(t, session(t, st, "p"), 1)
			vacuum(t, st)
		},
		func(st *turnstone.Store, _ engine.Engine, err error) error {
			if err != nil && !errors.Is(err, turnstone.ErrRevisionPruned) {
				return err
			}
			for i, want := range [][]byte{random(9000, 0), nil, random(9000, 3), random(9000, 1)} {
				f, ferr := st.Session(ctx, fmt.Sprint("f", i))
				if i == 3 && err != nil && errors.Is(ferr, turnstone.ErrSessionNotFound) {
					continue
				}
				if ferr != nil {
					return ferr
				}
				parts, ferr := f.Checkpoint(ctx, 0)
				if ferr != nil || !bytes.Equal(parts["a"], want) {
					return fmt.Errorf("fork %d has another checkpoint: %w", i, ferr)
				}
			}
			return nil
		})
}

// A fork that begins with an empty conversation, and then goes on from a node that it inherits, is what it is also
// when it is sealed.
func TestF3_AForkThatBeginsEmptyGoesOnFromWhatItInherits(t *testing.T) {
	for name, fork := range map[string]func(st *turnstone.Store, p *turnstone.Session) *turnstone.Session{
		"at the head": func(st *turnstone.Store, _ *turnstone.Session) *turnstone.Session {
			return create(t, st, turnstone.Request{ID: "f", Parent: "p"})
		},
		"at a revision": func(st *turnstone.Store, p *turnstone.Session) *turnstone.Session {
			commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("later"))})
			return create(t, st, turnstone.Request{ID: "f", Parent: "p", ForkAt: 2})
		},
		"of a fork": func(st *turnstone.Store, _ *turnstone.Session) *turnstone.Session {
			create(t, st, turnstone.Request{ID: "e", Parent: "p"})
			return create(t, st, turnstone.Request{ID: "f", Parent: "e", ForkAt: turnstone.RevisionZero})
		},
	} {
		for moves := range 3 { // how often the leaf moves before there is a node
			e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
			p := create(t, st, turnstone.Request{ID: "p"})
			inherited := commitTo(t, p, turnstone.Commit{Nodes: append(saying([]byte("a")), saying([]byte("b"))...)}).Nodes
			commitTo(t, p, turnstone.Commit{Leaf: turnstone.RefNone()})
			f := fork(st, p)
			commitTo(t, f, turnstone.Commit{})
			for i := range moves {
				commitTo(t, f, turnstone.Commit{Leaf: turnstone.RefTo(inherited[(i+1)%2])})
			}
			commitTo(t, f, turnstone.Commit{Leaf: turnstone.RefTo(inherited[0])})
			commitTo(t, f, turnstone.Commit{Nodes: saying([]byte("own"))})
			for _, sealed := range []bool{false, true} {
				if sealed {
					vacuum(t, st)
				}
				for _, s := range []*turnstone.Session{f, session(t, openStore(t, e, nil), "f")} {
					got, err := s.Load(ctx, turnstone.Scope{})
					if err != nil || len(got.Nodes) != 2 || string(got.Nodes[0].Payload) != "a" || string(got.Nodes[1].Payload) != "own" {
						t.Fatalf("%s, %d moves, sealed %v: %v, %v", name, moves, sealed, got, err)
					}
				}
				verify(t, st)
			}
		}
	}
}

// Children belong to the session that they were made of, whatever its id is.
func TestF5_ChildrenFollowTheirParent(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	create(t, st, turnstone.Request{ID: "p"}, []byte("1"))
	create(t, st, turnstone.Request{ID: "fork", Parent: "p"})
	create(t, st, turnstone.Request{ID: "child", Parent: "p", Detached: true})
	parents := func(of string, want ...string) {
		t.Helper()
		page, err := st.List(ctx, turnstone.ListOptions{Parent: of})
		if err != nil || len(page.Sessions) != len(want) {
			t.Fatalf("children of %q: %d, %v", of, len(page.Sessions), err)
		}
		for _, i := range page.Sessions {
			if i.Parent != of {
				t.Errorf("the parent of %q is %q, not %q", i.ID, i.Parent, of)
			}
		}
	}
	parents("p", "fork", "child")
	if err := rename(ctx, st, "p", "q"); err != nil {
		t.Fatal(err)
	}
	create(t, st, turnstone.Request{ID: "p"}, []byte("another"))
	parents("p")
	parents("q", "fork", "child")
	if err := st.Delete(ctx, "p", turnstone.RefuseChildren); err != nil {
		t.Errorf("the other session has no children: %v", err)
	}
	if err := st.Delete(ctx, "q", turnstone.RefuseChildren); !errors.Is(err, turnstone.ErrHasChildren) {
		t.Error(err)
	}
	remove(t, st, "q")
	vacuum(t, st)
	for _, id := range []string{"fork", "child"} {
		s := session(t, st, id)
		if i, err := s.Info(ctx); err != nil || i.Parent != "" {
			t.Errorf("%q has the parent %q, %v", id, i.Parent, err)
		}
	}
	if _, err := st.List(ctx, turnstone.ListOptions{Parent: "q"}); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error(err)
	}
	verify(t, st)
}

// What a session has pruned or hidden is not in its clone, and what happens to it meanwhile does no harm: the clone
// is one that the session could have had before or after, and keeps what the store promises.
func TestF11_ACloneOfAPrunedSession(t *testing.T) {
	var ids []graph.ID
	cloned := 0
	besideEachCall(t,
		func(st *turnstone.Store) {
			p := create(t, st, turnstone.Request{ID: "p"})
			ids = nil
			for i := range 5 {
				c := turnstone.Commit{Expected: head.Revision(i), Nodes: append(saying(fmt.Append(nil, "q", i)), saying(fmt.Append(nil, "a", i))...), Checkpoint: map[string][]byte{"a": random(2000, uint64(i))}}
				ids = append(ids, commitAt(t, p, c).Nodes...)
			}
			prune(t, p, 3)
			if err := errors.Join(p.Tombstone(ctx, ids[1], ids[9]), p.Keep(ctx, "k", 4)); err != nil {
				t.Fatal(err)
			}
		},
		func(st *turnstone.Store) error {
			_, err := turnstone.Clone(ctx, st.Factory(), "p", turnstone.Request{ID: "c"})
			return err
		},
		func(st *turnstone.Store) {
			p := session(t, st, "p")
			if err := p.Tombstone(ctx, ids[4]); err != nil {
				t.Fatal(err)
			}
			commitTo(t, p, turnstone.Commit{Leaf: turnstone.RefTo(ids[0]), Nodes: saying([]byte("other"))})
			prune(t, p, 1)
			vacuum(t, st)
		},
		func(st *turnstone.Store, _ engine.Engine, err error) error {
			c, gone := st.Session(ctx, "c")
			if err != nil {
				if !errors.Is(gone, turnstone.ErrSessionNotFound) {
					return errors.New("the clone is left")
				}
				return err
			}
			cloned++
			var got []string
			full, err := c.Load(ctx, turnstone.Scope{Full: true})
			if err != nil {
				return err
			}
			for _, n := range full.Nodes {
				got = append(got, string(n.Payload))
			}
			text := strings.Join(got, " ")
			if i, err := c.Info(ctx); err != nil || i.Revision != 5 && i.Revision != 6 {
				return fmt.Errorf("it is at revision %d, %w", i.Revision, err)
			}
			if !strings.HasPrefix(text, "q0 q1 a1 q2 a2 q3 a3 q4") && !strings.HasPrefix(text, "q0 q1 a1 a2 q3 a3 q4") && !strings.HasPrefix(text, "q0 other") {
				return fmt.Errorf("it has %s", text)
			}
			verify(t, st)
			return nil
		})
	if cloned == 0 {
		t.Error("nothing was cloned")
	}
}
