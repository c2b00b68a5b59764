package commit

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A hidden is an incarnation that is written in many batches before anybody sees it: a copy of what a fork inherits
// (flatten.go), or a session that comes in a bundle (arrive.go). It is stored like a deleted session of which nothing is
// expected to be there, so readers, collections and vacuums need no code for it. It has commits with nodes, an index,
// attachment entries and tombstones.
//
// Each batch guards the lifecycle record of the incarnation and sets it. The last batch makes that record say what the
// incarnation is. Until then a vacuum removes it, so one that was cut off does not stay. If a vacuum does so while the
// incarnation is written, the next batch fails, and it is written anew.
type hidden struct {
	*Lifecycle
	inc    head.Incarnation
	life   head.Life
	record []byte // of life, as it stands in the store; nil before the first batch

	end    head.State // after the last turn that was added
	before head.Base  // what the first of turns builds on
	turns  []history.Turn
	size   int    // a bound for their size
	bytes  uint64 // of the nodes of all turns that were added, before compression

	attachments int // of their nodes
}

// These bound the turns of a segment of a hidden incarnation, so that the segment fits a batch.
const (
	segmentBytes = 1 << 20 // even if they don't compress
	batchEntries = 2000
)

// begin writes the lifecycle record, of an epoch after the given one. The incarnation has no origin, unless o is one.
func (c *hidden) begin(ctx context.Context, o *head.Origin, epoch uint64) (err error) {
	var b engine.Batch
	if c.inc, _, err = c.newIncarnation(ctx, &b, c.Space.Predecessor(keys.Hash{})); err != nil {
		return err
	}
	c.end = head.Begin(c.inc, o)
	c.before = c.end.Base
	c.life = head.Life{State: head.Deleted, Floor: 1, Epoch: epoch}
	dirty := c.Space.Dirty(c.inc)
	b.Set(dirty, head.EncodeDirty(dirty))
	return c.apply(ctx, &b, c.life)
}

// hide writes tombstones, of the nodes whose ids begin so. Their epochs become those of their batches.
func (c *hidden) hide(ctx context.Context, stones map[[8]byte]head.Tombstone) error {
	for some := range slices.Chunk(slices.Collect(maps.Keys(stones)), batchEntries) {
		next, b := c.life.Next(), engine.Batch{}
		for _, id := range some {
			stone := stones[id]
			stone.Epoch = next.Epoch
			c.setStone(&b, id, stone, &next)
		}
		if err := c.advance(ctx, &b, next); err != nil {
			return err
		}
	}
	return nil
}

// setStone makes b set a tombstone, which next counts.
func (c *hidden) setStone(b *engine.Batch, id [8]byte, stone head.Tombstone, next *head.Life) {
	var node [32]byte
	copy(node[:], id[:])
	key := c.Space.Tombstone(c.inc, node)
	b.Set(key, stone.Encode(key))
	next.Stones++
}

// add adds a turn, whose commit follows the one that was added last.
func (c *hidden) add(ctx context.Context, t *history.Turn) error {
	if err := c.makeRoom(ctx, t); err != nil {
		return err
	}
	end, err := c.end.Then(&t.Commit, t.ID)
	if err != nil {
		return err
	}
	c.end, c.turns, c.bytes = end, append(c.turns, *t), c.bytes+t.Pack.Uncompressed()
	return nil
}

// makeRoom writes the turns that were gathered if the segment has no room for another one.
func (c *hidden) makeRoom(ctx context.Context, t *history.Turn) error {
	size, n := history.SizeOf(t), 0
	for i := range t.Pack.Nodes {
		n += len(t.Pack.Nodes[i].Attachments)
	}
	if c.size+size > segmentBytes || c.attachments+n > batchEntries {
		if err := c.flush(ctx); err != nil {
			return err
		}
	}
	c.size, c.attachments = c.size+size, c.attachments+n
	return nil
}

// flush writes the turns that were gathered as a segment.
func (c *hidden) flush(ctx context.Context) error {
	if len(c.turns) == 0 {
		return nil
	}
	var b engine.Batch
	if err := c.addAttachments(ctx, &b); err != nil {
		return err
	}
	next := c.life.Next()
	segment := &history.Segment{First: c.turns[0].Revision, Last: c.end.Revision, Level: codec.Medium, Before: c.before, End: c.end, Turns: c.turns}
	ks, vs, err := history.EncodeSealed(c.Space, c.inc, segment)
	if err != nil {
		return err
	}
	for i := range ks {
		b.Set(ks[i], vs[i])
	}
	if err := c.Append(ctx, &b, c.inc, &next, c.turns); err != nil {
		return err
	}
	next.Sealed, next.SealedBytes = c.end.Revision, c.bytes
	if err := c.advance(ctx, &b, next); err != nil {
		return err
	}
	c.before, c.turns, c.size, c.attachments = c.end.Base, nil, 0, 0
	return nil
}

// addAttachments makes b add the entries of attachments that no earlier node of the incarnation has. If a turn
// has more than a batch has room for, it writes some ahead.
func (c *hidden) addAttachments(ctx context.Context, b *engine.Batch) error {
	var ks, vs [][]byte
	seen := map[string]bool{}
	for i := range c.turns {
		for j, n := range c.turns[i].Pack.Nodes {
			for _, a := range n.Attachments {
				key := c.Space.Attachment(c.inc, c.Space.BlobHash(a.ID))
				if !seen[string(key)] {
					seen[string(key)] = true
					place := graph.Position{Revision: uint64(c.turns[i].Revision), Index: j}
					ks, vs = append(ks, key), append(vs, place.EncodeAttachment(key))
				}
			}
		}
	}
	if len(ks) == 0 {
		return nil
	}
	there, err := c.Engine.Get(ctx, ks...)
	if err != nil {
		return err
	}
	for i := range ks {
		if there[i] != nil {
			continue
		}
		if b.Set(ks[i], vs[i]); b.Ops() == batchEntries {
			if err := c.advance(ctx, b, c.life.Next()); err != nil {
				return err
			}
			*b = engine.Batch{}
		}
	}
	return nil
}

// stands reports whether the incarnation is as it was written last.
func (c *hidden) stands(ctx context.Context) (bool, error) {
	if c.record == nil {
		return false, nil
	}
	values, err := c.Engine.Get(ctx, c.Space.Life(c.inc))
	return err == nil && bytes.Equal(values[0], c.record), err
}

// advance applies b, which guards the lifecycle record and sets it to next.
func (c *hidden) advance(ctx context.Context, b *engine.Batch, next head.Life) error {
	b.Guard(c.Space.Life(c.inc), c.record)
	return c.apply(ctx, b, next)
}

// apply applies b, which sets the lifecycle record to next. The error is engine.ErrConflict if somebody has begun to
// remove the incarnation.
func (c *hidden) apply(ctx context.Context, b *engine.Batch, next head.Life) error {
	key := c.Space.Life(c.inc)
	record := next.Encode(key)
	b.Set(key, record)
	ch := history.Change{Engine: c.Engine}
	err := ch.Apply(ctx, b)
	if ch.Unknown && errors.Is(err, engine.ErrConflict) {
		values, gerr := c.Engine.Get(ctx, key)
		if gerr != nil {
			return gerr
		}
		if bytes.Equal(values[0], record) {
			err = nil // The attempt whose outcome was unknown has taken effect.
		}
	}
	if err == nil {
		c.life, c.record = next, record
	}
	return err
}
