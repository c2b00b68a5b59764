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

// view runs f on a snapshot, and returns when what it shows is durable.
func (e *Engine) view(ctx context.Context, f func(*pebble.Snapshot) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	if err := e.enter(); err != nil {
		e.mu.Unlock()
		return err
	}
	epoch := e.epoch % 2
	e.readers[epoch]++
	e.mu.Unlock()
	defer e.leave()
	seen, err := e.look(f)
	e.mu.Lock()
	e.readers[epoch]--
	e.signal()
	e.mu.Unlock()
	if err != nil {
		return mapped(err)
	}
	return e.awaitDurable(ctx, seen)
}

// look runs f on a snapshot and returns a number that no batch in it exceeds.
func (e *Engine) look(f func(*pebble.Snapshot) error) (seen uint64, err error) {
	snap := e.db.NewSnapshot()
	defer func() {
		if r := recover(); r != nil {
			err = &damage{file: "a file of the store", what: "Pebble panics while it reads", cause: fmt.Errorf("%v", r)}
		}
		err = errors.Join(err, snap.Close())
	}()
	seen = e.entered.Load()
	return seen, f(snap)
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	out := make([][]byte, len(keys))
	err := e.view(ctx, func(s *pebble.Snapshot) (err error) {
		for i, k := range keys {
			if out[i], err = get(s, k); err != nil {
				return err
			}
			if err := ctx.Err(); err != nil {
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
		err = e.view(ctx, func(s *pebble.Snapshot) error {
			page, more, err = scan(ctx, s, r)
			return err
		})
		return page, more, err
	})
}

// scan reads a page of r from s.
func scan(ctx context.Context, s *pebble.Snapshot, r engine.Range) (page []engine.Pair, more bool, err error) {
	if r.End != nil && len(r.End) == 0 {
		return nil, false, nil
	}
	it, err := s.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: r.Start, UpperBound: r.End})
	if err != nil {
		return nil, false, err
	}
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
