// Package errtype names kinds of errors, for metrics and alerts.
package errtype

import (
	"context"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/lifecycle"
	"github.com/turnstonedb/turnstone/internal/namespace"
	"github.com/turnstonedb/turnstone/internal/records"
	"github.com/turnstonedb/turnstone/internal/replicate"
	"github.com/turnstonedb/turnstone/record"
)

// Of returns the name of the kind of an error, or "" if err is nil: see turnstone.ErrorType.
func Of(err error) string {
	if err == nil {
		return ""
	}
	for _, k := range errorTypes {
		if slices.ContainsFunc(k.targets, func(target error) bool { return errors.Is(err, target) }) {
			return k.name
		}
	}
	var corrupt *record.CorruptError
	if errors.As(err, &corrupt) {
		return "corrupt"
	}
	return "other"
}

// errorTypes has the kinds of errors. An error that matches several of them is of the first.
var errorTypes = []struct {
	name    string
	targets []error
}{
	{"unknown_outcome", []error{change.ErrOutcomeUnknown, engine.ErrUnknown}},
	{"incomplete", []error{change.ErrIncomplete}},
	{"corrupt", []error{engine.ErrCorrupt}},
	{"conflict", []error{change.ErrConflict, engine.ErrConflict, replicate.ErrOtherStore}},
	{"turn_conflict", []error{commit.ErrTurnConflict}},
	{"record_conflict", []error{commit.ErrRecordConflict}},
	{"not_found", []error{history.ErrSessionNotFound, history.ErrSessionDeleted, history.ErrNodeNotFound, history.ErrBlobNotFound, history.ErrRevisionNotFound, namespace.ErrStoreNotFound, records.ErrNotFound}},
	{"pruned", []error{history.ErrRevisionPruned, feed.ErrTrimmed}},
	{"exists", []error{lifecycle.ErrExists}},
	{"feed_off", []error{feed.ErrOff}},
	{"has_children", []error{lifecycle.ErrHasChildren}},
	{"limit", []error{change.ErrLimit, engine.ErrTooLarge}},
	{"invalid", []error{change.ErrInvalid, engine.ErrInvalid}},
	{"rejected", []error{change.ErrRejected}},
	{"format", []error{record.ErrFormat, engine.ErrNewer}},
	{"canceled", []error{context.Canceled, context.DeadlineExceeded}},
	{"no_space", []error{engine.ErrNoSpace}},
	{"read_only", []error{engine.ErrReadOnly}},
	{"closed", []error{engine.ErrClosed}},
	{"unavailable", []error{engine.ErrUnavailable, engine.ErrLocked, namespace.ErrUnfinishedCopy}},
}
