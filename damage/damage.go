// Package damage has the errors of stored objects that are missing or damaged, or that another version of Turnstone
// wrote.
package damage

import (
	"errors"
	"fmt"
)

// ErrDamaged is what every CorruptError matches.
var ErrDamaged = errors.New("damaged")

// Reasons of a CorruptError. Match them with errors.Is.
var (
	ErrMissing   = errors.New("missing")
	ErrChecksum  = errors.New("checksum does not match")
	ErrHash      = errors.New("hash does not match")
	ErrMalformed = errors.New("malformed record")
)

// A CorruptError names a stored object that is missing, damaged or undecodable. A read that
// finds damage returns a CorruptError, never a shorter result. What was never stored is no
// CorruptError but an error that says that it was not found.
type CorruptError struct {
	Object string // what it is, for example `commit 12 of session "chat-1"`
	Err    error  // what is wrong with it
}

func (e *CorruptError) Error() string { return fmt.Sprintf("corrupt: %s: %v", e.Object, e.Err) }

// Unwrap returns Err.
func (e *CorruptError) Unwrap() error { return e.Err }

// Is reports whether target is ErrDamaged.
func (e *CorruptError) Is(target error) bool { return target == ErrDamaged }

// Errors that a FormatError matches. Match them with errors.Is.
var (
	ErrFormat = errors.New("turnstone: another version of the format") // every FormatError
	ErrOlder  = errors.New("turnstone: an older version of the format")
	ErrNewer  = errors.New("turnstone: a newer version of the format")
)

// A FormatError names a stored object that is whole, and that this version of Turnstone
// does not read because another one wrote it. It is no CorruptError. It matches
// ErrFormat, and either ErrOlder or ErrNewer.
type FormatError struct {
	Object string // what it is, for example `commit 12 of session "chat-1"`
	Have   uint64 // the version of the record, or the format of the store
	Want   uint64 // the version or format that this Turnstone reads; if it reads several, the nearest to Have
}

func (e *FormatError) Error() string {
	who := "a newer version of turnstone wrote it: use that one, or a later one"
	if e.Have < e.Want {
		who = "an older version of turnstone wrote it: use that one, or one that reads both"
	}
	object := e.Object
	if object == "" {
		object = "record"
	}
	return fmt.Sprintf("%v: %s has version %d, and this turnstone reads %d; %s", ErrFormat, object, e.Have, e.Want, who)
}

// Is reports whether target is ErrFormat, or says on which side of Want Have is.
func (e *FormatError) Is(target error) bool {
	switch target {
	case ErrOlder:
		return e.Have < e.Want
	case ErrNewer:
		return e.Have > e.Want
	}
	return target == ErrFormat
}
