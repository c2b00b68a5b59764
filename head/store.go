package head

import (
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Formats are the versions of the layout as a whole that a version of Turnstone reads: all
// from Oldest to Newest. A new store has the newest one.
type Formats struct{ Oldest, Newest uint64 }

// Known are the formats of this version of Turnstone.
var Known = Formats{Oldest: 1, Newest: 1}

// A Store is the store record: what is fixed when a namespace is created. Only its format
// may be raised later.
type Store struct {
	Format    uint64 // the newest format that a record of the store may have
	ID        [16]byte
	Namespace string
	Secret    [codec.HashSize]byte // the key of the hashes in keys
	Chunks    blob.Chunking
}

// Encode returns the record for key.
func (s *Store) Encode(key []byte) []byte {
	var e codec.Encoder
	e.Array(7)
	e.Uint(s.Format)
	e.Bytes(s.ID[:])
	e.Text(s.Namespace)
	e.Bytes(s.Secret[:])
	e.Uint(uint64(s.Chunks.Min))
	e.Uint(uint64(s.Chunks.Normal))
	e.Uint(uint64(s.Chunks.Max))
	return codec.Encode(key, keys.Store, e.B)
}

// DecodeStore decodes what Encode encodes. The record of a format that is not known is a
// damage.FormatError.
func DecodeStore(key, value []byte, known Formats) (s Store, err error) {
	body, err := codec.Decode(key, value, keys.Store)
	if err != nil {
		return s, err
	}
	d := codec.Decoder{B: body}
	n := d.Array(1 << 10) // another format may have more fields, or fewer
	s.Format = d.Uint()
	if want := min(max(s.Format, known.Oldest), known.Newest); s.Format != want && d.Err() == nil {
		return s, &damage.FormatError{Have: s.Format, Want: want}
	}
	if n != 7 {
		d.Fail("store record of %d fields", n)
	}
	d.Fixed(s.ID[:])
	s.Namespace = d.Text()
	d.Fixed(s.Secret[:])
	s.Chunks = blob.Chunking{Min: int(d.Uint()), Normal: int(d.Uint()), Max: int(d.Uint())}
	return s, d.Done()
}

// A CopyNote is the note of the last copy into a store. Each batch of a copy guards the
// note and sets the next one, so that an attempt which comes late has no effect.
type CopyNote struct {
	Run   [16]byte // random
	Batch uint64   // number of the run's batch
	// Store is the store record that the copy will have, as long as the copy is not
	// whole. The record itself is missing until then, so that nobody opens the copy.
	Store []byte
	Heads [codec.HashSize]byte // of a whole copy: the digest of its heads
}

// Encode returns the record for key.
func (n *CopyNote) Encode(key []byte) []byte {
	var e codec.Encoder
	e.Array(4)
	e.Bytes(n.Run[:])
	e.Uint(n.Batch)
	e.Bytes(n.Store)
	e.Bytes(n.Heads[:])
	return codec.Encode(key, keys.Copying, e.B)
}

// DecodeCopyNote decodes what Encode encodes.
func DecodeCopyNote(key, value []byte) (n CopyNote, err error) {
	body, err := codec.Decode(key, value, keys.Copying)
	if err != nil {
		return n, err
	}
	d := codec.Decoder{B: body}
	d.Shape(4)
	d.Fixed(n.Run[:])
	n.Batch = d.Uint()
	n.Store = d.Bytes()
	d.Fixed(n.Heads[:])
	return n, d.Done()
}
