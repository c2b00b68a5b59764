package blob

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// form says how a representation holds its content.
type form byte

const (
	whole form = iota
	delta
	list
)

// A record is a blob's representation.
type record struct {
	id    ID
	form  form
	size  int64  // of the content
	depth int    // of the chain of deltas below; 0 for whole and list
	base  ID     // of a delta
	data  []byte // compressed content or delta
	items []item // of a list
}

// An item is one blob of a list.
type item struct {
	id   ID
	size int64
}

// The first part of a representation is an array
// [id, form, size, parts, base or null, depth, items or null, data];
// the parts after it are the rest of data.
func (r *record) encode() []byte {
	e := codec.Encoder{B: make([]byte, 0, 64+len(r.data)+40*len(r.items))}
	e.Array(8)
	e.Bytes(r.id[:])
	e.Uint(uint64(r.form))
	e.Uint(uint64(r.size))
	e.Uint(uint64(parts(len(r.data))))
	e.ID(r.base)
	e.Uint(uint64(r.depth))
	if r.form == list {
		e.Array(len(r.items))
		for _, it := range r.items {
			e.Array(2)
			e.Bytes(it.id[:])
			e.Uint(uint64(it.size))
		}
	} else {
		e.Null()
	}
	e.Bytes(r.data[:min(len(r.data), partBytes)])
	return e.B
}

func parts(n int) int { return max(1, (n+partBytes-1)/partBytes) }

// decodeRecord decodes the first part and returns how many there are.
func decodeRecord(body []byte) (r record, n int, err error) {
	d := codec.Decoder{B: body}
	d.Shape(8)
	d.Fixed(r.id[:])
	f := d.Uint()
	r.size = Size(&d)
	count := d.Uint()
	r.base = d.ID()
	depth := d.Uint()
	r.form, r.depth, n = form(f), int(depth), int(count)
	if !d.Null() {
		r.items = make([]item, d.Array(maxList))
		sum := int64(0)
		for i := range r.items {
			d.Shape(2)
			d.Fixed(r.items[i].id[:])
			r.items[i].size = Size(&d)
			sum += r.items[i].size
		}
		if sum != r.size {
			d.Fail("list of %d bytes for a blob of %d", sum, r.size)
		}
	}
	r.data = d.Bytes()
	switch {
	case f > uint64(list), depth > maxDepth, count < 1 || count > 256,
		(r.form == list) != (r.items != nil), (r.form == delta) != (r.base != ID{}), (r.form == delta) != (depth > 0):
		d.Fail("representation of form %d, depth %d, %d parts", f, depth, count)
	}
	return r, n, d.Done()
}

// values returns the pairs that store r.
func (r *record) values(space *keys.Space, h keys.Hash) (ks, vs [][]byte) {
	for i := range parts(len(r.data)) {
		key := space.Blob(h, i)
		var body []byte
		if i == 0 {
			body = r.encode()
		} else {
			body = r.data[i*partBytes : min(len(r.data), (i+1)*partBytes)]
		}
		ks, vs = append(ks, key), append(vs, codec.Seal(key, keys.Blob, body))
	}
	return ks, vs
}

// A Mark says how a blob is stored, and whether a collector has condemned it. To
// rely on a blob is to guard its mark; every write of a mark draws fresh random
// bytes, so that a guard on one value can never hold for a later one.
type Mark struct {
	Condemned bool
	Depends   bool  // on other blobs: a delta or a list
	Packed    bool  // whole, and compressed as far as it goes
	Parts     int   // values that hold it
	Bytes     int64 // length of the values
	Depth     int   // of the chain of deltas that ends with it; 0 if it is none
}

const markSize = 1 + 1 + 1 + 1 + 4 + 8

// Seal returns m's record for key, unlike any before it.
func (m Mark) Seal(key []byte) []byte {
	b := make([]byte, 0, markSize)
	b = append(b, 'l', 'w', byte(m.Parts-1), byte(m.Depth))
	if m.Condemned {
		b[0] = 'c'
	}
	switch {
	case m.Depends:
		b[1] = 'd'
	case m.Packed:
		b[1] = 'p'
	}
	b = binary.BigEndian.AppendUint32(b, uint32(m.Bytes))
	b = binary.LittleEndian.AppendUint64(b, rand.Uint64()) // ChaCha8, seeded by the system
	return codec.Seal(key, keys.Mark, b)
}

// OpenMark decodes the record of key.
func OpenMark(key, value []byte) (m Mark, err error) {
	b, err := codec.Open(key, value, keys.Mark)
	if err != nil {
		return m, err
	}
	if len(b) != markSize || b[0] != 'l' && b[0] != 'c' || b[1] != 'w' && b[1] != 'd' && b[1] != 'p' {
		return m, fmt.Errorf("%w: mark", codec.ErrMalformed)
	}
	return Mark{Condemned: b[0] == 'c', Depends: b[1] == 'd', Packed: b[1] == 'p', Parts: int(b[2]) + 1, Depth: int(b[3]), Bytes: int64(binary.BigEndian.Uint32(b[4:]))}, nil
}

// mark returns the mark of r, which values store.
func (r *record) mark(values [][]byte) Mark {
	m := Mark{Depends: r.form != whole, Parts: len(values), Depth: r.depth}
	for _, v := range values {
		m.Bytes += int64(len(v))
	}
	return m
}
