package turnstone

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/copying"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/session"
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
	// ErrFeedOff: the feed of changes is off. See Store.StartFeed.
	ErrFeedOff = feed.ErrOff
	// ErrCursorExpired: the changes after the cursor are not kept any more.
	ErrCursorExpired = feed.ErrTrimmed
	// ErrLimit: a documented limit is exceeded. See LimitError.
	ErrLimit = history.ErrLimit
	// ErrInvalid: the request contradicts itself or the session. See InvalidError.
	ErrInvalid = history.ErrInvalid
	// ErrRejected: the host's validator refused the commit. Its error is wrapped, unless it matches another of these.
	ErrRejected = history.ErrRejected
	// ErrHasChildren: Delete with RefuseChildren found children.
	ErrHasChildren = commit.ErrHasChildren
	// ErrExists: Rename found a session under the new id, or Keep a revision under the name.
	ErrExists = commit.ErrExists
	// ErrBundle: a bundle is damaged, or a session of it can't be made. See BundleError.
	ErrBundle = errors.New("turnstone: invalid bundle")
	// ErrDiverged: a session and the one in a bundle have gone different ways. See DivergedError.
	ErrDiverged = errors.New("turnstone: session has diverged")
	// ErrOtherStore: the target of a copy holds another store.
	ErrOtherStore = copying.ErrOtherStore
	// ErrEncrypted: the store is encrypted, and was opened without its keys. See package engine/sealed.
	ErrEncrypted = session.ErrEncrypted
	// ErrUnfinishedCopy: a copy into the store goes on, or was interrupted: run it again.
	ErrUnfinishedCopy = session.ErrUnfinishedCopy
	// ErrOutcomeUnknown: the call may or may not have taken effect, whatever else the error matches. If the error
	// matches engine.ErrClosed, open the store again. Then call again: if the first commit took effect, a commit
	// with the same turn id returns its result.
	ErrOutcomeUnknown = history.ErrOutcomeUnknown
	// ErrIncomplete: a call that is not one atomic step has done a part of its work. That part stays done, whatever
	// else the error matches. Call again to do the rest; after Erase, Vacuum does the rest, too.
	ErrIncomplete = history.ErrIncomplete
)

// A ConflictError says that the head is not where a commit or a deletion expected it, and where it is. It matches
// ErrConflict. Nothing of the commit was stored, and the session was not deleted.
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

// public gives a typed error of an internal package its public type. It also does so if another error wraps it, to
// say that the outcome is unknown, that the work is incomplete, or which session it is about.
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

// An ErrorKind is a kind of errors with a name that stays. The server, the command and the clients in Python and
// TypeScript go by the same kinds.
type ErrorKind struct {
	// Name is the type of the problem by which the HTTP API tells of the error, error.type in metrics, and error_type
	// in logs.
	Name   string
	Status int    // of the answer, as HTTP has it; from 500 on the caller is not the cause
	Class  string // of the error in Python and TypeScript: "NotFound" is NotFoundError, "" their general Error
	Err    error  // what errors of the kind match

	engine error // what errors of an engine match that KindOf takes for the kind as well; or nil
}

// Has reports whether err is of the kind. It may be of others as well.
func (k *ErrorKind) Has(err error) bool { return errors.Is(err, k.Err) }

// KindOf returns the first of ErrorKinds that err is of. If it is of none, because an engine returned it and not a
// store, KindOf returns the kind that a store would make of it. It is "other" for any other error, and the zero
// ErrorKind for nil.
func KindOf(err error) ErrorKind {
	if err == nil {
		return ErrorKind{}
	}
	i := slices.IndexFunc(errorKinds, func(k ErrorKind) bool { return k.Has(err) })
	if i < 0 {
		i = slices.IndexFunc(errorKinds, func(k ErrorKind) bool { return k.engine != nil && errors.Is(err, k.engine) })
	}
	if i < 0 {
		return ErrorKind{Name: "other", Status: 500}
	}
	return errorKinds[i]
}

// ErrorKinds returns the kinds of errors. What an error leaves behind comes first.
func ErrorKinds() []ErrorKind { return slices.Clone(errorKinds) }

var errorKinds = []ErrorKind{
	{"unknown-outcome", 500, "OutcomeUnknown", ErrOutcomeUnknown, engine.ErrUnknown},
	{"incomplete", 500, "", ErrIncomplete, nil},
	{"rejected", 422, "Invalid", ErrRejected, nil},
	{"conflict", 409, "Conflict", ErrConflict, engine.ErrConflict},
	{"turn-conflict", 409, "TurnConflict", ErrTurnConflict, nil},
	{"record-conflict", 409, "RecordConflict", ErrRecordConflict, nil},
	{"diverged", 409, "Diverged", ErrDiverged, nil},
	{"exists", 409, "Refused", ErrExists, nil},
	{"has-children", 409, "Refused", ErrHasChildren, nil},
	{"other-store", 409, "Refused", ErrOtherStore, nil},
	{"session-deleted", 410, "SessionDeleted", ErrSessionDeleted, nil},
	{"session-not-found", 404, "NotFound", ErrSessionNotFound, nil},
	{"node-not-found", 404, "NotFound", ErrNodeNotFound, nil},
	{"upload-expired", 409, "NotFound", ErrUploadExpired, nil},
	{"blob-not-found", 404, "NotFound", ErrBlobNotFound, nil},
	{"record-not-found", 404, "NotFound", ErrRecordNotFound, nil},
	{"revision-not-found", 404, "NotFound", ErrRevisionNotFound, nil},
	{"revision-pruned", 410, "NotFound", ErrRevisionPruned, nil},
	{"store-not-found", 404, "NotFound", ErrStoreNotFound, nil},
	{"feed-off", 409, "Refused", ErrFeedOff, nil},
	{"cursor-expired", 410, "NotFound", ErrCursorExpired, nil},
	{"limit", 422, "Invalid", ErrLimit, engine.ErrTooLarge},
	{"invalid", 422, "Invalid", ErrInvalid, engine.ErrInvalid},
	{"size", 422, "Invalid", blob.ErrSize, nil},
	{"invalid-bundle", 422, "Invalid", ErrBundle, nil},
	{"superseded", 409, "", gc.ErrSuperseded, nil},
	{"unfinished-copy", 503, "Unavailable", ErrUnfinishedCopy, nil},
	{"encrypted", 503, "", ErrEncrypted, engine.ErrEncrypted},
	{"moved", 421, "", engine.ErrMoved, nil},
	{"format", 500, "", damage.ErrFormat, engine.ErrNewer},
	{"damaged", 500, "Damaged", damage.ErrDamaged, nil},
	{"missing", 500, "Damaged", damage.ErrMissing, nil},
	{"hash", 500, "Damaged", damage.ErrHash, nil},
	{"checksum", 500, "Damaged", damage.ErrChecksum, nil},
	{"malformed-record", 500, "Damaged", damage.ErrMalformed, nil},
	{"corrupt", 500, "Damaged", engine.ErrCorrupt, nil},
	{"no-space", 507, "", engine.ErrNoSpace, nil},
	{"read-only", 403, "", engine.ErrReadOnly, nil},
	{"locked", 503, "Unavailable", engine.ErrLocked, nil},
	{"closed", 503, "Unavailable", engine.ErrClosed, nil},
	{"unavailable", 503, "Unavailable", engine.ErrUnavailable, nil},
	{"canceled", 503, "", context.Canceled, nil},
	{"timeout", 504, "", context.DeadlineExceeded, nil},
}
