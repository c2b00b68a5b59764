package turnstone

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/session"
	"github.com/turnstonedb/turnstone/internal/verify"
)

// Errors. Match with errors.Is; the typed ones below carry what a caller acts on.
var (
	// ErrStoreNotFound: Open with MustExist found no store.
	ErrStoreNotFound = session.ErrStoreNotFound
	// ErrSessionNotFound: no session has that id.
	ErrSessionNotFound = history.ErrSessionNotFound
	// ErrSessionDeleted: the session of this handle was deleted; one that was
	// created under the same id since is another session.
	ErrSessionDeleted = history.ErrSessionDeleted
	// ErrNodeNotFound: the session has no such node, or a read asked for a tombstoned one.
	ErrNodeNotFound = history.ErrNodeNotFound
	// ErrBlobNotFound: the session has no such attachment.
	ErrBlobNotFound = history.ErrBlobNotFound
	// ErrUploadExpired: a commit refers to an attachment that the session does
	// not have: its upload expired and was collected, or never was. It matches
	// ErrBlobNotFound.
	ErrUploadExpired = commit.ErrUploadExpired
	// ErrRevisionNotFound: the session has not got that far.
	ErrRevisionNotFound = history.ErrRevisionNotFound
	// ErrRevisionPruned: the revision is below the session's history floor.
	ErrRevisionPruned = history.ErrRevisionPruned
	// ErrConflict: somebody else committed first. See ConflictError.
	ErrConflict = history.ErrConflict
	// ErrTurnConflict: the turn id stands for another commit. See TurnConflictError.
	ErrTurnConflict = commit.ErrTurnConflict
	// ErrRecordConflict: somebody else has changed a record. See RecordConflictError.
	ErrRecordConflict = commit.ErrRecordConflict
	// ErrRecordNotFound: the session has no record of that key.
	ErrRecordNotFound = session.ErrRecordNotFound
	// ErrFeedOff: changes are not told. See Store.StartFeed.
	ErrFeedOff = feed.ErrOff
	// ErrCursorExpired: the changes after the cursor are not kept any more.
	ErrCursorExpired = feed.ErrTrimmed
	// ErrLimit: a documented limit is exceeded. See LimitError.
	ErrLimit = history.ErrLimit
	// ErrInvalid: the request contradicts itself or the session. See InvalidError.
	ErrInvalid = history.ErrInvalid
	// ErrRejected: the host's validator refused the commit; its error is wrapped.
	ErrRejected = history.ErrRejected
	// ErrHasChildren: Delete with RefuseChildren found children.
	ErrHasChildren = commit.ErrHasChildren
	// ErrExists: Rename found a session under the new id, or Keep a revision under the name.
	ErrExists = commit.ErrExists
	// ErrOtherStore: where a store was to be copied to is another one.
	ErrOtherStore = verify.ErrOtherStore
	// ErrUnfinishedCopy: a copy into the store goes on, or was interrupted: run it again.
	ErrUnfinishedCopy = session.ErrUnfinishedCopy
	// ErrOutcomeUnknown: what the call was to do may or may not stand, whatever else
	// the error matches. Open the store again if it matches engine.ErrClosed, and
	// call again: a commit with the same turn id returns the result that stands.
	ErrOutcomeUnknown = history.ErrOutcomeUnknown
	// ErrIncomplete: a call that is no one atomic step has done a part of its work,
	// which stands, whatever else the error matches. Calling again, or Vacuum after
	// Erase, does the rest.
	ErrIncomplete = history.ErrIncomplete
)

// A ConflictError says where the session stands instead. It matches ErrConflict.
// Nothing of the commit was stored.
type ConflictError struct {
	Session  string        `json:"session"`
	Expected head.Revision `json:"expected"`
	Revision head.Revision `json:"revision"` // of the head now
	Leaf     graph.ID      `json:"leaf,omitzero"`
	Commit   head.CommitID `json:"commit,omitzero"`
	Node     graph.ID      `json:"node,omitzero"` // Commit.OnPath, if that node is not on the active path; else zero
}

func (e *ConflictError) Error() string { return (*commit.Conflict)(e).Error() }

// Is reports whether target is ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// A TurnConflictError names the commit that has the turn id. It matches ErrTurnConflict.
type TurnConflictError struct {
	Session  string        `json:"session"`
	Turn     string        `json:"turn"`
	Revision head.Revision `json:"revision,omitzero"`
	Commit   head.CommitID `json:"commit,omitzero"`
	Alone    bool          `json:"alone,omitzero"` // of CommitAll: the content is the same, and others of its turns were not committed
}

func (e *TurnConflictError) Error() string { return (*commit.TurnConflict)(e).Error() }

// Is reports whether target is ErrTurnConflict.
func (e *TurnConflictError) Is(target error) bool { return target == ErrTurnConflict }

// A LimitError names the limit. It matches ErrLimit. Nothing was stored.
type LimitError struct {
	Limit string `json:"limit"`           // for example "payload bytes"
	Where string `json:"where,omitempty"` // for example "node 3"; may be empty
	Have  int64  `json:"have"`
	Max   int64  `json:"max"`
}

func (e *LimitError) Error() string { return (*history.LimitError)(e).Error() }

// Is reports whether target is ErrLimit.
func (e *LimitError) Is(target error) bool { return target == ErrLimit }

// An InvalidError says what of a request is wrong. It matches ErrInvalid.
// Nothing was stored.
type InvalidError struct {
	Where  string `json:"where,omitempty"` // for example "node 3"
	Reason string `json:"reason"`
}

func (e *InvalidError) Error() string { return (*history.InvalidError)(e).Error() }

// Is reports whether target is ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

func invalid(where, reason string, args ...any) error {
	return &InvalidError{Where: where, Reason: fmt.Sprintf(reason, args...)}
}

// public gives a typed error of an internal package its public type, also when the error is
// wrapped to say that the outcome is unknown or the work incomplete, or which session it is about.
func public(err error) error {
	switch e := err.(type) {
	case *commit.Conflict:
		return (*ConflictError)(e)
	case *commit.TurnConflict:
		return (*TurnConflictError)(e)
	case *commit.RecordConflict:
		return &RecordConflictError{Session: e.Session, Key: e.Key, Expected: versionOf(e.Expected), Version: versionOf(e.Version)}
	case *history.LimitError:
		return (*LimitError)(e)
	case *history.InvalidError:
		return (*InvalidError)(e)
	case *commit.InSession:
		return fmt.Errorf("session %q: %w", e.Session, public(e.Err))
	case interface{ Unwrap() []error }:
		if errs := e.Unwrap(); len(errs) == 2 && (errs[0] == ErrOutcomeUnknown || errs[0] == ErrIncomplete) {
			return fmt.Errorf("%w: %w", errs[0], public(errs[1]))
		}
	}
	return err
}

// ErrorType names the kind of an error with few, stable words, for metrics and
// alerts: conflict, turn_conflict, record_conflict, not_found, pruned, exists, has_children,
// limit, invalid, rejected, corrupt, format, unknown_outcome, incomplete, canceled, no_space, closed
// (the engine is), unavailable (its database is), or other. It is "" for nil.
func ErrorType(err error) string {
	if err == nil {
		return ""
	}
	for _, k := range errorTypes {
		if slices.ContainsFunc(k.targets, func(target error) bool { return errors.Is(err, target) }) {
			return k.name
		}
	}
	var corrupt *damage.CorruptError
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
	{"unknown_outcome", []error{ErrOutcomeUnknown, engine.ErrUnknown}},
	{"incomplete", []error{ErrIncomplete}},
	{"corrupt", []error{engine.ErrCorrupt}},
	{"conflict", []error{ErrConflict, engine.ErrConflict, ErrOtherStore}},
	{"turn_conflict", []error{ErrTurnConflict}},
	{"record_conflict", []error{ErrRecordConflict}},
	{"not_found", []error{ErrSessionNotFound, ErrSessionDeleted, ErrNodeNotFound, ErrBlobNotFound, ErrRevisionNotFound, ErrStoreNotFound, ErrRecordNotFound}},
	{"pruned", []error{ErrRevisionPruned, ErrCursorExpired}},
	{"exists", []error{ErrExists}},
	{"feed_off", []error{ErrFeedOff}},
	{"has_children", []error{ErrHasChildren}},
	{"limit", []error{ErrLimit, engine.ErrTooLarge}},
	{"invalid", []error{ErrInvalid, engine.ErrInvalid}},
	{"rejected", []error{ErrRejected}},
	{"format", []error{damage.ErrFormat, engine.ErrNewer}},
	{"canceled", []error{context.Canceled, context.DeadlineExceeded}},
	{"no_space", []error{engine.ErrNoSpace}},
	{"read_only", []error{engine.ErrReadOnly}},
	{"closed", []error{engine.ErrClosed}},
	{"unavailable", []error{engine.ErrUnavailable, engine.ErrLocked, ErrUnfinishedCopy}},
}
