package history

import (
	"errors"
	"fmt"
)

var (
	// ErrLimit: a documented limit is exceeded.
	ErrLimit = errors.New("turnstone: limit exceeded")
	// ErrRejected: the host's validator refused the commit.
	ErrRejected = errors.New("turnstone: commit rejected")
	// ErrInvalid: the request contradicts itself or the session.
	ErrInvalid = errors.New("turnstone: invalid request")
)

// A LimitError says that the call would exceed a limit. The root package gives it, and Invalid,
// their public types.
type LimitError struct {
	Limit string // for example "payload bytes"
	Where string // for example "node 3"; may be empty
	Have  int64
	Max   int64
}

func (e *LimitError) Error() string {
	where := ""
	if e.Where != "" {
		where = " of " + e.Where
	}
	return fmt.Sprintf("turnstone: %s%s: %d, at most %d", e.Limit, where, e.Have, e.Max)
}

// Is reports whether target is ErrLimit.
func (e *LimitError) Is(target error) bool { return target == ErrLimit }

// An InvalidError says what of the request contradicts itself or the session.
type InvalidError struct {
	Where  string // for example "node 3"
	Reason string
}

func (e *InvalidError) Error() string { return "turnstone: " + e.Where + ": " + e.Reason }

// Is reports whether target is ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// NewInvalid returns an *InvalidError with a formatted reason.
func NewInvalid(where, reason string, args ...any) error {
	return &InvalidError{Where: where, Reason: fmt.Sprintf(reason, args...)}
}
