package reclaim

import (
	"context"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
)

// A stones says which nodes are tombstoned, by the first bytes of their ids: true for
// a tombstone of the session that is looked at, false for one of its ancestors'.
type stones map[[8]byte]bool

// stonesOf returns the tombstones that count in a session which reads these
// ancestors and then itself.
func (cy *cycle) stonesOf(ctx context.Context, inc heads.Incarnation, ancestors []heads.Ancestor) (stones, error) {
	out := stones{}
	layers := append(append([]heads.Ancestor(nil), ancestors...), heads.Ancestor{Incarnation: inc, Epoch: open})
	for i, l := range layers {
		for p, err := range cy.engine.Scan(ctx, cy.space.Of(keys.Tombstone, l.Incarnation)) {
			if err != nil {
				return nil, err
			}
			t, err := heads.OpenTombstone(p.Key, p.Value)
			_, fields, ok := cy.space.Fields(p.Key)
			if err == nil && !ok {
				err = record.ErrMalformed
			}
			if err != nil {
				return nil, codec.Corrupt(err, "tombstone at key %x", p.Key)
			}
			if t.Epoch <= l.Epoch {
				out[[8]byte(fields[16:])] = i == len(layers)-1
			}
		}
	}
	return out, nil
}

// A plan says what of a session's nodes is to be erased.
type plan struct {
	before  graph.ID // the node before the session's first
	views   []sight  // of the sessions that show its nodes: itself, if it lives, and forks
	tree    *tree    // of a session that lives and has a floor
	indexed uint64   // revisions behind are not in the index yet: the next vacuum has them
	headKey []byte   // of a session that lives: guarded by what depends on its nodes, as
	headRaw []byte
	entries map[string][]byte // attachment entries that are to go, or to point elsewhere; nil value: to go
}

// A sight is a session that shows nodes of another one up to some revision, and
// the tombstones that count in it.
type sight struct {
	own    bool           // of the session itself
	upTo   heads.Ancestor // zero revision: everything
	stones stones
}

func (s *sight) shows(at pack.Position) bool {
	a := &s.upTo
	return a.Revision == 0 || at.Revision < uint64(a.Revision) ||
		at.Revision == uint64(a.Revision) && (a.Nodes == 0 || at.Index < a.Nodes)
}

// gone reports whether nobody shows a node any more.
func (p *plan) gone(n *pack.Node, at pack.Position) bool {
	if at.Revision > p.indexed {
		return false
	}
	for i := range p.views {
		s := &p.views[i]
		if !s.shows(at) {
			continue
		}
		if _, dead := s.stones[[8]byte(n.ID[:8])]; !dead && !(s.own && p.tree.prunes(at)) {
			return false
		}
	}
	return true
}

// erase removes the content of the session's nodes that nobody shows any more,
// and all packs behind a revision.
func (c *cleaning) erase(ctx context.Context, last head.Revision) error {
	p, err := c.plan(ctx)
	if err != nil {
		return err
	}
	if err := c.entries(ctx, p, last); err != nil {
		return err
	}
	before := p.before
	for seg, err := range pack.Segments(ctx, c.engine, c.space, c.inc, 1, open) {
		if err != nil {
			return err
		}
		s := &rewriting{cleaning: c, plan: p, seg: &seg, before: before, last: last}
		for i := range seg.Packs {
			if seg.Packs[i].Revision > uint64(last) {
				break // it goes, and the one before it may have gone when a vacuum was cut off
			}
			if before, err = seg.Packs[i].Resolve(before); err != nil {
				return codec.Corrupt(err, "pack of revision %d of incarnation %x", seg.Packs[i].Revision, c.inc)
			}
		}
		if err := s.rewrite(ctx); err != nil {
			return err
		}
		if err := c.beat(ctx); err != nil {
			return err
		}
	}
	return c.settle(ctx, p)
}

// plan finds out who shows the session's nodes, and which are to be pruned.
func (c *cleaning) plan(ctx context.Context) (*plan, error) {
	p := &plan{entries: map[string][]byte{}, indexed: uint64(c.mark.revision)}
	if c.life.State == heads.Live {
		p.headKey = c.space.Head(c.life.Session)
		vs, err := c.get(ctx, p.headKey, c.space.Life(c.inc))
		if err != nil {
			return nil, err
		}
		if string(vs[1]) != string(c.raw) {
			return nil, errMoved
		}
		p.headRaw = vs[0]
	}
	origin, err := c.origin(ctx, c.inc)
	if err != nil {
		return nil, err
	}
	var ancestors []heads.Ancestor
	if origin != nil {
		ancestors = origin.Ancestors
		p.before = ancestors[len(ancestors)-1].Node
	}
	if c.life.State == heads.Live {
		stones, err := c.stonesOf(ctx, c.inc, ancestors)
		if err != nil {
			return nil, err
		}
		p.views = append(p.views, sight{own: true, stones: stones})
	}
	for _, h := range c.holders {
		if h.ancestor.Revision == 0 {
			continue // it shows none of them
		}
		o, err := c.origin(ctx, h.inc)
		if err == nil && o == nil {
			err = codec.Corrupt(record.ErrMissing, "origin of fork %x", h.inc)
		}
		if err != nil {
			return nil, err
		}
		stones, err := c.stonesOf(ctx, h.inc, o.Ancestors)
		if err != nil {
			return nil, err
		}
		p.views = append(p.views, sight{upTo: h.ancestor, stones: stones})
	}
	if c.life.State == heads.Live && c.life.Floor > 0 {
		p.tree, err = c.tree(ctx, p)
	}
	return p, err
}

// entries finds the attachment entries that point to nodes which are to be
// erased: they go, or point to the next node that has the attachment.
func (c *cleaning) entries(ctx context.Context, p *plan, last head.Revision) error {
	n := 0
	for pair, err := range c.engine.Scan(ctx, c.space.Of(keys.Attachment, c.inc)) {
		if err != nil {
			return err
		}
		p.entries[string(pair.Key)] = pair.Value
		n++
	}
	if n == 0 {
		return nil
	}
	first := map[string]pack.Position{}
	err := c.nodes(ctx, p, last, func(n *pack.Node, at pack.Position) {
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
	if err != nil {
		return err
	}
	for key, value := range p.entries {
		place, ok := first[key]
		if !ok {
			p.entries[key] = nil
			continue
		}
		if now := place.SealAttachment([]byte(key)); string(now) != string(value) {
			p.entries[key] = now
		} else {
			delete(p.entries, key)
		}
	}
	return nil
}

// A rewriting is the work on one segment.
type rewriting struct {
	*cleaning
	plan   *plan
	seg    *pack.Segment
	before graph.ID
	last   head.Revision
}

// rewrite stores the segment anew if something of it is to go.
func (w *rewriting) rewrite(ctx context.Context) error {
	b := &batch{}
	packs := w.seg.Packs
	for len(packs) > 0 && packs[len(packs)-1].Revision > uint64(w.last) {
		packs = packs[:len(packs)-1]
	}
	changed, erased, stones := len(packs) < len(w.seg.Packs), 0, uint64(0)
	raw := rawSize(packs)
	detached := map[keys.Hash]bool{}
	for i := range packs {
		for j := range packs[i].Nodes {
			n := &packs[i].Nodes[j]
			at := pack.Position{Revision: packs[i].Revision, Index: j}
			if n.Erased || !w.plan.gone(n, at) {
				continue
			}
			for _, id := range n.Blobs() {
				detached[w.space.BlobHash(id)] = true
			}
			if w.plan.tree.prunes(at) && !w.plan.views[0].stones[[8]byte(n.ID[:8])] {
				key := w.space.Tombstone(w.inc, n.ID)
				s := heads.Tombstone{Epoch: w.life.Epoch + 1, Pruned: true}
				b.Set(key, s.Seal(key))
				stones++
			}
			packs[i].Erase(j)
			changed = true
			erased++
		}
	}
	if !changed {
		return nil
	}
	// Records of detached blobs that come too early do no harm: an edge is derived anew.
	blobs := slices.Collect(maps.Keys(detached))
	for ; len(blobs) > batchOps; blobs = blobs[batchOps:] {
		early := &batch{}
		w.detach(early, blobs[:batchOps]...)
		if err := w.apply(ctx, early, nil); err != nil {
			return err
		}
	}
	w.detach(b, blobs...)
	set := map[string]bool{}
	if len(packs) > 0 {
		ks, vs, err := pack.EncodeSegment(w.space, w.inc, packs, w.before, w.seg.Level)
		if err != nil {
			return err
		}
		if w.seg.Level != codec.Fast {
			key, value := pack.SealIndex(w.space, w.inc, packs)
			ks, vs = append(ks, key), append(vs, value)
		}
		for i := range ks {
			b.Set(ks[i], vs[i])
			set[string(ks[i])] = true
		}
	}
	old := w.seg.Keys
	if w.seg.Level != codec.Fast {
		old = append(old, w.space.Index(w.inc, w.seg.Packs[len(w.seg.Packs)-1].Revision))
	}
	for _, k := range old {
		if !set[string(k)] {
			b.Delete(k)
		}
	}
	if stones > 0 { // the collector's own: they make nothing stale
		w.mark.stones += stones
		w.setBookmark(&b.Batch, w.inc, &w.mark)
	}
	err := w.apply(ctx, b, func(l *heads.Life) {
		if w.seg.Packs[0].Revision > uint64(l.Sealed) { // what sealing goes by shrank
			l.SealedRaw += raw - rawSize(packs)
		}
		l.Stones += stones
	})
	if err != nil {
		return err
	}
	w.out.Nodes += erased
	return nil
}

func rawSize(packs []pack.Pack) (n uint64) {
	for i := range packs {
		n += packs[i].Raw()
	}
	return n
}

// settle removes the attachment entries of what was erased.
func (c *cleaning) settle(ctx context.Context, p *plan) error {
	apply := func(b *batch) error {
		if p.headKey != nil { // a commit may rely on an entry, or have made one
			b.Guard(p.headKey, p.headRaw)
		}
		return c.apply(ctx, b, nil)
	}
	b := &batch{}
	for key, value := range p.entries {
		if value == nil {
			b.Delete([]byte(key))
		} else {
			b.Set([]byte(key), value)
		}
		if b.Ops() >= batchOps {
			if err := apply(b); err != nil {
				return err
			}
			b = &batch{}
		}
	}
	if b.Ops() == 0 {
		return nil
	}
	return apply(b)
}
