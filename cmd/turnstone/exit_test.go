package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
)

// A script acts on the exit code, so each kind of errors has one that stays.
func TestEveryKindOfErrorsHasItsExitCode(t *testing.T) {
	want := map[string]int{
		"invalid": 2, "limit": 2, "read-only": 2,
		"session-not-found": 3, "session-deleted": 3, "node-not-found": 3, "blob-not-found": 3, "upload-expired": 3, "record-not-found": 3,
		"revision-not-found": 3, "revision-pruned": 3, "store-not-found": 3, "cursor-expired": 3,
		"damaged": 4, "corrupt": 4,
		"conflict": 5, "diverged": 5, "turn-conflict": 5, "record-conflict": 5, "exists": 5, "has-children": 5, "other-store": 5, "feed-off": 5,
		"locked": 6, "unavailable": 6, "unfinished-copy": 6,
		"moved": 3, "canceled": 130,
	}
	for _, k := range turnstone.ErrorKinds() {
		code, ok := want[k.Name]
		if !ok {
			code = 1
		}
		if got := exitCode(fmt.Errorf("x: %w", k.Err)); got != code {
			t.Errorf("%s: %d, want %d", k.Name, got, code)
		}
		delete(want, k.Name)
	}
	if len(want) > 0 {
		t.Errorf("there are no kinds %v", want)
	}
	for _, c := range []struct {
		err  error
		want int
	}{
		{fmt.Errorf("%w: %w", engine.ErrClosed, engine.ErrNoSpace), 1},
		{errors.Join(turnstone.ErrSessionNotFound, &damage.CorruptError{Object: "x", Err: damage.ErrMissing}), 4},
		{fmt.Errorf("%w: %w", turnstone.ErrIncomplete, turnstone.ErrConflict), 5},
		{inputError{turnstone.ErrInvalid}, 1},
		{inputError{turnstone.ErrLimit}, 1},
		{usageError{errors.New("x")}, 2},
		{errors.New("x"), 1},
		{engine.ErrInvalid, 1},
		{&engine.LockedError{}, 6},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}
