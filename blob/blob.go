// Package blob stores bytes by their hash, once for each namespace: large payloads, attachments and checkpoint parts,
// whose versions it stores as deltas. Users need [ID], the id of a blob, and [Attachment], a node's reference to one;
// the rest is for the other packages of Turnstone.
//
//	nodes, checkpoint parts ──▶ blob ──▶ items: chunks, or lists of chunks
//	upload ──pins──────────────▶ │
//	collector ──condemns────────▶ mark ◀──guards── commit
//
// A blob is found by the hash of its content, and equal bytes are stored once per
// namespace. A blob is stored whole, or as a list of at most 1,000 smaller blobs
// whose concatenation it is: content-defined chunks, or lists of those. A blob
// becomes reachable when a commit refers to it. An [Upload] pins a blob that is stored before that. After its last
// reference is gone it is garbage. The [Mark] of a blob says whether a collector has condemned it. A commit that
// relies on the blob guards the mark.
//
// A checkpoint part that changes a little every turn would be a new blob every time.
// So a session can store a version of a part as a delta of the version before, see
// [Version]. A delta belongs to its session alone: no hash finds it, no other session
// and no blob depends on it, and it goes with its session. So the collector need not know
// which delta depends on which.
package blob

import (
	"encoding/hex"
	"errors"

	"github.com/turnstonedb/turnstone/internal/codec"
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
func Sum(content []byte) ID { return codec.BlobHash.Sum(content) }

// String returns the id in lower-case hex.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id is no blob's.
func (id ID) IsZero() bool { return id == ID{} }

// MarshalText returns the id in lower-case hex, or nothing if it is zero.
func (id ID) MarshalText() ([]byte, error) { return codec.AppendHashText(nil, id), nil }

// UnmarshalText reads the form that MarshalText gives.
func (id *ID) UnmarshalText(text []byte) (err error) {
	*id, err = codec.ParseHashText(text)
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
