package commit

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
)

// build makes the batch for a commit on top of the heads.
func (c *call) build(ctx context.Context) error {
	c.batch = &engine.Batch{Sets: make([]engine.Pair, 0, 4*len(c.writers)), Guards: make([]engine.Pair, 0, 2*len(c.writers))}
	for i := range c.writers {
		if err := c.writers[i].addTurn(ctx, c.batch); err != nil {
			return c.in(i, err)
		}
	}
	if err := c.stage.read(ctx); err != nil {
		return err
	}
	var seen map[blob.ID]bool // the blobs that the batch stores or relies on
	for i := range c.writers {
		w := &c.writers[i]
		if err := w.readAttachments(ctx); err != nil {
			return c.in(i, err)
		}
		if err := w.addBlobs(c.batch, &seen); err != nil {
			return c.in(i, err)
		}
	}
	c.stage.Finish(c.batch)
	for i := range c.writers {
		c.writers[i].addHead(c.batch)
	}
	if err := c.addRecords(); err != nil {
		return err
	}
	if err := c.join(); err != nil {
		return err
	}
	return c.checkBatch()
}

// join adds what makes the sessions that do not exist. Where a commit writes the same key, what makes the session
// stands: a lifecycle record has the epoch that the commit would give it, and counts one fork more; a blob is the
// same. Of the head, what the commit writes stands. The error is a *history.InvalidError if a commit hides nodes of a
// session, or is kept by name, and another one of the call makes a fork of it.
func (c *call) join() error {
	var written map[string]bool
	var all engine.Batch
	add := func(born *engine.Batch, w *writer) {
		if born == nil {
			return
		}
		if written == nil {
			written = map[string]bool{}
		}
		for _, p := range born.Sets {
			if w != nil && bytes.Equal(p.Key, w.s.HeadKey) || written[string(p.Key)] {
				continue
			}
			written[string(p.Key)] = true
			if w != nil && w.bornLife != nil && bytes.Equal(p.Key, w.s.LifeKey) {
				p.Value = w.bornLife
			}
			all.Set(p.Key, p.Value)
		}
		for _, key := range born.Deletes {
			written[string(key)] = true
			all.Delete(key)
		}
		all.Guards = append(all.Guards, born.Guards...)
	}
	for i := range c.writers {
		add(c.writers[i].born, &c.writers[i])
	}
	for i := range c.keepers {
		add(c.keepers[i].born, nil)
	}
	if written == nil {
		return nil
	}
	for i := range c.writers {
		if w := &c.writers[i]; w.born == nil && w.altersMore() && written[string(w.s.LifeKey)] {
			return &InSession{w.s.ID, history.NewInvalid("commit", "it has Tombstone or Keep, and another commit of the call makes a fork of the session")}
		}
	}
	for _, p := range c.batch.Sets {
		if !written[string(p.Key)] {
			all.Set(p.Key, p.Value)
		}
	}
	for _, key := range c.batch.Deletes {
		if !written[string(key)] {
			all.Delete(key)
		}
	}
	all.Guards = append(all.Guards, c.batch.Guards...)
	*c.batch = all
	return nil
}

// in adds to an error which session it is about, if the commit is to several.
func (c *call) in(i int, err error) error {
	if len(c.writers) == 1 {
		return err
	}
	return &InSession{c.writers[i].s.ID, err}
}

// addTurn assembles the commit on top of the head, and adds it with its nodes.
func (w *writer) addTurn(ctx context.Context, b *engine.Batch) (err error) {
	inherited, err := w.inherited(ctx, &w.head.Base)
	if err != nil {
		return err
	}
	if w.built, err = assemble(w.in, w.payloads, w.parts, &w.head.State, inherited, w.salt, w.now); err != nil {
		return err
	}
	if n := len(w.built.parts); n > w.store.Limits.Parts {
		return &history.LimitError{Limit: "checkpoint parts", Where: "session", Have: int64(n), Max: int64(w.store.Limits.Parts)}
	}
	if _, err := history.Try(ctx, w.s, func() (struct{}, error) { return struct{}{}, w.checkNames(ctx) }); err != nil {
		return err
	}
	b.Guard(w.s.HeadKey, w.record)
	if err := w.alterLife(ctx, b); err != nil {
		return err
	}
	if w.next, err = w.nextHead(); err != nil {
		return err
	}
	return w.setTurn(b)
}

// addHead adds the head, the session's place in lists and, if it has none, its dirty record.
func (w *writer) addHead(b *engine.Batch) {
	s := w.s
	for _, t := range w.grants[:min(len(w.grants), maxGrants)] {
		b.Delete(t)
	}
	if w.head.Collected {
		b.Set(s.DirtyKey, head.EncodeDirty(s.DirtyKey))
	}
	if w.head.Tells() {
		feed.Tell(b, w.store.Space, w.next, feed.Change{Kind: feed.Committed, Session: s.ID, Revision: w.next.Revision}, 0, w.now)
		if len(w.in.Tombstone) > 0 {
			feed.Tell(b, w.store.Space, w.next, feed.Change{Kind: feed.Tombstoned, Session: s.ID}, ^uint64(w.next.Revision), w.now) // Calls have epochs.
		}
	}
	if w.born == nil { // Else it gets its place in the same batch.
		head.MoveInLists(b, w.store.Space, s.Inc, s.Hash, s.Place(), w.built.turn.Time)
	}
	w.nextRecord = w.next.Encode(s.HeadKey)
	b.Set(s.HeadKey, w.nextRecord)
}

// nextHead returns the head after the commit.
func (w *writer) nextHead() (*head.Head, error) {
	h, t := w.head, &w.built.turn
	next := *h // what a commit does not change stays
	next.Base, next.Parts = t.Base(t.ID), w.built.parts
	next.Nodes, next.PartBytes = h.Nodes+uint64(t.Nodes), h.PartBytes+t.PartBytes()
	next.Bytes = h.Bytes + w.built.bytes
	next.Usage = head.AddUsage(slices.Clone(h.Usage), w.in.Usage)
	next.PackBytes += t.Pack.Uncompressed()
	next.Collected = false
	if len(next.Usage) > w.store.Limits.Models {
		return nil, &history.LimitError{Limit: "models", Where: "session", Have: int64(len(next.Usage)), Max: int64(w.store.Limits.Models)}
	}
	return &next, nil
}

// setTurn adds the commit with its nodes.
func (w *writer) setTurn(b *engine.Batch) error {
	p := &w.built.turn.Pack
	if n := p.Size(); n > w.store.Limits.NodeBytes {
		return &history.LimitError{Limit: "node bytes", Where: "commit", Have: int64(n), Max: int64(w.store.Limits.NodeBytes)}
	}
	ks, vs, err := history.EncodeTurn(w.store.Space, w.s.Inc, w.built.body, p)
	for i := range ks {
		b.Set(ks[i], vs[i])
	}
	return err
}

// checkBatch fails if the batch exceeds a limit. The limits are the same for all engines, so
// that a store can be copied to any of them.
func (c *call) checkBatch() error {
	b, l := c.batch, &c.store.Limits
	switch {
	case b.Ops() > l.Writes:
		return &history.LimitError{Limit: "writes", Where: "commit", Have: int64(b.Ops()), Max: int64(l.Writes)}
	case b.Bytes() > l.Bytes:
		return &history.LimitError{Limit: "bytes", Where: "commit", Have: int64(b.Bytes()), Max: int64(l.Bytes)}
	}
	return nil
}

// maxGrants is how many grants of uploads a commit deletes. The others expire.
const maxGrants = 1000

// addBlobs makes the batch store the new blobs and deltas, and guard the marks of the blobs
// that are stored already. It adds an entry for each attachment that the session did not have.
// Those in seen are there already.
func (w *writer) addBlobs(b *engine.Batch, seen *map[blob.ID]bool) error {
	s, store := w.s, w.store.Blobs
	add := func(d *blob.Draft) error {
		if d == nil || (*seen)[d.ID] {
			return nil
		}
		if *seen == nil {
			*seen = map[blob.ID]bool{}
		}
		(*seen)[d.ID] = true
		return w.stage.Add(b, d)
	}
	for i := range w.payloads {
		if err := add(w.payloads[i].apart); err != nil {
			return err
		}
	}
	for _, p := range w.built.parts {
		// A part that the commit does not change needs no guard of its own: the head, which
		// the batch guards, keeps its blob.
		v := w.parts[p.Name]
		if v == nil || p.Set != w.built.turn.Revision {
			continue
		}
		if v.delta {
			store.AddDelta(b, s.Chain(p.Name), uint64(p.Set), v.base.Revision, v.data)
		} else if err := add(v.draft); err != nil {
			return err
		}
	}
	for i := range w.in.Nodes {
		for _, a := range w.in.Nodes[i].Attachments {
			if !(*seen)[a.ID] && !store.Rely(b, a.ID, w.stage.Marks) {
				return fmt.Errorf("%w: %s", ErrUploadExpired, a.ID)
			}
			// The entry of an attachment points to the first node that has it. A later node
			// must not replace it: a fork may share the first node and not the later one.
			key := w.store.Space.Attachment(s.Inc, w.store.Space.BlobHash(a.ID))
			if own, seen := w.attached[string(key)]; own != nil {
				b.Guard(key, own)
			} else if seen {
				delete(w.attached, string(key)) // A later node of this commit adds no second entry.
				place := graph.Position{Revision: uint64(w.built.turn.Revision), Index: i}
				b.Set(key, place.EncodeAttachment(key))
			}
		}
	}
	return nil
}

// checkNames checks that no commit of the session has the turn id, and no node on the path to a new one its event key.
// The index knows this as of the head, which the batch guards. If the turn was
// committed before, the error is errTurnStands.
func (w *writer) checkNames(ctx context.Context) error {
	if w.in.Turn != "" {
		t, err := w.s.FindTurn(ctx, w.head.Revision, w.in.Turn)
		if err != nil {
			return err
		}
		if t != nil {
			return errTurnStands
		}
	}
	n, i, found, err := w.takenKey(ctx)
	if found {
		whose := ""
		if n.Inherited {
			whose = ", which the session inherits"
		}
		return history.NewInvalid(fmt.Sprintf("node %d", i), "event key %q belongs to a node of revision %d%s already", n.Key, n.Revision, whose)
	}
	return err
}

// takenKey returns a node on the path to a new one that has its event key, and the number of the new one. It reads each
// path once, whatever number of keys there are.
func (w *writer) takenKey(ctx context.Context) (n history.Node, i int, found bool, err error) {
	byStart := map[graph.ID]map[string]int{} // by the last node on the path that is not new: the numbers of the nodes with a key
	var starts []graph.ID
	var older []graph.ID
	for i := range w.in.Nodes {
		key := w.in.Nodes[i].Key
		if key == "" {
			continue
		}
		if older == nil {
			older = w.in.older(w.head.Leaf)
		}
		start := older[i]
		if start.IsZero() {
			continue
		}
		if byStart[start] == nil {
			byStart[start], starts = map[string]int{}, append(starts, start)
		}
		byStart[start][key] = i
	}
	for _, start := range starts {
		if start != w.head.Leaf {
			if _, err := history.Try(ctx, w.s, func() (history.Node, error) {
				n, _, err := w.s.Find(ctx, w.head.Revision, start)
				return n, err
			}); err != nil {
				return n, 0, false, notInGraph(err, w.s, start)
			}
		}
		keys := slices.Sorted(maps.Keys(byStart[start]))
		if n, found, err = w.s.KeyOnPath(ctx, w.head.Revision, start, keys...); found || err != nil {
			return n, byStart[start][n.Key], found, err
		}
	}
	return n, 0, false, nil
}
