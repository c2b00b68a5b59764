// Package overlay lets a store be tried as it would be: with writes that the engine
// beneath never gets.
package overlay

import (
	"bytes"
	"context"
	"iter"
	"sync"

	"github.com/tidwall/btree"

	"github.com/turnstonedb/turnstone/engine"
)

// An Engine is an engine whose writes stay in memory, over another one that it
// only reads.
type Engine struct {
	engine.Engine
	mu     sync.RWMutex               // guards writes
	writes *btree.Map[string, []byte] // nil: deleted
}

// New returns one over e without any writes.
func New(e engine.Engine) *Engine {
	return &Engine{Engine: e, writes: btree.NewMap[string, []byte](0)}
}

// Get implements engine.Engine.
func (o *Engine) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	vs, err := o.Engine.Get(ctx, keys...)
	if err != nil {
		return nil, err
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	for i, k := range keys {
		if v, ok := o.writes.Get(string(k)); ok {
			vs[i] = bytes.Clone(v)
		}
	}
	return vs, nil
}

// Scan implements engine.Engine: what was read and what was written, merged.
func (o *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		left := r.Limit
		emit := func(p engine.Pair) bool {
			if p.Value == nil {
				return true
			}
			if !yield(p, nil) {
				return false
			}
			left--
			return r.Limit == 0 || left > 0
		}
		at := r.Start
		written := func() (p engine.Pair, ok bool) { // the next one from at on
			o.mu.RLock()
			defer o.mu.RUnlock()
			o.writes.Ascend(string(at), func(k string, v []byte) bool {
				p, ok = engine.Pair{Key: []byte(k), Value: bytes.Clone(v)}, r.End == nil || k < string(r.End)
				return false
			})
			return p, ok
		}
		base := engine.Range{Start: r.Start, End: r.End}
		for p, err := range o.Engine.Scan(ctx, base) {
			if err != nil {
				yield(p, err)
				return
			}
			for {
				w, ok := written()
				if !ok || bytes.Compare(w.Key, p.Key) > 0 {
					break
				}
				at = engine.Successor(w.Key)
				if bytes.Equal(w.Key, p.Key) {
					p.Value = w.Value
					break
				}
				if !emit(w) {
					return
				}
			}
			at = engine.Successor(p.Key)
			if !emit(p) {
				return
			}
		}
		for w, ok := written(); ok; w, ok = written() {
			at = engine.Successor(w.Key)
			if !emit(w) {
				return
			}
		}
	}
}

// Apply implements engine.Engine.
func (o *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	if err := b.Check(o.Limits()); err != nil {
		return err
	}
	for _, g := range b.Guards {
		vs, err := o.Get(ctx, g.Key)
		if err != nil {
			return err
		}
		if (vs[0] == nil) != (g.Value == nil) || !bytes.Equal(vs[0], g.Value) {
			return &engine.ConflictError{Key: g.Key}
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range b.Sets {
		o.writes.Set(string(p.Key), bytes.Clone(p.Value))
	}
	for _, k := range b.Deletes {
		o.writes.Set(string(k), nil)
	}
	return nil
}
