package gc

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

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
	used, err := true, error(nil)
	for p, serr := range v.engine.Scan(ctx, v.space.All(keys.Edge)) {
		if serr != nil {
			return serr
		}
		_, fields, ok := v.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(codec.ErrMalformed, "edge at key %x", p.Key)
		}
		if fields[16] != byBlob {
			continue
		}
		if h := keys.Hash(fields[:16]); h != at {
			at = h
			if used, err = v.used(ctx, h); err != nil {
				return err
			}
		}
		if !used {
			if err := v.rebaseOne(ctx, keys.Hash(fields[17:]), at); err != nil {
				return err
			}
		}
	}
	return nil
}

// used reports whether a session refers to a blob.
func (v *vacuum) used(ctx context.Context, h keys.Hash) (bool, error) {
	r := v.space.Of(keys.Edge, h)
	r.Start, r.Limit = v.space.Edge(h, bySession, [16]byte{}), 1
	for _, err := range v.engine.Scan(ctx, r) {
		return err == nil, err
	}
	return false, nil
}

// rebaseOne stores h by itself if a session refers to it and it is a delta of base.
func (v *vacuum) rebaseOne(ctx context.Context, h, base keys.Hash) error {
	for {
		used, err := v.used(ctx, h)
		if err != nil || !used {
			return err
		}
		var id [16]byte
		rand.Read(id[:])
		up := v.blobs.NewUpload(id, v.began.Add(time.Hour))
		done, err := v.swap(ctx, h, base, up)
		if err == nil && done {
			// What it is made of now has its edges before the upload lets go of it.
			if err = v.represent(ctx, []keys.Hash{h}); err == nil {
				v.out.Rebased++
			}
		}
		if aerr := up.Abandon(ctx); err == nil {
			err = aerr
		}
		if !errors.Is(err, engine.ErrConflict) {
			return err
		}
	}
}

// swap stores h by itself, and takes its edge to base away.
func (v *vacuum) swap(ctx context.Context, h, base keys.Hash, up *blob.Upload) (done bool, err error) {
	b := &batch{}
	if done, err = v.blobs.Rebase(ctx, &b.Batch, h, true, up); err != nil || !done {
		return false, err
	}
	edge, countKey := v.space.Edge(base, byBlob, h), v.space.Count(base)
	vs, err := v.get(ctx, edge, countKey)
	if err != nil {
		return false, err
	}
	count, err := openCount(countKey, vs[1])
	if err != nil {
		return false, err
	}
	if vs[0] == nil || count == 0 {
		return false, codec.Corrupt(errDisagree, "edge of the blob at %x", base)
	}
	b.Delete(edge)
	v.setCount(b, base, count, count-1)
	return true, v.apply(ctx, b)
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
		if _, err := v.blobs.Rebase(ctx, &b.Batch, keys.Hash(fields), false, nil); err != nil {
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
