// Package blob has ID, the id of a blob, and Attachment, a node's reference to one. A blob is
// bytes that are stored once however often they are used: a large payload, an attachment or a
// checkpoint part.
package blob

import (
	"encoding/hex"
	"errors"

	"github.com/turnstonedb/turnstone/internal/hash"
)

// ErrSize reports a stream that is longer or shorter than was announced. Match it with
// errors.Is.
var ErrSize = errors.New("blob: stream has another length than announced")

// ID identifies a blob. It is the BLAKE3-256 hash of the blob's content, in a context
// that is used for nothing else. The zero ID is no blob's.
//
// As text, in JSON too, an id is 64 lower-case hex digits, and the zero id is empty.
type ID [32]byte

// Sum returns the id of content.
func Sum(content []byte) ID { return hash.Blob.Sum(content) }

// String returns the id in lower-case hex.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id is no blob's.
func (id ID) IsZero() bool { return id == ID{} }

// MarshalText returns the id in lower-case hex, or nothing if it is zero.
func (id ID) MarshalText() ([]byte, error) { return hash.AppendText(nil, id), nil }

// UnmarshalText reads the form that MarshalText gives.
func (id *ID) UnmarshalText(text []byte) (err error) {
	*id, err = hash.ParseText(text)
	return err
}

// An Attachment is a node's reference to a blob, with what belongs to the reference and
// not to the content: equal bytes under two names are one blob.
type Attachment struct {
	ID        ID     `json:"id"`
	Size      int64  `json:"size"`                // of the content, in bytes
	MediaType string `json:"mediaType,omitempty"` // as in RFC 6838, for example "image/png"; may be empty
	Name      string `json:"name,omitempty"`      // for people; may be empty
}
