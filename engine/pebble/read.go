package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/cockroachdb/pebble/v2"

	"github.com/turnstonedb/turnstone/engine"
)

const (
	pageBytes = 256 << 10 // of a Scan, read from one snapshot
	pagePairs = 1000
)

// view runs f, which reads and then calls seen, and returns when what it read is
// durable. Readers take no lock that a flush or a compaction holds while it writes
// the MANIFEST, so they go on after the engine failed. That is why they read with
// iterators: closing a snapshot waits for the MANIFEST.
func (e *Engine) view(ctx context.Context, f func(seen func()) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	err := e.enter()
	e.mu.Unlock()
	if err != nil {
		return err
	}
	defer e.leave()
	last := uint64(0) // no batch above it was seen
	if err := recovered(func() error { return f(func() { last = e.entered.Load() }) }); err != nil {
		return mapped(err)
	}
	return e.awaitDurable(ctx, last)
}

// recovered runs f and makes a panic of Pebble's an error.
func recovered(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &damage{file: "a file of the store", what: "Pebble panics while it reads", cause: fmt.Errorf("%v", r)}
		}
	}()
	return f()
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	out := make([][]byte, len(keys))
	err := e.view(ctx, func(seen func()) (err error) {
		if len(keys) == 1 {
			out[0], err = get(e.db, keys[0])
			seen()
			return err
		}
		it, err := e.db.NewIterWithContext(ctx, nil)
		if err != nil {
			return err
		}
		seen()
		defer func() { err = errors.Join(err, it.Close()) }()
		for i, k := range keys {
			if it.SeekPrefixGE(k) { // the prefix of a key is all of it
				v, err := it.ValueAndErr()
				if err != nil {
					return err
				}
				out[i] = bytes.Clone(v)
			}
			if err := errors.Join(it.Error(), ctx.Err()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func get(r pebble.Reader, key []byte) ([]byte, error) {
	v, done, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer done.Close()
	return bytes.Clone(v), nil
}

// Scan implements engine.Engine.
func (e *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return engine.Paged(r, func(r engine.Range) (page []engine.Pair, more bool, err error) {
		err = e.view(ctx, func(seen func()) (err error) {
			page, more, err = e.page(ctx, r, seen)
			return err
		})
		return page, more, err
	})
}

// page reads the first page of r from one view of the store.
func (e *Engine) page(ctx context.Context, r engine.Range, seen func()) (page []engine.Pair, more bool, err error) {
	if r.End != nil && len(r.End) == 0 {
		return nil, false, nil
	}
	it, err := e.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: r.Start, UpperBound: r.End})
	if err != nil {
		return nil, false, err
	}
	seen()
	defer func() { err = errors.Join(err, it.Close()) }()
	size := 0
	for ok := it.First(); ok; ok = it.Next() {
		if r.Limit > 0 && len(page) == r.Limit {
			break
		}
		if more = len(page) == pagePairs || size >= pageBytes; more {
			break
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, false, err
		}
		page = append(page, engine.Pair{Key: bytes.Clone(it.Key()), Value: bytes.Clone(v)})
		size += len(v)
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
	}
	return page, more, it.Error()
}
