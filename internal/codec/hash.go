// This file is the one place where ids and keys of stored objects are hashed: BLAKE3-256 in
// derive-key mode (BLAKE3 specification, section 2.3), with one context per type
// of object, so that the bytes of a blob can never pass for a node or a commit.

package codec

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"sync"

	"github.com/zeebo/blake3"
)

// HashSize is the length of every digest, in bytes.
const HashSize = 32

// AppendHashText appends the text form of a digest: lower-case hex, or nothing for the
// zero digest, which stands for none.
func AppendHashText(b []byte, sum [HashSize]byte) []byte {
	if sum == [HashSize]byte{} {
		return b
	}
	return hex.AppendEncode(b, sum[:])
}

// ParseHashText reads the form that AppendHashText gives, and no other.
func ParseHashText(text []byte) (sum [HashSize]byte, err error) {
	if len(text) == 0 {
		return sum, nil
	}
	if len(text) != hex.EncodedLen(HashSize) || bytes.ContainsAny(text, "ABCDEF") {
		return sum, fmt.Errorf("%.80q is not %d lower-case hex digits", text, hex.EncodedLen(HashSize))
	}
	if _, err := hex.Decode(sum[:], text); err != nil {
		return [HashSize]byte{}, fmt.Errorf("%q is not %d lower-case hex digits", text, hex.EncodedLen(HashSize))
	}
	return sum, nil
}

// A HashContext separates one use of the hash from all others.
type HashContext struct{ pool sync.Pool }

// The contexts. Changing a string changes every id of its type: a new format.
var (
	NodeHash    = hashContext("turnstone v1 node")
	CommitHash  = hashContext("turnstone v1 commit")
	BlobHash    = hashContext("turnstone v1 blob")
	ContentHash = hashContext("turnstone v1 salted content")
	SaltHash    = hashContext("turnstone v1 node salt")
	GenesisHash = hashContext("turnstone v1 genesis")
	SpaceHash   = hashContext("turnstone v1 namespace")
	HeadsHash   = hashContext("turnstone v1 heads of a copy")
	RecordHash  = hashContext("turnstone v1 record version")
	BundleHash  = hashContext("turnstone v1 bundle")
	RestHash    = hashContext("turnstone v1 rest of a session")
)

func hashContext(s string) *HashContext {
	return &HashContext{pool: sync.Pool{New: func() any { return blake3.NewDeriveKey(s) }}}
}

// Sum returns the digest of the concatenation of parts.
func (c *HashContext) Sum(parts ...[]byte) (sum [HashSize]byte) {
	h := c.pool.Get().(*blake3.Hasher)
	for _, p := range parts {
		h.Write(p)
	}
	h.Sum(sum[:0])
	h.Reset()
	c.pool.Put(h)
	return sum
}

// New returns a hasher of context c for streams.
func (c *HashContext) New() *Hasher {
	return &Hasher{h: c.pool.Get().(*blake3.Hasher), c: c}
}

// A Hasher hashes a stream.
type Hasher struct {
	h *blake3.Hasher
	c *HashContext
}

// Write adds p; it never fails.
func (h *Hasher) Write(p []byte) (int, error) { return h.h.Write(p) }

// Sum ends the stream and returns its digest. The hasher can't be used again.
func (h *Hasher) Sum() (sum [HashSize]byte) {
	h.h.Sum(sum[:0])
	h.h.Reset()
	h.c.pool.Put(h.h)
	h.h = nil
	return sum
}

// Keyed is BLAKE3 in keyed mode.
type Keyed struct{ pool *sync.Pool }

// NewKeyed returns the keyed hash of key.
func NewKeyed(key [HashSize]byte) Keyed {
	return Keyed{&sync.Pool{New: func() any {
		h, err := blake3.NewKeyed(key[:])
		if err != nil {
			panic(err) // the length is right by type
		}
		return h
	}}}
}

// Sum16 returns the first 16 bytes of the keyed hash of domain followed by b.
func (k Keyed) Sum16(domain byte, b []byte) (sum [16]byte) {
	h := k.pool.Get().(*blake3.Hasher)
	var full [HashSize]byte
	h.Write([]byte{domain})
	h.Write(b)
	h.Sum(full[:0])
	h.Reset()
	k.pool.Put(h)
	copy(sum[:], full[:])
	return sum
}
