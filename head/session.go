package head

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Metadata is a session's metadata. Saving it moves no revision.
type Metadata struct {
	ID          string
	Incarnation Incarnation
	Name        string
	Model       string
	Cwd         string
	Group       string      // names between slashes, or ""
	Parent      Incarnation // zero if it has none; the parent may be gone
	ForkNode    graph.ID    // node of the parent
	Detached    bool
	Summary     bool   // a summarisation session
	Keep        uint64 // revisions that retention keeps: 0 as the store says, ^0 all
	Labels      map[string]string
	Created     time.Time
	Updated     time.Time // by saving metadata; commits have their own time
}

// Seal returns a's record for key.
func (a *Metadata) Seal(key []byte) []byte {
	e := codec.Encoder{B: make([]byte, 0, 256)}
	e.Array(14)
	e.Text(a.ID)
	e.Bytes(a.Incarnation[:])
	e.Text(a.Name)
	e.Text(a.Model)
	e.Text(a.Cwd)
	e.Text(a.Group)
	if a.Parent == (Incarnation{}) {
		e.Null()
	} else {
		e.Bytes(a.Parent[:])
	}
	e.ID(a.ForkNode)
	e.Bool(a.Detached)
	e.Bool(a.Summary)
	e.Uint(a.Keep)
	appendLabels(&e, a.Labels)
	appendTime(&e, a.Created)
	appendTime(&e, a.Updated)
	if len(e.B) <= plainAbout {
		return codec.Seal(key, keys.About, codec.Plain(e.B))
	}
	return codec.Seal(key, keys.About, codec.Compress(nil, e.B, codec.Medium))
}

const (
	maxAbout   = 1 << 20 // bytes of metadata before compression, more than the limits of its fields allow
	plainAbout = 256     // bytes up to which metadata are not compressed: it saves little, and lists read many
)

// OpenAbout decodes the record of key.
func OpenAbout(key, value []byte) (*Metadata, error) {
	data, err := codec.Open(key, value, keys.About)
	if err != nil {
		return nil, err
	}
	body, err := codec.Decompress(data, nil, maxAbout)
	if err != nil {
		return nil, err
	}
	d := codec.Decoder{B: body}
	var a Metadata
	d.Shape(14)
	a.ID = d.Text()
	d.Fixed(a.Incarnation[:])
	a.Name, a.Model, a.Cwd, a.Group = d.Text(), d.Text(), d.Text(), d.Text()
	if !d.Null() {
		d.Fixed(a.Parent[:])
	}
	a.ForkNode = d.ID()
	a.Detached, a.Summary = d.Bool(), d.Bool()
	a.Keep = d.Uint()
	a.Labels = decodeLabels(&d)
	a.Created, a.Updated = decodeTime(&d), decodeTime(&d)
	return &a, d.Done()
}

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

// Seal returns l's record for key.
func (l *Life) Seal(key []byte) []byte {
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
	return codec.Seal(key, keys.Life, b)
}

func (l *Life) numbers() []*uint64 {
	return []*uint64{(*uint64)(&l.Floor), &l.Epoch, (*uint64)(&l.Sealed), &l.SealedBytes, (*uint64)(&l.Packed), &l.Forks, &l.Refs, &l.Stones}
}

// OpenLife decodes the record of key.
func OpenLife(key, value []byte) (*Life, error) {
	b, err := codec.Open(key, value, keys.Life)
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

// An Ancestor is a session that a fork shares history with.
type Ancestor struct {
	Incarnation Incarnation
	Revision    Revision // up to which its commits are shared
	Commit      CommitID // at that revision
	Node        graph.ID // the fork node, or the node that the next ancestor forked at
	Nodes       int      // how many nodes of that revision are shared; 0: all
	Epoch       uint64   // of its lifecycle at the fork: its tombstones up to here count
}

// MaxAncestors is how many ancestors an origin can have. A fork that would have more is flattened: see
// package commit.
const MaxAncestors = 256

// An Origin is what an attached fork begins with; it never changes.
type Origin struct {
	Ancestors []Ancestor // the first one is no fork
	Parts     []Part     // the checkpoint at the fork, Set is 0
}

func (o *Origin) body() []byte {
	e := codec.Encoder{B: make([]byte, 0, 160*len(o.Ancestors)+64)}
	e.Array(2)
	e.Array(len(o.Ancestors))
	for _, a := range o.Ancestors {
		e.Array(6)
		e.Bytes(a.Incarnation[:])
		e.Uint(uint64(a.Revision))
		e.ID(a.Commit)
		e.ID(a.Node)
		e.Uint(uint64(a.Nodes))
		e.Uint(a.Epoch)
	}
	appendParts(&e, o.Parts)
	return e.B
}

// Node returns the node that the fork begins at.
func (o *Origin) Node() graph.ID { return o.Ancestors[len(o.Ancestors)-1].Node }

// Seal returns o's record for key.
func (o *Origin) Seal(key []byte) []byte { return codec.Seal(key, keys.Origin, o.body()) }

// OpenOrigin decodes the record of key.
func OpenOrigin(key, value []byte) (*Origin, error) {
	body, err := codec.Open(key, value, keys.Origin)
	if err != nil {
		return nil, err
	}
	d := codec.Decoder{B: body}
	var o Origin
	d.Shape(2)
	o.Ancestors = make([]Ancestor, d.Array(MaxAncestors))
	for i := range o.Ancestors {
		a := &o.Ancestors[i]
		d.Shape(6)
		d.Fixed(a.Incarnation[:])
		a.Revision = Revision(d.Uint())
		a.Commit, a.Node = d.ID(), d.ID()
		n := d.Uint()
		if n > graph.MaxNodes {
			d.Fail("%d nodes", n)
		}
		a.Nodes = int(n)
		a.Epoch = d.Uint()
	}
	o.Parts = decodeParts(&d)
	return &o, d.Done()
}

// SealKept returns the record of a kept revision for key.
func SealKept(key []byte, r Kept) []byte {
	var e codec.Encoder
	e.Array(2)
	e.Text(r.Name)
	e.Uint(uint64(r.Revision))
	return codec.Seal(key, keys.Ref, e.B)
}

// OpenKept decodes the record of key.
func OpenKept(key, value []byte) (*Kept, error) {
	body, err := codec.Open(key, value, keys.Ref)
	if err != nil {
		return nil, err
	}
	d := codec.Decoder{B: body}
	d.Shape(2)
	r := &Kept{Name: d.Text(), Revision: Revision(d.Uint())}
	return r, d.Done()
}

// ReadKept reads the revisions of inc that are kept by name, in the order of their
// keys. life is its lifecycle record: a scan alone is no witness of what is not
// there.
func ReadKept(ctx context.Context, e engine.Engine, space *keys.Space, inc Incarnation, life *Life) ([]Kept, error) {
	if life.Refs == 0 {
		return nil, nil
	}
	var out []Kept
	for p, err := range e.Scan(ctx, space.Of(keys.Ref, inc)) {
		if err != nil {
			return nil, err
		}
		r, err := OpenKept(p.Key, p.Value)
		if err != nil {
			return nil, codec.Corrupt(err, "kept revision at key %x", p.Key)
		}
		out = append(out, *r)
	}
	if uint64(len(out)) != life.Refs {
		return nil, codec.Corrupt(fmt.Errorf("%w: %d of %d", damage.ErrMissing, len(out), life.Refs), "kept revisions of incarnation %x", inc)
	}
	return out, nil
}

// A Tombstone hides a node from reads of a session, and of forks made later.
type Tombstone struct {
	Epoch  uint64 // of the lifecycle record that its batch set
	Pruned bool   // it was vacuum that hid it: no retained revision leads to it
	// Before is the nearest node before it that no call of Tombstone had hidden then, the one that set
	// this tombstone included, or the zero id if there was none. All nodes in between are hidden as
	// long as this one is; Before may be pruned, or hidden since. It is zero if the node is pruned.
	Before graph.ID
}

// Seal returns t's record for key.
func (t Tombstone) Seal(key []byte) []byte {
	n := t.Epoch << 1
	if t.Pruned {
		n |= 1
	}
	b := binary.AppendUvarint(make([]byte, 0, 42), n)
	if !t.Before.IsZero() {
		b = append(b, t.Before[:]...)
	}
	return codec.Seal(key, keys.Tombstone, b)
}

// OpenTombstone decodes the record of key.
func OpenTombstone(key, value []byte) (t Tombstone, err error) {
	body, err := codec.Open(key, value, keys.Tombstone)
	if err != nil {
		return t, err
	}
	v, n := codec.Uvarint(body)
	before := body[max(n, 0):]
	copy(t.Before[:], before)
	t.Epoch, t.Pruned = v>>1, v&1 != 0
	wrong := len(before) > 0 && (len(before) != len(t.Before) || t.Before.IsZero() || t.Pruned)
	if n <= 0 || wrong {
		return Tombstone{}, fmt.Errorf("%w: tombstone", damage.ErrMalformed)
	}
	return t, nil
}
