// Package record has the errors that say what is wrong with a stored record: it is
// damaged, or another version of Turnstone wrote it.
package record

import (
	"errors"
	"fmt"
)

// Reasons of a CorruptError. Match them with errors.Is.
var (
	ErrMissing   = errors.New("missing")
	ErrChecksum  = errors.New("checksum does not match")
	ErrHash      = errors.New("hash does not match")
	ErrMalformed = errors.New("malformed record")
)

// A CorruptError names a stored object that is missing, damaged or undecodable. It is
// never returned for something that was not stored, and no read returns less than was
// asked for without one.
type CorruptError struct {
	Object string // what it is, for example `commit 12 of session "chat-1"`
	Err    error  // what is wrong with it
}

func (e *CorruptError) Error() string { return fmt.Sprintf("corrupt: %s: %v", e.Object, e.Err) }

// Unwrap returns Err.
func (e *CorruptError) Unwrap() error { return e.Err }

// ErrFormat reports a record of another version of the format. See FormatError.
var ErrFormat = errors.New("turnstone: another version of the format")

// A FormatError names a stored object that is whole, and that this version of Turnstone
// does not read because another one wrote it: an older one if Have is less than Want,
// else a newer one. It is no CorruptError. It matches ErrFormat.
type FormatError struct {
	Object string // what it is, for example `commit 12 of session "chat-1"`
	Have   uint64 // the version of the record
	Want   uint64 // the version that is read
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

// Is reports whether target is ErrFormat.
func (e *FormatError) Is(target error) bool { return target == ErrFormat }
