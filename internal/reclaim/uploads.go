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
func (cy *cycle) uploads(ctx context.Context) error {
	var owner keys.Incarnation
	first := true
	for p, err := range cy.engine.Scan(ctx, cy.space.All(keys.Upload)) {
		if err != nil {
			return err
		}
		h, pin, err := cy.pin(p)
		if err != nil {
			return err
		}
		of := keys.Incarnation(h.owner)
		switch {
		case pin.Kind == blobs.Grant:
			pin.Owner = of
			if _, err := cy.expire(ctx, p, pin, []keys.Hash{h.blob}); err != nil {
				return err
			}
		case of == owner && !first: // seen
		case pin.Kind == blobs.Uploading:
			if standing, err := cy.expire(ctx, p, pin, nil); err != nil {
				return err
			} else if !standing {
				err = cy.orphans(ctx, of)
				if err != nil {
					return err
				}
			}
		default:
			// The scan may have passed the upload's place before it began.
			if standing, err := cy.standing(ctx, of); err != nil {
				return err
			} else if !standing {
				if err := cy.orphans(ctx, of); err != nil {
					return err
				}
			}
		}
		if pin.Kind != blobs.Grant {
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

func (cy *cycle) pin(p engine.Pair) (h heldBy, pin blobs.Pin, err error) {
	_, fields, ok := cy.space.Fields(p.Key)
	pin, err = blobs.OpenPin(p.Key, p.Value)
	if err == nil && !ok {
		err = record.ErrMalformed
	}
	if err != nil {
		return h, pin, codec.Corrupt(err, "upload at key %x", p.Key)
	}
	return heldBy{owner: [16]byte(fields[:16]), blob: keys.Hash(fields[16:])}, pin, nil
}

func (cy *cycle) standing(ctx context.Context, owner keys.Incarnation) (bool, error) {
	vs, err := cy.get(ctx, cy.space.Upload(owner, keys.Hash{}))
	return err == nil && vs[0] != nil, err
}

// deleted reports whether a session is deleted.
func (cy *cycle) deleted(ctx context.Context, inc heads.Incarnation) (bool, error) {
	key := cy.space.Life(inc)
	vs, err := cy.get(ctx, key)
	if err != nil || vs[0] == nil {
		return err == nil, err
	}
	life, err := heads.OpenLife(key, vs[0])
	return err == nil && life.State == heads.Deleted, codec.Corrupt(err, "lifecycle of incarnation %x", inc)
}

// expire removes an upload or a grant if its time is over, or its session deleted, and
// lists what the grant held. It reports whether it stands.
func (cy *cycle) expire(ctx context.Context, p engine.Pair, pin blobs.Pin, held []keys.Hash) (standing bool, err error) {
	if cy.began.Before(pin.Expires) {
		deleted, err := cy.deleted(ctx, pin.Owner)
		if err != nil || !deleted {
			cy.Roots++
			return true, err
		}
	}
	if err := cy.represent(ctx, held, nil); err != nil {
		return true, err
	}
	b := &batch{}
	b.Guard(p.Key, p.Value)
	b.Delete(p.Key)
	for _, h := range held {
		cy.list(b, h)
	}
	err = cy.apply(ctx, b)
	if errors.Is(err, engine.ErrConflict) {
		return true, nil // committed meanwhile, or uploaded again
	}
	if err == nil {
		cy.Expired++
	}
	return false, err
}

// orphans lists the blobs of an upload that is over. All of them get the edges of
// what they are stored relative to before the first is let go of: the upload may
// hold the chunks of a list that only a grant holds.
func (cy *cycle) orphans(ctx context.Context, owner keys.Incarnation) error {
	for _, step := range []func([]keys.Hash) error{
		func(hashes []keys.Hash) error { return cy.represent(ctx, hashes, nil) },
		func(hashes []keys.Hash) error {
			entries := make([][]byte, len(hashes))
			for i, h := range hashes {
				entries[i] = cy.space.Upload(owner, h)
			}
			cy.step(len(hashes))
			return cy.abandon(ctx, hashes, entries)
		},
	} {
		var hashes []keys.Hash
		for p, err := range cy.engine.Scan(ctx, cy.space.Of(keys.Upload, owner)) {
			if err != nil {
				return err
			}
			h, pin, err := cy.pin(p)
			if err != nil {
				return err
			}
			if pin.Kind != blobs.Pinned {
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
func (cy *cycle) abandon(ctx context.Context, blobs []keys.Hash, entries [][]byte) error {
	if err := cy.represent(ctx, blobs, nil); err != nil {
		return err
	}
	for len(blobs) > 0 {
		n := min(batchOps/2, len(blobs))
		b := &batch{}
		for i, h := range blobs[:n] {
			cy.list(b, h)
			if entries != nil {
				b.Delete(entries[i])
			}
		}
		if err := cy.apply(ctx, b); err != nil {
			return err
		}
		if blobs = blobs[n:]; entries != nil {
			entries = entries[n:]
		}
	}
	return nil
}

// staged sets used for the blobs that any upload holds.
func (cy *cycle) staged(ctx context.Context, used map[keys.Hash]bool) error {
	for p, err := range cy.engine.Scan(ctx, cy.space.All(keys.Upload)) {
		if err != nil {
			return err
		}
		_, fields, ok := cy.space.Fields(p.Key)
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
