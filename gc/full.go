package gc

import (
	"context"
	"encoding/binary"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/hash"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// rebuild derives the index anew from the commits, and lists every blob that it
// has no edge for. The run record says so until it is done: no run deletes
// anything meanwhile.
func (r *run) rebuild(ctx context.Context) error {
	r.enter("sessions")
	before, compare := uint64(0), !r.state.rebuild
	if compare {
		// What is not damaged is brought up to date first, to be compared.
		if err := r.changes(ctx, r.state.last); err == nil {
			if before, err = r.digest(ctx); err != nil {
				return err
			}
		} else if !isCorrupt(err) {
			return err
		} else {
			r.Repaired, compare = true, false
		}
	}
	r.state.rebuild = true
	r.state.sessions, r.state.blobs = 0, 0
	if err := r.apply(ctx, &batch{}); err != nil {
		return err
	}
	for _, letter := range []byte{keys.Edge, keys.Count, keys.Bookmark, keys.Detached} {
		if err := r.clear(ctx, r.space.All(letter)); err != nil {
			return err
		}
	}
	for p, err := range r.engine.Scan(ctx, r.space.All(keys.Life)) {
		if err != nil {
			return err
		}
		_, fields, ok := r.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(codec.ErrMalformed, "lifecycle at key %x", p.Key)
		}
		if err := r.session(ctx, head.Incarnation(fields)); err != nil {
			return err
		}
		r.step(1)
	}
	if compare {
		after, err := r.digest(ctx)
		if err != nil {
			return err
		}
		r.Repaired = after != before
	}
	b := &batch{}
	for p, err := range r.engine.Scan(ctx, r.space.All(keys.Mark)) {
		if err != nil {
			return err
		}
		_, fields, ok := r.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(codec.ErrMalformed, "mark at key %x", p.Key)
		}
		h := keys.Hash(fields)
		vs, err := r.get(ctx, r.space.Count(h))
		if err != nil {
			return err
		}
		if vs[0] == nil {
			if err := r.represent(ctx, []keys.Hash{h}); err != nil {
				return err
			}
			r.list(b, h)
		}
		if b.Ops() >= batchOps {
			if err := r.apply(ctx, b); err != nil {
				return err
			}
			b = &batch{}
		}
	}
	r.state.rebuild = false
	return r.apply(ctx, b)
}

// clear deletes all records of a range.
func (r *run) clear(ctx context.Context, all engine.Range) error {
	b := &batch{}
	for p, err := range r.engine.Scan(ctx, all) {
		if err != nil {
			return err
		}
		b.Delete(p.Key)
		if b.Ops() >= batchOps {
			if err := r.apply(ctx, b); err != nil {
				return err
			}
			b = &batch{}
		}
	}
	return r.apply(ctx, b)
}

// digest is one number for all edges and counts, whatever their order.
func (r *run) digest(ctx context.Context) (sum uint64, err error) {
	for _, letter := range []byte{keys.Edge, keys.Count} {
		for p, err := range r.engine.Scan(ctx, r.space.All(letter)) {
			if err != nil {
				return 0, err
			}
			one := hash.Content.Sum(p.Key, p.Value)
			sum += binary.LittleEndian.Uint64(one[:])
		}
	}
	return sum, nil
}
