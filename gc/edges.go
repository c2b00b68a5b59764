package gc

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file has the edges of the index, from a blob to what refers to it, and their numbers.
// All edges of sessions change through cycle.link, which keeps two rules: a blob's number of
// edges is right in every batch, and a list that has an edge has the edges of its items. So a
// blob without edges is referred to by nothing that the index has seen, and it becomes a
// candidate in the batch that drops its last edge.
//
//	edge of a session   blob, 's', session  ──▶  use: first node, last revision as a part
//	edge of a list      item, 'b', list     ──▶  1
//	number of edges     blob                ──▶  n; no record stands for 0
//
// The number checks the scans of edges: if a scan finds fewer edges than the number says, it has
// missed one, and then nothing is deleted.

// Kinds of edges, by what refers to the blob.
const (
	bySession byte = 's' // a session; the edge's value is a use
	byList    byte = 'b' // a list that the blob is an item of
)

// open is the end of a range of revisions that has not ended yet.
const open = ^uint64(0)

// A use says where a session refers to a blob. One edge stands for all references of the
// session. It has only the first revision with a node and the last one with a part, because
// these decide when the edge goes: a deleted session loses its latest nodes first, and the floor
// of one that lives passes the earliest parts first.
type use struct {
	node  uint64 // The first revision with a node that refers to the blob. 0 stands for none.
	parts bool   // The blob is or was a checkpoint part.
	last  uint64 // The last revision of which it was a part. Open: it is one still.
}

// at notes that a node of a revision refers to the blob.
func (u *use) at(revision uint64) {
	if u.node == 0 || revision < u.node {
		u.node = revision
	}
}

// opened notes that the blob became a checkpoint part.
func (u *use) opened() { u.parts, u.last = true, open }

// closed notes that the blob was a checkpoint part up to a revision.
func (u *use) closed(revision uint64) { u.parts, u.last = true, revision }

// then returns what u and the commits after it, which make the use later, say together.
func (u use) then(later use) use {
	if later.node != 0 {
		u.at(later.node)
	}
	if later.parts {
		u.parts, u.last = true, later.last
	}
	return u
}

// until returns what is left of the use by a deleted session whose nodes up to a revision are
// held by forks. No checkpoint of a deleted session can be read.
func (u use) until(held head.Revision) use {
	u.parts, u.last = false, 0
	if u.node > uint64(held) {
		u.node = 0
	}
	return u
}

// encode returns the record of the edge for key.
func (u use) encode(key []byte) []byte {
	b := binary.AppendUvarint(nil, u.node)
	if u.parts {
		b = binary.AppendUvarint(b, u.last+1) // 0 stands for open.
	}
	return codec.Encode(key, keys.Edge, b)
}

// decodeUse decodes the edge of a session.
func decodeUse(key, value []byte) (u use, err error) {
	b, err := codec.Decode(key, value, keys.Edge)
	if err != nil {
		return u, codec.Corrupt(err, "edge at key %x", key)
	}
	node, n := codec.Uvarint(b)
	if n <= 0 {
		return u, malformedEdge(key)
	}
	u.node = node
	if b = b[n:]; len(b) == 0 {
		return u, nil
	}
	last, n := codec.Uvarint(b)
	if n != len(b) {
		return u, malformedEdge(key)
	}
	u.parts, u.last = true, last-1
	return u, nil
}

func malformedEdge(key []byte) error {
	return codec.Corrupt(fmt.Errorf("%w: edge", damage.ErrMalformed), "edge at key %x", key)
}

// encodeListEdge returns the edge of a list for key.
func encodeListEdge(key []byte) []byte { return codec.Encode(key, keys.Edge, []byte{1}) }

// decodeCount decodes the number of a blob's edges. A blob without edges has no record.
func decodeCount(key, value []byte) (uint64, error) {
	if value == nil {
		return 0, nil
	}
	body, err := codec.Decode(key, value, keys.Count)
	if err != nil {
		return 0, codec.Corrupt(err, "number of edges at key %x", key)
	}
	n, k := codec.Uvarint(body)
	if k != len(body) || n == 0 {
		return 0, codec.Corrupt(fmt.Errorf("%w: count", damage.ErrMalformed), "number of edges at key %x", key)
	}
	return n, nil
}

// encodeCount returns the record of n edges for key.
func encodeCount(key []byte, n uint64) []byte {
	return codec.Encode(key, keys.Count, binary.AppendUvarint(nil, n))
}

// Users returns the sessions that refer to a blob according to the index, directly or
// by a list that the blob is an item of. A session that refers to it in both ways is there
// twice.
func (c *Collector) Users(ctx context.Context, h keys.Hash) ([]keys.Incarnation, error) {
	var out []keys.Incarnation
	for p, err := range c.engine.Scan(ctx, c.space.Of(keys.Edge, h)) {
		if err != nil {
			return nil, err
		}
		_, fields, ok := c.space.Fields(p.Key)
		if !ok {
			return nil, codec.Corrupt(damage.ErrMalformed, "edge at key %x", p.Key)
		}
		if fields[16] == bySession {
			out = append(out, keys.Incarnation(fields[17:]))
			continue
		}
		more, err := c.Users(ctx, keys.Hash(fields[17:])) // This ends: a list is larger than its items.
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// A change is a change of an edge. edit gets the key and the value of the edge and returns the
// value that it is to have. Nil stands for no edge.
type change struct {
	blob   keys.Hash
	kind   byte
	holder [16]byte // the session or the list
	edit   func(key, old []byte) (value []byte, err error)
}

// unique returns changes without those of a blob that has one already. The changes have to
// be of one holder, and all alike for a blob.
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

// A linker gathers changes of the edges of a session, and applies them in batches.
type linker struct {
	cy      *cycle
	guards  []engine.Pair // of each batch
	changes []change
}

// add adds a change.
func (l *linker) add(c change) { l.changes = append(l.changes, c) }

// flushMany applies the changes if they are many.
func (l *linker) flushMany(ctx context.Context) error {
	if len(l.changes) < batchOps {
		return nil
	}
	return l.flush(ctx)
}

// flush applies the changes.
func (l *linker) flush(ctx context.Context) error {
	err := l.cy.link(ctx, unique(l.changes), l.guards)
	l.changes = nil
	return err
}

// link applies changes of edges and keeps the numbers of edges with them. The batches of changes
// also have guards; those that give items their edges do not.
//
// Before a list gets its first edge, its items get their edges to the list, and so on down to
// the chunks. A commit that refers to a list therefore guards the mark of the list only: as long
// as the list has an edge or is a candidate, its items have edges. A blob that loses its last
// edge becomes a candidate.
func (cy *cycle) link(ctx context.Context, changes []change, guards []engine.Pair) error {
	ready := map[keys.Hash]bool{}
	for len(changes) > 0 {
		n := min(batchOps/3, len(changes))
		b, first, err := cy.edit(ctx, changes[:n], ready)
		if err != nil {
			return err
		}
		if len(first) > 0 {
			if err := cy.linkItems(ctx, first, ready); err != nil {
				return err
			}
			continue // That may have changed what edit read.
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

// edit makes a batch of changes. A blob gets its first edge only if it is a key of ready:
// linkItems has then given the items of a list their edges. The map's value says whether vacuum
// can compress the blob further. edit returns the blobs that are not in ready as first; then
// the batch must not be applied.
func (cy *cycle) edit(ctx context.Context, changes []change, ready map[keys.Hash]bool) (b *batch, first []keys.Hash, err error) {
	recs, err := rows(ctx, cy, changes,
		func(c change) []byte { return cy.space.Edge(c.blob, c.kind, c.holder) },
		func(c change) []byte { return cy.space.Count(c.blob) })
	if err != nil {
		return nil, nil, err
	}
	b, t := &batch{}, newTally()
	for i, c := range changes {
		edge := recs[i][0]
		value, err := c.edit(edge.Key, edge.Value)
		if err != nil {
			return nil, nil, err
		}
		if err := t.read(c.blob, recs[i][1]); err != nil {
			return nil, nil, err
		}
		// An edge that is not counted: to go on would make the number wrong for good.
		if edge.Value != nil && t.stood[c.blob] == 0 {
			return nil, nil, codec.Corrupt(damage.ErrMissing, "number of edges of the blob at %x", c.blob)
		}
		t.change(b, c.blob, edge, value)
		if _, ok := ready[c.blob]; !ok && edge.Value == nil && value != nil && t.stood[c.blob] == 0 {
			first = append(first, c.blob)
		}
	}
	cy.setCounts(b, t, ready)
	return b, first, nil
}

// A tally counts the edges of blobs while a batch changes them.
type tally struct {
	stood map[keys.Hash]uint64 // before the batch
	now   map[keys.Hash]uint64 // after the batch
}

func newTally() *tally {
	return &tally{stood: map[keys.Hash]uint64{}, now: map[keys.Hash]uint64{}}
}

// read begins to count the edges of a blob, whose number of edges stands in a record.
func (t *tally) read(h keys.Hash, count engine.Pair) error {
	if _, ok := t.stood[h]; ok {
		return nil
	}
	n, err := decodeCount(count.Key, count.Value)
	t.stood[h], t.now[h] = n, n
	return err
}

// change makes b set an edge of a blob to value, or delete it if value is nil.
func (t *tally) change(b *batch, h keys.Hash, edge engine.Pair, value []byte) {
	switch {
	case value == nil && edge.Value == nil, string(value) == string(edge.Value):
	case value == nil:
		b.Delete(edge.Key)
		t.now[h]--
	case edge.Value == nil:
		t.now[h]++
		b.Set(edge.Key, value)
	default:
		b.Set(edge.Key, value)
	}
}

// setCounts makes b record the numbers of edges that have changed. loose says which blobs
// vacuum can compress further.
func (cy *cycle) setCounts(b *batch, t *tally, loose map[keys.Hash]bool) {
	for h, n := range t.now {
		if n != t.stood[h] {
			cy.setCount(b, h, t.stood[h], n, loose[h])
		}
	}
}

// setCount makes b record that a blob has count edges now; it had old edges before. A blob
// without edges becomes a candidate, and vacuum no longer compresses it. A loose blob that gets
// its first edge is listed for vacuum.
func (cy *cycle) setCount(b *batch, h keys.Hash, old, count uint64, loose bool) {
	key, looseKey := cy.space.Count(h), cy.space.Loose(h)
	if count == 0 {
		b.Delete(key)
		b.Delete(looseKey)
		b.blobs--
		cy.addCandidate(b, h)
		return
	}
	b.Set(key, encodeCount(key, count))
	if old > 0 {
		return
	}
	b.blobs++
	if loose {
		b.Set(looseKey, codec.Encode(looseKey, keys.Loose, []byte{1}))
	}
}

// addCandidate makes b make a blob a candidate. A blob that is a candidate without need is no
// harm: a sweep takes it off the list if it has edges.
func (cy *cycle) addCandidate(b *batch, h keys.Hash) {
	key := cy.space.Candidate(h)
	b.Set(key, codec.Encode(key, keys.Candidate, []byte{1}))
	if cy.only != nil && !cy.rechecking {
		cy.only[h] = true
	}
}

// linkItems looks at some blobs. If one is a list, its items get their edges to it. If ready is
// not nil, it gets an entry for each blob, which says whether vacuum can compress the blob
// further.
func (cy *cycle) linkItems(ctx context.Context, hashes []keys.Hash, ready map[keys.Hash]bool) error {
	marks, err := rows(ctx, cy, hashes, cy.space.Mark)
	if err != nil {
		return err
	}
	for i, h := range hashes {
		m, err := blob.DecodeMark(marks[i][0].Key, marks[i][0].Value)
		if err != nil {
			return codec.Corrupt(err, "mark of the blob at %x, which something refers to", h)
		}
		if ready != nil {
			ready[h] = m.Loose()
		}
		if !m.List {
			continue
		}
		if err := cy.linkList(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// linkList gives the items of a list their edges to it. A list may have an item more than
// once. An item may be a list in turn: link gives its items their edges first. The items are
// smaller than the list, so this ends.
func (cy *cycle) linkList(ctx context.Context, list keys.Hash) error {
	items, err := cy.blobs.ItemsOf(ctx, list)
	if err != nil {
		return err
	}
	changes := make([]change, len(items))
	for i, item := range items {
		changes[i] = change{blob: item, kind: byList, holder: list, edit: func(key, _ []byte) ([]byte, error) {
			return encodeListEdge(key), nil
		}}
	}
	return cy.link(ctx, unique(changes), nil)
}
