package engine

import "sync"

const (
	// DefaultMemory is the size in bytes of the process's own MemoryBudget.
	DefaultMemory = 64 << 20
	// MinMemory is the size in bytes of the smallest MemoryBudget. Two memtables of Pebble take half of it.
	MinMemory = 32 << 20
)

// A MemoryBudget bounds what engines, stores, servers and clients keep in memory between calls. All that are opened
// with the same budget share it. A nil *MemoryBudget is the process's own, of DefaultMemory bytes.
//
// An embedded engine takes a part for its memtables and blocks. The rest is for stores, servers and clients. Their
// bytes count twice, because Go's collector lets the heap grow to twice of what is in use. The budget does not count
// what a call uses while it runs, and what a database uses in the background: docs/operations.md has figures. A
// MemoryBudget is safe for concurrent use.
type MemoryBudget struct {
	bytes int

	mu    sync.Mutex // guards the fields below
	taken int
	kept  Kept
}

// A Kept is what the stores of a MemoryBudget keep. Resize sets how many bytes that may be.
type Kept interface{ Resize(bytes int) }

// NewMemoryBudget returns a budget of a number of bytes, or of MinMemory if that is more.
func NewMemoryBudget(bytes int) *MemoryBudget {
	return &MemoryBudget{bytes: max(bytes, MinMemory)}
}

var process = NewMemoryBudget(DefaultMemory)

// orProcess returns m, or the process's own budget.
func (m *MemoryBudget) orProcess() *MemoryBudget {
	if m == nil {
		return process
	}
	return m
}

// Bytes returns the size of m.
func (m *MemoryBudget) Bytes() int { return m.orProcess().bytes }

// Take takes a number of bytes for an engine, until giveBack is called. Further calls of giveBack do nothing. Stores
// have what is left, and a quarter at least.
func (m *MemoryBudget) Take(bytes int) (giveBack func()) {
	m = m.orProcess()
	m.add(bytes)
	return sync.OnceFunc(func() { m.add(-bytes) })
}

func (m *MemoryBudget) add(bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken += bytes
	if m.kept != nil {
		m.kept.Resize(m.left())
	}
}

// left returns how many bytes stores may keep. Each counts twice.
func (m *MemoryBudget) left() int { return max(m.bytes-m.taken, m.bytes/4) / 2 }

// Kept returns the caches that the stores of m share. Package turnstone calls it. The first call makes the caches: it
// calls first with the number of bytes that they may have.
func (m *MemoryBudget) Kept(first func(bytes int) Kept) Kept {
	m = m.orProcess()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil {
		m.kept = first(m.left())
	}
	return m.kept
}
