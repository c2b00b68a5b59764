package gc

import (
	"context"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file stores one segment anew without the content that is to be erased. One batch
// replaces the segment, records which blobs the erased nodes referred to, and tombstones the
// nodes that it prunes. The place of an erased node stays: its id, its parent and a digest,
// from which readers verify everything above it.
//
// A reader sees the segment before or after that batch. One that has read the lifecycle record
// before finds it changed, and reads again.

// A rewriting is the work on one segment.
type rewriting struct {
	*cleaning
	plan *plan
	seg  *history.Segment
	last head.Revision // turns after it go

	batch    *batch
	turns    []history.Turn     // those that stay
	detached map[keys.Hash]bool // blobs that erased nodes referred to
	erased   int                // nodes
	stones   uint64             // tombstones that batch sets
}

// rewrite stores the segment anew if anything of it is to go. It erases in the turns that were
// read, so the segment's size before is computed first.
func (r *rewriting) rewrite(ctx context.Context) error {
	r.batch, r.detached = &batch{}, map[keys.Hash]bool{}
	r.turns = r.seg.Turns
	if r.seg.Last > r.last {
		r.turns = r.turns[:r.last+1-r.seg.First]
	}
	before := uncompressed(r.turns)
	for i := range r.turns {
		r.erasePack(&r.turns[i].Pack)
	}
	if r.erased == 0 && len(r.turns) == len(r.seg.Turns) {
		return nil
	}
	if err := r.detachAll(ctx); err != nil {
		return err
	}
	if err := r.replace(ctx); err != nil {
		return err
	}
	if r.stones > 0 { // These are the collector's own: they leave vacuum nothing to do.
		r.mark.stones += r.stones
		r.setBookmark(&r.batch.Batch, r.inc, &r.mark)
	}
	// A batch that was applied with a wrong plan would erase what a session shows. The plan
	// rests on the lifecycle record, which apply guards: forks, tombstones, kept revisions, the
	// floor and commits that rewind set it.
	err := r.apply(ctx, r.batch, func(l *head.Life) {
		if r.seg.First > l.Sealed { // Sealing goes by the uncompressed size of what is in no full segment.
			l.SealedBytes += before - uncompressed(r.turns)
		}
		l.Stones += r.stones
	})
	if err == nil {
		r.out.Nodes += r.erased
	}
	return err
}

// erasePack erases the nodes of a pack that no session shows any more. It notes which blobs they
// referred to: other nodes may refer to the same blobs, so the edges are derived anew and not
// dropped here.
func (r *rewriting) erasePack(p *graph.Pack) {
	for i := range p.Nodes {
		n, at := &p.Nodes[i], graph.Position{Revision: p.Revision, Index: i}
		if n.Erased || !r.plan.gone(n, at) {
			continue
		}
		for _, id := range n.Blobs() {
			r.detached[r.space.BlobHash(id)] = true
		}
		if r.plan.tree.prunes(at) && !r.plan.viewers[0].stones.own(n.ID) {
			r.tombstone(n.ID)
		}
		p.Erase(i)
		r.erased++
	}
}

// tombstone makes the batch tombstone a node that is pruned. A commit that would go on from it
// fails then, and says why.
func (r *rewriting) tombstone(id graph.ID) {
	key := r.space.Tombstone(r.inc, id)
	t := head.Tombstone{Epoch: r.life.Epoch + 1, Pruned: true}
	r.batch.Set(key, t.Encode(key))
	r.stones++
}

// detachAll records the detached blobs in the batch. If they are too many for one batch, it
// records some ahead: a record that comes too early does no harm, as the edge is derived anew
// from what stands.
func (r *rewriting) detachAll(ctx context.Context) error {
	blobs := slices.Collect(maps.Keys(r.detached))
	for ; len(blobs) > batchOps; blobs = blobs[batchOps:] {
		early := &batch{}
		r.detach(early, blobs[:batchOps]...)
		if err := r.apply(ctx, early, nil); err != nil {
			return err
		}
	}
	r.detach(r.batch, blobs...)
	return nil
}

// replace makes the batch store the turns that stay in place of the segment. The keys of a segment
// have its last revision: if turns at the end go, the segment gets other keys, and those that it does
// not use any more are deleted.
func (r *rewriting) replace(ctx context.Context) error {
	next := *r.seg
	next.Turns, next.Last = r.turns, r.turns[len(r.turns)-1].Revision
	ks, vs, err := r.encode(ctx, &next)
	if err != nil {
		return err
	}
	history.ReplaceSegments(&r.batch.Batch, ks, vs, r.seg.Keys)
	return nil
}

// encode returns the records of a segment that takes the place of r.seg.
func (r *rewriting) encode(ctx context.Context, next *history.Segment) (ks, vs [][]byte, err error) {
	if next.Loose() {
		t := &next.Turns[0]
		return history.EncodeTurn(r.space, r.inc, t.Body(), &t.Pack)
	}
	if next.Last != r.seg.Last {
		h, err := r.history().Open(ctx, r.inc)
		if err != nil {
			return nil, nil, err
		}
		if next.End, err = h.EndOf(ctx, r.seg.First-1); err != nil {
			return nil, nil, err
		}
		if next.End, err = history.StateAfter(next.End, next.Turns, nameOf(r.inc)); err != nil {
			return nil, nil, err
		}
	}
	return history.EncodeSealed(r.space, r.inc, next)
}

// uncompressed returns the size of the packs of turns before compression.
func uncompressed(of []history.Turn) (n uint64) {
	for i := range of {
		n += of[i].Pack.Uncompressed()
	}
	return n
}
