package gc

import (
	"context"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file lets uploads expire. An upload has a record of its own and a pin for each blob
// that it has stored. A finished upload has a grant, which pins the blob that stands for the
// whole, and no record of its own any more. The blobs of an upload that is over become
// candidates. They are deleted unless a commit or a list has edges to them by then.
//
//	begun       record (zero blob)
//	stored      record, pin, pin, pin         the session is named in the record
//	finished            pin, pin, pin, grant  an attachment that no commit refers to yet
//	finished            pin, pin, pin         its blobs were committed
//	collected                         grant   or nothing
//
// A finished upload leaves its pins to the collector. The collector removes them once it has
// given the items of lists their edges: from then on the lists keep the chunks.

// A pin is a record under keys.Upload: an upload's own record, the pin of a blob, or a grant.
type pin struct {
	blob.Pin
	engine.Pair
	by   keys.Incarnation // the upload or, of a grant, the session
	blob keys.Hash        // zero for the upload itself
}

// eachPin calls f for the pins of a range. The Owner of a grant is the session that it is for.
func (cy *cycle) eachPin(ctx context.Context, r engine.Range, f func(pin) error) error {
	return cy.each(ctx, r, "upload", func(e entry) error {
		p, err := blob.DecodePin(e.Key, e.Value)
		if err != nil {
			return codec.Corrupt(err, "upload at key %x", e.Key)
		}
		by := keys.Incarnation(e.fields)
		if p.Kind == blob.Grant {
			p.Owner = by
		}
		return f(pin{Pin: p, Pair: e.Pair, by: by, blob: keys.Hash(e.fields[16:])})
	})
}

// uploads ends the uploads and grants that have expired, and turns the blobs of uploads that are
// over into candidates. The pins of an upload follow each other, after its own record if it has
// one, and are dealt with together.
func (cy *cycle) uploads(ctx context.Context) error {
	var last *keys.Incarnation
	return cy.eachPin(ctx, cy.space.All(keys.Upload), func(p pin) error {
		if p.Kind == blob.Grant {
			_, err := cy.expire(ctx, p, []keys.Hash{p.blob})
			return err
		}
		if last != nil && *last == p.by {
			return nil
		}
		last = &p.by
		stands, err := cy.uploadStands(ctx, p)
		if err != nil || stands {
			return err
		}
		return cy.orphans(ctx, p.by)
	})
}

// uploadStands reports whether the upload of a pin stands, and ends the upload if it has
// expired. p is the first record of the upload that a scan has found.
func (cy *cycle) uploadStands(ctx context.Context, p pin) (bool, error) {
	if p.Kind == blob.Uploading {
		return cy.expire(ctx, p, nil)
	}
	// The upload's own record comes first. It may have been written after the scan had
	// passed its place.
	vs, err := cy.get(ctx, cy.space.Upload(p.by, keys.Hash{}))
	return err == nil && vs[0] != nil, err
}

// expire removes p, the record of an upload or a grant, if its time is over or its session is
// deleted. Then it turns the blobs in pinned into candidates. The pins of an upload go later: see
// orphans. It reports whether the upload or grant stands.
func (cy *cycle) expire(ctx context.Context, p pin, pinned []keys.Hash) (stands bool, err error) {
	if cy.began.Before(p.Expires) {
		deleted, err := cy.deleted(ctx, p.Owner)
		if err != nil || !deleted {
			cy.Roots++
			return true, err
		}
	}
	if err := cy.linkItems(ctx, pinned, nil); err != nil {
		return true, err
	}
	b := &batch{}
	b.Guard(p.Key, p.Value)
	b.Delete(p.Key)
	for _, h := range pinned {
		cy.addCandidate(b, h)
	}
	// No later upload writes a record of the same value, so that a late attempt of this batch
	// can't end one.
	err = cy.apply(ctx, b)
	if errors.Is(err, engine.ErrConflict) {
		return true, nil // A commit has used it meanwhile, or the blob was uploaded again.
	}
	if err == nil {
		cy.Expired++
	}
	return false, err
}

// deleted reports whether a session is deleted, whether or not vacuum has removed it. The zero
// incarnation stands for a session that is still to be made.
func (cy *cycle) deleted(ctx context.Context, inc head.Incarnation) (bool, error) {
	if inc == (head.Incarnation{}) {
		return false, nil
	}
	key := cy.space.Life(inc)
	vs, err := cy.get(ctx, key)
	if err != nil || vs[0] == nil {
		return err == nil, err
	}
	life, err := decodeLife(engine.Pair{Key: key, Value: vs[0]}, inc)
	return err == nil && life.State == head.Deleted, err
}

// orphans removes the pins of an upload that is over, and makes the blobs candidates. The
// items of all lists get their edges before the first pin goes: the upload may pin chunks of
// a list that only a grant pins.
func (cy *cycle) orphans(ctx context.Context, upload keys.Incarnation) error {
	err := cy.pinnedBy(ctx, upload, func(hashes []keys.Hash) error { return cy.linkItems(ctx, hashes, nil) })
	if err != nil {
		return err
	}
	return cy.pinnedBy(ctx, upload, func(hashes []keys.Hash) error {
		cy.step(len(hashes))
		return cy.abandon(ctx, hashes, func(h keys.Hash) []byte { return cy.space.Upload(upload, h) })
	})
}

// pinnedBy calls f for the blobs that an upload pins, some at a time.
func (cy *cycle) pinnedBy(ctx context.Context, upload keys.Incarnation, f func([]keys.Hash) error) error {
	var hashes []keys.Hash
	err := cy.eachPin(ctx, cy.space.Of(keys.Upload, upload), func(p pin) error {
		if p.Kind != blob.Pinned {
			return nil
		}
		if hashes = append(hashes, p.blob); len(hashes) < batchOps/2 {
			return nil
		}
		some := hashes
		hashes = nil
		return f(some)
	})
	if err != nil || len(hashes) == 0 {
		return err
	}
	return f(hashes)
}

// abandon makes blobs candidates that something has let go of, and removes their pins if pin
// returns the keys of these. The items of lists get their edges first.
func (cy *cycle) abandon(ctx context.Context, hashes []keys.Hash, pin func(keys.Hash) []byte) error {
	if err := cy.linkItems(ctx, hashes, nil); err != nil {
		return err
	}
	for some := range slices.Chunk(hashes, batchOps/2) {
		b := &batch{}
		for _, h := range some {
			cy.addCandidate(b, h)
			if pin != nil {
				b.Delete(pin(h))
			}
		}
		if err := cy.apply(ctx, b); err != nil {
			return err
		}
	}
	return nil
}
