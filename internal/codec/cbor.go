package codec

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone/damage"
)

// The subset of CBOR that records use: unsigned integers, byte strings, text
// strings, arrays and null, in the deterministic encoding of RFC 8949 section
// 4.2.1 (shortest heads, definite lengths). A record is an array of fixed shape,
// so there is exactly one encoding of every record, and a decoder that accepts
// no other needs no second look. Written here, and not taken from a library, as
// it is what every id is computed over and what every read spends its time in:
// BenchmarkEncodeTurn in package history compares it with fxamacker/cbor, which is also
// the oracle of its tests.

const (
	majorUint  = 0
	majorBytes = 2
	majorText  = 3
	majorArray = 4
	null       = 0xf6
)

// An Encoder appends CBOR items to B.
type Encoder struct{ B []byte }

func (e *Encoder) head(major byte, n uint64) {
	major <<= 5
	switch {
	case n < 24:
		e.B = append(e.B, major|byte(n))
	case n <= 0xff:
		e.B = append(e.B, major|24, byte(n))
	case n <= 0xffff:
		e.B = binary.BigEndian.AppendUint16(append(e.B, major|25), uint16(n))
	case n <= 0xffffffff:
		e.B = binary.BigEndian.AppendUint32(append(e.B, major|26), uint32(n))
	default:
		e.B = binary.BigEndian.AppendUint64(append(e.B, major|27), n)
	}
}

// Array begins an array of n items.
func (e *Encoder) Array(n int) { e.head(majorArray, uint64(n)) }

// Uint appends an unsigned integer.
func (e *Encoder) Uint(n uint64) { e.head(majorUint, n) }

// Bool appends 0 or 1.
func (e *Encoder) Bool(b bool) {
	if b {
		e.Uint(1)
	} else {
		e.Uint(0)
	}
}

// Bytes appends a byte string.
func (e *Encoder) Bytes(b []byte) {
	e.head(majorBytes, uint64(len(b)))
	e.B = append(e.B, b...)
}

// Text appends a text string, which the caller knows to be valid UTF-8.
func (e *Encoder) Text(s string) {
	e.head(majorText, uint64(len(s)))
	e.B = append(e.B, s...)
}

// Null appends null.
func (e *Encoder) Null() { e.B = append(e.B, null) }

// ID appends the 32 bytes of an id, or null when it is zero.
func (e *Encoder) ID(id [32]byte) {
	if id == ([32]byte{}) {
		e.Null()
	} else {
		e.Bytes(id[:])
	}
}

// A Decoder reads the items of B, which is one item, or a sequence of Items (RFC 8742). The first
// error sticks: later calls return zero values, and Done returns it. Byte strings alias B.
//
// Done compares how many items the arrays announced with how many were read. So an encoder and a
// decoder can't agree on a wrong number, which would be no CBOR.
type Decoder struct {
	B     []byte
	Items int // of the sequence, or 0 for one item
	owed  int // items that were announced and not read yet
	err   error
}

// Fail records err unless there is one already.
func (d *Decoder) Fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: "+format, append([]any{damage.ErrMalformed}, args...)...)
		d.B = nil
	}
}

// Err returns the first error.
func (d *Decoder) Err() error { return d.err }

// Done returns the first error, or one when bytes are left over, or items that an array announced
// were not read.
func (d *Decoder) Done() error {
	if len(d.B) > 0 {
		d.Fail("%d bytes too many", len(d.B))
	}
	if owed := max(d.Items, 1) + d.owed; owed != 0 {
		d.Fail("arrays announce %d items more than there are", owed)
	}
	return d.err
}

func (d *Decoder) head(major byte) uint64 {
	if len(d.B) == 0 {
		d.Fail("ends early")
		return 0
	}
	first := d.B[0]
	if first>>5 != major {
		d.Fail("item of type %d, want %d", first>>5, major)
		return 0
	}
	d.owed--
	low := first & 31
	if low < 24 {
		d.B = d.B[1:]
		return uint64(low)
	}
	if low > 27 {
		d.Fail("head %#x", first)
		return 0
	}
	size := 1 << (low - 24)
	if len(d.B) < 1+size {
		d.Fail("ends early")
		return 0
	}
	var n uint64
	for _, c := range d.B[1 : 1+size] {
		n = n<<8 | uint64(c)
	}
	if size == 1 && n < 24 || size > 1 && n>>(4*size) == 0 {
		d.Fail("number not in its shortest form")
		return 0
	}
	d.B = d.B[1+size:]
	return n
}

// Array reads the head of an array and returns its length, at most max.
func (d *Decoder) Array(maximum int) int {
	n := d.head(majorArray)
	if n > uint64(maximum) || n > uint64(len(d.B)) { // an item takes a byte at least
		d.Fail("array of %d items", n)
		return 0
	}
	d.owed += int(n)
	return int(n)
}

// Shape reads the head of an array of exactly n items.
func (d *Decoder) Shape(n int) {
	if got := d.head(majorArray); d.err == nil && got != uint64(n) {
		d.Fail("array of %d items, want %d", got, n)
	}
	d.owed += n
}

// Uint reads an unsigned integer.
func (d *Decoder) Uint() uint64 { return d.head(majorUint) }

// Bool reads 0 or 1.
func (d *Decoder) Bool() bool {
	n := d.Uint()
	if n > 1 {
		d.Fail("flag %d", n)
	}
	return n == 1
}

func (d *Decoder) string(major byte) []byte {
	n := d.head(major)
	if n > uint64(len(d.B)) {
		d.Fail("string of %d bytes", n)
		return nil
	}
	s := d.B[:n:n]
	d.B = d.B[n:]
	return s
}

// Bytes reads a byte string, which aliases the input.
func (d *Decoder) Bytes() []byte { return d.string(majorBytes) }

// Text reads a text string.
func (d *Decoder) Text() string {
	s := d.string(majorText)
	if !utf8.Valid(s) {
		d.Fail("text is not UTF-8")
		return ""
	}
	return string(s)
}

// Null reports whether the next item is null, and consumes it then.
func (d *Decoder) Null() bool {
	if len(d.B) > 0 && d.B[0] == null {
		d.B = d.B[1:]
		d.owed--
		return true
	}
	return false
}

// Fixed reads a byte string of exactly len(dst) bytes into dst.
func (d *Decoder) Fixed(dst []byte) {
	if b := d.Bytes(); d.err == nil && len(b) != len(dst) {
		d.Fail("string of %d bytes, want %d", len(b), len(dst))
	} else {
		copy(dst, b)
	}
}

// ID reads an id, or null as zero.
func (d *Decoder) ID() (id [32]byte) {
	if !d.Null() {
		d.Fixed(id[:])
		if d.err == nil && id == ([32]byte{}) {
			d.Fail("zero id")
		}
	}
	return id
}

// NextIsArray reports whether the next item is an array.
func (d *Decoder) NextIsArray() bool { return len(d.B) > 0 && d.B[0]>>5 == majorArray }

// NextIsUint reports whether the next item is an unsigned integer.
func (d *Decoder) NextIsUint() bool { return len(d.B) > 0 && d.B[0]>>5 == majorUint }

// Uvarint is binary.Uvarint that accepts the one shortest encoding only: n is 0 for a longer
// encoding, and if b ends early.
func Uvarint(b []byte) (v uint64, n int) {
	v, n = binary.Uvarint(b)
	if n > 1 && b[n-1] == 0 {
		return 0, 0
	}
	return v, n
}
