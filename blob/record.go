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
	depth int    // of the chain of deltas that ends here, as its mark has it; not part of the record
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
// [id, form, size, parts, base or null, items or null, data];
// the parts after it are the rest of data.
func (r *record) encode() []byte {
	e := codec.Encoder{B: make([]byte, 0, 64+len(r.data)+40*len(r.items))}
	e.Array(7)
	e.Bytes(r.id[:])
	e.Uint(uint64(r.form))
	e.Uint(uint64(r.size))
	e.Uint(uint64(parts(len(r.data))))
	e.ID(r.base)
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
	d.Shape(7)
	d.Fixed(r.id[:])
	f := d.Uint()
	r.size = Size(&d)
	count := d.Uint()
	r.base = d.ID()
	r.form, n = form(f), int(count)
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
	case f > uint64(list), count < 1 || count > 256, r.form == delta && count > 1,
		(r.form == list) != (r.items != nil), (r.form == delta) != (r.base != ID{}):
		d.Fail("representation of form %d, %d parts", f, count)
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

// A mark's first byte is 1 if it is condemned, plus twice the depth of a delta, or
// one of these.
const (
	markWhole  = 0
	markList   = maxDepth + 1
	markPacked = maxDepth + 2
)

// Seal returns m's record for key, unlike any before it: the byte of its form, the
// number of parts of what may have several, the length of the values, and 8
// random bytes.
func (m Mark) Seal(key []byte) []byte {
	form := m.Depth
	switch {
	case m.Depth > 0:
	case m.Depends:
		form = markList
	case m.Packed:
		form = markPacked
	}
	b := append(make([]byte, 0, 16), byte(form<<1))
	if m.Condemned {
		b[0] |= 1
	}
	if m.Depth == 0 {
		b = append(b, byte(m.Parts-1))
	}
	b = binary.AppendUvarint(b, uint64(m.Bytes))
	b = binary.LittleEndian.AppendUint64(b, rand.Uint64()) // ChaCha8, seeded by the system
	return codec.Seal(key, keys.Mark, b)
}

// OpenMark decodes the record of key.
func OpenMark(key, value []byte) (m Mark, err error) {
	b, err := codec.Open(key, value, keys.Mark)
	if err != nil {
		return m, err
	}
	bad := fmt.Errorf("%w: mark", codec.ErrMalformed)
	if len(b) < 2 || b[0]>>1 > markPacked {
		return m, bad
	}
	form := int(b[0] >> 1)
	m = Mark{Condemned: b[0]&1 != 0, Depends: form != markWhole && form != markPacked, Packed: form == markPacked, Parts: 1}
	if b = b[1:]; form > 0 && form <= maxDepth {
		m.Depth = form
	} else {
		m.Parts, b = int(b[0])+1, b[1:]
	}
	n, size := codec.Uvarint(b)
	if size <= 0 || len(b) != size+8 {
		return m, bad
	}
	m.Bytes = int64(n)
	return m, nil
}

// mark returns the mark of r, which values store.
func (r *record) mark(values [][]byte) Mark {
	m := Mark{Depends: r.form != whole, Parts: len(values), Depth: r.depth}
	for _, v := range values {
		m.Bytes += int64(len(v))
	}
	return m
}
