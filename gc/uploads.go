package gc

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// uploads ends those that have expired, and lists what they and finished ones
// held. What a blob is stored relative to gets its edges first: a list that was
// uploaded holds its chunks from then on.
func (r *run) uploads(ctx context.Context) error {
	var owner keys.Incarnation
	standing, first := false, true
	var orphans []keys.Hash
	flush := func() error {
		err := r.orphans(ctx, owner, orphans)
		orphans = orphans[:0]
		return err
	}
	for p, err := range r.engine.Scan(ctx, r.space.All(keys.Upload)) {
		if err != nil {
			return err
		}
		_, fields, ok := r.space.Fields(p.Key)
		hold, err := blob.OpenHold(p.Key, p.Value)
		if err == nil && !ok {
			err = codec.ErrMalformed
		}
		if err != nil {
			return codec.Corrupt(err, "upload at key %x", p.Key)
		}
		of, h := keys.Incarnation(fields[:16]), keys.Hash(fields[16:])
		if of != owner || first {
			if err := flush(); err != nil {
				return err
			}
			owner, first = of, false
			if standing = hold.Kind == blob.Uploading; !standing && hold.Kind == blob.Held {
				// The scan may have passed the upload's place before it began.
				if standing, err = r.standing(ctx, owner); err != nil {
					return err
				}
			}
		}
		switch hold.Kind {
		case blob.Uploading:
			if standing, err = r.expire(ctx, p, hold, nil); err != nil {
				return err
			}
		case blob.Ticket:
			if _, err := r.expire(ctx, p, hold, []keys.Hash{h}); err != nil {
				return err
			}
		case blob.Held:
			if !standing {
				if orphans = append(orphans, h); len(orphans) == batchOps/2 {
					if err := flush(); err != nil {
						return err
					}
				}
			}
		}
	}
	return flush()
}

func (r *run) standing(ctx context.Context, owner keys.Incarnation) (bool, error) {
	vs, err := r.get(ctx, r.space.Upload(owner, keys.Hash{}))
	return err == nil && vs[0] != nil, err
}

// expire removes an upload or a ticket if its time is over, and lists what the
// ticket held. It reports whether it stands.
func (r *run) expire(ctx context.Context, p engine.Pair, hold blob.Hold, held []keys.Hash) (standing bool, err error) {
	if r.began.Before(hold.Expires) {
		r.Roots++
		return true, nil
	}
	if err := r.represent(ctx, held); err != nil {
		return true, err
	}
	b := &batch{}
	b.Guard(p.Key, p.Value)
	b.Delete(p.Key)
	for _, h := range held {
		r.list(b, h)
	}
	err = r.apply(ctx, b)
	if errors.Is(err, engine.ErrConflict) {
		return true, nil // committed meanwhile, or uploaded again
	}
	if err == nil {
		r.Expired++
	}
	return false, err
}

// orphans lists the blobs of an upload that is over.
func (r *run) orphans(ctx context.Context, owner keys.Incarnation, held []keys.Hash) error {
	entries := make([][]byte, len(held))
	for i, h := range held {
		entries[i] = r.space.Upload(owner, h)
	}
	r.step(len(held))
	return r.abandon(ctx, held, entries)
}

// abandon lists blobs that something has let go of, and removes what said that
// it held them. What they are stored relative to gets its edges first.
func (r *run) abandon(ctx context.Context, blobs []keys.Hash, entries [][]byte) error {
	if err := r.represent(ctx, blobs); err != nil {
		return err
	}
	for len(blobs) > 0 {
		n := min(batchOps/2, len(blobs))
		b := &batch{}
		for i, h := range blobs[:n] {
			r.list(b, h)
			if entries != nil {
				b.Delete(entries[i])
			}
		}
		if err := r.apply(ctx, b); err != nil {
			return err
		}
		if blobs = blobs[n:]; entries != nil {
			entries = entries[n:]
		}
	}
	return nil
}

// staged sets used for the blobs that any upload holds.
func (r *run) staged(ctx context.Context, used map[keys.Hash]bool) error {
	for p, err := range r.engine.Scan(ctx, r.space.All(keys.Upload)) {
		if err != nil {
			return err
		}
		_, fields, ok := r.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(codec.ErrMalformed, "upload at key %x", p.Key)
		}
		h := keys.Hash(fields[16:])
		if _, is := used[h]; is {
			used[h] = true
		}
	}
	return nil
}
