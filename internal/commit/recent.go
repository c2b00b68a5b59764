package commit

import "github.com/turnstonedb/turnstone/internal/cache"

// Recent is a cache of small values of the engine that calls have read or written: session records and
// lifecycle records. Who guards one of them need not read it.
type Recent struct {
	by *cache.Cache[string, []byte]
}

// NewRecent returns an empty cache within a budget.
func NewRecent(b *cache.Budget) *Recent { return &Recent{cache.New[string, []byte](b)} }

// Clear removes all values.
func (r *Recent) Clear() { r.by.Clear() }

func (r *Recent) get(key []byte) []byte {
	value, _ := r.by.Get(string(key))
	return value
}

// put sets the value of a key, which is nil if it is absent or not known any more.
func (r *Recent) put(key, value []byte) {
	const most = 4 << 10 // bytes of a value: reading a larger one costs little beside writing it
	if value == nil || len(value) > most {
		r.by.Drop(string(key))
		return
	}
	r.by.Put(string(key), value, len(key)+len(value))
}
