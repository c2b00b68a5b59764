package verify

import (
	"context"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/reclaim"
)

// contents reads every blob that is referred to, directly or by a list,
// and counts those that are not.
func (v *verifier) contents(ctx context.Context) error {
	reached := map[blob.ID]bool{}
	var visit func(id blob.ID, session string) error
	visit = func(id blob.ID, session string) error {
		if reached[id] {
			return nil
		}
		reached[id] = true
		items, err := v.store.Blobs.Items(ctx, id)
		// What is referred to is read as a whole; the items of a list once more
		// only where they are something's own.
		if _, own := v.blobs[id]; err == nil && (len(items) == 0 || own) {
			_, err = v.store.Blobs.WriteTo(ctx, discard{}, id)
		}
		if stopped(err) {
			return err
		}
		if err != nil {
			v.of(session, codec.Corrupt(err, "blob %s", id))
		}
		for _, item := range items {
			if err := visit(item, session); err != nil {
				return err
			}
		}
		v.step()
		return nil
	}
	for id, session := range v.blobs {
		if err := visit(id, session); err != nil {
			return err
		}
	}
	v.Unreferenced = max(0, v.Blobs-len(reached))
	return nil
}

// index checks the collector's index.
func (v *verifier) index(ctx context.Context) error {
	blobs := make([]keys.Hash, len(v.stored.marks))
	for i := range blobs {
		blobs[i] = v.stored.marks[i].hash
	}
	problems, err := v.collector.Check(ctx, reclaim.Checklist{
		Incarnations: slices.Collect(maps.Keys(v.lives)), Blobs: blobs, Name: v.name,
		Uses: func(b keys.Hash, inc heads.Incarnation) head.Revision { return v.uses[blobUse{b, inc}] },
	})
	for _, p := range problems {
		v.problem(p, "collector's index")
	}
	return err
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
