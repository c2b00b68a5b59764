package head

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Incarnation is the identity of a session from creation to deletion.
type Incarnation = keys.Incarnation

// IsDelta reports whether a part's version is stored as a delta of the one before.
func IsDelta(p Part) bool { return p.Whole != p.Set }

// A Base is what a commit says of itself and of those before it: what the next one builds on.
type Base struct {
	Revision Revision
	Commit   CommitID
	Leaf     graph.ID  // where the next turn goes on; zero before the first node
	Last     graph.ID  // the node that was appended last, which need not be on the path to Leaf; before there is one, the first leaf
	Depth    uint64    // how many nodes the path to Leaf has
	PartsAt  Revision  // the last commit that changed the checkpoint
	Time     time.Time // of the commit
}

// A State is where a session stands at a revision.
type State struct {
	Base
	Parts     []Part  // of the checkpoint, by name
	Usage     []Usage // totals by model
	Nodes     uint64  // that the session's own commits have added
	PartBytes uint64  // of all versions of checkpoint parts that they have set
}

// A Head is where a session stands now.
type Head struct {
	Incarnation Incarnation
	State
	Bytes     uint64 // of the payloads of the session's own commits
	PackBytes uint64 // of their packs, before compression: what sealing goes by
	// Collected says that the session has no dirty record. The commit that finds it set adds the
	// record, so that a collector looks at the session.
	Collected bool
	// Fed is twice a time in nanoseconds since 1970, plus 1 if commits have to tell the feed of themselves. The time is
	// that of the last commit that told, or a later one: creating, renaming, and the start and the end of the feed set
	// it as well. It only grows, so the commits of a session have an order whatever the clocks say, and no head recurs
	// when the feed is ended and begun again.
	Fed uint64
}

// Tells reports whether commits have to tell the feed of themselves.
func (h *Head) Tells() bool { return h.Fed&1 == 1 }

// SetFed makes commits tell the feed of themselves, or not, from a time on, or later if the head had a later one.
func (h *Head) SetFed(tells bool, at time.Time) {
	h.Fed = max(uint64(max(at.UnixNano(), 0)), h.Fed>>1+1) << 1
	if tells {
		h.Fed++
	}
}

// Begin returns the state of a session before its first commit. Its time is 1970.
func Begin(inc Incarnation, o *Origin) State {
	s := State{Base: Base{Commit: Genesis(inc, o), Time: time.Unix(0, 0).UTC()}}
	if o != nil {
		s.Leaf = o.Node()
		s.Last, s.Depth, s.Parts = s.Leaf, o.Depth, o.Parts
	}
	return s
}

// Then returns the state after a commit that is built on s.
func (s *State) Then(c *Commit, id CommitID) (State, error) {
	next := State{
		Base: c.Base(id), Parts: s.Parts, Usage: AddUsage(slices.Clone(s.Usage), c.Usage),
		Nodes: s.Nodes + uint64(c.Nodes), PartBytes: s.PartBytes + c.PartBytes(),
	}
	if c.PartsAt != c.Revision {
		return next, nil
	}
	next.Parts = slices.Clone(c.Parts)
	for i := range next.Parts {
		p := &next.Parts[i]
		if p.Set == c.Revision {
			continue
		}
		old := slices.IndexFunc(s.Parts, func(q Part) bool { return q.Name == p.Name && q.Set == p.Set })
		if old < 0 {
			return next, fmt.Errorf("%w: checkpoint part %q of revision %d", damage.ErrMissing, p.Name, p.Set)
		}
		*p = s.Parts[old]
	}
	return next, nil
}

// Limits of records; the root package checks them before any effect.
const (
	MaxParts  = 1024
	MaxModels = 256 // of a head's totals
	MaxLabels = 64  // of a session and of a commit
)

// appendEnds encodes the leaf and the last node, which is null if it is the leaf.
func appendEnds(e *codec.Encoder, leaf, last graph.ID) {
	e.ID(leaf)
	if last == leaf {
		e.Null()
	} else {
		e.ID(last)
	}
}

// decodeEnds decodes what appendEnds encodes.
func decodeEnds(d *codec.Decoder) (leaf, last graph.ID) {
	leaf = d.ID()
	if last = d.ID(); last.IsZero() {
		return leaf, leaf
	}
	if last == leaf {
		d.Fail("last node given twice")
	}
	return leaf, last
}

// decodeDepth decodes the length of the path to a leaf.
func decodeDepth(d *codec.Decoder, leaf graph.ID) uint64 {
	n := d.Uint()
	if (n == 0) != leaf.IsZero() || n > MaxDepth {
		d.Fail("path of %d nodes", n)
	}
	return n
}

// MaxDepth bounds the length of a path: more nodes than a session can get.
const MaxDepth = 1 << 48

// Append encodes b except its revision, as six items.
func (b *Base) Append(e *codec.Encoder) {
	e.Bytes(b.Commit[:])
	appendEnds(e, b.Leaf, b.Last)
	e.Uint(b.Depth)
	e.Uint(uint64(b.PartsAt))
	appendTime(e, b.Time)
}

// DecodeBase decodes what Base.Append encodes for a revision.
func DecodeBase(d *codec.Decoder, revision Revision) (b Base) {
	b.Revision = revision
	d.Fixed(b.Commit[:])
	b.Leaf, b.Last = decodeEnds(d)
	b.Depth = decodeDepth(d, b.Leaf)
	if b.PartsAt = Revision(d.Uint()); b.PartsAt > revision {
		d.Fail("checkpoint of revision %d", b.PartsAt)
	}
	b.Time = decodeTime(d)
	return b
}

// Append encodes s except its revision, as ten items.
func (s *State) Append(e *codec.Encoder) {
	s.Base.Append(e)
	appendParts(e, s.Parts)
	appendUsage(e, s.Usage)
	e.Uint(s.Nodes)
	e.Uint(s.PartBytes)
}

// DecodeState decodes what State.Append encodes for a revision.
func DecodeState(d *codec.Decoder, revision Revision) (s State) {
	s.Base = DecodeBase(d, revision)
	s.Parts = decodeParts(d)
	s.Usage = decodeUsage(d, MaxModels)
	s.Nodes, s.PartBytes = d.Uint(), d.Uint()
	return s
}

// Encode returns h's record for key.
func (h *Head) Encode(key []byte) []byte {
	e := codec.Encoder{B: append(make([]byte, 0, 256), keys.Head, codec.Version)}
	e.Array(16)
	e.Bytes(h.Incarnation[:])
	e.Uint(uint64(h.Revision))
	h.State.Append(&e)
	e.Uint(h.Bytes)
	e.Uint(h.PackBytes)
	e.Bool(h.Collected)
	e.Uint(h.Fed)
	return codec.EncodeTail(key, e.B, 0)
}

// DecodeHead decodes the record of key.
func DecodeHead(key, value []byte) (*Head, error) {
	body, err := codec.Decode(key, value, keys.Head)
	if err != nil {
		return nil, err
	}
	d := codec.Decoder{B: body}
	var h Head
	d.Shape(16)
	d.Fixed(h.Incarnation[:])
	h.State = DecodeState(&d, Revision(d.Uint()))
	h.Bytes, h.PackBytes = d.Uint(), d.Uint()
	h.Collected = d.Bool()
	h.Fed = d.Uint()
	return &h, d.Done()
}

func appendParts(e *codec.Encoder, parts []Part) {
	e.Array(len(parts))
	for _, p := range parts {
		e.Array(5)
		e.Text(p.Name)
		e.Bytes(p.Blob[:])
		e.Uint(uint64(p.Size))
		e.Uint(uint64(p.Set))
		e.Uint(uint64(p.Set - p.Whole))
	}
}

func decodeParts(d *codec.Decoder) []Part {
	n := d.Array(MaxParts)
	if n == 0 {
		return nil
	}
	parts := make([]Part, n)
	for i := range parts {
		d.Shape(5)
		parts[i].Name = d.Text()
		d.Fixed(parts[i].Blob[:])
		parts[i].Size = blob.Size(d)
		parts[i].Set = Revision(d.Uint())
		parts[i].Whole = decodeWhole(d, parts[i].Set)
		if i > 0 && parts[i].Name <= parts[i-1].Name {
			d.Fail("parts out of order")
		}
	}
	return parts
}

// decodeWhole decodes how many revisions before set the whole version was set.
func decodeWhole(d *codec.Decoder, set Revision) Revision {
	n := d.Uint()
	if n > uint64(set) {
		d.Fail("delta of %d revisions before revision %d", n, set)
		return set
	}
	return set - Revision(n)
}

func appendUsage(e *codec.Encoder, usage []Usage) {
	e.Array(len(usage))
	for _, u := range usage {
		e.Array(7)
		e.Text(u.Model)
		for _, n := range []uint64{u.Input, u.Output, u.CachedInput, u.CacheWrite, u.Reasoning, u.Cost} {
			e.Uint(n)
		}
	}
}

func decodeUsage(d *codec.Decoder, maximum int) []Usage {
	n := d.Array(maximum)
	if n == 0 {
		return nil
	}
	usage := make([]Usage, n)
	for i := range usage {
		u := &usage[i]
		d.Shape(7)
		u.Model = d.Text()
		for _, p := range []*uint64{&u.Input, &u.Output, &u.CachedInput, &u.CacheWrite, &u.Reasoning, &u.Cost} {
			*p = d.Uint()
		}
	}
	return usage
}

// appendLabels encodes names and values, in the order of the names.
func appendLabels(e *codec.Encoder, labels map[string]string) {
	e.Array(2 * len(labels))
	if len(labels) == 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		e.Text(name)
		e.Text(labels[name])
	}
}

// decodeLabels decodes what appendLabels encodes.
func decodeLabels(d *codec.Decoder) map[string]string {
	n := d.Array(2 * MaxLabels)
	if n%2 != 0 {
		d.Fail("%d items of labels", n)
	}
	if n == 0 {
		return nil
	}
	labels, last := make(map[string]string, n/2), ""
	for i := range n / 2 {
		name := d.Text()
		if i > 0 && name <= last {
			d.Fail("labels out of order")
		}
		labels[name], last = d.Text(), name
	}
	return labels
}

// Times are stored as nanoseconds since 1970 UTC, never negative.
func appendTime(e *codec.Encoder, t time.Time) { e.Uint(uint64(max(t.UnixNano(), 0))) }

func decodeTime(d *codec.Decoder) time.Time {
	n := d.Uint()
	if n > 1<<63-1 {
		d.Fail("time %d", n)
	}
	return time.Unix(0, int64(n)).UTC()
}

// Genesis is the id that a session's first commit has as its predecessor: it
// binds the chain to the incarnation and, for a fork, to what it forked from. A
// session that came in a bundle has that of the store in which it was made.
func Genesis(inc Incarnation, o *Origin) CommitID {
	switch {
	case o == nil:
		return codec.GenesisHash.Sum(inc[:])
	case !o.Genesis.IsZero():
		return o.Genesis
	}
	return codec.GenesisHash.Sum(inc[:], o.Body())
}
