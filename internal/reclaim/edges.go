package reclaim

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// Kinds of edges, by what holds the blob.
const (
	bySession byte = 's' // and how: see use
	byList    byte = 'b' // a list that consists of it and others
)

// A use says where a session refers to a blob.
type use struct {
	node  uint64 // the first revision with a node that does; 0: none
	parts bool   // it was a checkpoint part …
	last  uint64 // … of this revision last; open: it is one still
}

const open = ^uint64(0)

// at says that a node of a revision refers to the blob.
func (u *use) at(revision uint64) {
	if u.node == 0 || revision < u.node {
		u.node = revision
	}
}

// opened says that the blob became a checkpoint part, and closed that it was one
// until a revision.
func (u *use) opened() { u.parts, u.last = true, open }

func (u *use) closed(revision uint64) { u.parts, u.last = true, revision }

// then is u and what later commits say.
func (u use) then(later use) use {
	if later.node != 0 {
		u.at(later.node)
	}
	if later.parts {
		u.parts, u.last = true, later.last
	}
	return u
}

func (u use) seal(key []byte) []byte {
	b := binary.AppendUvarint(nil, u.node)
	if u.parts {
		b = binary.AppendUvarint(b, u.last+1) // 0: open
	}
	return codec.Seal(key, keys.Edge, b)
}

func openUse(key, value []byte) (u use, err error) {
	b, err := codec.Open(key, value, keys.Edge)
	if err != nil {
		return u, codec.Corrupt(err, "edge at key %x", key)
	}
	next := func() (n uint64) {
		v, k := codec.Uvarint(b)
		if k <= 0 {
			err = fmt.Errorf("%w: edge", record.ErrMalformed)
			b = nil
			return 0
		}
		b = b[k:]
		return v
	}
	u.node = next()
	if len(b) > 0 {
		u.parts, u.last = true, next()-1
	}
	if err == nil && len(b) > 0 {
		err = fmt.Errorf("%w: edge", record.ErrMalformed)
	}
	return u, codec.Corrupt(err, "edge at key %x", key)
}

// Users returns the sessions that refer to a blob according to the index, directly or
// by a list that the blob is an item of.
func (c *Collector) Users(ctx context.Context, h keys.Hash) ([]keys.Incarnation, error) {
	var out []keys.Incarnation
	for p, err := range c.engine.Scan(ctx, c.space.Of(keys.Edge, h)) {
		if err != nil {
			return nil, err
		}
		_, fields, ok := c.space.Fields(p.Key)
		if !ok {
			return nil, codec.Corrupt(record.ErrMalformed, "edge at key %x", p.Key)
		}
		if fields[16] == bySession {
			out = append(out, keys.Incarnation(fields[17:]))
			continue
		}
		more, err := c.Users(ctx, keys.Hash(fields[17:])) // a list is larger than its items
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// A change of an edge: from is what stands there, to what is to stand there; nil
// is no edge.
type change struct {
	blob   keys.Hash
	kind   byte
	holder [16]byte
	edit   func(key, old []byte) (value []byte, err error)
}

// batchOps bounds the writes of one batch of a run, so that commits wait for
// none of them long.
const batchOps = 600

// link applies changes of edges, and keeps the counts with them. Before a list gets
// its first edge, its items get their edges to the list: so the items of every list
// that has an edge have edges. A blob that loses its last edge is a candidate. All
// batches have guards.
func (cy *cycle) link(ctx context.Context, changes []change, guards []engine.Pair) error {
	represented := map[keys.Hash]bool{} // true for those that vacuum can compress further
	for len(changes) > 0 {
		n := min(batchOps/3, len(changes))
		b, fresh, err := cy.edit(ctx, changes[:n], represented)
		if err != nil {
			return err
		}
		if len(fresh) > 0 {
			if err := cy.represent(ctx, fresh, represented); err != nil {
				return err
			}
			continue // that may have changed what was read
		}
		if changes = changes[n:]; b.Ops() == 0 {
			continue
		}
		b.Guards = guards
		if err := cy.apply(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// edit makes a batch of changes. Blobs that get their first edge, and are not
// among the represented, are returned instead.
func (cy *cycle) edit(ctx context.Context, changes []change, represented map[keys.Hash]bool) (b *batch, fresh []keys.Hash, err error) {
	ks := make([][]byte, 0, 2*len(changes))
	for _, c := range changes {
		ks = append(ks, cy.space.Edge(c.blob, c.kind, c.holder), cy.space.Count(c.blob))
	}
	vs, err := cy.get(ctx, ks...)
	if err != nil {
		return nil, nil, err
	}
	b = &batch{}
	stood, counts := map[keys.Hash]uint64{}, map[keys.Hash]uint64{}
	for i, c := range changes {
		key, old := ks[2*i], vs[2*i]
		value, err := c.edit(key, old)
		if err != nil {
			return nil, nil, err
		}
		if _, seen := stood[c.blob]; !seen {
			if stood[c.blob], err = openCount(ks[2*i+1], vs[2*i+1]); err != nil {
				return nil, nil, err
			}
			counts[c.blob] = stood[c.blob]
		}
		if old != nil && stood[c.blob] == 0 {
			return nil, nil, codec.Corrupt(record.ErrMissing, "number of edges of the blob at %x", c.blob)
		}
		switch {
		case value == nil && old == nil || string(value) == string(old):
			continue
		case value == nil:
			b.Delete(key)
			counts[c.blob]--
			continue
		case old == nil:
			counts[c.blob]++
			if _, done := represented[c.blob]; stood[c.blob] == 0 && !done {
				fresh = append(fresh, c.blob)
			}
		}
		b.Set(key, value)
	}
	for h, n := range counts {
		if n != stood[h] {
			cy.setCount(b, h, stood[h], n, represented[h])
		}
	}
	return b, fresh, nil
}

// setCount makes b record how many edges a blob has. One that has no more is a
// candidate, and nothing for vacuum to compress; one that has its first and is loose is.
func (cy *cycle) setCount(b *batch, h keys.Hash, old, count uint64, loose bool) {
	key, looseKey := cy.space.Count(h), cy.space.Loose(h)
	if count > 0 {
		b.Set(key, sealCount(key, count))
		if old == 0 {
			b.blobs++
			if loose {
				b.Set(looseKey, codec.Seal(looseKey, keys.Loose, []byte{1}))
			}
		}
		return
	}
	b.Delete(key)
	b.Delete(looseKey)
	b.blobs--
	cy.list(b, h)
}

// list makes b list a candidate.
func (cy *cycle) list(b *batch, h keys.Hash) {
	key := cy.space.Candidate(h)
	b.Set(key, codec.Seal(key, keys.Candidate, []byte{1}))
	if cy.only != nil && !cy.looking {
		cy.only[h] = true
	}
}

// represent gives the items of those of blobs that are lists their edges. If loose is
// not nil, it gets an entry for each of blobs, which says whether vacuum can compress
// it further.
func (cy *cycle) represent(ctx context.Context, hashes []keys.Hash, loose map[keys.Hash]bool) error {
	ks := make([][]byte, len(hashes))
	for i, h := range hashes {
		ks[i] = cy.space.Mark(h)
	}
	vs, err := cy.get(ctx, ks...)
	if err != nil {
		return err
	}
	for i, h := range hashes {
		m, err := blobs.OpenMark(ks[i], vs[i])
		if err != nil {
			return codec.Corrupt(err, "mark of the blob at %x, which something refers to", h)
		}
		if loose != nil {
			loose[h] = m.Loose()
		}
		if !m.List {
			continue
		}
		items, err := cy.blobs.ItemsOf(ctx, h)
		if err != nil {
			return err
		}
		changes := make([]change, len(items))
		for j, item := range items {
			changes[j] = change{blob: item, kind: byList, holder: h, edit: func(key, _ []byte) ([]byte, error) {
				return codec.Seal(key, keys.Edge, []byte{1}), nil
			}}
		}
		if err := cy.link(ctx, unique(changes), nil); err != nil {
			return err
		}
	}
	return nil
}

// unique drops changes of an edge that has one already: a list may have an item
// more than once.
func unique(changes []change) []change {
	seen := map[keys.Hash]bool{}
	out := changes[:0]
	for _, c := range changes {
		if !seen[c.blob] {
			seen[c.blob] = true
			out = append(out, c)
		}
	}
	return out
}
