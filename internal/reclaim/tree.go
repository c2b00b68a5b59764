package reclaim

import (
	"context"
	"sort"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
)

// A tree is what is to be known of the parents of a session's nodes to say which of them
// a retained revision shows. Most nodes follow the one before them, so it takes memory
// for the branches only.
type tree struct {
	floor    uint64                     // nodes of revisions from here on are shown
	named    uint64                     // and so are those up to this one: it is kept by name
	branches []branch                   // in order
	places   map[graph.ID]pack.Position // where branches begin from, and revisions end at
}

// A branch is a run of nodes of which each is the parent of the next.
type branch struct {
	first  pack.Position
	parent graph.ID      // of the first node
	shown  pack.Position // the last node that a retained revision shows; zero: none
}

// of returns the branch that the node at p is on.
func (t *tree) of(p pack.Position) *branch {
	return &t.branches[sort.Search(len(t.branches), func(i int) bool { return p.Before(t.branches[i].first) })-1]
}

// show says that a retained revision shows the node at p, and so those before it on its branch.
func (t *tree) show(p pack.Position) {
	if b := t.of(p); b.shown.Before(p) {
		b.shown = p
	}
}

// prunes reports whether no retained revision leads to the node at p, and no revision
// kept by name shows it.
func (t *tree) prunes(p pack.Position) bool {
	return t != nil && p.Revision < t.floor && p.Revision > t.named && t.of(p).shown.Before(p)
}

// tree reads the tree of the session, which lives. A revision kept by name shows all
// nodes up to it: Scope.Full reads side branches, too.
func (c *cleaning) tree(ctx context.Context, p *plan) (*tree, error) {
	h, err := heads.OpenHead(p.headKey, p.headRaw)
	if err == nil && h.Incarnation != c.inc {
		err = record.ErrHash
	}
	if err != nil {
		return nil, codec.Corrupt(err, "head of incarnation %x", c.inc)
	}
	refs, err := c.kept(ctx, c.inc, c.life)
	if err != nil {
		return nil, err
	}
	t := &tree{floor: uint64(c.life.Floor), places: map[graph.ID]pack.Position{}}
	for _, ref := range refs {
		t.named = max(t.named, uint64(ref.Revision))
	}
	leaves := map[graph.ID]bool{} // of retained revisions
	err = c.commits(ctx, c.inc, 0, h.Revision, head.CommitID{}, func(commit *heads.Commit, _ head.CommitID) error {
		if commit.Revision >= c.life.Floor && !commit.Leaf.IsZero() {
			leaves[commit.Leaf] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	wanted := map[graph.ID]bool{} // nodes that branches begin from: they came before
	last := p.before
	err = c.nodes(ctx, p, h.Revision, func(n *pack.Node, at pack.Position) {
		if len(t.branches) == 0 || n.Parent != last {
			t.branches = append(t.branches, branch{first: at, parent: n.Parent})
			if !n.Parent.IsZero() && n.Parent != p.before {
				wanted[n.Parent] = true
			}
		}
		if last = n.ID; leaves[n.ID] {
			t.places[n.ID] = at
		}
		if at.Revision >= t.floor {
			t.branches[len(t.branches)-1].shown = at
		}
	})
	if err != nil {
		return nil, err
	}
	if len(wanted) > 0 {
		err = c.nodes(ctx, p, h.Revision, func(n *pack.Node, at pack.Position) {
			if wanted[n.ID] {
				t.places[n.ID] = at
			}
		})
		if err != nil {
			return nil, err
		}
	}
	for id := range leaves {
		if at, own := t.places[id]; own {
			t.show(at)
		}
	}
	for i := len(t.branches) - 1; i >= 0; i-- { // a branch begins from an earlier one
		if at, own := t.places[t.branches[i].parent]; own && t.branches[i].shown.Revision > 0 {
			t.show(at)
		}
	}
	return t, nil
}

// nodes calls f for the nodes of the session up to a revision.
func (c *cleaning) nodes(ctx context.Context, to *plan, last head.Revision, f func(*pack.Node, pack.Position)) error {
	before := to.before
	return c.packs(ctx, c.inc, 0, last, func(p *pack.Pack) (err error) {
		if before, err = p.Resolve(before); err != nil {
			return codec.Corrupt(err, "pack of revision %d of incarnation %x", p.Revision, c.inc)
		}
		for i := range p.Nodes {
			f(&p.Nodes[i], pack.Position{Revision: p.Revision, Index: i})
		}
		return nil
	})
}
