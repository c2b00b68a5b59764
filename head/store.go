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

// A Store is the store record: what is fixed when a namespace is created. Later its format may be raised, and the
// namespace may be moved to another database. Every batch of a store guards the record.
type Store struct {
	Format    uint64 // the newest format that a record of the store may have
	ID        [16]byte
	Namespace string
	Secret    [codec.HashSize]byte // the key of the hashes in keys
	Chunks    blob.Chunking
	Moves     uint64 // grows with every move of the namespace, and with every one that is given up
	Move      Move   // from this database to another one; zero if there was none
}

// Same reports whether s and o are the records of one store, or of copies of it.
func (s *Store) Same(o *Store) bool {
	return s.ID == o.ID && s.Namespace == o.Namespace && s.Secret == o.Secret && s.Chunks == o.Chunks
}

// Encode returns the record for key.
func (s *Store) Encode(key []byte) []byte {
	var e codec.Encoder
	moved := s.Moves > 0 || s.Move != Move{}
	if moved {
		e.Array(14)
	} else {
		e.Array(7)
	}
	e.Uint(s.Format)
	e.Bytes(s.ID[:])
	e.Text(s.Namespace)
	e.Bytes(s.Secret[:])
	e.Uint(uint64(s.Chunks.Min))
	e.Uint(uint64(s.Chunks.Normal))
	e.Uint(uint64(s.Chunks.Max))
	if moved {
		e.Uint(s.Moves)
		s.Move.encode(&e)
	}
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
	if n != 7 && n != 14 {
		d.Fail("store record of %d fields", n)
	}
	d.Fixed(s.ID[:])
	s.Namespace = d.Text()
	d.Fixed(s.Secret[:])
	s.Chunks = blob.Chunking{Min: int(d.Uint()), Normal: int(d.Uint()), Max: int(d.Uint())}
	if n > 7 {
		s.Moves = d.Uint()
		if s.Move.decode(&d); s.Moves == 0 && s.Move == (Move{}) {
			d.Fail("no move")
		}
	}
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
	// From is that of the Move if the namespace is being moved here, and zero if it is copied. Run is that of the Move
	// then, until somebody gives up the move.
	From [16]byte
}

// Encode returns the record for key.
func (n *CopyNote) Encode(key []byte) []byte {
	var e codec.Encoder
	fields := 4
	if n.From != [16]byte{} {
		fields = 5
	}
	e.Array(fields)
	e.Bytes(n.Run[:])
	e.Uint(n.Batch)
	e.Bytes(n.Store)
	e.Bytes(n.Heads[:])
	if fields == 5 {
		e.Bytes(n.From[:])
	}
	return codec.Encode(key, keys.Copying, e.B)
}

// DecodeCopyNote decodes what Encode encodes.
func DecodeCopyNote(key, value []byte) (n CopyNote, err error) {
	body, err := codec.Decode(key, value, keys.Copying)
	if err != nil {
		return n, err
	}
	d := codec.Decoder{B: body}
	fields := d.Array(5)
	if fields < 4 {
		d.Fail("note of %d fields", fields)
	}
	d.Fixed(n.Run[:])
	n.Batch = d.Uint()
	n.Store = d.Bytes()
	d.Fixed(n.Heads[:])
	if fields == 5 {
		if d.Fixed(n.From[:]); n.From == [16]byte{} {
			d.Fail("no database")
		}
	}
	return n, d.Done()
}
