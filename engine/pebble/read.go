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
	err := e.read(ctx, func(s *pebble.Snapshot) (err error) {
		if len(keys) == 1 {
			out[0], err = get(s, keys[0])
			return err
		}
		it, err := s.NewIterWithContext(ctx, nil)
		if err != nil {
			return err
		}
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
		err = e.read(ctx, func(s *pebble.Snapshot) (err error) {
			page, more, err = onePage(ctx, s, r)
			return err
		})
		return page, more, err
	})
}

// onePage reads the first page of r.
func onePage(ctx context.Context, s *pebble.Snapshot, r engine.Range) (page []engine.Pair, more bool, err error) {
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
