package gc

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file compresses blobs further. A commit compresses a blob for speed, because a host
// waits for it. Such a blob is loose, and gets a loose record with its first edge; vacuum
// compresses it as far as it goes, and deletes the record in the same batch. A blob that loses
// its last edge loses its loose record, too: it is a candidate then.

// packBatch is how many bytes of blobs are stored in one batch.
const packBatch = 256 << 10

// pack compresses the loose blobs.
func (v *vacuum) pack(ctx context.Context) error {
	p := &packing{vacuum: v, b: &batch{}}
	err := v.each(ctx, v.space.All(keys.Loose), "loose record", func(e entry) error { return p.add(ctx, e) })
	if err != nil || p.b.Ops() == 0 {
		return err
	}
	return p.flush(ctx)
}

// A packing gathers blobs that are stored anew.
type packing struct {
	*vacuum
	b      *batch
	packed int // blobs of the batch
}

// add compresses the blob of a loose record. A blob that has no edge any more, or is condemned,
// is left as it is.
func (p *packing) add(ctx context.Context, e entry) error {
	done, err := p.blobs.Recompress(ctx, &p.b.Batch, e.hash())
	if err != nil || !done {
		return err
	}
	p.packed++
	p.b.Delete(e.Key)
	if p.b.Bytes() >= packBatch || p.b.Ops() >= batchOps {
		if err := p.flush(ctx); err != nil {
			return err
		}
	}
	p.step(1)
	return nil
}

// flush applies the batch. Each blob's mark is guarded. If a commit has revived one of the
// blobs meanwhile, none of the batch is stored, and the next vacuum comes to them.
func (p *packing) flush(ctx context.Context) error {
	b, packed := p.b, p.packed
	p.b, p.packed = &batch{}, 0
	err := p.apply(ctx, b)
	if err == nil {
		p.out.Packed += packed
	}
	if errors.Is(err, engine.ErrConflict) {
		return nil
	}
	return err
}
