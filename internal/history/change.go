// This file runs calls that alter a store. It repeats an attempt whose guards were false,
// and makes the error of a call say whether the call may have taken effect, as a whole or in
// part. Package blob does this for uploads, which apply many batches.

package history

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
)

var (
	// ErrOutcomeUnknown: what the call was to do may or may not stand.
	ErrOutcomeUnknown = errors.New("turnstone: outcome unknown")
	// ErrConflict: somebody else was first.
	ErrConflict = errors.New("turnstone: commit conflict")
	// ErrMayStand says that an attempt may have taken effect, and that what can be read does not tell. It is
	// for a call that knows so: Result says that the outcome is unknown.
	ErrMayStand = errors.New("what stands does not tell whether the call took effect")
	// ErrIncomplete: the call has done a part of its work, which stands.
	ErrIncomplete = errors.New("turnstone: done in part")
)

// A Change is one call that alters a store. It remembers whether an attempt of the call
// may stand although the engine did not say so.
type Change struct {
	Engine engine.Engine
	// Unknown is set once the outcome of an attempt was not known. A conflict of a
	// later attempt can then be with the first one.
	Unknown bool
	// Partly is set once the call has done something that a later error does not undo.
	Partly bool
}

// Settle calls attempt until it succeeds or fails for another reason than a false guard. An attempt
// reads what stands, finds out whether there is anything left to do, and applies a batch
// through the change. After the batch was applied it must not read: an error of that read
// would be taken for the call's.
func Settle(ctx context.Context, e engine.Engine, attempt func(*Change) error) error {
	c := &Change{Engine: e}
	for {
		err := attempt(c)
		if !errors.Is(err, engine.ErrConflict) {
			return c.Result(err)
		}
		if ctx.Err() != nil {
			return c.Result(ctx.Err())
		}
	}
}

// Result returns the error that the call ends with, if it ends with err. The error matches
// ErrOutcomeUnknown if an attempt may stand, and ErrIncomplete if a part of the work does.
func (c *Change) Result(err error) error {
	if err != nil && c.Partly && !errors.Is(err, ErrIncomplete) {
		err = fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	if err != nil && c.Unknown && !errors.Is(err, ErrOutcomeUnknown) {
		err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return err
}

// Apply applies b, and again after an unknown outcome, until it succeeds or fails
// otherwise. An engine.ErrConflict is returned as it is: the next attempt finds out.
func (c *Change) Apply(ctx context.Context, b *engine.Batch) error {
	unknown, err := engine.ApplyUntilKnown(ctx, c.Engine, b)
	c.Unknown = c.Unknown || unknown
	if errors.Is(err, engine.ErrConflict) {
		return err
	}
	return c.Result(err)
}

// Alter is one attempt of a call that changes a session in another way than by appending to
// it. It reads the lifecycle records first, and gives them to edit. Then edit reads what depends on
// them and adds to the batch; it reports whether there is anything to do. The batch guards the
// session's lifecycle record and sets it to next.
func (c *Change) Alter(ctx context.Context, s *Session, edit func(l *Lifecycles, next *head.Life, b *engine.Batch) (needed bool, err error)) error {
	_, err := Read(ctx, s, func(l *Lifecycles) (struct{}, error) {
		next := l.Own.Next()
		var b engine.Batch
		needed, err := edit(l, &next, &b)
		if err != nil || !needed {
			return struct{}{}, err
		}
		b.Guard(l.Keys[0], l.Values[0])
		b.Set(l.Keys[0], next.Encode(l.Keys[0]))
		return struct{}{}, c.Apply(ctx, &b)
	})
	return err
}
