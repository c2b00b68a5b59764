package badger

import (
	"github.com/dgraph-io/badger/v4/skl"
	"github.com/dgraph-io/badger/v4/y"
)

// A memtable holds the groups of one log in Badger's skip list, every version of
// a key by itself: readers see it as of a timestamp while the committer adds to
// it.
type memtable struct {
	list  *skl.Skiplist
	log   *log   // that holds the same
	arena int    // bytes of the list's memory
	size  int    // of them that are taken, at most
	last  uint64 // timestamp of its last group
}

// memTableSize is the arena of a memtable, which Badger ends the process for
// exceeding. So the memtable counts what a write can take at most: the tower of a
// node of full height and its alignment, Badger's timestamp behind the key, and
// what it keeps in front of the value. That is more than a write and its group
// take in the log.
const (
	memTableSize = 8 << 20
	entryBytes   = skl.MaxNodeSize + 8 + 8 + 16
)

// deletion is Badger's mark of a deleted key, in front of its value.
const deletion = 1

// newMemtable makes an empty memtable for l, after the group of a timestamp.
func newMemtable(l *log, last uint64) *memtable {
	arena := int(l.size) - logExtra
	return &memtable{list: skl.NewSkiplist(int64(arena)), log: l, arena: arena, size: 2 * entryBytes, last: last}
}

// room reports whether writes of so much cost fit.
func (m *memtable) room(cost int) bool { return m.size+cost <= m.arena }

func (m *memtable) empty() bool { return m.list.Empty() }

// cost is what a write adds to size.
func cost(key, value []byte) int { return entryBytes + len(key) + len(value) }

// put adds a write with a timestamp; an empty value deletes. There must be room.
func (m *memtable) put(ts uint64, key, value []byte) {
	v := y.ValueStruct{Value: value}
	if len(value) == 0 {
		v.Meta = deletion
	}
	m.size += cost(key, value)
	m.last = ts
	m.list.Put(y.KeyWithTs(key, ts), v)
}

// get returns the value at key's newest version up to that of seek, which is the
// key with a timestamp. The value is the list's; nil means deleted.
func (m *memtable) get(seek []byte) (v []byte, found bool) {
	s := m.list.Get(seek)
	if s.Version == 0 {
		return nil, false
	}
	if s.Meta == deletion {
		return nil, true
	}
	return s.Value, true
}
