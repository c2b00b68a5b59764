package engine

import "sync"

const (
	// DefaultMemory is the size in bytes of the process's own Memory.
	DefaultMemory = 96 << 20
	// MinMemory is the size in bytes of the smallest Memory: the memtables of an embedded engine take half of it.
	MinMemory = 32 << 20
)

// A Memory is how much memory engines and stores keep between calls, all that are opened with it together: an engine its
// memtables and blocks, stores what they have read lately, and the contents of checkpoint parts, against which the next
// version is stored as a delta. A nil *Memory is the process's own, of DefaultMemory bytes, which all engines and stores
// share that are given no other.
//
// An embedded engine takes a quarter. Stores count what they keep twice, because Go's collector lets the heap grow to twice of what is
// in use. Of all stores that share a Memory one seals at a time. What calls take until they return comes on top, and so
// does what a database takes in the background: docs/operations.md has figures. A Memory is safe for concurrent use.
type Memory struct {
	bytes int

	mu    sync.Mutex // guards the fields below
	taken int
	kept  Kept
}

// A Kept is what the stores of a Memory keep. Resize sets how many bytes that may be.
type Kept interface{ Resize(bytes int) }

// NewMemory returns a Memory of a number of bytes, or of MinMemory if that is more.
func NewMemory(bytes int) *Memory {
	return &Memory{bytes: max(bytes, MinMemory)}
}

var process = NewMemory(DefaultMemory)

// Bytes returns the size of m.
func (m *Memory) Bytes() int {
	if m == nil {
		m = process
	}
	return m.bytes
}

// Take takes a number of bytes for an engine, until giveBack is called, which may be done more than once. Stores have what is left, a
// quarter at least.
func (m *Memory) Take(bytes int) (giveBack func()) {
	if m == nil {
		m = process
	}
	m.add(bytes)
	return sync.OnceFunc(func() { m.add(-bytes) })
}

func (m *Memory) add(bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken += bytes
	if m.kept != nil {
		m.kept.Resize(m.left())
	}
}

// left returns how many bytes of values stores may keep. Each counts twice.
func (m *Memory) left() int { return max(m.bytes-m.taken, m.bytes/4) / 2 }

// Kept returns what the stores of m keep: what first returned when Kept was called for the first time. It is for package turnstone.
func (m *Memory) Kept(first func(bytes int) Kept) Kept {
	if m == nil {
		m = process
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil {
		m.kept = first(m.left())
	}
	return m.kept
}
