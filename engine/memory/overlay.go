// An overlay is an engine that keeps its writes in memory, on top of another engine
// that it only reads. A dry run of a collection writes to one, and a copy is verified on one
// before it can be opened.

package memory

import (
	"bytes"
	"context"
	"iter"
	"sync"

	"github.com/tidwall/btree"

	"github.com/turnstonedb/turnstone/engine"
)

// An Overlay shows another engine as it would be after writes that it keeps in memory. It
// checks the guards of a batch before it locks, so only one goroutine may apply batches.
type Overlay struct {
	engine.Engine                            // the engine below
	mu            sync.RWMutex               // guards writes
	writes        *btree.Map[string, []byte] // nil stands for a deleted record
}

// NewOverlay returns an engine on top of e, without any writes.
func NewOverlay(e engine.Engine) *Overlay {
	return &Overlay{Engine: e, writes: btree.NewMap[string, []byte](0)}
}

// Get implements engine.Engine.
func (o *Overlay) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	vs, err := o.Engine.Get(ctx, keys...)
	if err != nil {
		return nil, err
	}
	for i, k := range keys {
		if v, ok := o.written(k); ok {
			vs[i] = v
		}
	}
	return vs, nil
}

// written returns the value that was written to a key, nil if the record was deleted. ok is
// false if nothing was written to the key.
func (o *Overlay) written(key []byte) (value []byte, ok bool) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	v, ok := o.writes.Get(string(key))
	return bytes.Clone(v), ok
}

// Scan implements engine.Engine.
func (o *Overlay) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		n := 0
		for p, err := range o.merged(ctx, r) {
			if err == nil && p.Value == nil {
				continue
			}
			if !yield(p, err) {
				return
			}
			if n++; n == r.Limit {
				return
			}
		}
	}
}

// merged yields the records of a range in order, whatever its limit, as the writes have
// left them. A deleted record has no value.
func (o *Overlay) merged(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		below := engine.Range{Start: r.Start, End: r.End}
		for _, g := range r.Guards {
			v, ok := o.written(g.Key)
			if !ok {
				below.Guards = append(below.Guards, g)
			} else if !g.Holds(v) {
				yield(engine.Pair{}, &engine.ConflictError{Key: bytes.Clone(g.Key)})
				return
			}
		}
		at := r.Start
		for p, err := range o.Engine.Scan(ctx, below) {
			if err != nil {
				yield(p, err)
				return
			}
			if !o.yieldWrites(at, p.Key, yield) {
				return
			}
			if v, ok := o.written(p.Key); ok {
				p.Value = v
			}
			at = engine.Successor(p.Key)
			if !yield(p, nil) {
				return
			}
		}
		o.yieldWrites(at, r.End, yield)
	}
}

// yieldWrites yields what was written to the keys from start up to end, or to all from
// start on if end is nil. It reports whether the caller wants more.
func (o *Overlay) yieldWrites(start, end []byte, yield func(engine.Pair, error) bool) bool {
	for {
		p, ok := o.firstWrite(start)
		if !ok || end != nil && bytes.Compare(p.Key, end) >= 0 {
			return true
		}
		if !yield(p, nil) {
			return false
		}
		start = engine.Successor(p.Key)
	}
}

// firstWrite returns what was written to the first key that is start or comes after it.
func (o *Overlay) firstWrite(start []byte) (p engine.Pair, ok bool) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	o.writes.Ascend(string(start), func(k string, v []byte) bool {
		p, ok = engine.Pair{Key: []byte(k), Value: bytes.Clone(v)}, true
		return false
	})
	return p, ok
}

// Apply implements engine.Engine.
func (o *Overlay) Apply(ctx context.Context, b *engine.Batch) error {
	if err := b.Check(o.Limits()); err != nil {
		return err
	}
	if err := o.checkGuards(ctx, b.Guards); err != nil {
		return err
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

// checkGuards fails with an engine.ConflictError if a guard is false.
func (o *Overlay) checkGuards(ctx context.Context, guards []engine.Pair) error {
	for _, g := range guards {
		vs, err := o.Get(ctx, g.Key)
		if err != nil {
			return err
		}
		if (vs[0] == nil) != (g.Value == nil) || !bytes.Equal(vs[0], g.Value) {
			return &engine.ConflictError{Key: g.Key}
		}
	}
	return nil
}
