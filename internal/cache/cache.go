// Package cache keeps values in memory up to a number of bytes, and drops those that were used
// least recently.
package cache

import (
	"container/list"
	"sync"
)

// A Budget is how many bytes the values of its caches may take together. It is safe for concurrent use.
type Budget struct {
	mu    sync.Mutex // guards the fields below, and those of the caches
	max   int
	size  int
	order list.List // of what the caches hold, the most recently used one first
}

// NewBudget returns a budget of a number of bytes.
func NewBudget(maximum int) *Budget { return &Budget{max: maximum} }

// Resize sets the number of bytes. If the caches hold more, they drop what was used least recently.
func (b *Budget) Resize(maximum int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.max = maximum
	b.shrink()
}

func (b *Budget) shrink() {
	for b.size > b.max {
		b.order.Back().Value.(interface{ drop() }).drop()
	}
}

// A Cache holds values of one kind. It is safe for concurrent use. A nil Cache is empty and stays so.
type Cache[K comparable, V any] struct {
	budget *Budget
	by     map[K]*entry[K, V]
}

type entry[K comparable, V any] struct {
	cache *Cache[K, V]
	key   K
	value V
	size  int
	place *list.Element // in the order of the budget
}

// New returns an empty cache, which shares b with the other caches of b.
func New[K comparable, V any](b *Budget) *Cache[K, V] {
	return &Cache[K, V]{budget: b, by: map[K]*entry[K, V]{}}
}

// Get returns the value of a key, and whether there is one.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	if c == nil {
		return value, false
	}
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	e := c.by[key]
	if e == nil {
		return value, false
	}
	c.budget.order.MoveToFront(e.place)
	return e.value, true
}

// Takes reports whether the cache takes a value of a size: it is not larger than half of the budget.
func (c *Cache[K, V]) Takes(size int) bool {
	if c == nil {
		return false
	}
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	return size <= c.budget.max/2
}

// Put sets the value of a key, which takes size bytes. If the cache does not take it, the key has no
// value then.
func (c *Cache[K, V]) Put(key K, value V, size int) {
	if c == nil {
		return
	}
	b := c.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := c.by[key]; e != nil {
		e.drop()
	}
	if size > b.max/2 {
		return
	}
	e := &entry[K, V]{cache: c, key: key, value: value, size: size}
	e.place = b.order.PushFront(e)
	c.by[key] = e
	b.size += size
	b.shrink()
}

// Drop removes a key.
func (c *Cache[K, V]) Drop(key K) {
	if c == nil {
		return
	}
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	if e := c.by[key]; e != nil {
		e.drop()
	}
}

// Clear removes all keys.
func (c *Cache[K, V]) Clear() {
	if c == nil {
		return
	}
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	for _, e := range c.by {
		e.drop()
	}
}

// drop removes e. The budget is locked.
func (e *entry[K, V]) drop() {
	b := e.cache.budget
	b.order.Remove(e.place)
	delete(e.cache.by, e.key)
	b.size -= e.size
}
