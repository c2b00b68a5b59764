package engine

import (
	"context"
	"iter"
)

// An Op is an operation of an engine.
type Op int

// The operations that an Observed tells of.
const (
	OpGet Op = iota
	OpScan
	OpApply
)

// An OpOutcome says how an operation went.
type OpOutcome struct {
	Err   error
	Keys  int   // that were asked for, yielded, or written
	Bytes int64 // of keys and values
}

// Observed is an engine that calls a function before and after each Get, Scan and Apply.
type Observed struct {
	Engine
	// Begin is called before each operation, and the function that it returns, if
	// that is not nil, after it.
	Begin func(context.Context, Op) (context.Context, func(OpOutcome))
}

func (e *Observed) begin(ctx context.Context, op Op) (context.Context, func(OpOutcome)) {
	ctx, end := e.Begin(ctx, op)
	if end == nil {
		end = func(OpOutcome) {}
	}
	return ctx, end
}

// Get implements Engine.
func (e *Observed) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	ctx, end := e.begin(ctx, OpGet)
	values, err := e.Engine.Get(ctx, keys...)
	o := OpOutcome{Err: err, Keys: len(keys)}
	for i, v := range values {
		o.Bytes += int64(len(keys[i]) + len(v))
	}
	end(o)
	return values, err
}

// Scan implements Engine.
func (e *Observed) Scan(ctx context.Context, r Range) iter.Seq2[Pair, error] {
	return func(yield func(Pair, error) bool) {
		ctx, end := e.begin(ctx, OpScan)
		var o OpOutcome
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

// Apply implements Engine.
func (e *Observed) Apply(ctx context.Context, b *Batch) error {
	ctx, end := e.begin(ctx, OpApply)
	err := e.Engine.Apply(ctx, b)
	o := OpOutcome{Err: err, Keys: len(b.Sets) + len(b.Deletes)}
	for i := range b.Sets {
		o.Bytes += int64(len(b.Sets[i].Key) + len(b.Sets[i].Value))
	}
	for _, k := range b.Deletes {
		o.Bytes += int64(len(k))
	}
	end(o)
	return err
}
