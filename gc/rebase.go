package gc

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// rebase stores blobs anew, by themselves, that something refers to and that are
// deltas of one that nothing else refers to: then that goes, with the chain
// behind it. So what was erased is not kept by what came after it.
func (v *vacuum) rebase(ctx context.Context) error {
	var at keys.Hash
	used := true
	var dependents []keys.Hash
	flush := func() error {
		if used {
			return nil
		}
		for _, h := range dependents {
			if err := v.rebaseOne(ctx, h, at); err != nil {
				return err
			}
		}
		return nil
	}
	for p, err := range v.engine.Scan(ctx, v.space.All(keys.Edge)) {
		if err != nil {
			return err
		}
		_, fields, ok := v.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(codec.ErrMalformed, "edge at key %x", p.Key)
		}
		if h := keys.Hash(fields[:16]); h != at {
			if err := flush(); err != nil {
				return err
			}
			at, used, dependents = h, false, dependents[:0]
		}
		if fields[16] == bySession {
			used = true
		} else if len(dependents) < batchOps {
			dependents = append(dependents, keys.Hash(fields[17:]))
		}
	}
	return flush()
}

// rebaseOne stores h by itself if a session refers to it and it is a delta of base.
func (v *vacuum) rebaseOne(ctx context.Context, h, base keys.Hash) error {
	for {
		r := v.space.Of(keys.Edge, h)
		used := false
		for p, err := range v.engine.Scan(ctx, r) {
			if err != nil {
				return err
			}
			_, fields, ok := v.space.Fields(p.Key)
			if used = ok && fields[16] == bySession; used {
				break
			}
		}
		if !used {
			return nil
		}
		b := &batch{}
		done, err := v.blobs.Rebase(ctx, &b.Batch, h, true)
		if err != nil || !done {
			return err
		}
		edge, countKey := v.space.Edge(base, byBlob, h), v.space.Count(base)
		vs, err := v.get(ctx, edge, countKey)
		if err != nil {
			return err
		}
		count, err := openCount(countKey, vs[1])
		if err != nil {
			return err
		}
		if vs[0] == nil || count == 0 {
			return codec.Corrupt(errDisagree, "edge of the blob at %x", base)
		}
		b.Delete(edge)
		v.setCount(b, base, count, count-1)
		err = v.apply(ctx, b)
		if errors.Is(err, engine.ErrConflict) {
			continue // a commit revived it
		}
		if err == nil {
			v.out.Rebased++
		}
		return err
	}
}

// pack compresses blobs that were compressed for speed, on a commit's path, as far
// as it goes.
func (v *vacuum) pack(ctx context.Context) error {
	const together = 256 << 10 // bytes of a batch
	b := &batch{}
	apply := func() error {
		n := len(b.Guards) / 2
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
		if m.Condemned || m.Packed || m.Depends {
			continue
		}
		if _, err := v.blobs.Rebase(ctx, &b.Batch, keys.Hash(fields), false); err != nil {
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
