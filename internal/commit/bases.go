package commit

import (
	"bytes"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/cache"
)

// Bases is a cache of the current versions of checkpoint parts. The next version of a part can
// only be stored as a delta if the cache has the current one: the commit path never reads it
// from the engine.
type Bases struct {
	by *cache.Cache[partKey, blob.Base]
}

type partKey struct {
	inc  head.Incarnation
	name string
}

// NewBases returns an empty cache within a budget.
func NewBases(b *cache.Budget) *Bases { return &Bases{cache.New[partKey, blob.Base](b)} }

// Get returns the version of a part that the cache has, or nil. The caller must not change its
// content.
func (c *Bases) Get(inc head.Incarnation, name string) *blob.Base {
	base, ok := c.by.Get(partKey{inc, name})
	if !ok {
		return nil
	}
	return &base
}

// Put sets the version of a part, with a copy of its content. The cache does not take a version
// that is larger than half of its budget.
func (c *Bases) Put(inc head.Incarnation, name string, b blob.Base) {
	key := partKey{inc, name}
	if old, ok := c.by.Get(key); ok && old.ID == b.ID && old.Revision == b.Revision {
		b.Deltas, b.Content = min(b.Deltas, old.Deltas), old.Content
	} else if c.by.Takes(len(b.Content)) {
		b.Content = bytes.Clone(b.Content)
	}
	c.by.Put(key, b, len(b.Content))
}

// Clear removes all parts.
func (c *Bases) Clear() { c.by.Clear() }

// Drop removes a part from the cache.
func (c *Bases) Drop(inc head.Incarnation, name string) { c.by.Drop(partKey{inc, name}) }
