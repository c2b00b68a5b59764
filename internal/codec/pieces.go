package codec

import (
	"slices"
	"sort"
)

// Pieces is a content as a list of slices. So the last version of a chain of deltas can be read
// without a copy of the content for each version before. The zero value is the empty content.
type Pieces struct {
	list [][]byte // none of them empty
	ends []int    // where each of them ends in the content
}

// maxPieces is the largest number of pieces. A content of more is copied into one.
const maxPieces = 4096

// NewPieces returns content as one piece. It uses content and does not copy it.
func NewPieces(content []byte) *Pieces {
	p := new(Pieces)
	p.add(content)
	return p
}

// Len returns the length of the content.
func (p *Pieces) Len() int {
	if len(p.ends) == 0 {
		return 0
	}
	return p.ends[len(p.ends)-1]
}

// Bytes returns the content in one slice.
func (p *Pieces) Bytes() []byte {
	if len(p.list) == 1 {
		return p.list[0]
	}
	return slices.Concat(p.list...)
}

// add adds b to the end of the content.
func (p *Pieces) add(b []byte) {
	if len(b) > 0 {
		p.list, p.ends = append(p.list, b), append(p.ends, p.Len()+len(b))
	}
}

// each calls f with the slices that make the content between two offsets.
func (p *Pieces) each(from, to int, f func([]byte)) {
	for i := sort.SearchInts(p.ends, from+1); from < to; i++ {
		begin := p.ends[i] - len(p.list[i])
		end := min(to, p.ends[i])
		f(p.list[i][from-begin : end-begin])
		from = end
	}
}

// compact returns the same content in a bounded number of pieces.
func (p *Pieces) compact() *Pieces {
	if len(p.list) > maxPieces {
		return NewPieces(p.Bytes())
	}
	return p
}
