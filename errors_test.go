package turnstone

import (
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A typed error of an internal package gets its public type, also when it is wrapped to say
// that the outcome is unknown or the work incomplete.
func TestTypedErrorsGetTheirPublicType(t *testing.T) {
	for _, wrap := range []error{nil, ErrOutcomeUnknown, ErrIncomplete} {
		wrapped := func(err error) error {
			if wrap != nil {
				err = fmt.Errorf("%w: %w", wrap, err)
			}
			return public(err)
		}
		var limit *LimitError
		var invalid *InvalidError
		var conflict *ConflictError
		var turn *TurnConflictError
		for _, c := range []struct {
			err, is error
			as      any
		}{
			{wrapped(&history.LimitError{Limit: "x"}), ErrLimit, &limit},
			{wrapped(&history.InvalidError{Where: "x"}), ErrInvalid, &invalid},
			{wrapped(&commit.Conflict{Session: "x"}), ErrConflict, &conflict},
			{wrapped(&commit.TurnConflict{Turn: "x"}), ErrTurnConflict, &turn},
		} {
			if !errors.As(c.err, c.as) || !errors.Is(c.err, c.is) || wrap != nil && !errors.Is(c.err, wrap) {
				t.Errorf("wrapped by %v: %#v", wrap, c.err)
			}
		}
	}
}
