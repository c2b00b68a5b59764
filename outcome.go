package turnstone

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// A change is one call that alters the store. It remembers whether an attempt of
// the call may stand although the engine did not say so.
//
// Every call that alters the store goes through settle, so that one place decides
// what an error says about effects: after an attempt whose outcome the engine could
// not tell, any error matches ErrOutcomeUnknown.
type change struct {
	store *Store
	// unknown is set once the outcome of an attempt was not known. A conflict of a
	// later attempt can then be with the first one.
	unknown bool
	// partly is set once the call has done something that a later error does not undo.
	partly bool
}

// settle calls attempt until it succeeds or fails otherwise than by a guard. An
// attempt reads what stands, finds out whether there is anything left to do, and
// applies a batch through the change. After the batch was applied it must not read:
// an error of that reading would be taken for the call's.
func (s *Store) settle(ctx context.Context, attempt func(*change) error) error {
	c := &change{store: s}
	for {
		err := attempt(c)
		if !errors.Is(err, engine.ErrConflict) {
			return c.told(err)
		}
		if ctx.Err() != nil {
			return c.told(ctx.Err())
		}
	}
}

// told returns the error that the call ends with.
func (c *change) told(err error) error {
	if err != nil && c.partly && !errors.Is(err, ErrIncomplete) {
		err = fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	if err != nil && c.unknown && !errors.Is(err, ErrOutcomeUnknown) {
		err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return err
}

// apply applies b, and again after an unknown outcome, until it succeeds or fails
// otherwise.
func (c *change) apply(ctx context.Context, b *engine.Batch) error {
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := c.store.engine.Apply(ctx, b)
		if !errors.Is(err, engine.ErrUnknown) {
			if errors.Is(err, engine.ErrConflict) {
				return err
			}
			return c.told(err)
		}
		c.unknown = true
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w: %w", ErrOutcomeUnknown, err, ctx.Err())
		case <-time.After(wait):
		}
	}
}
