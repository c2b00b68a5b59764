package turnstone

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// contents reads every blob that is referred to, directly or by another one,
// and counts those that are not.
func (v *verifier) contents(ctx context.Context) error {
	reached := map[blob.ID]bool{}
	var visit func(id blob.ID) error
	visit = func(id blob.ID) error {
		if reached[id] {
			return nil
		}
		reached[id] = true
		refs, err := v.s.blobs.References(ctx, id)
		// What is referred to is read as a whole; the items of a list once more
		// only where they are something's own.
		if err == nil && (len(refs) <= 1 || v.blobs[id]) {
			_, err = v.s.blobs.WriteTo(ctx, discard{}, id)
		}
		if stopped(err) {
			return err
		}
		if err != nil {
			v.problem(err, "blob %s", id)
		}
		for _, r := range refs {
			if err := visit(r); err != nil {
				return err
			}
		}
		v.step()
		return nil
	}
	for id := range v.blobs {
		if err := visit(id); err != nil {
			return err
		}
	}
	v.Unreferenced = max(0, v.Blobs-len(reached))
	return nil
}

// index checks the collector's index: every blob has as many edges as are
// counted, and what has edges is stored.
func (v *verifier) index(ctx context.Context) error {
	before := len(v.Problems)
	if rebuilding, err := gc.Rebuilding(ctx, v.s.engine, v.s.space); err != nil || rebuilding {
		return err // the next collection derives it anew
	}
	if err := v.counts(ctx); err != nil || len(v.Problems) == before {
		return err
	}
	rebuilding, err := gc.Rebuilding(ctx, v.s.engine, v.s.space)
	if rebuilding {
		v.Problems = v.Problems[:before]
	}
	return err
}

// counts compares the edges of blobs with their numbers.
func (v *verifier) counts(ctx context.Context) error {
	check := func(h keys.Hash, edges uint64) error {
		if edges == 0 {
			return nil
		}
		for attempt := 0; ; attempt++ { // a collector may be at work
			key := v.s.space.Count(h)
			vs, err := v.s.engine.Get(ctx, key, v.s.space.Mark(h))
			if err != nil {
				return err
			}
			n, cerr := uint64(0), error(nil)
			if vs[0] != nil {
				var body []byte
				if body, cerr = codec.Open(key, vs[0], keys.Count); cerr == nil {
					n, _ = codec.Uvarint(body)
				}
			}
			if cerr == nil && n == edges && vs[1] != nil {
				return nil
			}
			if attempt == 3 {
				v.problem(fmt.Errorf("%d edges, counted as %d, stored: %v: run a full collection", edges, n, vs[1] != nil), "collector's index of the blob at %x", h)
				return nil
			}
			if edges, err = v.edges(ctx, h); err != nil || edges == 0 && n == 0 {
				return err
			}
		}
	}
	var at keys.Hash
	n := uint64(0)
	for p, err := range v.s.engine.Scan(ctx, v.s.space.All(keys.Edge)) {
		if err != nil {
			return err
		}
		_, fields, ok := v.s.space.Fields(p.Key)
		if !ok {
			continue // records has named it
		}
		if h := keys.Hash(fields); h != at {
			if err := check(at, n); err != nil {
				return err
			}
			at, n = h, 0
		}
		n++
	}
	if err := check(at, n); err != nil {
		return err
	}
	for p, err := range v.s.engine.Scan(ctx, v.s.space.All(keys.Count)) {
		if err != nil {
			return err
		}
		_, fields, ok := v.s.space.Fields(p.Key)
		if !ok {
			continue
		}
		n, err := v.edges(ctx, keys.Hash(fields))
		if err != nil {
			return err
		}
		if n > 0 {
			continue // compared above
		}
		if vs, err := v.s.engine.Get(ctx, p.Key); err != nil {
			return err
		} else if vs[0] != nil && bytes.Equal(vs[0], p.Value) {
			v.problem(errors.New("edges are counted, and there are none: run a full collection"), "collector's index of the blob at %x", fields)
		}
	}
	return nil
}

func (v *verifier) edges(ctx context.Context, h keys.Hash) (n uint64, err error) {
	for _, err := range v.s.engine.Scan(ctx, v.s.space.Of(keys.Edge, h)) {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
