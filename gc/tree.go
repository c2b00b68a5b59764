package gc

import (
	"context"
	"sort"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
)

// This file finds out to which nodes of a session its retained revisions lead. A session's nodes
// are a tree: a commit may go on from any node, and the nodes that it does not go on from are a
// side branch. Vacuum prunes a side branch below the floor when no leaf of a retained revision is
// on it or on a branch that begins from it.
//
//	revision   1     2     3     4     5
//	           o─────o─────o                 revision 3 is a side branch: pruned with floor 4
//	                 └───────────o─────o     leads to the leaves of revisions 4 and 5: shown
//
// The nodes are read in their order. If a node is shown, so are all nodes before it on the same
// branch.

// A tree says which nodes of a session are shown by retained revisions. Most nodes follow the one
// before them, so a tree takes memory for the branches only.
type tree struct {
	floor    uint64                      // Nodes from this revision on are shown.
	named    uint64                      // Nodes up to this revision are shown, too: it is kept by name.
	branches []branch                    // in the order of their first nodes
	places   map[graph.ID]graph.Position // of nodes that branches begin from, and of leaves
}

// A branch is nodes that follow each other, of which each is the parent of the next.
type branch struct {
	first  graph.Position
	parent graph.ID       // of the first node
	shown  graph.Position // The last node that a retained revision shows. The zero position stands for none.
}

// of returns the branch that the node at p is on: the last one that begins at p or before.
func (t *tree) of(p graph.Position) *branch {
	return &t.branches[sort.Search(len(t.branches), func(i int) bool { return p.Before(t.branches[i].first) })-1]
}

// show notes that a retained revision shows the node at p, and with it those before it on its
// branch.
func (t *tree) show(p graph.Position) {
	if b := t.of(p); b.shown.Before(p) {
		b.shown = p
	}
}

// prunes reports whether no retained revision leads to the node at p, and no revision kept by
// name shows it. A nil tree prunes nothing.
func (t *tree) prunes(p graph.Position) bool {
	return t != nil && p.Revision < t.floor && p.Revision > t.named && t.of(p).shown.Before(p)
}

// tree reads the tree of the session, which lives. A revision kept by name shows all nodes up
// to it, because a read of the revision may show side branches, too (Scope.Full).
func (c *cleaning) tree(ctx context.Context, p *plan) (*tree, error) {
	h, err := decodeHead(engine.Pair{Key: p.headKey, Value: p.headRaw}, c.inc)
	if err != nil {
		return nil, err
	}
	refs, err := c.kept(ctx, c.inc, c.life)
	if err != nil {
		return nil, err
	}
	t := &tree{floor: uint64(c.life.Floor), places: map[graph.ID]graph.Position{}}
	for _, ref := range refs {
		t.named = max(t.named, uint64(ref.Revision))
	}
	// Commits may go on meanwhile. They go on from the leaf of the head, which is shown, or set
	// the lifecycle record, which this vacuum guards.
	leaves, err := c.leaves(ctx, h.Revision)
	if err != nil {
		return nil, err
	}
	if err := c.readBranches(ctx, p, t, h.Revision, leaves); err != nil {
		return nil, err
	}
	t.showLeaves(leaves)
	return t, nil
}

// leaves returns the leaves of the revisions from the floor up to last. A leaf may be a node of
// an ancestor, or of a revision below the floor.
func (c *cleaning) leaves(ctx context.Context, last head.Revision) (map[graph.ID]bool, error) {
	leaves := map[graph.ID]bool{}
	err := c.turns(ctx, c.inc, min(c.life.Floor-1, last), last, head.CommitID{}, func(t *history.Turn) error {
		if !t.Leaf.IsZero() {
			leaves[t.Leaf] = true
		}
		return nil
	})
	return leaves, err
}

// readBranches reads the branches of the tree, and the places of leaves and of the nodes that
// branches begin from. Such a node comes before its branch, so a second reading finds its place.
func (c *cleaning) readBranches(ctx context.Context, p *plan, t *tree, last head.Revision, leaves map[graph.ID]bool) error {
	parents := map[graph.ID]bool{}
	before := p.before
	err := c.nodes(ctx, last, func(n *graph.Node, at graph.Position) {
		if len(t.branches) == 0 || n.Parent != before {
			t.branches = append(t.branches, branch{first: at, parent: n.Parent})
			if !n.Parent.IsZero() && n.Parent != p.before {
				parents[n.Parent] = true
			}
		}
		if before = n.ID; leaves[n.ID] {
			t.places[n.ID] = at
		}
		if at.Revision >= t.floor {
			t.branches[len(t.branches)-1].shown = at
		}
	})
	if err != nil || len(parents) == 0 {
		return err
	}
	return c.nodes(ctx, last, func(n *graph.Node, at graph.Position) {
		if parents[n.ID] {
			t.places[n.ID] = at
		}
	})
}

// showLeaves shows the leaves and everything that leads to them. It goes through the branches
// from the last to the first: a branch begins from an earlier one. A leaf or a parent without
// a place is a node of an ancestor.
func (t *tree) showLeaves(leaves map[graph.ID]bool) {
	for id := range leaves {
		if at, own := t.places[id]; own {
			t.show(at)
		}
	}
	for i := len(t.branches) - 1; i >= 0; i-- {
		if at, own := t.places[t.branches[i].parent]; own && t.branches[i].shown.Revision > 0 {
			t.show(at)
		}
	}
}

// nodes calls f for the nodes of the session up to a revision. It reads all turns again, as keeping
// the nodes would take memory for the whole session.
func (c *cleaning) nodes(ctx context.Context, last head.Revision, f func(*graph.Node, graph.Position)) error {
	return c.turns(ctx, c.inc, 0, last, head.CommitID{}, func(t *history.Turn) error {
		for i := range t.Pack.Nodes {
			f(&t.Pack.Nodes[i], graph.Position{Revision: uint64(t.Revision), Index: i})
		}
		return nil
	})
}
