// Package codec gives every stored value its form: a record with a type, a
// version and a checksum bound to its key, around a deterministic encoding, and
// compression with a bound on what it expands to.
package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Version is the format version of every record type so far.
const Version = 1

// A CorruptError reports a stored object that is missing, damaged or
// undecodable. It is never returned for something that was not stored.
type CorruptError struct {
	Object string // what it is, for example `commit 12 of session "chat-1"`
	Err    error  // what is wrong with it
}

func (e *CorruptError) Error() string { return fmt.Sprintf("corrupt: %s: %v", e.Object, e.Err) }

// Unwrap returns Err.
func (e *CorruptError) Unwrap() error { return e.Err }

// Corrupt wraps err, unless it names an object already.
func Corrupt(err error, format string, args ...any) error {
	var ce *CorruptError
	if err == nil || errors.As(err, &ce) {
		return err
	}
	return &CorruptError{Object: fmt.Sprintf(format, args...), Err: err}
}

// Reasons of a CorruptError. Match with errors.Is.
var (
	ErrMissing  = errors.New("missing")
	ErrChecksum = errors.New("checksum does not match")
	ErrHash     = errors.New("hash does not match")
)

// ErrNewer reports a record of a later version of the format.
var ErrNewer = errors.New("written by a newer version of turnstone")

// castagnoli is the polynomial of iSCSI (RFC 3720): computed in hardware, and
// finds all errors of up to three bits in a record. Objects are verified by
// their BLAKE3 hashes as well; the checksum is for what has none.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const overhead = 2 + crc32.Size

// Seal returns the record of type typ with the given body, in pieces, for key:
// type, version, body, CRC-32C of key and all before it (little endian).
func Seal(key []byte, typ byte, body ...[]byte) []byte {
	size := overhead
	for _, b := range body {
		size += len(b)
	}
	out := append(make([]byte, 0, size), typ, Version)
	for _, b := range body {
		out = append(out, b...)
	}
	return SealTail(key, out, 0)
}

// SealTail appends the checksum to out[from:], which begins with type and version.
func SealTail(key, out []byte, from int) []byte {
	sum := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, out[from:])
	return binary.LittleEndian.AppendUint32(out, sum)
}

// Open checks a record of key and returns its body, which aliases value.
func Open(key, value []byte, typ byte) ([]byte, error) {
	if value == nil {
		return nil, ErrMissing
	}
	if len(value) < overhead {
		return nil, fmt.Errorf("%w: %d bytes", ErrMalformed, len(value))
	}
	end := len(value) - crc32.Size
	sum := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value[:end])
	if sum != binary.LittleEndian.Uint32(value[end:]) {
		return nil, ErrChecksum
	}
	if value[0] != typ {
		return nil, fmt.Errorf("%w: record of type %q, want %q", ErrMalformed, value[0], typ)
	}
	if value[1] != Version {
		return nil, fmt.Errorf("%w (record version %d, this one reads %d)", ErrNewer, value[1], Version)
	}
	return value[2:end], nil
}
