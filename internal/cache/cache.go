// Package cache keeps values in memory up to a number of bytes, and drops those that were used
// least recently.
package cache

import (
	"container/list"
	"sync"
)

// A Cache is safe for concurrent use. A nil Cache is empty and stays so.
type Cache[K comparable, V any] struct {
	mu    sync.Mutex // guards the fields below
	max   int
	size  int
	order *list.List // of *entry[K, V], the most recently used one first
	by    map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key   K
	value V
	size  int
}

// New returns an empty cache that holds at most a number of bytes.
func New[K comparable, V any](maximum int) *Cache[K, V] {
	return &Cache[K, V]{max: maximum, order: list.New(), by: map[K]*list.Element{}}
}

// Get returns the value of a key, and whether there is one.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	if c == nil {
		return value, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.by[key]
	if e == nil {
		return value, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*entry[K, V]).value, true
}

// Takes reports whether the cache takes a value of a size: it is not larger than half of the cache.
func (c *Cache[K, V]) Takes(size int) bool { return c != nil && size <= c.max/2 }

// Put sets the value of a key, which takes size bytes. If the cache does not take it, the key has no
// value then.
func (c *Cache[K, V]) Put(key K, value V, size int) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.by[key]; e != nil {
		c.remove(e)
	}
	if !c.Takes(size) {
		return
	}
	c.by[key] = c.order.PushFront(&entry[K, V]{key, value, size})
	for c.size += size; c.size > c.max; {
		c.remove(c.order.Back())
	}
}

// Drop removes a key.
func (c *Cache[K, V]) Drop(key K) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.by[key]; e != nil {
		c.remove(e)
	}
}

func (c *Cache[K, V]) remove(e *list.Element) {
	entry := c.order.Remove(e).(*entry[K, V])
	delete(c.by, entry.key)
	c.size -= entry.size
}
