package bundle

import (
	"bytes"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/session"
)

// A section is what a bundle says of a session, or of a copy of what sessions inherit, before its turns.
type section struct {
	copy bool

	// These are of a session.

	genesis head.CommitID
	since   head.Base // what its first turn builds on, if the other side has the session up to there
	epoch   uint64    // of its lifecycle record
	floor   head.Revision
	bytes   uint64 // of payloads
	about   *head.About
	parent  int          // 1 more than the number of the section of its parent; 0 if that is not in the bundle
	origin  *head.Origin // where it comes from, or nil if it is no fork
	copied  int          // 1 more than the number of the section with the first ancestor; 0 if that is the parent, or the parent's
	sees    *stonesSum   // of a fork of the parent: what it sees of the parent's own tombstones; nil if it inherits from the copy alone
}

// A stonesSum stands for a set of tombstones.
type stonesSum struct {
	n   uint64
	sum [codec.HashSize]byte
}

// sumOf returns what stands for the tombstones of the nodes whose ids begin so.
func sumOf(ids [][8]byte) stonesSum {
	slices.SortFunc(ids, func(a, b [8]byte) int { return bytes.Compare(a[:], b[:]) })
	h := codec.BundleHash.New()
	for _, id := range ids {
		h.Write(id[:])
	}
	return stonesSum{uint64(len(ids)), h.Sum()}
}

// own returns what a fork shares of its parent's own history.
func (s *section) own() *head.Ancestor { return &s.origin.Ancestors[len(s.origin.Ancestors)-1] }

func (s *section) encode() []byte {
	e := codec.Encoder{B: make([]byte, 0, 512)}
	if s.copy {
		e.Array(1)
		e.Uint(0)
		return e.B
	}
	e.Array(12)
	e.Uint(1)
	e.ID(s.genesis)
	appendBase(&e, &s.since)
	e.Uint(s.epoch)
	e.Uint(uint64(s.floor))
	e.Uint(s.bytes)
	e.Bytes(s.about.Body())
	e.Uint(uint64(s.parent))
	if s.origin == nil {
		e.Null()
	} else {
		e.Bytes(s.origin.Body())
	}
	e.Uint(uint64(s.copied))
	if s.sees == nil {
		e.Null()
	} else {
		e.Array(2)
		e.Uint(s.sees.n)
		e.Bytes(s.sees.sum[:])
	}
	return e.B
}

// appendBase encodes a base as two items.
func appendBase(e *codec.Encoder, b *head.Base) {
	e.Uint(uint64(b.Revision))
	if b.Revision == 0 {
		e.Null()
		return
	}
	e.Array(6)
	b.Append(e)
}

func decodeBase(d *codec.Decoder) (b head.Base) {
	revision := head.Revision(d.Uint())
	if revision > 1<<62 {
		d.Fail("revision %d", revision)
	}
	if revision == 0 {
		if !d.Null() {
			d.Fail("a commit of revision 0")
		}
		return b
	}
	d.Shape(6)
	return head.DecodeBase(d, revision)
}

// decodeSection decodes the section that comes after a number of others.
func decodeSection(body []byte, before int) (*section, error) {
	d := codec.Decoder{B: body}
	s := &section{}
	n := d.Array(12)
	kind := d.Uint()
	switch {
	case kind == 0 && n == 1:
		s.copy = true
		return s, d.Done()
	case kind != 1 || n != 12:
		d.Fail("section of kind %d with %d items", kind, n)
		return nil, d.Done()
	}
	s.genesis = d.ID()
	s.since = decodeBase(&d)
	s.epoch, s.floor, s.bytes = d.Uint(), head.Revision(d.Uint()), d.Uint()
	about := d.Bytes()
	s.parent = number(&d, before)
	var origin []byte
	if !d.Null() {
		origin = d.Bytes()
	}
	s.copied = number(&d, before)
	if !d.Null() {
		s.sees = &stonesSum{}
		d.Shape(2)
		s.sees.n = d.Uint()
		d.Fixed(s.sees.sum[:])
	}
	err := d.Done()
	if err == nil {
		s.about, err = head.DecodeAboutBody(about)
	}
	if err == nil && origin != nil {
		s.origin, err = head.DecodeOriginBody(origin)
	}
	if err != nil {
		return nil, err
	}
	return s, s.check()
}

// number decodes the number of a section before this one, plus 1, or 0.
func number(d *codec.Decoder, before int) int {
	n := d.Uint()
	if n > uint64(before) {
		d.Fail("names section %d, and %d come before", n, before)
		return 0
	}
	return int(n)
}

// check checks what one section says against itself.
func (s *section) check() error {
	switch {
	case s.genesis.IsZero():
		return malformed("session without a genesis")
	case s.epoch >= 1<<48 || s.bytes >= 1<<60:
		return malformed("epoch %d, %d bytes", s.epoch, s.bytes)
	case s.parent > 0 && s.about.Parent == (head.Incarnation{}):
		return malformed("a parent of a session that has none")
	case s.since.Revision == 0 && (s.about.Parent != (head.Incarnation{}) && !s.about.Detached) != (s.origin != nil):
		return malformed("attached fork without an origin, or an origin of another session")
	case s.origin == nil && (s.copied > 0 || s.sees != nil):
		return malformed("ancestors of a session that is no fork")
	case s.origin == nil:
		return nil
	case len(s.origin.Ancestors) == 0:
		return malformed("fork without ancestors")
	case s.own().Incarnation != s.about.Parent:
		return malformed("fork of another session than its parent")
	case s.sees != nil && s.parent == 0:
		return malformed("fork of a session that is not in the bundle")
	case s.sees == nil && s.copied == 0:
		return malformed("fork without what it inherits")
	}
	for _, p := range s.origin.Parts {
		if p.Set != 0 || p.Whole != 0 {
			return malformed("fork that begins with the part %q of revision %d", p.Name, p.Set)
		}
	}
	return nil
}

// Lists in frames are arrays of at most so many.
const listed = 1000

func encodeStones(of []commit.Stone) []byte {
	var e codec.Encoder
	e.Array(len(of))
	for _, s := range of {
		e.Array(4)
		e.Bytes(s.ID[:])
		e.Uint(s.Epoch)
		e.Bool(s.Pruned)
		e.ID(s.Before)
	}
	return e.B
}

func decodeStones(body []byte) (out []commit.Stone, err error) {
	d := codec.Decoder{B: body}
	n := d.Array(listed)
	for range n {
		var s commit.Stone
		d.Shape(4)
		d.Fixed(s.ID[:])
		s.Epoch, s.Pruned, s.Before = d.Uint(), d.Bool(), d.ID()
		if s.Epoch >= 1<<48 || s.Pruned && !s.Before.IsZero() {
			d.Fail("tombstone of epoch %d", s.Epoch)
		}
		out = append(out, s)
	}
	return out, d.Done()
}

func encodeKept(of []head.Kept) []byte {
	var e codec.Encoder
	e.Array(len(of))
	for _, k := range of {
		e.Array(2)
		e.Text(k.Name)
		e.Uint(uint64(k.Revision))
	}
	return e.B
}

func decodeKept(body []byte) (out []head.Kept, err error) {
	d := codec.Decoder{B: body}
	for range d.Array(listed) {
		d.Shape(2)
		out = append(out, head.Kept{Name: d.Text(), Revision: head.Revision(d.Uint())})
	}
	return out, d.Done()
}

func encodeRecords(of []*session.Record) []byte {
	var e codec.Encoder
	e.Array(len(of))
	for _, r := range of {
		e.Array(4)
		e.Text(r.Key)
		e.Bytes(r.Version[:])
		e.Uint(uint64(max(r.Time.UnixNano(), 0)))
		e.Bytes(r.Value)
	}
	return e.B
}

func decodeRecords(body []byte) (out []*session.Record, err error) {
	d := codec.Decoder{B: body}
	for range d.Array(listed) {
		r := &session.Record{}
		d.Shape(4)
		r.Key = d.Text()
		d.Fixed(r.Version[:])
		nanos := d.Uint()
		if nanos > 1<<63-1 {
			d.Fail("time %d", nanos)
			nanos = 0
		}
		r.Time = time.Unix(0, int64(nanos)).UTC()
		r.Value = bytes.Clone(d.Bytes())
		out = append(out, r)
	}
	return out, d.Done()
}

// A version is a version of a checkpoint part, whose data follow.
type version struct {
	part     string
	revision head.Revision
	base     head.Revision // that set the version which it is a delta of, or its own revision
	baseID   blob.ID       // of the content of that version; zero if it is whole
	size     int64         // of the data
}

func (v *version) encode() []byte {
	var e codec.Encoder
	e.Array(5)
	e.Text(v.part)
	e.Uint(uint64(v.revision))
	e.Uint(uint64(v.revision - v.base))
	e.ID(v.baseID)
	e.Uint(uint64(v.size))
	return e.B
}

func decodeVersion(body []byte) (*version, error) {
	d := codec.Decoder{B: body}
	d.Shape(5)
	v := &version{part: d.Text(), revision: head.Revision(d.Uint())}
	distance := head.Revision(d.Uint())
	v.baseID = d.ID()
	if v.size = int64(min(d.Uint(), 1<<62)); v.size > maxVersion || distance > v.revision || (distance == 0) != v.baseID.IsZero() {
		d.Fail("version of %d bytes, %d revisions after its base", v.size, distance)
	}
	v.base = v.revision - distance
	return v, d.Done()
}

const (
	maxVersion = 64<<20 + 1<<10 // bytes of the data of a version: a part that does not compress, and its length
	maxName    = 256            // bytes of the name of a part or of a kept revision
)

// blobFrame encodes the beginning of a blob.
func blobFrame(id blob.ID, size int64) []byte {
	var e codec.Encoder
	e.Array(2)
	e.Bytes(id[:])
	e.Uint(uint64(size))
	return e.B
}

func decodeBlobFrame(body []byte) (id blob.ID, size int64, err error) {
	d := codec.Decoder{B: body}
	d.Shape(2)
	d.Fixed(id[:])
	size = blob.Size(&d)
	return id, size, d.Done()
}

// An end says what a section had: how many turns and nodes, and where it stands after them. A copy stands where it would
// if its incarnation were zero.
type end struct {
	turns, nodes uint64
	last         head.Base
}

func (n *end) encode() []byte {
	var e codec.Encoder
	e.Array(4)
	e.Uint(n.turns)
	e.Uint(n.nodes)
	appendBase(&e, &n.last)
	return e.B
}

func decodeEnd(body []byte) (n end, err error) {
	d := codec.Decoder{B: body}
	d.Shape(4)
	n.turns, n.nodes = d.Uint(), d.Uint()
	n.last = decodeBase(&d)
	return n, d.Done()
}

// bundleEnd encodes the end of the bundle: how many sections it has, and the hash of the frames before.
func bundleEnd(sections int, sum [codec.HashSize]byte) []byte {
	var e codec.Encoder
	e.Array(2)
	e.Uint(uint64(sections))
	e.Bytes(sum[:])
	return e.B
}

func checkBundleEnd(body []byte, sections int, sum [codec.HashSize]byte) error {
	d := codec.Decoder{B: body}
	var said [codec.HashSize]byte
	d.Shape(2)
	n := d.Uint()
	d.Fixed(said[:])
	if err := d.Done(); err != nil {
		return err
	}
	if n != uint64(sections) {
		return malformed("%d of %d sections", sections, n)
	}
	if said != sum {
		return damage.ErrHash
	}
	return nil
}
