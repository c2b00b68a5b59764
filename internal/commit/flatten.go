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

// This file flattens a fork that would have too many ancestors. The history that its parent
// inherits is copied into an incarnation of its own, which takes the place of all of the parent's
// ancestors:
//
//	parent    A1 ─ A2 ─ … ─ A256 ─ parent
//	fork      copy ─ parent ─ fork
//
// The copy is stored like a deleted session that forks hold. It has commits with nodes, an index,
// attachment entries, tombstones, and a lifecycle record in the state Deleted. So readers, collections
// and vacuums need no code for it. The ids of nodes don't depend on the session that has them, so the
// copied nodes keep their ids.
//
// The copy is written in many batches, each of which guards the lifecycle record of the copy and sets
// it. Until the batch that creates the fork, that record says that nothing is expected to be there and
// that no fork holds it. So a vacuum removes a copy that was cut off. If it does so while the copy is
// made, the next batch fails, and the copy begins anew.
//
// The copy relies on blobs that it does not guard. It refers only to blobs of nodes that the parent
// shows, and these are there as long as the parent lives and tombstones nothing more. The parent's
// lifecycle record says both, and the batch that creates the fork guards that record. The batch also
// sets the dirty record of the copy, so that the collector finds the copy's references.

// A copied is a copy of what a session inherits.
type copied struct {
	*Lifecycle
	of     []head.Ancestor  // what is copied, the oldest ancestor first
	parent head.Incarnation // the session that inherits it
	stones uint64           // how many tombstones the parent had when the copy was begun

	hidden *history.Tombstones // the nodes that the parent does not show
	inc    head.Incarnation
	life   head.Life
	record []byte // of life, as it stands in the store; nil before the first batch

	end    head.State // after the last turn that was copied
	layer  int        // how many of the ancestors are copied
	source head.State // where that ancestor stood after the last turn that was copied
	before head.Base  // what the first of turns builds on
	turns  []history.Turn
	size   int // a bound for their size

	attachments int // of their nodes
}

// These bound the turns of a segment of a copy, so that the segment fits a batch.
const (
	segmentBytes = 1 << 20 // even if they don't compress
	batchEntries = 2000
)

// flatten makes a copy of what the parent inherits the only ancestor of the fork beside the parent.
func (f *forker) flatten(ctx context.Context, l *history.Lifecycles, fork *history.Fork) error {
	last := len(fork.Ancestors) - 1
	of, own := fork.Ancestors[:last], fork.Ancestors[last]
	if slices.ContainsFunc(of, func(a head.Ancestor) bool { return a.Incarnation == fork.Of }) {
		_, key, value, err := l.Of(fork.Of)
		if err != nil {
			return err
		}
		f.batch.Guard(key, value) // So the revision whose checkpoint the fork takes over is still retained.
	}
	a, err := f.shareCopy(ctx, of)
	if err == nil && a == nil {
		a, err = f.makeCopy(ctx, l, of)
	}
	if err != nil {
		return err
	}
	key := f.Space.Fork(a.Incarnation, f.about.Incarnation)
	f.batch.Set(key, head.EncodeFork(key, f.Space.Session(f.about.ID)))
	fork.Ancestors = []head.Ancestor{*a, own}
	return nil
}

// makeCopy copies the history of some ancestors, unless an earlier attempt has done so, and makes the
// batch hold the copy.
func (f *forker) makeCopy(ctx context.Context, l *history.Lifecycles, of []head.Ancestor) (*head.Ancestor, error) {
	c := f.copied
	stands, err := c.stands(ctx, f.parent.Inc, l.Own.Stones, of)
	if err != nil {
		return nil, err
	}
	if !stands {
		*c = copied{Lifecycle: f.Lifecycle, of: slices.Clone(of), parent: f.parent.Inc, stones: l.Own.Stones}
		if c.hidden, err = f.parent.AllTombstones(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.copy(ctx); err != nil {
		return nil, err
	}
	next := c.life.Next()
	next.Forks, next.Floor = 1, c.end.Revision+1
	key, dirty := f.Space.Life(c.inc), f.Space.Dirty(c.inc)
	f.batch.Guard(key, c.record)
	f.batch.Set(key, next.Encode(key))
	f.batch.Set(dirty, head.EncodeDirty(dirty))
	return &head.Ancestor{Incarnation: c.inc, Revision: c.end.Revision, Commit: c.end.Commit, Node: of[len(of)-1].Node, Epoch: next.Epoch}, nil
}

// stands reports whether c is a copy that the fork can use, which may be unfinished.
func (c *copied) stands(ctx context.Context, parent head.Incarnation, stones uint64, of []head.Ancestor) (bool, error) {
	if c.record == nil || c.parent != parent || c.stones != stones || !slices.Equal(c.of, of) {
		return false, nil
	}
	values, err := c.Engine.Get(ctx, c.Space.Life(c.inc))
	return err == nil && bytes.Equal(values[0], c.record), err
}

// copy makes the copy, or finishes one that an earlier attempt has begun.
func (c *copied) copy(ctx context.Context) error {
	if c.record == nil {
		if err := c.begin(ctx); err != nil {
			return err
		}
	}
	for ; c.layer < len(c.of); c.layer++ {
		if err := c.copyLayer(ctx, &c.of[c.layer]); err != nil {
			return err
		}
		c.source = head.State{}
	}
	return c.flush(ctx)
}

// begin writes the lifecycle record of the copy, and its tombstones.
func (c *copied) begin(ctx context.Context) (err error) {
	stones, err := c.tombstones(ctx)
	if err != nil {
		return err
	}
	var b engine.Batch
	if c.inc, _, err = c.newIncarnation(ctx, &b, c.Space.Predecessor(keys.Hash{})); err != nil {
		return err
	}
	c.end = head.Begin(c.inc, nil)
	c.before = c.end.Base
	c.life = head.Life{State: head.Deleted, Floor: 1}
	dirty := c.Space.Dirty(c.inc)
	b.Set(dirty, head.EncodeDirty(dirty))
	if err := c.apply(ctx, &b, c.life); err != nil {
		return err
	}
	return c.addTombstones(ctx, stones)
}

// addTombstones writes the ancestors' tombstones as those of the copy, with its epochs.
func (c *copied) addTombstones(ctx context.Context, stones map[[8]byte]head.Tombstone) error {
	for some := range slices.Chunk(slices.Collect(maps.Keys(stones)), batchEntries) {
		next := c.life.Next()
		next.Stones += uint64(len(some))
		b := engine.Batch{}
		for _, id := range some {
			var node [32]byte
			copy(node[:], id[:])
			key := c.Space.Tombstone(c.inc, node)
			stone := stones[id]
			stone.Epoch = next.Epoch
			b.Set(key, stone.Encode(key))
		}
		if err := c.advance(ctx, &b, next); err != nil {
			return err
		}
	}
	return nil
}

// tombstones returns those tombstones of the ancestors that hide nodes from the parent.
func (c *copied) tombstones(ctx context.Context) (map[[8]byte]head.Tombstone, error) {
	stones := map[[8]byte]head.Tombstone{}
	for _, a := range c.of {
		for p, err := range c.Engine.Scan(ctx, c.Space.Of(keys.Tombstone, a.Incarnation)) {
			if err != nil {
				return nil, err
			}
			_, fields, _ := c.Space.Fields(p.Key)
			t, err := head.DecodeTombstone(p.Key, p.Value)
			if err != nil {
				return nil, codec.Corrupt(err, "tombstone at key %x", p.Key)
			}
			if id := [8]byte(fields[16:]); t.Epoch <= a.Epoch && !stones[id].Pruned {
				stones[id] = t
			}
		}
	}
	return stones, nil
}

// copyLayer copies the turns of an ancestor that the parent shares, after those that were copied.
func (c *copied) copyLayer(ctx context.Context, a *head.Ancestor) error {
	h, err := c.Uncached().Open(ctx, a.Incarnation)
	if err != nil || a.Revision == 0 {
		return err
	}
	if c.source.Commit.IsZero() {
		c.source = head.Begin(h.Inc, h.Origin)
	}
	of := history.Revisions{Inc: h.Inc, Name: h.Name, After: c.source.Revision, Last: a.Revision, Previous: c.source.Commit}
	return h.Reader.Turns(ctx, of, func(t *history.Turn) error {
		source, err := c.source.Then(&t.Commit, t.ID)
		if err != nil {
			return codec.Corrupt(err, "commit %d of %s", t.Revision, h.Name)
		}
		cut := 0
		if t.Revision == a.Revision {
			cut = a.Nodes
		}
		if err := c.add(ctx, t, source.Parts, cut); err != nil {
			return err
		}
		c.source = source
		return nil
	})
}

// add adds a turn to the copy. If cut is not 0, the parent shares so many of its nodes, and neither its
// leaf nor its checkpoint. The copy has no usage and no turn id, which are the ancestor's own.
//
// No checkpoint of a deleted session can be read. The copy lists the parts all the same: so a fork at
// a node whose checkpoint was not empty is refused, and does not begin with an empty one.
func (c *copied) add(ctx context.Context, t *history.Turn, parts []head.Part, cut int) error {
	out := history.Turn{Pack: t.Pack}
	out.Leaf, out.Depth, out.Time = t.Leaf, t.Depth, t.Time
	if cut > 0 {
		out.Pack.Cut(cut)
		out.Leaf, out.Depth, parts = [32]byte{}, 0, c.end.Parts
	}
	for i := range out.Pack.Nodes {
		if c.hidden.Has(out.Pack.Nodes[i].ID) {
			out.Pack.Erase(i)
		}
	}
	if err := c.makeRoom(ctx, &out, parts); err != nil {
		return err
	}
	c.link(&out, parts)
	end, err := c.end.Then(&out.Commit, out.ID)
	if err != nil {
		return err
	}
	c.end, c.turns = end, append(c.turns, out)
	return nil
}

// makeRoom writes the turns that were gathered if the segment has no room for another one.
func (c *copied) makeRoom(ctx context.Context, t *history.Turn, parts []head.Part) error {
	size, n := t.Pack.Size()+400+180*len(parts), 0
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

// link makes the commit of a turn follow the last one of the copy.
func (c *copied) link(out *history.Turn, parts []head.Part) {
	out.Revision, out.Previous = c.end.Revision+1, c.end.Commit
	out.Pack.Revision = uint64(out.Revision)
	out.PartsAt = c.end.PartsAt
	if !slices.EqualFunc(parts, c.end.Parts, func(p, q head.Part) bool { return p.Name == q.Name && p.Blob == q.Blob }) {
		out.PartsAt, out.Parts = out.Revision, slices.Clone(parts)
		for i := range out.Parts {
			out.Parts[i].Set, out.Parts[i].Whole = out.Revision, out.Revision
		}
	}
	out.Complete(&out.Pack, c.end.Last)
	out.ID = out.Commit.ID()
}

// flush writes the turns that were gathered as a segment.
func (c *copied) flush(ctx context.Context) error {
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
	next.Sealed = c.end.Revision
	if err := c.advance(ctx, &b, next); err != nil {
		return err
	}
	c.before, c.turns, c.size, c.attachments = c.end.Base, nil, 0, 0
	return nil
}

// addAttachments makes b add the entries of attachments that no earlier node of the copy has. If a turn
// has more than a batch has room for, it writes some ahead.
func (c *copied) addAttachments(ctx context.Context, b *engine.Batch) error {
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

// advance applies b, which guards the lifecycle record of the copy and sets it to next.
func (c *copied) advance(ctx context.Context, b *engine.Batch, next head.Life) error {
	b.Guard(c.Space.Life(c.inc), c.record)
	return c.apply(ctx, b, next)
}

// apply applies b, which sets the lifecycle record of the copy to next. The error is
// engine.ErrConflict if somebody has begun to remove the copy.
func (c *copied) apply(ctx context.Context, b *engine.Batch, next head.Life) error {
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
