package blob

import (
	"errors"

	"github.com/turnstonedb/turnstone/internal/codec"
)

// AppendAttachment encodes r.
func AppendAttachment(e *codec.Encoder, r Attachment) {
	e.Array(4)
	e.Bytes(r.ID[:])
	e.Uint(uint64(r.Size))
	e.Text(r.MediaType)
	e.Text(r.Name)
}

// DecodeAttachment decodes what AppendAttachment encodes.
func DecodeAttachment(d *codec.Decoder) (r Attachment) {
	d.Shape(4)
	d.Fixed(r.ID[:])
	r.Size = Size(d)
	r.MediaType, r.Name = d.Text(), d.Text()
	return r
}

// Size decodes a size in bytes.
func Size(d *codec.Decoder) int64 {
	n := d.Uint()
	if n > MaxBytes {
		d.Fail("size of %d bytes", n)
	}
	return int64(n)
}

// Limits.
const (
	// MaxBytes is the size of the largest blob.
	MaxBytes = 4 << 30
	// maxList is the number of blobs in a list: 36 KB, one value.
	maxList = 1000
	// MaxDeltas is how many deltas a chain may have. Longer chains save space but make
	// reads slow: of a part of 200 KB, the last version of a full chain takes 2.6 ms to
	// read, and one that is a delta of a whole version 0.1 ms.
	MaxDeltas = 120
	// wholeBytes is the largest content that is stored in one piece. Larger
	// content is a list of chunks, or a delta if its base is at hand.
	wholeBytes = 768 << 10
	// deltaBytes is the largest content that is stored as a delta: the largest part.
	deltaBytes = 64 << 20
	// valueBytes is how much of a representation goes into one value of the engine.
	valueBytes = 480 << 10
)

// Errors of this package. Match with errors.Is.
var (
	ErrNotFound = errors.New("blob: not found")
	ErrTooLarge = errors.New("blob: larger than 4 GiB")
	ErrExpired  = errors.New("blob: upload expired")
)
