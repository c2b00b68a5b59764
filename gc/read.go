package gc

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file has what a cycle reads records with: by key, by a scan of a range, and as
// turns of a session. Reads that may take long show other cycles that this one
// makes progress (cycle.beat). Damage is returned as a *damage.CorruptError that names the
// record.

// get returns the values of keys, nil for a record that is not there. It reads them in several
// calls of the engine if there are more than 2,000: then they may be of different moments.
func (cy *cycle) get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	if err := cy.beat(ctx); err != nil {
		return nil, err
	}
	const atOnce = 2000
	var out [][]byte
	for some := range slices.Chunk(ks, atOnce) {
		vs, err := cy.engine.Get(ctx, some...)
		if err != nil {
			return nil, err
		}
		if len(some) == len(ks) {
			return vs, nil
		}
		out = append(out, vs...)
	}
	return out, nil
}

// rows reads, with one get, the records under some keys of each item. Row i has the records
// of item i in the order of key.
func rows[T any](ctx context.Context, cy *cycle, items []T, key ...func(T) []byte) ([][]engine.Pair, error) {
	ks := make([][]byte, 0, len(key)*len(items))
	for _, item := range items {
		for _, k := range key {
			ks = append(ks, k(item))
		}
	}
	vs, err := cy.get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	pairs := make([]engine.Pair, len(ks))
	for i := range pairs {
		pairs[i] = engine.Pair{Key: ks[i], Value: vs[i]}
	}
	return slices.Collect(slices.Chunk(pairs, len(key))), nil
}

// An entry is a record that a scan has found.
type entry struct {
	engine.Pair
	fields []byte // of the key, after its letter
}

// inc returns the incarnation that the key begins with.
func (e *entry) inc() head.Incarnation { return head.Incarnation(e.fields) }

// hash returns the hash that the key begins with.
func (e *entry) hash() keys.Hash { return keys.Hash(e.fields) }

// errStop ends a scan before its range ends. The function that scans then returns nil.
var errStop = errors.New("stop")

// each calls f for the records of a range in the order of their keys. what names
// such a record in errors. The engine reads in pages, and later pages may be newer, so f may
// write, and callers must not assume that all records are of one moment.
func (cy *cycle) each(ctx context.Context, r engine.Range, what string, f func(entry) error) error {
	for p, err := range cy.engine.Scan(ctx, r) {
		if err != nil {
			return err
		}
		_, fields, ok := cy.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(damage.ErrMalformed, "%s at key %x", what, p.Key)
		}
		if err := f(entry{p, fields}); err != nil {
			return unlessStop(err)
		}
	}
	return nil
}

// eachKnown is each for records that may be damaged: it skips keys that are not of the table,
// which Verify reports by itself.
func (cy *cycle) eachKnown(ctx context.Context, r engine.Range, f func(entry) error) error {
	for p, err := range cy.engine.Scan(ctx, r) {
		if err != nil {
			return err
		}
		_, fields, ok := cy.space.Fields(p.Key)
		if !ok {
			continue
		}
		if err := f(entry{p, fields}); err != nil {
			return unlessStop(err)
		}
	}
	return nil
}

// unlessStop returns err, or nil if err is errStop.
func unlessStop(err error) error {
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// edgesOf counts the edges of a blob by a scan. Their number in the index is another witness.
func (cy *cycle) edgesOf(ctx context.Context, h keys.Hash) (n uint64, err error) {
	for _, err := range cy.engine.Scan(ctx, cy.space.Of(keys.Edge, h)) {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

// decodeLife decodes the lifecycle record of an incarnation.
func decodeLife(p engine.Pair, inc head.Incarnation) (*head.Life, error) {
	life, err := head.DecodeLife(p.Key, p.Value)
	return life, codec.Corrupt(err, "lifecycle of incarnation %x", inc)
}

// decodeBookmarkOf decodes the bookmark of an incarnation.
func decodeBookmarkOf(p engine.Pair, inc head.Incarnation) (bookmark, error) {
	m, err := decodeBookmark(p.Key, p.Value)
	return m, codec.Corrupt(err, "bookmark of incarnation %x", inc)
}

// decodeMark decodes the mark of a blob.
func decodeMark(p engine.Pair, h keys.Hash) (blob.Mark, error) {
	m, err := blob.DecodeMark(p.Key, p.Value)
	return m, codec.Corrupt(err, "mark of the blob at %x", h)
}

// decodeHead decodes the head of a session, which has to be of an incarnation.
func decodeHead(p engine.Pair, inc head.Incarnation) (*head.Head, error) {
	h, err := head.DecodeHead(p.Key, p.Value)
	if err == nil && h.Incarnation != inc {
		err = damage.ErrHash
	}
	return h, codec.Corrupt(err, "head of incarnation %x", inc)
}

// nameOf returns what errors call an incarnation.
func nameOf(inc head.Incarnation) string { return fmt.Sprintf("incarnation %x", inc) }

// history returns where the cycle reads histories from.
func (cy *cycle) history() history.Store {
	return history.Store{Reader: history.Reader{Engine: cy.engine, Space: cy.space}}
}

// turns calls f for the turns of an incarnation after one revision up to another. The first of them
// has to follow the commit whose id is previous; if that is zero, it may follow any. f may change
// them, as a collector reads without a cache.
func (cy *cycle) turns(ctx context.Context, inc head.Incarnation, after, last head.Revision, previous head.CommitID, f func(*history.Turn) error) error {
	of := history.Revisions{Inc: inc, Name: nameOf(inc), After: after, Last: last, Previous: previous}
	return cy.history().Reader.Turns(ctx, of, func(t *history.Turn) error {
		if err := f(t); err != nil {
			return err
		}
		return cy.beat(ctx)
	})
}

// commit returns the turn of a revision.
func (cy *cycle) commit(ctx context.Context, inc head.Incarnation, r head.Revision) (*history.Turn, error) {
	if err := cy.beat(ctx); err != nil {
		return nil, err
	}
	return cy.history().TurnAt(ctx, inc, r)
}

// origin returns what a fork began with, or nil for a session that is no attached fork.
func (cy *cycle) origin(ctx context.Context, inc head.Incarnation) (*head.Origin, error) {
	if err := cy.beat(ctx); err != nil {
		return nil, err
	}
	return cy.history().Origin(ctx, inc)
}

// ancestors returns the incarnations that an attached fork shares history with, oldest
// first; none for other sessions.
func (cy *cycle) ancestors(ctx context.Context, inc head.Incarnation) ([]head.Incarnation, error) {
	origin, err := cy.origin(ctx, inc)
	if err != nil || origin == nil {
		return nil, err
	}
	out := make([]head.Incarnation, len(origin.Ancestors))
	for i, a := range origin.Ancestors {
		out[i] = a.Incarnation
	}
	return out, nil
}

// blobsOf yields the blobs that the nodes of a pack refer to, a blob as often as nodes refer
// to it.
func (cy *cycle) blobsOf(p *graph.Pack) iter.Seq[keys.Hash] {
	return func(yield func(keys.Hash) bool) {
		for i := range p.Nodes {
			for _, id := range p.Nodes[i].Blobs() {
				if !yield(cy.space.BlobHash(id)) {
					return
				}
			}
		}
	}
}

// partBlobs returns the blobs that a commit refers to as checkpoint parts which it set. A
// part that the session stores as a delta is no blob. A part that the commit did not set belongs to
// an earlier commit.
func (cy *cycle) partBlobs(c *head.Commit) (out []keys.Hash) {
	for _, p := range c.Parts {
		if p.Set == c.Revision && !head.IsDelta(p) {
			out = append(out, cy.space.BlobHash(p.Blob))
		}
	}
	return out
}

// isCorrupt reports whether err is damage of the store.
func isCorrupt(err error) bool {
	var corrupt *damage.CorruptError
	return errors.As(err, &corrupt)
}
