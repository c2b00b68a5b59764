package badger

import (
	"sort"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/dgraph-io/badger/v4/fb"
	"github.com/dgraph-io/badger/v4/y"
)

// Where a table is not in memory, the kernel reads each page of it by itself when the page is
// touched: see directory.view. So a reader asks for what it is about to read. A table
// has up to 64 sections. A seek asks for the sections of its block, and an iterator in
// one section for those behind it.
const (
	sectionShift = 16 // a section has 64 KiB, or more in a table of more than 4 MiB
	aheadOf      = 4  // sections
	// askAgain is how often a reader asks once more: the kernel may have dropped pages. It
	// costs a system call for each section that is read then.
	askAgain = 10 * time.Second
)

// sections asks the kernel for parts of a table.
type sections struct {
	data  []byte
	index *fb.TableIndex
	shift uint // a section has 1 << shift bytes
	asked atomic.Uint64
	ask   func([]byte)
}

// newSections returns the sections of a table with the given size of index and footer.
func newSections(data []byte, tail int64, ask func([]byte)) *sections {
	s := &sections{data: data, index: fb.GetRootAsTableIndex(data[int64(len(data))-tail:], 0), ask: ask}
	for s.shift = sectionShift; len(data) > 64<<s.shift; {
		s.shift++
	}
	return s
}

// seek asks for the block that begins at or before key, which has a timestamp.
func (s *sections) seek(key []byte) {
	if s.asked.Load() == s.all() {
		return
	}
	var block fb.BlockOffset
	i := sort.Search(s.index.OffsetsLength(), func(i int) bool {
		return s.index.Offsets(&block, i) && y.CompareKeys(block.KeyBytes(), key) > 0
	})
	if s.index.Offsets(&block, max(i-1, 0)) {
		s.need(int(block.Offset())>>s.shift, int(block.Offset()+block.Len())>>s.shift)
	}
}

// at returns the section that holds value, which is a part of the table, or -1.
func (s *sections) at(value []byte) int {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(value))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.data)))
	if len(value) == 0 || at >= uintptr(len(s.data)) {
		return -1
	}
	return int(at >> s.shift)
}

// all returns asked when every section was asked for.
func (s *sections) all() uint64 { return ^uint64(0) >> (63 - uint(len(s.data)-1)>>s.shift) }

// need asks for sections that were not asked for.
func (s *sections) need(from, to int) {
	for i := from; i <= to && i<<s.shift < len(s.data); i++ {
		if bit := uint64(1) << i; s.asked.Or(bit)&bit == 0 {
			s.ask(s.data[i<<s.shift : min((i+1)<<s.shift, len(s.data))])
		}
	}
}

// forget makes readers ask for every section once more.
func (e *Engine) forget() {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, r := range e.content.runs {
		for _, t := range r {
			t.sections.asked.Store(0)
		}
	}
}
