package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Segment is a run of consecutive turns of one session that are stored together.
//
// A loose segment is one turn, as its commit wrote it. It is stored in a form that can be read
// alone: the commit's whole body, and parents by their ids.
//
// A sealed segment has a header, and then its turns without what can be derived. The nodes are
// hashed from the first to the last, and with them the commits. The last commit has to have the id
// that the header says. So a sealed segment can't be read in part, and each of its turns has been
// verified when it is read.
type Segment struct {
	First, Last head.Revision
	Level       codec.Level // codec.Fast if it is loose, else how well it is compressed
	Before      head.Base   // what the first turn builds on; of a loose segment only the revision and the commit are known
	End         head.State  // of a sealed segment: where the session stood after the last turn
	Turns       []Turn
	Keys        [][]byte // of its values
}

// Loose reports whether s is a loose segment.
func (s *Segment) Loose() bool { return s.Level == codec.Fast }

// Turn returns the turn of a revision, or nil.
func (s *Segment) Turn(r head.Revision) *Turn {
	if r < s.First || r > s.Last {
		return nil
	}
	return &s.Turns[r-s.First]
}

// Sizes of segments.
const (
	maxSegment = 64 << 20  // uncompressed bytes
	maxTurns   = 1 << 20   // of a segment
	valueBytes = 480 << 10 // of a segment in one value
	maxValues  = 250
)

// ErrTooLarge reports turns that do not fit a segment.
var ErrTooLarge = errors.New("turns: segment too large")

// buffers are what a segment is encoded in; its records are copies.
type buffers struct{ front, structure, payloads, raw, data []byte }

var scratch = sync.Pool{New: func() any { return new(buffers) }}

// release gives b back, unless it is large.
func (b *buffers) release() {
	if cap(b.front)+cap(b.structure)+cap(b.payloads)+cap(b.raw)+cap(b.data) <= 1<<20 {
		scratch.Put(b)
	}
}

// EncodeTurn returns the pairs that store a turn as a loose segment. body is that of its commit.
func EncodeTurn(space *keys.Space, inc keys.Incarnation, body []byte, p *graph.Pack) (ks, vs [][]byte, err error) {
	b := scratch.Get().(*buffers)
	defer b.release()
	b.front = binary.AppendUvarint(b.front[:0], uint64(len(body)))
	b.front = append(b.front, body...)
	data := b.data[:0]
	if len(p.Nodes) > 0 {
		e := codec.Encoder{B: slices.Grow(b.structure[:0], 64+64*len(p.Nodes))}
		b.payloads = p.Append(&e, b.payloads[:0], [32]byte{})
		if data, err = b.compress(e.B, codec.Fast); err != nil {
			return nil, nil, err
		}
	}
	return store(space, inc, header{first: p.Revision, last: p.Revision, level: codec.Fast}, b.front, data)
}

// compress compresses structure, behind its length, and then b.payloads.
func (b *buffers) compress(structure []byte, level codec.Level) ([]byte, error) {
	b.structure = structure
	b.raw = binary.AppendUvarint(b.raw[:0], uint64(len(structure)))
	b.raw = append(append(b.raw, structure...), b.payloads...)
	if len(b.raw) > maxSegment {
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, len(b.raw))
	}
	b.data = codec.Compress(b.data[:0], b.raw, level)
	return b.data, nil
}

// EncodeSealed returns the pairs that store the turns of s as a sealed segment of a level. The end
// of the segment has to be set.
func EncodeSealed(space *keys.Space, inc keys.Incarnation, s *Segment) (ks, vs [][]byte, err error) {
	b := scratch.Get().(*buffers)
	defer b.release()
	e := codec.Encoder{B: b.structure[:0]}
	begin := head.Begin(inc, nil)
	if s.Before == begin.Base {
		e.Null()
	} else {
		e.Array(6)
		s.Before.Append(&e)
	}
	b.payloads = appendTurns(&e, b.payloads[:0], s.Turns, s.Before)
	data, err := b.compress(e.B, s.Level)
	if err != nil {
		return nil, nil, err
	}
	end := codec.Encoder{B: make([]byte, 0, 256)}
	end.Array(10)
	s.End.Append(&end)
	return store(space, inc, header{first: uint64(s.First), last: uint64(s.Last), level: s.Level}, end.B, data)
}

// appendTurns encodes turns that build on a base as one item, without what follows from the base and from each other.
// It appends their inline payloads to payloads, and returns the result.
func appendTurns(e *codec.Encoder, payloads []byte, turns []Turn, before head.Base) []byte {
	e.Array(len(turns))
	for i := range turns {
		t := &turns[i]
		e.Array(9)
		t.AppendCompact(e, &before)
		payloads = t.Pack.Append(e, payloads, before.Last)
		before = t.Base(t.ID)
	}
	return payloads
}

// decodeTurns decodes n turns that appendTurns has encoded, derives their ids, and returns the rest of payloads. It fails
// if they have more than most nodes, parts, entries of usage and labels together.
func decodeTurns(d *codec.Decoder, payloads []byte, n, most int, before head.Base) (turns []Turn, rest []byte, err error) {
	turns = make([]Turn, 0, min(n, 1024))
	for len(turns) < n && d.Err() == nil {
		d.Shape(9)
		t := Turn{Commit: *head.DecodeCompact(d, &before)}
		t.Pack, payloads = graph.Decode(d, payloads, uint64(t.Revision))
		if most -= len(t.Pack.Nodes) + len(t.Parts) + len(t.Usage) + len(t.Labels); most < 0 {
			d.Fail("too much in %d turns", n)
		}
		if d.Err() != nil {
			break
		}
		if _, err := t.Pack.Resolve(before.Last); err != nil {
			return nil, nil, err
		}
		t.Complete(&t.Pack, before.Last)
		if (t.Depth == 0) != t.Leaf.IsZero() || t.Depth > head.MaxDepth {
			d.Fail("path of %d nodes", t.Depth)
		}
		t.ID = t.Commit.ID()
		turns, before = append(turns, t), t.Base(t.ID)
	}
	return turns, payloads, d.Err()
}

// EncodeTurns encodes turns that build on a base, uncompressed: the length of the structure, the structure, and the
// inline payloads.
func EncodeTurns(turns []Turn, before head.Base) []byte {
	var e codec.Encoder
	payloads := appendTurns(&e, nil, turns, before)
	raw := binary.AppendUvarint(make([]byte, 0, len(e.B)+len(payloads)+binary.MaxVarintLen64), uint64(len(e.B)))
	return append(append(raw, e.B...), payloads...)
}

// MaxTogether bounds the turns that DecodeTurns decodes, and their nodes, parts, entries of usage and labels together: a
// turn has fewer. So what is decoded takes a few times the memory of what is encoded.
const MaxTogether = 8 << 10

// DecodeTurns decodes what EncodeTurns has made, and derives the ids of all nodes and commits. The turns alias raw.
func DecodeTurns(raw []byte, before head.Base) ([]Turn, error) {
	d, payloads, err := split(raw, 1)
	if err != nil {
		return nil, err
	}
	turns, payloads, err := decodeTurns(&d, payloads, d.Array(MaxTogether), MaxTogether, before)
	if err == nil && len(payloads) > 0 {
		d.Fail("%d bytes of payloads too many", len(payloads))
	}
	return turns, errors.Join(err, d.Done())
}

// ReplaceSegments makes b store a segment in place of what is stored under old keys.
func ReplaceSegments(b *engine.Batch, ks, vs, old [][]byte) {
	set := make(map[string]bool, len(ks))
	for i := range ks {
		b.Set(ks[i], vs[i])
		set[string(ks[i])] = true
	}
	for _, k := range old {
		if !set[string(k)] {
			b.Delete(k)
		}
	}
}

// A header is what the first value of a segment begins with: how many revisions the first one is
// before the last, and four times the number of values plus the level, both uvarint. What follows in
// a loose segment is the length of the commit's body (uvarint), the body, and data. In a sealed
// segment it is the state at its end, and data begin with the second value.
type header struct {
	first, last uint64
	values      int
	level       codec.Level
}

// store returns the pairs of a segment.
func store(space *keys.Space, inc keys.Incarnation, h header, front, data []byte) (ks, vs [][]byte, err error) {
	room := max(valueBytes-len(front), 0) // for data in the first value
	if h.level != codec.Fast {
		room = 0
	}
	piece, rest := data[:min(room, len(data))], data[min(room, len(data)):]
	h.values = 1 + (len(rest)+valueBytes-1)/valueBytes
	if h.values > maxValues {
		return nil, nil, fmt.Errorf("%w: %d bytes compressed", ErrTooLarge, len(data))
	}
	ks, vs = make([][]byte, h.values), make([][]byte, h.values)
	var head [2 * binary.MaxVarintLen64]byte
	n := binary.PutUvarint(head[:], h.last-h.first)
	n += binary.PutUvarint(head[n:], uint64(h.values)<<2|uint64(h.level))
	ks[0] = space.Segment(inc, h.last, 0)
	vs[0] = codec.Encode(ks[0], keys.Segment, head[:n], front, piece)
	for i := 1; i < h.values; i++ {
		piece, rest = rest[:min(valueBytes, len(rest))], rest[min(valueBytes, len(rest)):]
		ks[i] = space.Segment(inc, h.last, i)
		vs[i] = codec.Encode(ks[i], keys.Segment, piece)
	}
	return ks, vs, nil
}

// CheckSegment verifies the hashes of a segment that is stored as these pairs, all of them and in order.
func CheckSegment(space *keys.Space, pairs []engine.Pair) error {
	h, rest, err := decodeHeader(space, pairs[0].Key, pairs[0].Value)
	if err != nil {
		return err
	}
	if h.values != len(pairs) {
		return fmt.Errorf("%w: %d of %d values are there", damage.ErrMissing, len(pairs), h.values)
	}
	var data []byte
	for _, p := range pairs[1:] {
		body, err := codec.Decode(p.Key, p.Value, keys.Segment)
		if err != nil {
			return err
		}
		data = append(data, body...)
	}
	_, fields, _ := space.Fields(pairs[0].Key)
	_, err = decode(keys.Incarnation(fields), h, rest, data)
	return err
}

// decodeHeader decodes the header of a segment from its first value, and returns the rest.
func decodeHeader(space *keys.Space, key, value []byte) (h header, rest []byte, err error) {
	_, fields, ok := space.Fields(key)
	if !ok {
		return h, nil, fmt.Errorf("%w: key", damage.ErrMalformed)
	}
	last, at := keys.SegmentFields(fields)
	if rest, err = codec.Decode(key, value, keys.Segment); err != nil {
		return h, nil, err
	}
	if at != 0 {
		return h, nil, fmt.Errorf("%w: value %d without those before", damage.ErrMissing, at)
	}
	before, n := codec.Uvarint(rest)
	count, m := codec.Uvarint(rest[max(n, 0):])
	h = header{last: last, first: last - before, values: int(count >> 2), level: codec.Level(count & 3)}
	switch {
	case n <= 0 || m <= 0 || before >= last || before >= maxTurns || count>>2 < 1 || count>>2 > maxValues || h.level > codec.Best:
		return h, nil, fmt.Errorf("%w: header", damage.ErrMalformed)
	case h.level == codec.Fast && before > 0:
		return h, nil, fmt.Errorf("%w: loose segment of %d turns", damage.ErrMalformed, before+1)
	}
	return h, rest[n+m:], nil
}

// decodeCommit decodes the commit of a loose segment, and returns the data.
func decodeCommit(h header, rest []byte) (c *head.Commit, id head.CommitID, data []byte, err error) {
	size, n := codec.Uvarint(rest)
	if n <= 0 || size > uint64(len(rest)-n) {
		return nil, id, nil, fmt.Errorf("%w: length of the commit", damage.ErrMalformed)
	}
	body := rest[n : n+int(size)]
	if c, err = head.DecodeCommit(body); err != nil {
		return nil, id, nil, err
	}
	if uint64(c.Revision) != h.last {
		return nil, id, nil, fmt.Errorf("%w: commit of revision %d", damage.ErrHash, c.Revision)
	}
	return c, head.IDOf(body), rest[n+int(size):], nil
}

// decodeEnd decodes the state at the end of a sealed segment.
func decodeEnd(h header, rest []byte) (head.State, error) {
	d := codec.Decoder{B: rest}
	d.Shape(10)
	s := head.DecodeState(&d, head.Revision(h.last))
	return s, d.Done()
}

// decode decodes a segment and verifies it. rest is what follows the header in the first value,
// and data what the other values hold.
func decode(inc keys.Incarnation, h header, rest, data []byte) (*Segment, error) {
	s := &Segment{First: head.Revision(h.first), Last: head.Revision(h.last), Level: h.level}
	if h.level == codec.Fast {
		return s, s.decodeLoose(h, rest, data)
	}
	return s, s.decodeSealed(inc, h, rest, data)
}

func (s *Segment) decodeLoose(h header, rest, more []byte) error {
	c, id, data, err := decodeCommit(h, rest)
	if err != nil {
		return err
	}
	t := Turn{Commit: *c, ID: id, Pack: graph.Pack{Revision: h.last}}
	if data = append(data[:len(data):len(data)], more...); len(data) > 0 {
		d, payloads, err := expand(data)
		if err != nil {
			return err
		}
		if t.Pack, payloads = graph.Decode(&d, payloads, h.last); len(payloads) > 0 {
			d.Fail("%d bytes of payloads too many", len(payloads))
		}
		if err := d.Done(); err != nil {
			return err
		}
		if _, err := t.Pack.Resolve([32]byte{}); err != nil {
			return err
		}
	}
	s.Before = head.Base{Revision: c.Revision - 1, Commit: c.Previous}
	s.Turns = []Turn{t}
	return t.check([32]byte{})
}

func (s *Segment) decodeSealed(inc keys.Incarnation, h header, rest, data []byte) (err error) {
	if s.End, err = decodeEnd(h, rest); err != nil {
		return err
	}
	d, payloads, err := expand(data)
	if err != nil {
		return err
	}
	if d.Null() {
		s.Before = head.Begin(inc, nil).Base
		if h.first != 1 {
			d.Fail("revision %d as the first", h.first)
		}
	} else {
		d.Shape(6)
		s.Before = head.DecodeBase(&d, head.Revision(h.first-1))
	}
	if n := d.Array(maxTurns); uint64(n) != h.last-h.first+1 {
		d.Fail("%d turns of revisions %d to %d", n, h.first, h.last)
	}
	if d.Err() != nil { // The header alone can announce a million turns.
		return d.Err()
	}
	if s.Turns, payloads, err = decodeTurns(&d, payloads, int(h.last-h.first+1), maxSegment, s.Before); err != nil {
		return err
	}
	if len(payloads) > 0 {
		d.Fail("%d bytes of payloads too many", len(payloads))
	}
	if err := d.Done(); err != nil {
		return err
	}
	last := &s.Turns[len(s.Turns)-1]
	if last.Base(last.ID) != s.End.Base {
		return damage.ErrHash
	}
	return nil
}

// expand decompresses the data of a segment, and returns its structure and its payloads.
func expand(data []byte) (structure codec.Decoder, payloads []byte, err error) {
	raw, err := codec.Decompress(data, nil, maxSegment)
	if err != nil {
		return structure, nil, err
	}
	return split(raw, 2)
}

// split splits raw into a structure of some items and the payloads behind it.
func split(raw []byte, items int) (structure codec.Decoder, payloads []byte, err error) {
	size, n := codec.Uvarint(raw)
	if n <= 0 || size > uint64(len(raw)-n) {
		return structure, nil, fmt.Errorf("%w: length of the structure", damage.ErrMalformed)
	}
	end := n + int(size)
	return codec.Decoder{B: raw[n:end:end], Items: items}, raw[end:], nil
}
