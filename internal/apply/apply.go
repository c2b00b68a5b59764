// Package apply applies a batch again until the engine says whether the batch took effect.
package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// Batch applies b, and applies it again as long as the outcome is unknown. It waits
// between attempts, a millisecond at first and a second at most.
//
// Unknown reports whether the outcome of an attempt was unknown. If it was, an
// engine.ErrConflict may be a conflict with that attempt, which has taken effect: the
// caller finds out. If ctx ends before the outcome is known, the error matches
// engine.ErrUnknown and ctx.Err.
func Batch(ctx context.Context, e engine.Engine, b *engine.Batch) (unknown bool, err error) {
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := e.Apply(ctx, b)
		if !errors.Is(err, engine.ErrUnknown) {
			return unknown, err
		}
		unknown = true
		select {
		case <-ctx.Done():
			return true, fmt.Errorf("%w: %w", err, ctx.Err())
		case <-time.After(wait):
		}
	}
}
