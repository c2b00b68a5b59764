package head

import (
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

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

// encode appends the fields of m.
func (m *Move) encode(e *codec.Encoder) {
	e.Uint(uint64(m.Phase))
	e.Bytes(m.From[:])
	e.Text(m.To)
	e.Bytes(m.Run[:])
	e.Uint(m.Pauses)
	e.Uint(m.Wait)
}

// decode reads what encode appends.
func (m *Move) decode(d *codec.Decoder) {
	m.Phase = MovePhase(d.Uint())
	d.Fixed(m.From[:])
	m.To = d.Text()
	d.Fixed(m.Run[:])
	m.Pauses = d.Uint()
	m.Wait = d.Uint()
	if m.Phase > Moved {
		d.Fail("phase %d of a move", m.Phase)
	}
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
