package blob

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// stored is a blob as it is stored.
type stored struct {
	id    ID
	size  int64  // of the content
	items []item // of a list; nil for a blob that is stored whole
	data  []byte // compressed content of a blob that is stored whole
}

// An item is one blob of a list.
type item struct {
	id   ID
	size int64
}

// encode returns the body of the first value: [id, size, number of values, items or
// null, data]. The values after it are the rest of data.
func (r *stored) encode() []byte {
	e := codec.Encoder{B: make([]byte, 0, 64+min(len(r.data), valueBytes)+40*len(r.items))}
	e.Array(5)
	e.Bytes(r.id[:])
	e.Uint(uint64(r.size))
	e.Uint(uint64(values(len(r.data))))
	if r.items != nil {
		e.Array(len(r.items))
		for _, it := range r.items {
			e.Array(2)
			e.Bytes(it.id[:])
			e.Uint(uint64(it.size))
		}
	} else {
		e.Null()
	}
	e.Bytes(r.data[:min(len(r.data), valueBytes)])
	return e.B
}

// values returns how many values n bytes of data take.
func values(n int) int { return max(1, (n+valueBytes-1)/valueBytes) }

// maxValues bounds the values of one blob or version: one byte of a key counts them.
const maxValues = 256

// decodeRecord decodes the body of the first value and returns how many values there
// are.
func decodeRecord(body []byte) (r stored, n int, err error) {
	d := codec.Decoder{B: body}
	d.Shape(5)
	d.Fixed(r.id[:])
	r.size = Size(&d)
	count := d.Uint()
	n = int(count)
	if !d.Null() {
		r.items = make([]item, d.Array(maxList))
		sum := int64(0)
		for i := range r.items {
			d.Shape(2)
			d.Fixed(r.items[i].id[:])
			if r.items[i].size = Size(&d); r.items[i].size == 0 {
				d.Fail("an item without content")
			}
			sum += r.items[i].size
		}
		if sum != r.size {
			d.Fail("list of %d bytes for a blob of %d", sum, r.size)
		}
	}
	r.data = d.Bytes()
	if count < 1 || count > maxValues || r.items != nil && (count > 1 || len(r.data) > 0) {
		d.Fail("representation in %d values", count)
	}
	return r, n, d.Done()
}

// values returns the pairs that store r.
func (r *stored) values(space *keys.Space, h keys.Hash) (ks, vs [][]byte) {
	for i := range values(len(r.data)) {
		key := space.Blob(h, i)
		var body []byte
		if i == 0 {
			body = r.encode()
		} else {
			body = r.data[i*valueBytes : min(len(r.data), (i+1)*valueBytes)]
		}
		ks, vs = append(ks, key), append(vs, codec.Encode(key, keys.Blob, body))
	}
	return ks, vs
}

// A Mark says how a blob is stored, and whether a collector has condemned it. To
// rely on a blob is to guard its mark; every write of a mark draws fresh random
// bytes, so that a guard on one value can never hold for a later one.
type Mark struct {
	Condemned bool
	List      bool  // it consists of other blobs
	Packed    bool  // it is stored whole, and compressed as far as it goes
	Parts     int   // values that hold it
	Bytes     int64 // length of the values
}

// Loose reports whether Recompress can compress the blob further.
func (m *Mark) Loose() bool { return !m.List && !m.Packed && m.Bytes <= recompressBytes }

// The bits of a mark's first byte.
const (
	markCondemned = 1 << iota
	markList
	markPacked
)

// Encode returns m's record for key, unlike any before it: the bits, the number of
// values less one, the length of the values, and 8 random bytes.
func (m Mark) Encode(key []byte) []byte {
	b := append(make([]byte, 0, 16), 0, byte(m.Parts-1))
	if m.Condemned {
		b[0] |= markCondemned
	}
	if m.List {
		b[0] |= markList
	}
	if m.Packed {
		b[0] |= markPacked
	}
	b = binary.AppendUvarint(b, uint64(m.Bytes))
	b = binary.LittleEndian.AppendUint64(b, rand.Uint64()) // ChaCha8, seeded by the system
	return codec.Encode(key, keys.Mark, b)
}

// DecodeMark decodes the record of key.
func DecodeMark(key, value []byte) (m Mark, err error) {
	b, err := codec.Decode(key, value, keys.Mark)
	if err != nil {
		return m, err
	}
	bad := fmt.Errorf("%w: mark", damage.ErrMalformed)
	if len(b) < 2 || b[0] > markCondemned|markPacked || b[0]&markList != 0 && b[0]&markPacked != 0 {
		return m, bad
	}
	m = Mark{Condemned: b[0]&markCondemned != 0, List: b[0]&markList != 0, Packed: b[0]&markPacked != 0, Parts: int(b[1]) + 1}
	n, size := codec.Uvarint(b[2:])
	if size <= 0 || len(b) != 2+size+8 {
		return m, bad
	}
	m.Bytes = int64(n)
	return m, nil
}

// mark returns the mark of r, which values store.
func (r *stored) mark(values [][]byte) Mark {
	m := Mark{List: r.items != nil, Parts: len(values)}
	for _, v := range values {
		m.Bytes += int64(len(v))
	}
	return m
}
