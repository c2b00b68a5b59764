package storetest

import (
	"context"
	"iter"
	"sync/atomic"

	"github.com/turnstonedb/turnstone/engine"
)

// A Counted is an engine that counts the bytes of the values that are read.
type Counted struct {
	engine.Engine
	Bytes atomic.Int64
}

// Get implements engine.Engine.
func (c *Counted) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	values, err := c.Engine.Get(ctx, keys...)
	for _, v := range values {
		c.Bytes.Add(int64(len(v)))
	}
	return values, err
}

// Scan implements engine.Engine.
func (c *Counted) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		for p, err := range c.Engine.Scan(ctx, r) {
			c.Bytes.Add(int64(len(p.Value)))
			if !yield(p, err) {
				return
			}
		}
	}
}
