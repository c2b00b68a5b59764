package commit

import (
	"bytes"
	"container/list"
	"sync"

	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/heads"
)

// Bases is a cache of the current versions of checkpoint parts. The next version of a part can
// only be stored as a delta if the cache has the current one: the commit path never reads it
// from the engine. The cache drops the least recently used parts first.
type Bases struct {
	mu    sync.Mutex // guards the fields below
	max   int
	size  int
	order *list.List // of *baseEntry, the most recently used one first
	by    map[partKey]*list.Element
}

type partKey struct {
	inc  heads.Incarnation
	name string
}

type baseEntry struct {
	key  partKey
	base blobs.Base
}

// NewBases returns an empty cache that holds at most a number of bytes.
func NewBases(maximum int) *Bases {
	return &Bases{max: maximum, order: list.New(), by: map[partKey]*list.Element{}}
}

// Get returns the version of a part that the cache has, or nil. The caller must not change its
// content.
func (c *Bases) Get(inc heads.Incarnation, name string) *blobs.Base {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.by[partKey{inc, name}]
	if e == nil {
		return nil
	}
	c.order.MoveToFront(e)
	base := e.Value.(*baseEntry).base
	return &base
}

// Put sets the version of a part, with a copy of its content. The cache does not take a version
// that is larger than half of its size.
func (c *Bases) Put(inc heads.Incarnation, name string, b blobs.Base) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := partKey{inc, name}
	if e := c.by[key]; e != nil {
		old := e.Value.(*baseEntry)
		if old.base.ID == b.ID && old.base.Revision == b.Revision {
			old.base.Deltas = min(old.base.Deltas, b.Deltas)
			c.order.MoveToFront(e)
			return
		}
		c.remove(e)
	}
	if len(b.Content) > c.max/2 {
		return
	}
	b.Content = bytes.Clone(b.Content)
	c.by[key] = c.order.PushFront(&baseEntry{key, b})
	for c.size += len(b.Content); c.size > c.max; {
		c.remove(c.order.Back())
	}
}

// Drop removes a part from the cache.
func (c *Bases) Drop(inc heads.Incarnation, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.by[partKey{inc, name}]; e != nil {
		c.remove(e)
	}
}

func (c *Bases) remove(e *list.Element) {
	entry := c.order.Remove(e).(*baseEntry)
	delete(c.by, entry.key)
	c.size -= len(entry.base.Content)
}
