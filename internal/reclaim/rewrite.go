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
	plan   *plan
	seg    *pack.Segment
	before graph.ID      // the node before the segment's first
	last   head.Revision // packs after it go

	batch    *batch
	packs    []pack.Pack        // those that stay
	detached map[keys.Hash]bool // blobs that erased nodes referred to
	erased   int                // nodes
	stones   uint64             // tombstones that batch sets
}

// rewrite stores the segment anew if anything of it is to go. It erases in the packs that were
// read, so the segment's size before is computed first.
func (r *rewriting) rewrite(ctx context.Context) error {
	r.batch, r.detached = &batch{}, map[keys.Hash]bool{}
	r.packs = r.seg.Packs
	for len(r.packs) > 0 && r.packs[len(r.packs)-1].Revision > uint64(r.last) {
		r.packs = r.packs[:len(r.packs)-1]
	}
	before := uncompressed(r.packs)
	for i := range r.packs {
		r.erasePack(&r.packs[i])
	}
	if r.erased == 0 && len(r.packs) == len(r.seg.Packs) {
		return nil
	}
	if err := r.detachAll(ctx); err != nil {
		return err
	}
	if err := r.replace(); err != nil {
		return err
	}
	if r.stones > 0 { // These are the collector's own: they leave vacuum nothing to do.
		r.mark.stones += r.stones
		r.setBookmark(&r.batch.Batch, r.inc, &r.mark)
	}
	// A batch that was applied with a wrong plan would erase what a session shows. The plan
	// rests on the lifecycle record, which apply guards: forks, tombstones, kept revisions, the
	// floor and commits that rewind set it.
	err := r.apply(ctx, r.batch, func(l *heads.Life) {
		if r.seg.Packs[0].Revision > uint64(l.Sealed) { // Sealing goes by the uncompressed size of loose packs.
			l.SealedBytes += before - uncompressed(r.packs)
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
func (r *rewriting) erasePack(p *pack.Pack) {
	for i := range p.Nodes {
		n, at := &p.Nodes[i], pack.Position{Revision: p.Revision, Index: i}
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
	t := heads.Tombstone{Epoch: r.life.Epoch + 1, Pruned: true}
	r.batch.Set(key, t.Seal(key))
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

// replace makes the batch store the packs that stay in place of the segment. A sealed segment
// has a record with its index. The keys of a segment have its last revision: if packs at the end
// go, the segment gets other keys, and those that it does not use any more are deleted.
func (r *rewriting) replace() error {
	sealed := r.seg.Level != codec.Fast
	set := map[string]bool{}
	if len(r.packs) > 0 {
		ks, vs, err := pack.EncodeSegment(r.space, r.inc, r.packs, r.before, r.seg.Level)
		if err != nil {
			return err
		}
		if sealed {
			key, value := pack.SealIndex(r.space, r.inc, r.packs)
			ks, vs = append(ks, key), append(vs, value)
		}
		for i := range ks {
			r.batch.Set(ks[i], vs[i])
			set[string(ks[i])] = true
		}
	}
	old := r.seg.Keys
	if sealed {
		old = append(old, r.space.Index(r.inc, r.seg.Packs[len(r.seg.Packs)-1].Revision))
	}
	for _, k := range old {
		if !set[string(k)] {
			r.batch.Delete(k)
		}
	}
	return nil
}

// uncompressed returns the size of packs before compression.
func uncompressed(packs []pack.Pack) (n uint64) {
	for i := range packs {
		n += packs[i].Uncompressed()
	}
	return n
}
