package badger

import (
	"github.com/dgraph-io/badger/v4/skl"
	"github.com/dgraph-io/badger/v4/y"
)

// A memtable holds the groups of one log in Badger's skip list. Each version of a key is
// an entry of its own, so readers see the memtable as of a timestamp while the committer
// adds to it.
type memtable struct {
	list  *skl.Skiplist
	log   *log   // holds the same groups
	arena int    // size of the list's memory in bytes
	size  int    // upper bound of the bytes that are used
	last  uint64 // timestamp of the last group
}

// memTableSize is the arena of a memtable. Badger ends the process if a skip list
// outgrows its arena. So the memtable counts the most that a write can take: a node of
// full height and its alignment, Badger's timestamp after the key, and the header of the
// value. That is more than the write and its share of frames take in the log.
const (
	memTableSize = 8 << 20
	entryBytes   = skl.MaxNodeSize + 8 + 8 + 16
)

// deletion is the metadata of a deleted key in Badger.
const deletion = 1

// newMemtable returns an empty memtable for l. The last group before it has the timestamp
// last. It has the given list, which must have been made by newList for a log of the same
// size, or a new one if that is nil.
func newMemtable(l *log, last uint64, list *skl.Skiplist) *memtable {
	if list == nil {
		list = newList(l.size)
	}
	return &memtable{list: list, log: l, arena: arena(l.size), size: 2 * entryBytes, last: last}
}

// arena returns the size of the memory for the skip list of a memtable whose log has the
// given size.
func arena(logSize int64) int { return int(logSize) - logExtra }

func newList(logSize int64) *skl.Skiplist { return skl.NewSkiplist(int64(arena(logSize))) }

// fits reports whether writes of the given cost fit into the memtable.
func (m *memtable) fits(cost int) bool { return m.size+cost <= m.arena }

func (m *memtable) empty() bool { return m.list.Empty() }

// cost returns what a write adds to size.
func cost(key, value []byte) int { return entryBytes + len(key) + len(value) }

// put adds a write with a timestamp. An empty value deletes the key. The write must fit.
func (m *memtable) put(ts uint64, key, value []byte) {
	v := y.ValueStruct{Value: value}
	if len(value) == 0 {
		v.Meta = deletion
	}
	m.size += cost(key, value)
	m.last = ts
	m.list.Put(y.KeyWithTs(key, ts), v)
}

// get returns the newest value of a key up to a timestamp. seek is the key with the
// timestamp. The value belongs to the list; nil means that the key is deleted.
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
