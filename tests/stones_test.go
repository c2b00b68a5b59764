package tests

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// chain makes a session of commits of four nodes, sealed as in the background, and returns all nodes.
func chain(t *testing.T, st *turnstone.Store, id string, nodes int) (s *turnstone.Session, ids []graph.ID) {
	t.Helper()
	s = create(t, st, turnstone.Request{ID: id})
	for len(ids) < nodes {
		var c turnstone.Commit
		for range 4 {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "u", Payload: fmt.Append(nil, "node ", len(ids))})
		}
		r := commitTo(t, s, c)
		if ids = append(ids, r.Nodes...); r.Revision%256 == 0 {
			if err := sealFast(ctx, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s, ids
}

// hide tombstones nodes, so many in each call.
func hide(t *testing.T, s *turnstone.Session, atOnce int, ids []graph.ID) {
	t.Helper()
	for some := range slices.Chunk(ids, atOnce) {
		if err := s.Tombstone(ctx, some...); err != nil {
			t.Fatal(err)
		}
	}
}

// lastOf returns the last n nodes of s, after comparing them with the end of the whole path.
func lastOf(t *testing.T, s *turnstone.Session, n int) []turnstone.Node {
	t.Helper()
	whole, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	end, err := s.Load(ctx, turnstone.Scope{Last: n})
	if err != nil {
		t.Fatal(err)
	}
	want := whole.Nodes[max(len(whole.Nodes)-n, 0):]
	if fmt.Sprint(end.Nodes) != fmt.Sprint(want) {
		t.Fatalf("the last %d nodes of %s are\n%v, not\n%v", n, s.ID(), end.Nodes, want)
	}
	return end.Nodes
}

// Where thousands of nodes are tombstoned in few calls, Last reads about as much as if there were
// none: it steps over the nodes of a call at once, whatever the order of the calls, in forks as well.
func TestR15_LastStepsOverTombstonesWithoutReadingThem(t *testing.T) {
	testkit.OneGoroutine(t)
	const n = 10_000
	reversed := func(ids []graph.ID) []graph.ID {
		ids = slices.Clone(ids)
		slices.Reverse(ids)
		return ids
	}
	everyOther := func(ids []graph.ID) (out []graph.ID) {
		for _, from := range []int{0, 1} {
			for i := from; i < len(ids); i += 2 {
				out = append(out, ids[i])
			}
		}
		return out
	}
	for _, c := range []struct {
		name   string
		nodes  int // how many are hidden
		atOnce int
		order  func([]graph.ID) []graph.ID
		most   cost
	}{
		{"in one call", turnstone.MaxNodes, turnstone.MaxNodes, slices.Clone[[]graph.ID], cost{reads: 12, records: 24}},
		{"in three calls", n, 3500, slices.Clone[[]graph.ID], cost{reads: 12, records: 24}},
		{"in three calls, the newest nodes first", n, 3500, reversed, cost{reads: 12, records: 24}},
		{"in six calls, every other node first", n, 2000, everyOther, cost{reads: 12, records: 24}},
		// As many calls as nodes would take as many steps. All tombstones are read before it comes to that.
		{"in 1,000 calls, the newest nodes first", 1000, 1, reversed, cost{reads: 30, records: 1060}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &meter{Engine: memory.New()}
			st := openStore(t, m, &turnstone.Options{NoAutoSeal: true})
			s, ids := chain(t, st, "s", c.nodes+204)
			before := create(t, st, turnstone.Request{ID: "before", Parent: "s"})
			at := 200 // the first node that is hidden
			hide(t, s, c.atOnce, c.order(ids[at:at+c.nodes]))
			if got := s.Tombstone(ctx, ids[at+c.nodes]); got != nil {
				t.Fatal(got)
			}
			forks := []*turnstone.Session{
				s, create(t, st, turnstone.Request{ID: "after", Parent: "s"}),
				create(t, st, turnstone.Request{ID: "at a hidden node", Parent: "s", ForkNode: ids[at+c.nodes-10]}),
			}
			for i, f := range forks {
				want := 5 // the two nodes before the hidden ones, and the three after them
				if i == 2 {
					want = 2
				}
				for _, handle := range []string{"warm", "cold"} {
					f, most := f, c.most
					if handle == "cold" { // It reads what is not sealed of the index first, and a page of each run.
						most.reads, most.records = most.reads+4, most.records+256+2
						f = session(t, openStore(t, m, &turnstone.Options{NoAutoSeal: true}), f.ID())
					}
					used := m.of(func() {
						if _, err := f.Load(ctx, turnstone.Scope{Last: want}); err != nil {
							t.Fatal(err)
						}
					})
					t.Logf("%s, %s: %+v", f.ID(), handle, used)
					if used.reads > most.reads || used.records > most.records {
						t.Errorf("%s, %s: Last %d costs %+v", f.ID(), handle, want, used)
					}
					if got := lastOf(t, f, want); got[0].ID != ids[at-2] || got[1].ID != ids[at-1] {
						t.Errorf("%s: the last nodes are %v", f.ID(), got)
					}
				}
			}
			if got := lastOf(t, before, 5); got[1].ID != ids[at+c.nodes] {
				t.Errorf("a fork before the tombstones shows %v", got[1].ID)
			}
		})
	}
}

// Of random histories with branches, forks and tombstones, pruned and vacuumed now and then, the last n
// nodes of any path are the end of the whole path, in a warm and in a cold handle.
func TestR15_TheLastNodesAreTheEndOfThePath(t *testing.T) {
	for seed := range testkit.Pick[uint64](400, 40, 12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := &stoneWorld{T: t, rng: rand.New(rand.NewPCG(seed, 15)), e: memory.New(), nodes: map[string][]graph.ID{}}
			w.st = openStore(t, w.e, &turnstone.Options{NoAutoSeal: true})
			w.sessions = []*turnstone.Session{create(t, w.st, turnstone.Request{ID: "0"})}
			for range 60 {
				w.step()
			}
			for _, s := range w.sessions {
				w.check(session(t, openStore(t, w.e, nil), s.ID()))
			}
			verify(t, w.st)
		})
	}
}

// A stoneWorld is a store of random sessions.
type stoneWorld struct {
	*testing.T
	rng      *rand.Rand
	e        *memory.Engine
	st       *turnstone.Store
	sessions []*turnstone.Session
	nodes    map[string][]graph.ID // of the graph of each session, in order
}

// some returns a random session, and its nodes.
func (w *stoneWorld) some() (*turnstone.Session, []graph.ID) {
	s := w.sessions[w.rng.IntN(len(w.sessions))]
	return s, w.nodes[s.ID()]
}

// allowed fails the test if err is neither nil nor one that a pruned or tombstoned node explains.
func (w *stoneWorld) allowed(err error) bool {
	w.Helper()
	if err != nil && !errors.Is(err, turnstone.ErrRevisionPruned) && !errors.Is(err, turnstone.ErrNodeNotFound) {
		w.Fatal(err)
	}
	return err == nil
}

// step does something at random.
func (w *stoneWorld) step() {
	s, nodes := w.some()
	switch k := w.rng.IntN(20); {
	case k < 9 || len(nodes) == 0:
		w.commit(s, nodes)
	case k < 13: // A run of nodes, or some here and there.
		from := w.rng.IntN(len(nodes))
		ids := slices.Clone(nodes[from:min(from+1+w.rng.IntN(12), len(nodes))])
		if w.rng.IntN(3) == 0 {
			ids = []graph.ID{ids[0], nodes[w.rng.IntN(len(nodes))], nodes[w.rng.IntN(len(nodes))]}
		}
		w.allowed(s.Tombstone(ctx, ids...))
	case k < 15 && len(w.sessions) < 8:
		at := w.rng.IntN(len(nodes))
		f, _, err := w.st.Create(ctx, turnstone.Request{ID: fmt.Sprint(len(w.sessions)), Parent: s.ID(), ForkNode: nodes[at]})
		if w.allowed(err) {
			w.sessions = append(w.sessions, f)
			full, err := f.Load(ctx, turnstone.Scope{Full: true})
			if err != nil {
				w.Fatal(err)
			}
			for _, n := range full.Nodes {
				w.nodes[f.ID()] = append(w.nodes[f.ID()], n.ID)
			}
		}
	case k == 15:
		if err := sealFast(ctx, s); err != nil {
			w.Fatal(err)
		}
	case k == 16:
		if err := s.Seal(ctx); err != nil {
			w.Fatal(err)
		}
	case k == 17:
		prune(w.T, s, head.Retention(1+w.rng.IntN(4)))
		vacuum(w.T, w.st)
	default:
		w.check(s)
	}
}

// commit commits nodes after the leaf or, now and then, after another node.
func (w *stoneWorld) commit(s *turnstone.Session, nodes []graph.ID) {
	c := turnstone.Commit{Expected: turnstone.AnyRevision}
	for i := range 1 + w.rng.IntN(6) {
		n := turnstone.NewNode{Kind: "u", Payload: fmt.Append(nil, w.rng.IntN(1000))}
		if i == 0 && len(nodes) > 0 && w.rng.IntN(4) == 0 {
			n.Parent = turnstone.RefTo(nodes[w.rng.IntN(len(nodes))])
		}
		c.Nodes = append(c.Nodes, n)
	}
	if r, err := s.Commit(ctx, c); w.allowed(err) {
		w.nodes[s.ID()] = append(nodes, r.Nodes...)
	}
}

// check compares the ends of paths with the whole paths.
func (w *stoneWorld) check(s *turnstone.Session) {
	w.Helper()
	lastOf(w.T, s, 1+w.rng.IntN(30))
	nodes := w.nodes[s.ID()]
	for range min(len(nodes), 5) {
		leaf := nodes[w.rng.IntN(len(nodes))]
		whole, err := s.Load(ctx, turnstone.Scope{Leaf: leaf})
		if !w.allowed(err) {
			continue
		}
		n := 1 + w.rng.IntN(30)
		end, err := s.Load(ctx, turnstone.Scope{Leaf: leaf, Last: n})
		if err != nil {
			w.Fatal(err)
		}
		if want := whole.Nodes[max(len(whole.Nodes)-n, 0):]; fmt.Sprint(end.Nodes) != fmt.Sprint(want) {
			w.Fatalf("the last %d nodes before %v of %s are\n%v, not\n%v", n, leaf, s.ID(), end.Nodes, want)
		}
		for _, want := range end.Nodes {
			if got, err := s.Node(ctx, want.ID); err != nil || got.Parent != want.Parent {
				w.Fatalf("node %v has the parent %v, not %v: %v", want.ID, got.Parent, want.Parent, err)
			}
		}
	}
}
