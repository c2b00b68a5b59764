// Package watch wraps an engine and calls a function before and after each Get, Scan and Apply.
package watch

import (
	"context"
	"iter"

	"github.com/turnstonedb/turnstone/engine"
)

// An Op is an operation of an engine.
type Op int

// The operations that are told of.
const (
	Get Op = iota
	Scan
	Apply
)

// An Outcome says how an operation went.
type Outcome struct {
	Err   error
	Keys  int   // that were asked for, yielded, or written
	Bytes int64 // of keys and values
}

// An Engine is one whose calls are told of.
type Engine struct {
	engine.Engine
	// Begin is called before each operation, and the function that it returns, if
	// that is not nil, after it.
	Begin func(context.Context, Op) (context.Context, func(Outcome))
}

func (e *Engine) begin(ctx context.Context, op Op) (context.Context, func(Outcome)) {
	ctx, end := e.Begin(ctx, op)
	if end == nil {
		end = func(Outcome) {}
	}
	return ctx, end
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	ctx, end := e.begin(ctx, Get)
	values, err := e.Engine.Get(ctx, keys...)
	o := Outcome{Err: err, Keys: len(keys)}
	for i, v := range values {
		o.Bytes += int64(len(keys[i]) + len(v))
	}
	end(o)
	return values, err
}

// Scan implements engine.Engine.
func (e *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		ctx, end := e.begin(ctx, Scan)
		var o Outcome
		defer func() { end(o) }()
		for p, err := range e.Engine.Scan(ctx, r) {
			if o.Err = err; err == nil {
				o.Keys++
				o.Bytes += int64(len(p.Key) + len(p.Value))
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

// Apply implements engine.Engine.
func (e *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	ctx, end := e.begin(ctx, Apply)
	err := e.Engine.Apply(ctx, b)
	o := Outcome{Err: err, Keys: len(b.Sets) + len(b.Deletes)}
	for i := range b.Sets {
		o.Bytes += int64(len(b.Sets[i].Key) + len(b.Sets[i].Value))
	}
	for _, k := range b.Deletes {
		o.Bytes += int64(len(k))
	}
	end(o)
	return err
}
