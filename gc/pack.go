package gc

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// pack compresses blobs that were compressed for speed, on a commit's path, as far
// as it goes.
func (v *vacuum) pack(ctx context.Context) error {
	const together = 256 << 10 // bytes of a batch
	b := &batch{}
	apply := func() error {
		n := len(b.Guards)
		err := v.apply(ctx, b)
		b = &batch{}
		if errors.Is(err, engine.ErrConflict) {
			return nil // a commit revived one of them: the next vacuum has them
		}
		if err == nil {
			v.out.Packed += n
		}
		return err
	}
	for p, err := range v.engine.Scan(ctx, v.space.All(keys.Mark)) {
		if err != nil {
			return err
		}
		_, fields, ok := v.space.Fields(p.Key)
		m, err := blob.OpenMark(p.Key, p.Value)
		if err == nil && !ok {
			err = codec.ErrMalformed
		}
		if err != nil {
			return codec.Corrupt(err, "mark at key %x", p.Key)
		}
		if m.Condemned || m.Packed || m.List {
			continue
		}
		if _, err := v.blobs.Pack(ctx, &b.Batch, keys.Hash(fields)); err != nil {
			return err
		}
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
