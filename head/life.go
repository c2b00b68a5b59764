package head

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// LifeState says whether an incarnation lives.
type LifeState byte

// States.
const (
	Live    LifeState = 'l'
	Deleted LifeState = 'd'
)

// Life is the lifecycle record of an incarnation. A batch that seals, forks, tombstones, prunes,
// keeps, renames, deletes or vacuums guards it and sets it with the next epoch. So does a commit
// that names a node other than the head's leaf and its own new ones. Other commits don't touch it.
type Life struct {
	Session     keys.Hash // of the session id; zero for the copy of a history that a fork was flattened to
	State       LifeState
	Floor       Revision // the first revision that retention keeps; of a deleted session, the one after its last
	Epoch       uint64   // +1 at every write
	Sealed      Revision // up to here commits are in full segments
	SealedBytes uint64   // Head.PackBytes at that revision
	Packed      Revision // up to here segments are compressed as well as they can be; at most Sealed
	Forks       uint64   // number of fork entries; a scan that finds fewer has missed some
	Refs        uint64   // number of records of kept revisions; likewise for them
	Stones      uint64   // number of tombstones; likewise for them
	Runs        []Run    // of the index of what is sealed, oldest first
}

// A Run is a part of a session's index: the entries of the commits from the one after the run
// before up to Last.
type Run struct {
	Last Revision
	Bits int // It is stored in 1<<Bits pages.
}

// MaxRuns bounds the runs of an index.
const MaxRuns = 1 << 12

// MaxRunBits bounds the pages of a run.
const MaxRunBits = 5

// Indexed returns the revision up to which commits are sealed, and in the index.
func (l *Life) Indexed() Revision {
	if len(l.Runs) == 0 {
		return 0
	}
	return l.Runs[len(l.Runs)-1].Last
}

// Encode returns l's record for key.
func (l *Life) Encode(key []byte) []byte {
	b := append(make([]byte, 0, 64), l.Session[:]...)
	b = append(b, byte(l.State))
	for _, n := range l.numbers() {
		b = binary.AppendUvarint(b, *n)
	}
	before := Revision(0)
	for _, r := range l.Runs {
		b = binary.AppendUvarint(b, uint64(r.Last-before))
		b = binary.AppendUvarint(b, uint64(r.Bits))
		before = r.Last
	}
	return codec.Encode(key, keys.Life, b)
}

func (l *Life) numbers() []*uint64 {
	return []*uint64{(*uint64)(&l.Floor), &l.Epoch, (*uint64)(&l.Sealed), &l.SealedBytes, (*uint64)(&l.Packed), &l.Forks, &l.Refs, &l.Stones}
}

// DecodeLife decodes the record of key.
func DecodeLife(key, value []byte) (*Life, error) {
	b, err := codec.Decode(key, value, keys.Life)
	if err != nil {
		return nil, err
	}
	if len(b) < 17 || LifeState(b[16]) != Live && LifeState(b[16]) != Deleted {
		return nil, fmt.Errorf("%w: lifecycle", damage.ErrMalformed)
	}
	l := &Life{State: LifeState(b[16])}
	copy(l.Session[:], b)
	b = b[17:]
	for _, n := range l.numbers() {
		v, size := codec.Uvarint(b)
		if size <= 0 {
			return nil, fmt.Errorf("%w: lifecycle", damage.ErrMalformed)
		}
		*n, b = v, b[size:]
	}
	last := Revision(0)
	for len(b) > 0 {
		step, n := codec.Uvarint(b)
		bits, m := codec.Uvarint(b[max(n, 0):])
		if n <= 0 || m <= 0 || step == 0 || bits > MaxRunBits || len(l.Runs) == MaxRuns {
			return nil, fmt.Errorf("%w: lifecycle", damage.ErrMalformed)
		}
		last, b = last+Revision(step), b[n+m:]
		l.Runs = append(l.Runs, Run{Last: last, Bits: int(bits)})
	}
	if l.Packed > l.Sealed || l.Sealed > last {
		return nil, fmt.Errorf("%w: lifecycle", damage.ErrMalformed)
	}
	return l, nil
}

// Next returns a copy of l with the next epoch.
func (l *Life) Next() Life {
	n := *l
	n.Runs = slices.Clone(l.Runs)
	n.Epoch++
	return n
}
