package gc_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// G10: vacuum prunes what no retained revision leads to, and nothing else, whatever the
// shape of the graph.
func TestG10_VacuumPrunesWhatNoRetainedRevisionLeadsTo(t *testing.T) {
	for seed := range testkit.Pick[uint64](2000, 200, 50) {
		rng := rand.New(rand.NewPCG(seed, 9))
		st := openAt(t, memory.New(), fixed)
		s := create(t, st, turnstone.Request{ID: "s"})
		if seed%3 == 0 { // the graph goes on from another session's
			commit(t, s, says([]byte("a"), []byte("b")))
			s = create(t, st, turnstone.Request{ID: "f", Parent: "s"})
		}
		parent, added := map[graph.ID]graph.ID{}, map[graph.ID]head.Revision{}
		var nodes, leaves []graph.ID
		revision := func() head.Revision { return head.Revision(len(leaves)) }
		grow := func() {
			c := turnstone.Commit{}
			for i := range rng.IntN(4) {
				n := turnstone.NewNode{Kind: "u", Payload: fmt.Append(nil, seed, len(nodes), i)}
				if len(nodes) > 0 && rng.IntN(3) == 0 {
					n.Parent = turnstone.RefTo(nodes[rng.IntN(len(nodes))])
				}
				c.Nodes = append(c.Nodes, n)
			}
			if len(nodes) > 0 && rng.IntN(4) == 0 {
				c.Leaf = turnstone.RefTo(nodes[rng.IntN(len(nodes))])
			}
			r := commit(t, s, c)
			leaves = append(leaves, r.Leaf)
			for _, id := range r.Nodes {
				n, err := s.Node(ctx, id)
				if err != nil {
					t.Fatal(err)
				}
				nodes = append(nodes, id)
				parent[id], added[id] = n.Parent, r.Revision
			}
		}
		kept, floor := head.Revision(0), head.Revision(1)
		for range 3 {
			for range 1 + rng.IntN(12) {
				grow()
			}
			if rng.IntN(3) == 0 {
				if kept = head.Revision(1 + rng.IntN(len(leaves))); s.Keep(ctx, "k", kept) != nil { // it was pruned before
					if err := s.Release(ctx, "k"); err != nil {
						t.Fatal(err)
					}
					kept = 0
				}
			}
			retain := head.Revision(1 + rng.IntN(4))
			if _, err := s.Prune(ctx, head.Retention(retain)); err != nil {
				t.Fatal(err)
			}
			vacuumed(t, st)
			if revision() >= retain {
				floor = max(floor, revision()-retain+1) // it never goes back
			}
			shown := map[graph.ID]bool{}
			lead := func(id graph.ID) {
				for ; added[id] > 0 && !shown[id]; id = parent[id] {
					shown[id] = true
				}
			}
			for r := floor; r <= revision(); r++ {
				lead(leaves[r-1])
			}
			for _, id := range nodes {
				if added[id] >= floor || added[id] <= kept {
					lead(id)
				}
			}
			nodes = slices.DeleteFunc(nodes, func(id graph.ID) bool { return !shown[id] })
			state, err := s.Load(ctx, turnstone.Scope{Full: true})
			if err != nil {
				t.Fatal(err)
			}
			left := map[graph.ID]bool{}
			for _, n := range state.Nodes {
				if added[n.ID] > 0 { // of its own
					left[n.ID] = true
				}
			}
			if !maps.Equal(left, shown) {
				t.Fatalf("seed %d, floor %d of %d, kept %d: %d nodes are left of %d, and not %d", seed, floor, revision(), kept, len(left), len(added), len(shown))
			}
		}
		healthy(t, st)
	}
}
