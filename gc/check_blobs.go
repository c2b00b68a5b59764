package gc

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file checks that the collector comes to each stored blob when nothing refers to the
// blob any more: no blob may be left behind. It also checks that vacuum comes to each blob that
// it can compress.

// A blobSet is a set of blobs. The set odd below has the stored blobs for which no record has been
// found yet that leads the collector to them. Each check removes those for which it finds one.
type blobSet map[keys.Hash]bool

// accounts checks that the collector will come to each stored blob. A blob goes from pin to
// commit to edge to candidate while the check runs, so a later place is looked at after an
// earlier one, and the first two once more at the end.
func (k *check) accounts(ctx context.Context) error {
	odd := blobSet{}
	for _, h := range k.list.Blobs {
		if !k.counted[h] {
			odd[h] = true
		}
	}
	for _, step := range []func(context.Context, blobSet) error{k.pinned, k.indexed, k.waiting, k.indexed, k.pinned} {
		if len(odd) == 0 {
			return nil
		}
		if err := step(ctx, odd); err != nil {
			return err
		}
	}
	for h := range odd {
		k.missing("no collection would come to the blob", "upload, candidate or edge of the blob at %x", h)
	}
	return nil
}

// pinned removes from odd the blobs that an upload or a grant pins. The collector makes them
// candidates when the upload is over.
func (k *check) pinned(ctx context.Context, odd blobSet) error {
	return k.eachKnown(ctx, k.space.All(keys.Upload), func(e entry) error {
		delete(odd, keys.Hash(e.fields[16:]))
		return nil
	})
}

// indexed removes from odd the blobs that have edges, are candidates, or are gone. It reads the
// three records of a blob at one moment.
func (k *check) indexed(ctx context.Context, odd blobSet) error {
	for h := range odd {
		vs, err := k.get(ctx, k.space.Mark(h), k.space.Count(h), k.space.Candidate(h))
		if err != nil {
			return err
		}
		if vs[0] == nil || vs[1] != nil || vs[2] != nil {
			delete(odd, h)
		}
	}
	return nil
}

// waiting removes from odd the blobs that sessions with a dirty record refer to after their
// bookmarks, and the items of those that are lists. The next collection reads these sessions, and
// gives the blobs their edges. waiting stops when odd is empty: it may have to read much.
func (k *check) waiting(ctx context.Context, odd blobSet) error {
	v := &visit{check: k, odd: odd, seen: map[keys.Hash]bool{}}
	return k.eachKnown(ctx, k.space.All(keys.Dirty), func(e entry) error {
		if err := v.unread(ctx, e.inc()); err != nil {
			return err
		}
		if len(odd) == 0 {
			return errStop
		}
		return nil
	})
}

// A visit goes through blobs that the index has not seen yet, each once.
type visit struct {
	*check
	odd  blobSet
	seen map[keys.Hash]bool
}

// blob removes a blob and, if it is a list, its items from odd. The next collection gives the
// items their edges with the list's first edge.
func (v *visit) blob(ctx context.Context, h keys.Hash) error {
	if v.seen[h] {
		return nil
	}
	v.seen[h] = true
	delete(v.odd, h)
	key := v.space.Mark(h)
	vs, err := v.get(ctx, key)
	if err != nil {
		return err
	}
	if m, err := blob.DecodeMark(key, vs[0]); err != nil || !m.List {
		return nil
	}
	items, err := v.blobs.ItemsOf(ctx, h)
	if err != nil && !isCorrupt(err) && !errors.Is(err, blob.ErrNotFound) {
		return err
	}
	return v.all(ctx, slices.Values(items))
}

// all visits some blobs.
func (v *visit) all(ctx context.Context, hashes iter.Seq[keys.Hash]) error {
	for h := range hashes {
		if err := v.blob(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// unread visits the blobs that a session refers to after its bookmark: as checkpoint parts that
// it began with if there is no bookmark, as parts that later commits set, and by nodes. It stops
// at damage of the history, which Verify names.
func (v *visit) unread(ctx context.Context, inc head.Incarnation) error {
	markKey, originKey, lifeKey := v.space.Bookmark(inc), v.space.Origin(inc), v.space.Life(inc)
	vs, err := v.get(ctx, markKey, originKey, lifeKey)
	if err != nil {
		return err
	}
	m, known := bookmark{}, vs[0] != nil
	if known {
		if m, err = decodeBookmark(markKey, vs[0]); err != nil {
			return nil
		}
		if life, err := head.DecodeLife(lifeKey, vs[2]); err == nil && life.State == head.Live && !m.live() {
			m, known = bookmark{}, false // It was hidden when the bookmark was written.
		}
	}
	if !known {
		o, err := head.DecodeOrigin(originKey, vs[1])
		if err != nil {
			o = nil
		}
		for _, p := range v.inherited(o) {
			if err := v.blob(ctx, p.blob); err != nil {
				return err
			}
		}
	}
	err = v.turns(ctx, inc, m.revision, history.Unsealed, head.CommitID{}, func(t *history.Turn) error {
		if err := v.all(ctx, slices.Values(v.partBlobs(&t.Commit))); err != nil {
			return err
		}
		return v.all(ctx, v.blobsOf(&t.Pack))
	})
	if isCorrupt(err) {
		return nil
	}
	return err
}

// loose checks that vacuum comes to every blob that it can compress further. The three records
// of a blob are of one moment, as 500 blobs are read by one call of the engine.
func (k *check) loose(ctx context.Context) error {
	for some := range slices.Chunk(slices.Collect(maps.Keys(k.counted)), 500) {
		recs, err := rows(ctx, &k.cycle, some, k.space.Mark, k.space.Count, k.space.Loose)
		if err != nil {
			return err
		}
		for i, h := range some {
			mark, count, loose := recs[i][0], recs[i][1], recs[i][2]
			m, err := blob.DecodeMark(mark.Key, mark.Value)
			if err == nil && m.Loose() && count.Value != nil && loose.Value == nil {
				k.missing("vacuum does not come to the blob", "loose record of the blob at %x", h)
			}
		}
	}
	return nil
}
