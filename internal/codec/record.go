// Package codec encodes, checksums, compresses and compares stored values. A record has a type, a version and a checksum
// over its key and content. Its body is CBOR in a deterministic encoding. Compressed bytes state the
// length of their content, so that reading is bounded.
package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/turnstonedb/turnstone/damage"
)

// Version is the format version of every record type so far.
const Version = 1

// Corrupt says that err is about the object that format names, unless err names
// one already: it returns a damage.CorruptError, or the damage.FormatError that err is.
func Corrupt(err error, format string, args ...any) error {
	var ce *damage.CorruptError
	if err == nil || errors.As(err, &ce) {
		return err
	}
	var fe *damage.FormatError
	if !errors.As(err, &fe) {
		return &damage.CorruptError{Object: fmt.Sprintf(format, args...), Err: err}
	}
	if fe.Object != "" {
		return err
	}
	named := &damage.FormatError{Object: fmt.Sprintf(format, args...), Have: fe.Have, Want: fe.Want}
	if err == error(fe) {
		return named
	}
	return fmt.Errorf("%w: %w", named, err) // whatever else err matches
}

// castagnoli is the polynomial of iSCSI (RFC 3720): computed in hardware, and
// finds all errors of up to three bits in a record. Objects are verified by
// their BLAKE3 hashes as well; the checksum is for what has none.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const overhead = 2 + crc32.Size

// Encode returns the record of type typ for key. The body is given in pieces. A record is the
// type, the version, the body, and the CRC-32C of the key and of all that comes before it
// (little endian).
func Encode(key []byte, typ byte, body ...[]byte) []byte {
	size := overhead
	for _, b := range body {
		size += len(b)
	}
	out := append(make([]byte, 0, size), typ, Version)
	for _, b := range body {
		out = append(out, b...)
	}
	return EncodeTail(key, out, 0)
}

// EncodeTail appends the checksum to out[from:], which begins with type and version.
func EncodeTail(key, out []byte, from int) []byte {
	sum := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, out[from:])
	return binary.LittleEndian.AppendUint32(out, sum)
}

// Forged stands for a value that does not verify with the keys of an encrypted store. No record is like that.
var Forged = []byte{0}

// Decode checks a record of key and returns its body, which aliases value. Type,
// version and checksum stand at the same place in every version of the format, so
// Decode tells a record of another version (a damage.FormatError) from damage.
func Decode(key, value []byte, typ byte) ([]byte, error) {
	if value == nil {
		return nil, damage.ErrMissing
	}
	if bytes.Equal(value, Forged) {
		return nil, fmt.Errorf("%w: it does not verify with the keys of the store", damage.ErrMalformed)
	}
	if len(value) < overhead {
		return nil, fmt.Errorf("%w: %d bytes", damage.ErrMalformed, len(value))
	}
	end := len(value) - crc32.Size
	sum := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value[:end])
	if sum != binary.LittleEndian.Uint32(value[end:]) {
		return nil, damage.ErrChecksum
	}
	if value[0] != typ {
		return nil, fmt.Errorf("%w: record of type %q, want %q", damage.ErrMalformed, value[0], typ)
	}
	if value[1] != Version {
		return nil, &damage.FormatError{Have: uint64(value[1]), Want: Version}
	}
	return value[2:end], nil
}

// Move returns the record of a key as that of another key.
func Move(from, value, to []byte) ([]byte, error) {
	if len(value) < overhead {
		return nil, fmt.Errorf("%w: %d bytes", damage.ErrMalformed, len(value))
	}
	body, err := Decode(from, value, value[0])
	if err != nil {
		return nil, err
	}
	return Encode(to, value[0], body), nil
}

// Unknown returns what is wrong with a record whose key is of no known kind: it is a
// FormatError if a newer version of Turnstone wrote the record, else damage.
func Unknown(key, value []byte) error {
	if len(value) >= overhead && value[1] > Version {
		_, err := Decode(key, value, value[0])
		return err
	}
	return fmt.Errorf("%w: no key of the format", damage.ErrMalformed)
}
