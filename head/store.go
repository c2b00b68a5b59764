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
	Move      Move   // zero if the namespace is not being moved
}

// A Move says how far the move of a namespace to another database has come, in the database that it is moved from.
type Move struct {
	Phase MovePhase
	// From is random. It stands for the database that the namespace is moved from: a copy of the store in another one,
	// with the same records, has another From. It stays when a move is given up.
	From   [16]byte
	To     string   // the name of the other database
	Run    [16]byte // random: who moves the namespace
	Pauses uint64   // how often batches were made to wait
	Wait   uint64   // nanoseconds that batches wait at most in one pause
}

// A MovePhase is a phase of a move.
type MovePhase uint64

// The phases of a move, in their order.
const (
	NotMoving MovePhase = iota
	Copying             // Each batch notes which keys it changes: see Touched.
	Paused              // Batches wait.
	Moved               // The namespace is in the other database. What is left of it is removed.
)

// Same reports whether s and o are the records of one store, or of copies of it.
func (s *Store) Same(o *Store) bool {
	return s.ID == o.ID && s.Namespace == o.Namespace && s.Secret == o.Secret && s.Chunks == o.Chunks
}

// Encode returns the record for key.
func (s *Store) Encode(key []byte) []byte {
	var e codec.Encoder
	fields := 7
	switch {
	case s.Move != Move{}:
		fields = 14
	case s.Moves > 0:
		fields = 8
	}
	e.Array(fields)
	e.Uint(s.Format)
	e.Bytes(s.ID[:])
	e.Text(s.Namespace)
	e.Bytes(s.Secret[:])
	e.Uint(uint64(s.Chunks.Min))
	e.Uint(uint64(s.Chunks.Normal))
	e.Uint(uint64(s.Chunks.Max))
	if fields > 7 {
		e.Uint(s.Moves)
	}
	if fields > 8 {
		e.Uint(uint64(s.Move.Phase))
		e.Bytes(s.Move.From[:])
		e.Text(s.Move.To)
		e.Bytes(s.Move.Run[:])
		e.Uint(s.Move.Pauses)
		e.Uint(s.Move.Wait)
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
	if n != 7 && n != 8 && n != 14 {
		d.Fail("store record of %d fields", n)
	}
	d.Fixed(s.ID[:])
	s.Namespace = d.Text()
	d.Fixed(s.Secret[:])
	s.Chunks = blob.Chunking{Min: int(d.Uint()), Normal: int(d.Uint()), Max: int(d.Uint())}
	if n > 7 {
		if s.Moves = d.Uint(); s.Moves == 0 && n == 8 {
			d.Fail("no moves")
		}
	}
	if n > 8 {
		s.Move.Phase = MovePhase(d.Uint())
		d.Fixed(s.Move.From[:])
		s.Move.To = d.Text()
		d.Fixed(s.Move.Run[:])
		s.Move.Pauses = d.Uint()
		s.Move.Wait = d.Uint()
		if s.Move.Phase > Moved || s.Move == (Move{}) {
			d.Fail("phase %d of a move", s.Move.Phase)
		}
	}
	return s, d.Done()
}

// A Touched is a note of a batch that was applied while the namespace was being moved: which keys it has changed. The
// keys are without the prefix of the namespace.
type Touched struct {
	// Width is how many bytes of the keys Keys has, if the batch has changed so many that Keys has the beginnings of
	// them only. Zero stands for all.
	Width uint64
	Keys  [][]byte
}

// Encode returns the record for key.
func (t *Touched) Encode(key []byte) []byte {
	var e codec.Encoder
	e.Array(1 + len(t.Keys))
	e.Uint(t.Width)
	for _, k := range t.Keys {
		e.Bytes(k)
	}
	return codec.Encode(key, keys.Touched, e.B)
}

// DecodeTouched decodes what Encode encodes.
func DecodeTouched(key, value []byte) (t Touched, err error) {
	body, err := codec.Decode(key, value, keys.Touched)
	if err != nil {
		return t, err
	}
	d := codec.Decoder{B: body}
	n := d.Array(1 << 15)
	if n < 2 {
		d.Fail("note without keys")
	}
	t.Width = d.Uint()
	for range n - 1 {
		k := d.Bytes()
		if d.Err() == nil && (len(k) == 0 || t.Width > 0 && uint64(len(k)) > t.Width) {
			d.Fail("key of %d bytes", len(k))
		}
		t.Keys = append(t.Keys, k)
	}
	return t, d.Done()
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
