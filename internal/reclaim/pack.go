package reclaim

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// pack compresses loose blobs as far as it goes: they were compressed for speed, on a
// commit's path. A blob is listed as loose when it gets its first edge.
func (v *vacuum) pack(ctx context.Context) error {
	const together = 256 << 10 // bytes of a batch
	b, packed := &batch{}, 0
	apply := func() error {
		err := v.apply(ctx, b)
		if err == nil {
			v.out.Packed += packed
		}
		b, packed = &batch{}, 0
		if errors.Is(err, engine.ErrConflict) {
			return nil // a commit revived one of them: the next vacuum has them
		}
		return err
	}
	for p, err := range v.engine.Scan(ctx, v.space.All(keys.Loose)) {
		if err != nil {
			return err
		}
		_, fields, ok := v.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(record.ErrMalformed, "loose record at key %x", p.Key)
		}
		done, err := v.blobs.Pack(ctx, &b.Batch, keys.Hash(fields))
		if err != nil {
			return err
		}
		if !done {
			continue // it has no edge any more, or is condemned
		}
		packed++
		b.Delete(p.Key)
		if b.Bytes() >= together || b.Ops() >= batchOps {
			if err := apply(); err != nil {
				return err
			}
		}
		v.step(1)
	}
	if b.Ops() == 0 {
		return nil
	}
	return apply()
}
