package reclaim

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// uploads ends those that have expired, and lists what they and finished ones
// held.
func (r *run) uploads(ctx context.Context) error {
	var owner keys.Incarnation
	first := true
	for p, err := range r.engine.Scan(ctx, r.space.All(keys.Upload)) {
		if err != nil {
			return err
		}
		h, hold, err := r.hold(p)
		if err != nil {
			return err
		}
		of := keys.Incarnation(h.owner)
		switch {
		case hold.Kind == blobs.Grant:
			hold.Owner = of
			if _, err := r.expire(ctx, p, hold, []keys.Hash{h.blob}); err != nil {
				return err
			}
		case of == owner && !first: // seen
		case hold.Kind == blobs.Uploading:
			if standing, err := r.expire(ctx, p, hold, nil); err != nil {
				return err
			} else if !standing {
				err = r.orphans(ctx, of)
				if err != nil {
					return err
				}
			}
		default:
			// The scan may have passed the upload's place before it began.
			if standing, err := r.standing(ctx, of); err != nil {
				return err
			} else if !standing {
				if err := r.orphans(ctx, of); err != nil {
					return err
				}
			}
		}
		if hold.Kind != blobs.Grant {
			owner, first = of, false
		}
	}
	return nil
}

// A held blob, by whom.
type heldBy struct {
	owner [16]byte
	blob  keys.Hash
}

func (r *run) hold(p engine.Pair) (h heldBy, hold blobs.Hold, err error) {
	_, fields, ok := r.space.Fields(p.Key)
	hold, err = blobs.OpenHold(p.Key, p.Value)
	if err == nil && !ok {
		err = record.ErrMalformed
	}
	if err != nil {
		return h, hold, codec.Corrupt(err, "upload at key %x", p.Key)
	}
	return heldBy{owner: [16]byte(fields[:16]), blob: keys.Hash(fields[16:])}, hold, nil
}

func (r *run) standing(ctx context.Context, owner keys.Incarnation) (bool, error) {
	vs, err := r.get(ctx, r.space.Upload(owner, keys.Hash{}))
	return err == nil && vs[0] != nil, err
}

// deleted reports whether a session is deleted.
func (r *run) deleted(ctx context.Context, inc heads.Incarnation) (bool, error) {
	key := r.space.Life(inc)
	vs, err := r.get(ctx, key)
	if err != nil || vs[0] == nil {
		return err == nil, err
	}
	life, err := heads.OpenLife(key, vs[0])
	return err == nil && life.State == heads.Deleted, codec.Corrupt(err, "lifecycle of incarnation %x", inc)
}

// expire removes an upload or a grant if its time is over, or its session deleted, and
// lists what the grant held. It reports whether it stands.
func (r *run) expire(ctx context.Context, p engine.Pair, hold blobs.Hold, held []keys.Hash) (standing bool, err error) {
	if r.began.Before(hold.Expires) {
		deleted, err := r.deleted(ctx, hold.Owner)
		if err != nil || !deleted {
			r.Roots++
			return true, err
		}
	}
	if err := r.represent(ctx, held, nil); err != nil {
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

// orphans lists the blobs of an upload that is over. All of them get the edges of
// what they are stored relative to before the first is let go of: the upload may
// hold the chunks of a list that only a grant holds.
func (r *run) orphans(ctx context.Context, owner keys.Incarnation) error {
	for _, step := range []func([]keys.Hash) error{
		func(hashes []keys.Hash) error { return r.represent(ctx, hashes, nil) },
		func(hashes []keys.Hash) error {
			entries := make([][]byte, len(hashes))
			for i, h := range hashes {
				entries[i] = r.space.Upload(owner, h)
			}
			r.step(len(hashes))
			return r.abandon(ctx, hashes, entries)
		},
	} {
		var hashes []keys.Hash
		for p, err := range r.engine.Scan(ctx, r.space.Of(keys.Upload, owner)) {
			if err != nil {
				return err
			}
			h, hold, err := r.hold(p)
			if err != nil {
				return err
			}
			if hold.Kind != blobs.Held {
				continue
			}
			if hashes = append(hashes, h.blob); len(hashes) == batchOps/2 {
				if err := step(hashes); err != nil {
					return err
				}
				hashes = nil
			}
		}
		if len(hashes) > 0 {
			if err := step(hashes); err != nil {
				return err
			}
		}
	}
	return nil
}

// abandon lists blobs that something has let go of, and removes what said that
// it held them. The items of lists get their edges first.
func (r *run) abandon(ctx context.Context, blobs []keys.Hash, entries [][]byte) error {
	if err := r.represent(ctx, blobs, nil); err != nil {
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
			return codec.Corrupt(record.ErrMalformed, "upload at key %x", p.Key)
		}
		h := keys.Hash(fields[16:])
		if _, is := used[h]; is {
			used[h] = true
		}
	}
	return nil
}
