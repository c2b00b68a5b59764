package commit

import (
	"bytes"
	"container/list"
	"sync"

	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/heads"
)

// Bases keeps the last version of checkpoint parts, so that the next version can be
// stored as a delta: the commit path never reads one. Least recently used parts
// go first.
type Bases struct {
	mu    sync.Mutex // guards all
	max   int
	size  int
	order *list.List // of *baseEntry, latest first
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

// NewBases returns an empty cache of at most so many bytes of content.
func NewBases(maximum int) *Bases {
	return &Bases{max: maximum, order: list.New(), by: map[partKey]*list.Element{}}
}

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

// Put keeps a copy of b's content.
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

// Drop drops what is kept of a part.
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
