package gc

import (
	"context"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file removes the content of nodes that no session shows any more. A node is shown by
// its own session while that lives, and by the forks that share it. Vacuum first makes a plan
// of who shows what, then stores each segment anew that has something to erase (rewrite.go),
// and at last removes the attachment entries of erased nodes.
//
//	session   o──o──x──o──o        x is tombstoned in the session after the fork was made:
//	                └─ fork        the fork shows it still, so its content stays
//
// Tombstones carry the epoch of the lifecycle record that they were set with, and a fork's origin
// has the epoch at the fork. So a tombstone counts in a fork if it is not later.

// tombstones says which nodes are tombstoned, by the first bytes of their ids: true for a
// tombstone of the session itself, false for one of an ancestor.
type tombstones map[[8]byte]bool

// has reports whether a node is tombstoned.
func (t tombstones) has(id graph.ID) bool {
	_, found := t[[8]byte(id[:8])]
	return found
}

// own reports whether a node is tombstoned by the session itself.
func (t tombstones) own(id graph.ID) bool { return t[[8]byte(id[:8])] }

// tombstones returns the tombstones that count in a session: its own, and those of its
// ancestors that were set before the session forked from them.
func (cy *cycle) tombstones(ctx context.Context, inc head.Incarnation, ancestors []head.Ancestor) (tombstones, error) {
	out := tombstones{}
	layers := append(slices.Clone(ancestors), head.Ancestor{Incarnation: inc, Epoch: open})
	for i, l := range layers {
		own := i == len(layers)-1
		err := cy.each(ctx, cy.space.Of(keys.Tombstone, l.Incarnation), "tombstone", func(e entry) error {
			t, err := head.DecodeTombstone(e.Key, e.Value)
			if err != nil {
				return codec.Corrupt(err, "tombstone at key %x", e.Key)
			}
			if t.Epoch <= l.Epoch {
				out[[8]byte(e.fields[16:])] = own
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// A plan says which nodes of a session are to be erased.
type plan struct {
	before  graph.ID // the node before the session's first
	viewers []viewer // the sessions that show nodes of the session
	tree    *tree    // of a session that lives and has a floor; else nil
	indexed uint64   // Nodes of later revisions are not in the index yet. The next vacuum erases them.

	// headKey and headRaw are the head of a session that lives. The batches that change
	// attachment entries guard it.
	headKey []byte
	headRaw []byte
	// entries has the attachment entries that are to change, by their keys. Nil values
	// stand for entries that are to go.
	entries map[string][]byte
}

// A viewer is a session that shows nodes of the session that is vacuumed: that session itself,
// first and only if it lives, or a fork.
type viewer struct {
	own    bool          // It is the session itself.
	upTo   head.Ancestor // what a fork shares; the zero revision stands for everything
	stones tombstones    // that count in it
}

// shares reports whether the node at a position is in the graph of the viewer.
func (w *viewer) shares(at graph.Position) bool {
	a := &w.upTo
	return a.Revision == 0 || at.Revision < uint64(a.Revision) ||
		at.Revision == uint64(a.Revision) && (a.Nodes == 0 || at.Index < a.Nodes)
}

// gone reports whether no session shows a node any more: every viewer that shares the node has
// tombstoned it, or is the node's own session and prunes it.
func (p *plan) gone(n *graph.Node, at graph.Position) bool {
	if at.Revision > p.indexed {
		return false
	}
	return !slices.ContainsFunc(p.viewers, func(w viewer) bool {
		return w.shares(at) && !w.stones.has(n.ID) && !(w.own && p.tree.prunes(at))
	})
}

// erase removes the content of the session's nodes that no session shows any more, up to the revision
// last. The segment with that revision ends with it then.
func (c *cleaning) erase(ctx context.Context, last head.Revision) error {
	p, err := c.plan(ctx)
	if err != nil {
		return err
	}
	if err := c.planEntries(ctx, p, last); err != nil {
		return err
	}
	of := history.Revisions{Inc: c.inc, Name: nameOf(c.inc), Last: last}
	for seg, err := range c.history().Segments(ctx, of) {
		if err != nil {
			return err
		}
		r := &rewriting{cleaning: c, plan: p, seg: seg, last: last}
		if err := r.rewrite(ctx); err != nil {
			return err
		}
		if err := c.beat(ctx); err != nil {
			return err
		}
	}
	return c.settleEntries(ctx, p)
}

// plan finds out who shows the session's nodes, and which of them are to be pruned.
func (c *cleaning) plan(ctx context.Context) (*plan, error) {
	p := &plan{entries: map[string][]byte{}, indexed: uint64(c.mark.revision)}
	lives := c.life.State == head.Live
	if lives {
		if err := c.planHead(ctx, p); err != nil {
			return nil, err
		}
	}
	origin, err := c.origin(ctx, c.inc)
	if err != nil {
		return nil, err
	}
	var ancestors []head.Ancestor
	if origin != nil {
		ancestors = origin.Ancestors
		p.before = origin.Node()
	}
	if lives {
		stones, err := c.tombstones(ctx, c.inc, ancestors)
		if err != nil {
			return nil, err
		}
		p.viewers = append(p.viewers, viewer{own: true, stones: stones})
	}
	for _, h := range c.holders {
		if err := c.addViewer(ctx, p, h); err != nil {
			return nil, err
		}
	}
	if lives && c.life.Floor > 0 {
		p.tree, err = c.tree(ctx, p)
	}
	return p, err
}

// planHead reads the head of the session, which lives. A rename moves the head, so the
// lifecycle record is read again with it.
func (c *cleaning) planHead(ctx context.Context, p *plan) error {
	p.headKey = c.space.Head(c.life.Session)
	vs, err := c.get(ctx, p.headKey, c.space.Life(c.inc))
	if err == nil && string(vs[1]) != string(c.record) {
		err = errMoved
	}
	if err == nil {
		p.headRaw = vs[0]
	}
	return err
}

// addViewer adds a fork to the viewers of a plan, unless it shares no nodes.
func (c *cleaning) addViewer(ctx context.Context, p *plan, h holder) error {
	if h.ancestor.Revision == 0 {
		return nil
	}
	o, err := c.origin(ctx, h.inc)
	if err != nil {
		return err
	}
	if o == nil {
		return codec.Corrupt(damage.ErrMissing, "origin of fork %x", h.inc)
	}
	stones, err := c.tombstones(ctx, h.inc, o.Ancestors)
	if err != nil {
		return err
	}
	p.viewers = append(p.viewers, viewer{upTo: h.ancestor, stones: stones})
	return nil
}

// planEntries finds the attachment entries that point to nodes which are to be erased. An
// entry goes, or points to the next node that has the attachment. A session without attachments
// costs an empty scan; for others all turns are read.
func (c *cleaning) planEntries(ctx context.Context, p *plan, last head.Revision) error {
	for pair, err := range c.engine.Scan(ctx, c.space.Of(keys.Attachment, c.inc)) {
		if err != nil {
			return err
		}
		p.entries[string(pair.Key)] = pair.Value
	}
	if len(p.entries) == 0 {
		return nil
	}
	first, err := c.firstNodes(ctx, p, last)
	if err != nil {
		return err
	}
	for key, value := range p.entries {
		at, shown := first[key]
		if !shown {
			p.entries[key] = nil
			continue
		}
		if now := at.EncodeAttachment([]byte(key)); string(now) != string(value) {
			p.entries[key] = now
		} else {
			delete(p.entries, key)
		}
	}
	return nil
}

// firstNodes returns, by the key of its entry, where the first node with each attachment is
// that is not to be erased.
func (c *cleaning) firstNodes(ctx context.Context, p *plan, last head.Revision) (map[string]graph.Position, error) {
	first := map[string]graph.Position{}
	err := c.nodes(ctx, last, func(n *graph.Node, at graph.Position) {
		if p.gone(n, at) {
			return
		}
		for _, a := range n.Attachments {
			key := string(c.space.Attachment(c.inc, c.space.BlobHash(a.ID)))
			if _, seen := first[key]; !seen {
				first[key] = at
			}
		}
	})
	return first, err
}

// settleEntries changes the attachment entries as planned. Its batches guard the head: a
// commit may rely on an entry, or have made one. The entries go after the nodes: a reader that
// follows an entry to an erased node reports that the attachment is gone.
func (c *cleaning) settleEntries(ctx context.Context, p *plan) error {
	w := newWriter(func(ctx context.Context, b *batch) error {
		if p.headKey != nil {
			b.Guard(p.headKey, p.headRaw)
		}
		return c.apply(ctx, b, nil)
	})
	for key, value := range p.entries {
		if value == nil {
			w.Delete([]byte(key))
		} else {
			w.Set([]byte(key), value)
		}
		if err := w.flushMany(ctx); err != nil {
			return err
		}
	}
	return w.flush(ctx)
}
