package reclaim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
)

// accounts checks that the collector will come to each stored blob when nothing
// refers to it. A blob goes from hold to commit to edge to candidate, so the later
// is looked for after the earlier.
func (k *check) accounts(ctx context.Context) error {
	odd := map[keys.Hash]bool{}
	for _, h := range k.list.Blobs {
		if !k.counted[h] {
			odd[h] = true
		}
	}
	steps := []func(context.Context, map[keys.Hash]bool) error{k.heldByUploads, k.indexed, k.waiting, k.indexed, k.heldByUploads}
	for _, step := range steps {
		if len(odd) == 0 {
			return nil
		}
		if err := step(ctx, odd); err != nil {
			return err
		}
	}
	for h := range odd {
		k.problem(fmt.Errorf("%w: no collection would come to the blob", record.ErrMissing), "upload, candidate or edge of the blob at %x", h)
	}
	return nil
}

// heldByUploads removes from odd the blobs that an upload or a grant holds.
func (k *check) heldByUploads(ctx context.Context, odd map[keys.Hash]bool) error {
	for p, err := range k.engine.Scan(ctx, k.space.All(keys.Upload)) {
		if err != nil {
			return err
		}
		if _, fields, ok := k.space.Fields(p.Key); ok {
			delete(odd, keys.Hash(fields[16:]))
		}
	}
	return nil
}

// indexed removes from odd the blobs that have edges, are candidates, or are gone.
func (k *check) indexed(ctx context.Context, odd map[keys.Hash]bool) error {
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

// waiting removes from odd the blobs that sessions with a dirty record refer to since
// the index has seen them, and what these blobs consist of.
func (k *check) waiting(ctx context.Context, odd map[keys.Hash]bool) error {
	seen := map[keys.Hash]bool{}
	var visit func(h keys.Hash) error
	visit = func(h keys.Hash) error {
		if seen[h] {
			return nil
		}
		seen[h] = true
		delete(odd, h)
		key := k.space.Mark(h)
		vs, err := k.get(ctx, key)
		if err != nil {
			return err
		}
		if m, err := blobs.OpenMark(key, vs[0]); err != nil || !m.List {
			return nil
		}
		items, err := k.blobs.ItemsOf(ctx, h)
		if err != nil && !isCorrupt(err) && !errors.Is(err, blobs.ErrNotFound) {
			return err
		}
		for _, item := range items {
			if err := visit(item); err != nil {
				return err
			}
		}
		return nil
	}
	for p, err := range k.engine.Scan(ctx, k.space.All(keys.Dirty)) {
		if err != nil {
			return err
		}
		_, fields, ok := k.space.Fields(p.Key)
		if !ok {
			continue
		}
		if err := k.unread(ctx, heads.Incarnation(fields), visit); err != nil {
			return err
		}
		if len(odd) == 0 {
			return nil
		}
	}
	return nil
}

// unread calls visit for the blobs that a session refers to behind its bookmark.
func (k *check) unread(ctx context.Context, inc heads.Incarnation, visit func(keys.Hash) error) error {
	markKey, originKey := k.space.Bookmark(inc), k.space.Origin(inc)
	vs, err := k.get(ctx, markKey, originKey)
	if err != nil {
		return err
	}
	var m bookmark
	if vs[0] != nil {
		if m, err = openBookmark(markKey, vs[0]); err != nil {
			return nil
		}
	} else if o, err := heads.OpenOrigin(originKey, vs[1]); err == nil {
		for _, p := range o.Parts {
			if err := visit(k.space.BlobHash(p.Blob)); err != nil {
				return err
			}
		}
	}
	commits := k.space.Of(keys.Commit, inc)
	commits.Start = k.space.Commit(inc, uint64(m.revision)+1)
	for p, err := range k.engine.Scan(ctx, commits) {
		if err != nil {
			return err
		}
		c, _, err := heads.OpenCommit(p.Key, p.Value)
		if err != nil {
			return nil // its history names it
		}
		for _, part := range c.Parts {
			if part.Set == c.Revision && !heads.IsDelta(part) {
				if err := visit(k.space.BlobHash(part.Blob)); err != nil {
					return err
				}
			}
		}
	}
	err = k.packs(ctx, inc, m.revision, head.Revision(open)-1, func(p *pack.Pack) error {
		for i := range p.Nodes {
			for _, id := range p.Nodes[i].Blobs() {
				if err := visit(k.space.BlobHash(id)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if isCorrupt(err) {
		return nil
	}
	return err
}

// loose checks that vacuum comes to every blob that it can compress further.
func (k *check) loose(ctx context.Context) error {
	for some := range slices.Chunk(slices.Collect(maps.Keys(k.counted)), 500) {
		ks := make([][]byte, 0, 3*len(some)) // of one moment
		for _, h := range some {
			ks = append(ks, k.space.Mark(h), k.space.Count(h), k.space.Loose(h))
		}
		vs, err := k.get(ctx, ks...)
		if err != nil {
			return err
		}
		for i, h := range some {
			m, err := blobs.OpenMark(ks[3*i], vs[3*i])
			if err == nil && m.Loose() && vs[3*i+1] != nil && vs[3*i+2] == nil {
				k.problem(fmt.Errorf("%w: vacuum does not come to the blob", record.ErrMissing), "loose record of the blob at %x", h)
			}
		}
	}
	return nil
}
