package commit

import (
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/session"
)

// These are the typed errors of a commit. The root package converts each to a public type with
// the same fields.

// A Conflict says that the head is not at the revision that the request expects, or that its path does not have a node.
type Conflict struct {
	Session  string
	Expected head.Revision
	Revision head.Revision
	Leaf     graph.ID
	Commit   head.CommitID
	Node     graph.ID // Request.OnPath, if that is not on the path; else zero
}

func conflict(s *history.Session, h *head.Head, expected head.Revision) *Conflict {
	return &Conflict{Session: s.ID, Expected: expected, Revision: h.Revision, Leaf: h.Leaf, Commit: h.Commit}
}

func (e *Conflict) Error() string {
	if !e.Node.IsZero() {
		return fmt.Sprintf("turnstone: session %q is at revision %d (leaf %.12s), and node %.12s is not on its path", e.Session, e.Revision, e.Leaf, e.Node)
	}
	return fmt.Sprintf("turnstone: session %q is at revision %d (leaf %.12s), not at %d", e.Session, e.Revision, e.Leaf, e.Expected)
}

// Is reports whether target is history.ErrConflict.
func (e *Conflict) Is(target error) bool { return target == history.ErrConflict }

// A TurnConflict says that the turn id was committed before with other content, or without the other
// turns of the commit.
type TurnConflict struct {
	Session  string
	Turn     string
	Revision head.Revision
	Commit   head.CommitID
	Alone    bool // The content is the same, and other turns of the commit were not committed.
}

func (e *TurnConflict) Error() string {
	if e.Alone {
		return fmt.Sprintf("turnstone: turn %q of session %q was committed as revision %d without others of this commit", e.Turn, e.Session, e.Revision)
	}
	return fmt.Sprintf("turnstone: turn %q of session %q was committed as revision %d with other content", e.Turn, e.Session, e.Revision)
}

// Is reports whether target is ErrTurnConflict.
func (e *TurnConflict) Is(target error) bool { return target == ErrTurnConflict }

// A RecordConflict says that a record is not of the version that the request expects.
type RecordConflict struct {
	Session  string
	Key      string
	Expected session.RecordVersion // zero if none was to be there
	Version  session.RecordVersion // that is there, or zero for none
}

// Error returns a text that no user sees: the public type has its own, with its own form of versions.
func (e *RecordConflict) Error() string { return fmt.Sprintf("%v: %q", ErrRecordConflict, e.Key) }

// Is reports whether target is ErrRecordConflict.
func (e *RecordConflict) Is(target error) bool { return target == ErrRecordConflict }

// ErrRecordConflict says that somebody else has changed a record.
var ErrRecordConflict = errors.New("turnstone: record conflict")

// An InSession says which session of a commit to several an error is about.
type InSession struct {
	Session string
	Err     error
}

func (e *InSession) Error() string { return fmt.Sprintf("session %q: %v", e.Session, e.Err) }

// Unwrap returns the error.
func (e *InSession) Unwrap() error { return e.Err }

// ErrTurnConflict says that the turn id was committed before by another commit.
var ErrTurnConflict = errors.New("turnstone: turn id already committed")

// ErrUploadExpired says that the commit refers to an attachment that the session does not have
// and that no upload keeps.
var ErrUploadExpired = fmt.Errorf("%w: no upload of it stands", history.ErrBlobNotFound)
