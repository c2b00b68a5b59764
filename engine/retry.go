package engine

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ApplyUntilKnown applies b to e, and applies it again as long as the outcome is unknown. It waits
// between attempts, a millisecond at first and a second at most.
//
// Unknown reports whether the outcome of an attempt was unknown. If it was, an
// ErrConflict may be a conflict with that attempt, which has taken effect: the
// caller finds out. If ctx ends before the outcome is known, the error matches
// ErrUnknown and ctx.Err.
func ApplyUntilKnown(ctx context.Context, e Engine, b *Batch) (unknown bool, err error) {
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := e.Apply(ctx, b)
		if !errors.Is(err, ErrUnknown) {
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
