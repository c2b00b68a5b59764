// Package cache keeps values in memory up to a number of bytes, and drops those that were used
// least recently.
package cache

import (
	"container/list"
	"sync"
)

// A pool is how many bytes the values of all caches of some budgets may take together.
type pool struct {
	mu      sync.Mutex // guards the fields below, and those of budgets and caches
	max     int
	size    int
	budgets []*Budget
}

// A Budget is a part of a pool that the values of its caches share. They may take more while others take less than
// their part. A Budget is safe for concurrent use.
type Budget struct {
	pool  *pool
	part  int // in bytes
	size  int
	order list.List // of what the caches hold, the most recently used one first
}

// NewBudget returns a budget of a number of bytes, which is all of its pool.
func NewBudget(maximum int) *Budget {
	p := &pool{}
	b := p.add()
	b.Resize(maximum)
	return b
}

// add adds a budget of no bytes.
func (p *pool) add() *Budget {
	b := &Budget{pool: p}
	p.budgets = append(p.budgets, b)
	return b
}

// Resize sets the number of bytes. If the caches of the pool hold too much then, values are dropped.
func (b *Budget) Resize(part int) {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	b.pool.max += part - b.part
	b.part = part
	b.pool.shrink()
}

// shrink drops values until the pool is small enough. It always drops the least recently used value of the budget
// that exceeds its part most.
func (p *pool) shrink() {
	for p.size > p.max {
		most := p.budgets[0]
		for _, b := range p.budgets {
			if b.size-b.part > most.size-most.part {
				most = b
			}
		}
		most.order.Back().Value.(interface{ drop() }).drop()
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
	c.budget.pool.mu.Lock()
	defer c.budget.pool.mu.Unlock()
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
	c.budget.pool.mu.Lock()
	defer c.budget.pool.mu.Unlock()
	return size <= c.budget.part/2
}

// Put sets the value of a key, which takes size bytes. If the cache does not take it, the key has no
// value then.
func (c *Cache[K, V]) Put(key K, value V, size int) {
	if c == nil {
		return
	}
	b := c.budget
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	if e := c.by[key]; e != nil {
		e.drop()
	}
	if size > b.part/2 {
		return
	}
	e := &entry[K, V]{cache: c, key: key, value: value, size: size}
	e.place = b.order.PushFront(e)
	c.by[key] = e
	b.size += size
	b.pool.size += size
	b.pool.shrink()
}

// Drop removes a key.
func (c *Cache[K, V]) Drop(key K) {
	if c == nil {
		return
	}
	c.budget.pool.mu.Lock()
	defer c.budget.pool.mu.Unlock()
	if e := c.by[key]; e != nil {
		e.drop()
	}
}

// Clear removes all keys.
func (c *Cache[K, V]) Clear() {
	if c == nil {
		return
	}
	c.budget.pool.mu.Lock()
	defer c.budget.pool.mu.Unlock()
	for _, e := range c.by {
		e.drop()
	}
}

// drop removes e. The pool is locked.
func (e *entry[K, V]) drop() {
	b := e.cache.budget
	b.order.Remove(e.place)
	delete(e.cache.by, e.key)
	b.size -= e.size
	b.pool.size -= e.size
}
