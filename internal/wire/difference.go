package wire

import (
	"fmt"

	"github.com/turnstonedb/turnstone/internal/codec"
)

// A Difference says how to make the body of a request from that of an earlier one, the base.
type Difference struct {
	Follow
	// Copies are the pieces of the body: from where in the base how many bytes are copied, and how many of Fresh follow
	// them.
	Copies [][]int `json:"copies"`
	Fresh  Bytes   `json:"fresh"`
}

// Each implements carrier.
func (d *Difference) Each(f func(*Bytes)) { f(&d.Fresh) }

// DifferenceOf returns how body is made from base, or nil if that has not less than half of the bytes.
func DifferenceOf(base, body []byte) *Difference {
	d := &Difference{}
	at := 0
	for _, r := range codec.Diff(base, body) {
		at += r.Copied
		d.Copies = append(d.Copies, []int{r.From, r.Copied, r.Fresh})
		d.Fresh.Content = append(d.Fresh.Content, body[at:at+r.Fresh]...)
		at += r.Fresh
		if 2*(len(d.Fresh.Content)+10*len(d.Copies)) > len(body) {
			return nil
		}
	}
	return d
}

// Size returns how many bytes the body has. The error matches ErrDocument if base and Fresh do not make one of at
// most a number of bytes.
func (d *Difference) Size(base []byte, most int64) (int64, error) {
	size, fresh := int64(0), len(d.Fresh.Content)
	for i, c := range d.Copies {
		if len(c) != 3 || c[0] < 0 || c[1] < 0 || c[2] < 0 || c[0] > len(base) || c[1] > len(base)-c[0] || c[2] > fresh {
			return 0, fmt.Errorf("%w: copy %d is %v, of %d bytes, before %d fresh ones", ErrDocument, i, c, len(base), fresh)
		}
		fresh -= c[2]
		size += int64(c[1]) + int64(c[2])
		if size > most {
			return 0, fmt.Errorf("%w: it makes a body of more than %d bytes", ErrTooLarge, most)
		}
	}
	if fresh > 0 {
		return 0, fmt.Errorf("%w: %d fresh bytes are of no copy", ErrDocument, fresh)
	}
	return size, nil
}

// Body returns the body, of which Size was asked before.
func (d *Difference) Body(base []byte, size int64) []byte {
	out, fresh := make([]byte, 0, size), d.Fresh.Content
	for _, c := range d.Copies {
		out = append(append(out, base[c[0]:c[0]+c[1]]...), fresh[:c[2]]...)
		fresh = fresh[c[2]:]
	}
	return out
}
