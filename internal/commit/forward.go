package commit

import (
	"context"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
)

// This file brings a session that lives forward: it adds the turns that the same session has got elsewhere, as they are.

// maxForward bounds the batch of Forward: every engine accepts one of 2 MiB.
const maxForward = 2<<20 - 64<<10

// A Step is a turn that Forward adds.
type Step struct {
	Turn     history.Turn
	Versions []engine.Pair // of the checkpoint parts that the turn sets as deltas
	Blobs    []blob.ID     // that the turn refers to
	Older    []graph.ID    // nodes that it names, which earlier steps have not added, besides the leaf before it
	Stones   []Stone       // of its nodes
	Kept     []head.Kept   // names of its revision
}

// StoreAhead stores values of versions of checkpoint parts, which have no effect before a step stores the first one of each.
func (st *Lifecycle) StoreAhead(ctx context.Context, s *history.Session, pairs []engine.Pair) error {
	return history.Settle(ctx, st.Engine, func(c *history.Change) error {
		l, err := s.Lifecycles(ctx)
		if err != nil {
			return err
		}
		b := &engine.Batch{Sets: pairs}
		b.Guard(l.Keys[0], l.Values[0]) // No vacuum has removed the session.
		return c.Apply(ctx, b)
	})
}

// Forward adds turns to a session in one batch, which the caller keeps small enough. The first one has to follow h, the
// head. The floor rises to the one that is given, if that is not 0. Forward returns the head after them. The error is history.ErrConflict if the head has
// moved, ErrBlobGone if a blob is not stored any more, and history.ErrNodeNotFound if a node that a turn names is pruned.
func (st *Lifecycle) Forward(ctx context.Context, s *history.Session, h *head.Head, steps []Step, floor head.Revision) (*head.Head, error) {
	next := *h
	for i := range steps {
		t := &steps[i].Turn
		state, err := next.Then(&t.Commit, t.ID)
		if err != nil {
			return nil, err
		}
		next.State = state
		next.Bytes += t.Pack.Bytes()
		next.PackBytes += t.Pack.Uncompressed()
	}
	next.Collected = false
	var value []byte
	err := history.Settle(ctx, st.Engine, func(c *history.Change) error {
		now, vs, err := s.Head(ctx, st.Space.Place(s.Inc))
		if err != nil {
			return err
		}
		s.SeePlace(vs[0])
		if c.Unknown && now.Commit == next.Commit {
			return nil // An earlier attempt stands.
		}
		if now.Commit != h.Commit {
			return history.ErrConflict
		}
		after := next
		after.Fed, after.Collected = now.Fed, false
		b := &engine.Batch{}
		_, record := s.Seen()
		b.Guard(s.HeadKey, record)
		if err := st.forward(ctx, b, s, now, &after, steps, floor); err != nil {
			return err
		}
		value = after.Encode(s.HeadKey)
		b.Set(s.HeadKey, value)
		if l := &st.Store.Limits; b.Bytes() > maxForward || b.Ops() > l.Writes {
			return &history.LimitError{Limit: "bytes", Where: "batch", Have: int64(b.Bytes()), Max: maxForward}
		}
		if err := c.Apply(ctx, b); err != nil {
			return err
		}
		next = after
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.See(&next, value)
	return &next, nil
}

// forward adds to b what the steps write besides the head.
func (st *Lifecycle) forward(ctx context.Context, b *engine.Batch, s *history.Session, now, after *head.Head, steps []Step, floor head.Revision) error {
	if now.Collected {
		b.Set(s.DirtyKey, head.EncodeDirty(s.DirtyKey))
	}
	if err := st.relyOn(ctx, b, steps); err != nil {
		return err
	}
	if err := st.attach(ctx, b, s, steps); err != nil {
		return err
	}
	var older []graph.ID
	var stones []Stone
	var kept []head.Kept
	for i := range steps {
		step := &steps[i]
		ks, vs, err := history.EncodeTurn(st.Space, s.Inc, step.Turn.Body(), &step.Turn.Pack)
		if err != nil {
			return err
		}
		for j := range ks {
			b.Set(ks[j], vs[j])
		}
		for _, p := range step.Versions {
			b.Set(p.Key, p.Value)
		}
		if now.Tells() {
			feed.Tell(b, st.Space, after, feed.Change{Kind: feed.Committed, Session: s.ID, Revision: step.Turn.Revision}, 0, st.Now())
		}
		older, stones, kept = append(older, step.Older...), append(stones, step.Stones...), append(kept, step.Kept...)
	}
	head.MoveInLists(b, st.Space, s.Inc, s.Hash, s.Place(), after.Time)
	if len(older)+len(stones)+len(kept) == 0 && floor == 0 {
		return nil
	}
	_, err := history.Read(ctx, s, func(l *history.Lifecycles) (none struct{}, err error) {
		for _, id := range older {
			if err := l.NotPruned(ctx, now.Revision, id); err != nil {
				return none, err
			}
		}
		next := l.Own.Next()
		extra := engine.Batch{}
		next.Floor = max(next.Floor, floor)
		if _, err := st.addStones(ctx, s, stones, &next, &extra); err != nil {
			return none, err
		}
		if _, err := st.addKept(ctx, s, kept, l.Own, &next, &extra); err != nil {
			return none, err
		}
		b.Guard(l.Keys[0], l.Values[0])
		b.Set(l.Keys[0], next.Encode(l.Keys[0]))
		b.Sets = append(b.Sets, extra.Sets...)
		return none, nil
	})
	return err
}

// relyOn makes b guard that the blobs of the steps are there.
func (st *Lifecycle) relyOn(ctx context.Context, b *engine.Batch, steps []Step) error {
	var ids []blob.ID
	for i := range steps {
		ids = append(ids, steps[i].Blobs...)
	}
	marks := blob.Marks{}
	absent, err := st.Blobs.Refresh(ctx, marks, ids)
	if err != nil {
		return err
	}
	if len(absent) > 0 {
		return fmt.Errorf("%w: %s", ErrBlobGone, absent[0])
	}
	for _, id := range ids {
		st.Blobs.Rely(b, id, marks)
	}
	return nil
}

// attach makes b add the entries of attachments that the session did not have.
func (st *Lifecycle) attach(ctx context.Context, b *engine.Batch, s *history.Session, steps []Step) error {
	var ks, vs [][]byte
	for i := range steps {
		for j := range steps[i].Turn.Pack.Nodes {
			for _, a := range steps[i].Turn.Pack.Nodes[j].Attachments {
				key := st.Space.Attachment(s.Inc, st.Space.BlobHash(a.ID))
				place := graph.Position{Revision: uint64(steps[i].Turn.Revision), Index: j}
				ks, vs = append(ks, key), append(vs, place.EncodeAttachment(key))
			}
		}
	}
	if len(ks) == 0 {
		return nil
	}
	there, err := st.Engine.Get(ctx, ks...)
	if err != nil {
		return err
	}
	set := map[string]bool{}
	for i := range ks {
		switch {
		case there[i] != nil && !set[string(ks[i])]:
			b.Guard(ks[i], there[i])
		case !set[string(ks[i])]:
			b.Set(ks[i], vs[i])
		}
		set[string(ks[i])] = true
	}
	return nil
}

// A Rest is what a session has got elsewhere besides commits.
type Rest struct {
	Stones []Stone
	Kept   []head.Kept // Those of revisions that are pruned here are left out.
}

// AddRest adds to a session what it does not have of r, and reports whether it has added something. The epochs of
// tombstones become those of this store.
func (st *Lifecycle) AddRest(ctx context.Context, s *history.Session, r *Rest) (added bool, err error) {
	some := slices.Chunk(r.Stones, batchEntries)
	if len(r.Stones) == 0 {
		some = func(yield func([]Stone) bool) { yield(nil) }
	}
	for stones := range some {
		needed := false
		err := history.Settle(ctx, st.Engine, func(c *history.Change) error {
			return c.Alter(ctx, s, func(_ *history.Lifecycles, next *head.Life, b *engine.Batch) (_ bool, err error) {
				now, err := st.addRest(ctx, s, stones, r, next, b)
				needed = needed || now
				return now, err
			})
		})
		if err != nil {
			return added, err
		}
		added = added || needed
	}
	return added, nil
}

// addRest is one attempt of AddRest for some of the tombstones.
func (st *Lifecycle) addRest(ctx context.Context, s *history.Session, stones []Stone, r *Rest, next *head.Life, b *engine.Batch) (needed bool, err error) {
	h, vs, err := s.Head(ctx, st.Space.Feed())
	if err != nil {
		return false, err
	}
	hidden, err := st.addStones(ctx, s, stones, next, b)
	if err != nil {
		return false, err
	}
	if hidden {
		if _, err := st.tell(b, vs[0], h, feed.Change{Kind: feed.Tombstoned, Session: s.ID}, next.Epoch, st.Now()); err != nil {
			return false, err
		}
	}
	kept, err := st.addKept(ctx, s, r.Kept, next, next, b)
	if err != nil {
		return false, err
	}
	needed = hidden || kept
	b.Reclaim = true
	b.Set(s.DirtyKey, head.EncodeDirty(s.DirtyKey))
	return needed, nil
}

// addKept makes b keep those revisions that are retained here, or new, unless the name stands for the same one or a later
// one here. It reports whether there are any. life is the lifecycle record that stands.
func (st *Lifecycle) addKept(ctx context.Context, s *history.Session, add []head.Kept, life, next *head.Life, b *engine.Batch) (added bool, err error) {
	if len(add) == 0 {
		return false, nil
	}
	kept, err := head.ReadKept(ctx, st.Engine, st.Space, s.Inc, life)
	if err != nil {
		return false, err
	}
	for _, k := range add {
		retained := k.Revision >= life.Floor || slices.ContainsFunc(kept, func(old head.Kept) bool { return old.Revision == k.Revision })
		named := slices.IndexFunc(kept, func(old head.Kept) bool { return old.Name == k.Name })
		isNew := named < 0
		if !retained || !isNew && kept[named].Revision >= k.Revision {
			continue
		}
		if err := history.KeepRevision(s, k, isNew, st.Store.Limits.Kept, next, b); err != nil {
			return false, err
		}
		added = true
	}
	return added, nil
}

// addStones makes b set those tombstones that the session does not have, and reports whether there are any.
func (st *Lifecycle) addStones(ctx context.Context, s *history.Session, stones []Stone, next *head.Life, b *engine.Batch) (added bool, err error) {
	ks := make([][]byte, len(stones))
	for i := range stones {
		var node graph.ID
		copy(node[:], stones[i].ID[:])
		ks[i] = st.Space.Tombstone(s.Inc, node)
	}
	if len(ks) == 0 {
		return false, nil
	}
	there, err := st.Engine.Get(ctx, ks...)
	if err != nil {
		return false, err
	}
	for i := range stones {
		if there[i] != nil {
			if _, err := head.DecodeTombstone(ks[i], there[i]); err != nil {
				return false, codec.Corrupt(err, "tombstone at key %x", ks[i])
			}
			continue
		}
		stone := stones[i].Tombstone
		stone.Epoch = next.Epoch
		b.Set(ks[i], stone.Encode(ks[i]))
		next.Stones, added = next.Stones+1, true
	}
	return added, nil
}
