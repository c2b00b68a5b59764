package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/turnstonedb/turnstone/engine"
)

const (
	pageBytes = 272 << 10 // of a Scan, read from one snapshot
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
			if err := r.Check(func(key []byte) ([]byte, error) { return get(s, key) }); err != nil {
				return err
			}
			var skipped int
			page, more, skipped, err = onePage(ctx, s, r)
			if skipped > manySkipped {
				end := r.End
				if more || len(page) > 0 && len(page) == r.Limit {
					end = page[len(page)-1].Key
				}
				e.tidy(r.Start, end)
			}
			return err
		})
		runtime.Gosched() // who reads page after page without a pause holds up nobody who reads a key
		return page, more, err
	})
}

// onePage reads the first page of r. It returns how many pairs it stepped over that were removed
// or replaced.
func onePage(ctx context.Context, s *pebble.Snapshot, r engine.Range) (page []engine.Pair, more bool, skipped int, err error) {
	if r.End != nil && len(r.End) == 0 {
		return nil, false, 0, nil
	}
	it, err := s.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: r.Start, UpperBound: r.End})
	if err != nil {
		return nil, false, 0, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	size := 0
	for ok := it.First(); ok; ok = it.Next() {
		if more = len(page) == pagePairs || size >= pageBytes; more {
			break
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, false, 0, err
		}
		page = append(page, engine.Pair{Key: bytes.Clone(it.Key()), Value: bytes.Clone(v)})
		size += len(v)
		if err := ctx.Err(); err != nil {
			return nil, false, 0, err
		}
		if len(page) == r.Limit {
			break // and step over nothing that nobody asked for
		}
	}
	stats := it.Stats()
	return page, more, stats.ForwardStepCount[pebble.InternalIterCall] - len(page), it.Error()
}

const (
	// manySkipped is how many removed pairs a page steps over before their range is compacted.
	// It takes about a third of a millisecond.
	manySkipped = 4096
	// tidyPause is how many times as long as a compaction of a range took the next one waits.
	tidyPause = 10
)

// tidy compacts the keys from start to end in the background, so that the next reader need not step
// over what was removed there: a queue is a range whose front is always removed.
func (e *Engine) tidy(start, end []byte) {
	if e.readOnly != nil || !e.tidying.CompareAndSwap(false, true) {
		return
	}
	if start = bytes.Clone(start); len(start) == 0 {
		start = []byte{0} // Compact takes no empty key
	}
	if end = bytes.Clone(end); end == nil {
		end = bytes.Repeat([]byte{0xff}, e.Limits().KeyBytes+1)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if bytes.Compare(start, end) >= 0 || e.enter() != nil {
		e.tidying.Store(false)
		return
	}
	go func() {
		defer e.tidying.Store(false)
		begun := time.Now()
		e.drop(e.takeUnread()...)                                                         // what an old view shows can't go
		_ = recovered(func() error { return e.db.Compact(e.closing, start, end, false) }) // a failure stops the engine by itself
		took := time.Since(begun)
		e.leave()
		select {
		case <-time.After(tidyPause * took):
		case <-e.closing.Done():
		}
	}()
}
