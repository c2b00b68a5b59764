// Package memory is an engine that keeps its pairs in memory. It is the reference for the
// contract, and for tests and sessions that need not last.
package memory

import (
	"bytes"
	"context"
	"iter"
	"sync"

	"github.com/tidwall/btree"

	"github.com/turnstonedb/turnstone/engine"
)

var _ engine.Engine = (*Engine)(nil)

// pageSize bounds the pairs of a Scan that are read under one lock.
const pageSize = 1000

// Engine is an ordered map in memory. Nothing of it survives the process. The zero
// Engine is a closed one: see New.
type Engine struct {
	mu     sync.RWMutex // guards kv and closed
	kv     *btree.Map[string, []byte]
	closed bool
}

// New returns an empty engine.
func New() *Engine { return &Engine{kv: btree.NewMap[string, []byte](0)} }

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed || e.kv == nil {
		return nil, engine.ErrClosed
	}
	out := make([][]byte, len(keys))
	for i, k := range keys {
		if v, ok := e.kv.Get(string(k)); ok {
			out[i] = bytes.Clone(v)
		}
	}
	return out, nil
}

// Scan implements engine.Engine.
func (e *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return engine.Paged(r, func(r engine.Range) ([]engine.Pair, bool, error) {
		return e.page(ctx, r)
	})
}

func (e *Engine) page(ctx context.Context, r engine.Range) (page []engine.Pair, more bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed || e.kv == nil {
		return nil, false, engine.ErrClosed
	}
	if err := r.Check(func(key []byte) ([]byte, error) {
		v, _ := e.kv.Get(string(key))
		return v, nil
	}); err != nil {
		return nil, false, err
	}
	e.kv.Ascend(string(r.Start), func(k string, v []byte) bool {
		if r.End != nil && k >= string(r.End) || r.Limit > 0 && len(page) == r.Limit {
			return false
		}
		if more = len(page) == pageSize; more {
			return false
		}
		page = append(page, engine.Pair{Key: []byte(k), Value: bytes.Clone(v)})
		return true
	})
	return page, more, nil
}

// Apply implements engine.Engine.
func (e *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	if err := b.Check(e.Limits()); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.kv == nil {
		return engine.ErrClosed
	}
	for _, g := range b.Guards {
		v, ok := e.kv.Get(string(g.Key))
		if ok != (g.Value != nil) || !bytes.Equal(v, g.Value) {
			return &engine.ConflictError{Key: bytes.Clone(g.Key)}
		}
	}
	for _, p := range b.Sets {
		e.kv.Set(string(p.Key), bytes.Clone(p.Value))
	}
	for _, k := range b.Deletes {
		e.kv.Delete(string(k))
	}
	return nil
}

// Vacuum implements engine.Engine; removed pairs are gone already.
func (e *Engine) Vacuum(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed || e.kv == nil {
		return engine.ErrClosed
	}
	return nil
}

// Limits implements engine.Engine.
func (e *Engine) Limits() engine.Limits { return engine.DriverLimits }

// Close implements engine.Engine.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	return nil
}
