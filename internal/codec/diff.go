package codec

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"
)

// A Run is a piece of a content: bytes that are copied from the base, then fresh bytes.
type Run struct {
	From   int // offset in the base
	Copied int // number of bytes that are copied
	Fresh  int // number of fresh bytes after them
}

// end returns the offset in the base behind the bytes that are copied.
func (r *Run) end() int { return r.From + r.Copied }

const (
	// anchorBytes is how many bytes of base and content must be equal for a closer look.
	anchorBytes = 16
	// minCopy is the shortest copy. A shorter one is cheaper to leave to the compression of fresh bytes.
	minCopy = 32
	// maxAnchors bounds the table, which then takes 256 KiB. The anchors of a base are
	// anchorBytes apart, or further in a base of more than 1 MiB. So a copy from
	// a base of 4 MiB is surely found if it has 79 bytes.
	maxAnchors = 1 << 16
)

// Diff returns the runs that make content from base. Only the bytes between what both
// begin and end with in common are searched for copies.
func Diff(base, content []byte) []Run {
	prefix := commonPrefix(base, content)
	suffix := commonSuffix(base[prefix:], content[prefix:])
	end := len(content) - suffix
	runs := []Run{{Copied: prefix}}
	at := prefix
	if end-at > minCopy && len(base) > minCopy {
		runs, at = copies(runs, base, content[:end], at)
	}
	runs[len(runs)-1].Fresh = end - at
	if suffix > 0 {
		runs = append(runs, Run{From: len(base) - suffix, Copied: suffix})
	}
	return runs
}

// copies searches content from at on for copies from base, and adds a run for each. It
// returns where the last copy ends.
func copies(runs []Run, base, content []byte, at int) ([]Run, int) {
	t := anchorPool.Get().(*anchors)
	defer anchorPool.Put(t)
	t.fill(base)
	shift := runs[0].end() - at // where the content goes on in the base if nothing was inserted or removed
	for i := at; i+anchorBytes <= len(content); {
		j := t.find(base, content, i, i+shift)
		if j < 0 {
			i++
			continue
		}
		back := commonSuffix(base[:j], content[at:i])
		n := back + commonPrefix(base[j:], content[i:])
		if n < minCopy {
			i++
			continue
		}
		i, j = i-back, j-back
		runs[len(runs)-1].Fresh = i - at
		runs = append(runs, Run{From: j, Copied: n})
		i += n
		at, shift = i, j+n-i
	}
	return runs, at
}

// anchors finds equal bytes in a base by their hash.
type anchors struct {
	table []uint32 // by hash: 1 more than an offset in the base
	shift uint     // leaves as many bits of a hash as the table has
}

var anchorPool = sync.Pool{New: func() any { return new(anchors) }}

// fill makes t find anchors of base.
func (t *anchors) fill(base []byte) {
	stride := anchorBytes
	for len(base)/stride > maxAnchors {
		stride *= 2
	}
	size := 1 << bits.Len(uint(len(base)/stride))
	t.table = slices.Grow(t.table[:0], size)[:size]
	clear(t.table)
	t.shift = uint(64 - bits.Len(uint(size-1)))
	for i := 0; i+anchorBytes <= len(base); i += stride {
		t.table[t.hash(base[i:])] = uint32(i + 1)
	}
}

// find returns an offset in base of the anchorBytes of content at i, or -1. It prefers
// the offset hint, which may be outside of base.
func (t *anchors) find(base, content []byte, i, hint int) int {
	want := content[i : i+anchorBytes]
	if hint >= 0 && hint+anchorBytes <= len(base) && bytes.Equal(base[hint:hint+anchorBytes], want) {
		return hint
	}
	j := int(t.table[t.hash(want)]) - 1
	if j < 0 || !bytes.Equal(base[j:j+anchorBytes], want) {
		return -1
	}
	return j
}

// hash returns the slot of the anchor that b begins with. It is xxHash's mix of two words.
func (t *anchors) hash(b []byte) uint64 {
	x := binary.LittleEndian.Uint64(b)*0x9E3779B185EBCA87 ^ binary.LittleEndian.Uint64(b[8:])*0xC2B2AE3D27D4EB4F
	return (x ^ x>>29) * 0x165667B19E3779F9 >> t.shift
}

// compared is how many bytes commonPrefix and commonSuffix compare with one call, which
// uses vector instructions: 2.5 MB take 0.1 ms.
const compared = 4096

// commonPrefix returns how many bytes a and b begin with in common.
func commonPrefix(a, b []byte) int {
	n, i := min(len(a), len(b)), 0
	for i+compared <= n && bytes.Equal(a[i:i+compared], b[i:i+compared]) {
		i += compared
	}
	for ; i+8 <= n; i += 8 {
		if x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); x != 0 {
			return i + bits.TrailingZeros64(x)/8
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// commonSuffix returns how many bytes a and b end with in common.
func commonSuffix(a, b []byte) int {
	n := min(len(a), len(b))
	a, b = a[len(a)-n:], b[len(b)-n:]
	i := n
	for i >= compared && bytes.Equal(a[i-compared:i], b[i-compared:i]) {
		i -= compared
	}
	for ; i >= 8; i -= 8 {
		if x := binary.LittleEndian.Uint64(a[i-8:]) ^ binary.LittleEndian.Uint64(b[i-8:]); x != 0 {
			return n - i + bits.LeadingZeros64(x)/8
		}
	}
	for i > 0 && a[i-1] == b[i-1] {
		i--
	}
	return n - i
}
