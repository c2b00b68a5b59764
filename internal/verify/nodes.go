package verify

import (
	"context"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A nodeCheck checks the nodes that one incarnation itself added, against its commits and
// its indexes.
type nodeCheck struct {
	*verifier
	h     *history.History
	layer history.Layer // of the incarnation itself
	live  bool          // whether the incarnation lives
	// shown reports whether a session shows a node of a deleted incarnation. The blobs of
	// other nodes may be gone.
	shown   func(n *history.Node) bool
	nodes   []history.Node
	layers  []history.Layer             // all of them, this one last
	own     map[graph.ID]graph.Position // where the nodes are
	entries []history.Entry             // that the index has to have
	ends    []head.Base                 // what the commits say of their leaves
}

// liveNodes checks the nodes of a session that lives, up to commit last. The caller has
// checked the chain of commits.
func (v *verifier) liveNodes(ctx context.Context, h *history.History, last head.Revision, commit head.CommitID) error {
	c := nodeCheck{verifier: v, h: h, layer: h.Own(last), live: true}
	c.layer.Commit = commit
	return c.check(ctx)
}

// deletedNodes checks the nodes of a deleted session up to commit last.
func (v *verifier) deletedNodes(ctx context.Context, h *history.History, last head.Revision, shown func(*history.Node) bool) error {
	c := nodeCheck{verifier: v, h: h, layer: h.Own(last), shown: shown}
	return c.check(ctx)
}

// check checks all nodes, and notes the blobs that they refer to.
func (c *nodeCheck) check(ctx context.Context) error {
	if err := steady(ctx, c.h, func() error { return c.read(ctx) }); err != nil {
		return err
	}
	if err := c.checkIndex(ctx); err != nil {
		return err
	}
	c.own = make(map[graph.ID]graph.Position, len(c.nodes))
	for i := range c.nodes {
		c.own[c.nodes[i].ID] = c.nodes[i].Position()
	}
	if c.forks[c.h.Inc] > 0 {
		c.verifier.positions[c.h.Inc] = c.own
	}
	c.layers = c.h.Layers(c.layer.Last)
	for i := range c.nodes {
		if err := c.node(ctx, &c.nodes[i]); err != nil {
			return err
		}
	}
	if err := c.depths(ctx); err != nil {
		return err
	}
	return c.attachments(ctx)
}

// read reads the nodes and verifies that they are those of the commits.
func (c *nodeCheck) read(ctx context.Context) error {
	c.nodes, c.entries, c.ends = nil, nil, nil
	return c.h.Turns(ctx, 0, c.layer.Last, func(t *history.Turn) error {
		if t.Revision == c.layer.Last && !c.layer.Commit.IsZero() && t.ID != c.layer.Commit {
			return codec.Corrupt(damage.ErrHash, "commit %d of %s", t.Revision, c.h.Name)
		}
		c.nodes = c.h.AppendTurn(c.nodes, c.layer, t)
		c.entries = history.Entries(c.entries, c.store.Space, t)
		c.ends = append(c.ends, t.Base(t.ID))
		return nil
	})
}

// checkIndex checks that the stored index has the entries of all turns up to the revision that the
// lifecycle record says.
func (c *nodeCheck) checkIndex(ctx context.Context) error {
	err := steady(ctx, c.h, func() error {
		life, err := c.store.Life(ctx, c.h.Inc)
		if err != nil || life == nil {
			return err
		}
		stored, err := c.store.Runs(ctx, c.h.Inc, life.Runs)
		if err != nil {
			return err
		}
		found := make(map[history.Entry]bool, len(stored))
		for _, e := range stored {
			found[e] = true
		}
		for _, e := range c.entries {
			if e.At.Revision <= uint64(life.Indexed()) && !found[e] {
				return codec.Corrupt(damage.ErrMissing, "index entry of revision %d of %s", e.At.Revision, c.h.Name)
			}
		}
		return nil
	})
	if endsSession(err) {
		return err
	}
	c.problemOf(c.h.Name, err)
	return nil
}

// node checks one node.
func (c *nodeCheck) node(ctx context.Context, n *history.Node) error {
	if c.live {
		c.Nodes++
	}
	c.refer(n)
	return c.parent(ctx, n)
}

// refer notes the blobs that a node refers to.
func (c *nodeCheck) refer(n *history.Node) {
	shown := c.live || c.shown(n)
	for _, id := range n.Blobs() {
		if shown {
			c.referenced[id] = c.name(c.h.Inc)
		}
		use := blobUse{c.store.Space.BlobHash(id), c.h.Inc}
		if _, seen := c.uses[use]; !seen {
			c.uses[use] = n.Revision
		}
	}
}

// pointsElsewhere is the error of an index entry that names the wrong node.
func pointsElsewhere(p graph.Position) error {
	return fmt.Errorf("points to node %d of revision %d", p.Index, p.Revision)
}

// depths checks that the commits say how long the paths to their leaves are. That a node's parent is missing is for
// another check.
func (c *nodeCheck) depths(ctx context.Context) error {
	known := map[graph.ID]uint64{{}: 0}
	if o := c.h.Origin; o != nil {
		known[o.Node()] = o.Depth
	}
	of := func(id graph.ID) (n uint64, err error) {
		n, ok := known[id]
		for i := len(c.layers) - 1; i >= 0 && !ok; i-- {
			n, ok = c.lengths[c.layers[i].Inc][id]
		}
		if !ok {
			err = steady(ctx, c.h, func() (err error) {
				n, err = c.h.Depth(ctx, c.layer.Last, id)
				return err
			}, c.layers[:len(c.layers)-1]...)
		}
		if err == nil {
			known[id] = n
		}
		return n, err
	}
	for i := range c.nodes {
		n := &c.nodes[i]
		if before, err := of(n.Parent); err == nil {
			known[n.ID] = before + 1
		} else if endsSession(err) {
			return err
		}
	}
	if c.forks[c.h.Inc] > 0 {
		c.lengths[c.h.Inc] = known
	}
	for i := range c.ends {
		e := &c.ends[i]
		n, err := of(e.Leaf)
		if endsSession(err) {
			return err
		}
		if err == nil && n != e.Depth {
			c.problem(fmt.Errorf("it says %d nodes, and there are %d", e.Depth, n), "path to the leaf of commit %d of %s", e.Revision, c.h.Name)
		}
	}
	return nil
}

// removed reports whether vacuum has removed a revision of a deleted session since it was
// read.
func (c *nodeCheck) removed(ctx context.Context, r head.Revision) (bool, error) {
	key := c.store.Space.Life(c.h.Inc)
	value, err := c.get(ctx, key)
	if value == nil || err != nil {
		return err == nil, err
	}
	life, err := head.DecodeLife(key, value)
	return err == nil && life.State != head.Live && life.Floor <= r, nil // another check reports a damaged record
}

// parent checks that a node's parent is a node of the incarnation, or one that it shares
// of its ancestors.
func (c *nodeCheck) parent(ctx context.Context, n *history.Node) error {
	p := n.Parent
	if _, ok := c.own[p]; ok || p.IsZero() || p == c.layer.First || c.inherits(p) {
		return nil
	}
	err := steady(ctx, c.h, func() error {
		_, _, err := c.h.Find(ctx, c.layer.Last, p)
		return err
	}, c.layers[:len(c.layers)-1]...)
	if endsSession(err) {
		return err
	}
	if c.live || !c.orphaned() {
		c.problem(err, "parent of node %s of %s", n.ID, c.h.Name)
	}
	return nil
}

// inherits reports whether a node is among the nodes that were read of the ancestors, and
// the incarnation shares it.
func (c *nodeCheck) inherits(id graph.ID) bool {
	return slices.ContainsFunc(c.layers, func(l history.Layer) bool {
		p, ok := c.verifier.positions[l.Inc][id]
		return ok && l.Has(p)
	})
}

// orphaned reports whether vacuum has removed an ancestor, or has begun to. It removes
// deleted sessions that no fork needs in any order.
func (c *nodeCheck) orphaned() bool {
	return slices.ContainsFunc(c.layers, func(l history.Layer) bool {
		life := c.verifier.lives[l.Inc]
		return life == nil || life.State == head.Deleted && life.Floor <= l.Last
	})
}

// attachments checks the entries by which the incarnation's attachments are found. Each
// points to the first node that has the attachment. While a vacuum runs, or after one was
// interrupted, an entry may point to an earlier node that is erased.
func (c *nodeCheck) attachments(ctx context.Context) error {
	firsts := map[keys.Hash]*history.Node{}
	erased := map[graph.Position]bool{}
	for i := range c.nodes {
		n := &c.nodes[i]
		if n.Erased {
			erased[n.Position()] = true
		}
		for _, a := range n.Attachments {
			if hash := c.store.Space.BlobHash(a.ID); firsts[hash] == nil {
				firsts[hash] = n
			}
		}
	}
	for hash, first := range firsts {
		if err := c.attachment(ctx, hash, first, erased); err != nil {
			return err
		}
	}
	return nil
}

// attachment checks the entry of one attachment, whose first node is given.
func (c *nodeCheck) attachment(ctx context.Context, hash keys.Hash, first *history.Node, erased map[graph.Position]bool) error {
	key := c.store.Space.Attachment(c.h.Inc, hash)
	value, err := c.get(ctx, key)
	if err != nil {
		return err
	}
	p, err := graph.DecodeAttachment(key, value)
	if err == nil && p != first.Position() && !erased[p] {
		err = pointsElsewhere(p)
	}
	if err == nil {
		return nil
	}
	// A vacuum that erases the node moves the entry, or removes it.
	if still, err := c.hasContent(ctx, first); !still || err != nil {
		return err
	}
	c.problem(err, "attachment entry of node %s of %s", first.ID, c.h.Name)
	return nil
}

// hasContent reports whether a node that was read still has its content.
func (c *nodeCheck) hasContent(ctx context.Context, read *history.Node) (bool, error) {
	if gone, err := c.removed(ctx, read.Revision); gone || err != nil {
		return false, err
	}
	var now history.Node
	err := steady(ctx, c.h, func() (err error) {
		now, err = c.h.NodeAt(ctx, history.Position{Layer: c.h.Own(read.Revision), Position: read.Position()})
		return err
	})
	if endsCheck(err) {
		return false, err
	}
	return err == nil && !now.Erased, nil
}
