package commit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
)

// build makes the batch for a commit on top of h, whose record is raw.
func (w *writer) build(ctx context.Context, h *heads.Head, raw []byte) (err error) {
	s, space := w.s, w.store.Space
	if w.built, err = assemble(w.in, w.payloads, w.parts, baseOf(h), w.salt, w.now); err != nil {
		return err
	}
	c, p := &w.built.commit, &w.built.pack
	if n := len(w.built.parts); n > w.store.Limits.Parts {
		return &change.Limit{Limit: "checkpoint parts", Where: "session", Have: int64(n), Max: int64(w.store.Limits.Parts)}
	}
	b := &engine.Batch{Sets: make([]engine.Pair, 0, 8+len(w.in.Nodes)), Guards: make([]engine.Pair, 0, 4)}
	w.batch = b
	b.Guard(s.HeadKey, raw)
	if err := w.checkOlder(ctx, h); err != nil {
		return err
	}
	if err := w.checkKeys(ctx); err != nil {
		return err
	}
	next := &heads.Head{
		Incarnation: s.Inc, Revision: c.Revision, Leaf: c.Leaf, Last: c.Last, Commit: w.built.id,
		PartsAt: c.PartsAt, Parts: w.built.parts,
		Nodes: h.Nodes + uint64(len(p.Nodes)), Bytes: h.Bytes + w.built.bytes, Raw: h.Raw,
		Usage: head.AddUsage(slices.Clone(h.Usage), w.in.Usage), Updated: w.now,
	}
	if len(next.Usage) > w.store.Limits.Models {
		return &change.Limit{Limit: "models", Where: "session", Have: int64(len(next.Usage)), Max: int64(w.store.Limits.Models)}
	}
	if len(p.Nodes) > 0 {
		if n := p.Size(); n > w.store.Limits.NodeBytes {
			return &change.Limit{Limit: "node bytes", Where: "commit", Have: int64(n), Max: int64(w.store.Limits.NodeBytes)}
		}
		next.Raw += p.Raw()
		ks, vs, err := pack.EncodeSegment(space, s.Inc, []pack.Pack{*p}, h.Last, codec.Fast)
		if err != nil {
			return err
		}
		for i := range ks {
			b.Set(ks[i], vs[i])
		}
	}
	key := w.store.Space.Commit(s.Inc, uint64(c.Revision))
	b.Set(key, heads.SealCommit(key, w.built.body))
	w.index(b)
	if err := w.stage.read(ctx); err != nil {
		return err
	}
	if err := w.readAttachments(ctx, h); err != nil {
		return err
	}
	if err := w.addBlobs(b); err != nil {
		return err
	}
	w.stage.Finish(b)
	for _, t := range w.grants[:min(len(w.grants), maxGrants)] {
		b.Delete(t)
	}
	b.Set(s.DirtyKey, heads.SealDirty(s.DirtyKey))
	s.mu.Lock()
	orderTime := s.orderTime
	s.mu.Unlock()
	heads.MoveInOrder(b, w.store.Space, s.Inc, s.Hash, orderTime, w.now)
	w.head, w.raw = next, next.Seal(s.HeadKey)
	b.Set(s.HeadKey, w.raw)
	// The same on every engine, so that what one of them holds another one takes.
	switch {
	case b.Ops() > w.store.Limits.Writes:
		return &change.Limit{Limit: "writes", Where: "commit", Have: int64(b.Ops()), Max: int64(w.store.Limits.Writes)}
	case b.Bytes() > w.store.Limits.Bytes:
		return &change.Limit{Limit: "bytes", Where: "commit", Have: int64(b.Bytes()), Max: int64(w.store.Limits.Bytes)}
	}
	return nil
}

// maxGrants is how many grants of uploads a commit uses up; the others expire.
const maxGrants = 1000

// index adds the index entries of the new nodes' keys and of the turn.
func (w *writer) index(b *engine.Batch) {
	s, space := w.s, w.store.Space
	revision := w.built.pack.Revision
	for i := range w.built.pack.Nodes {
		n := &w.built.pack.Nodes[i]
		if n.Key != "" {
			key, place := space.EventKey(s.Inc, n.Key), pack.Position{Revision: revision, Index: i}
			b.Guard(key, nil)
			b.Set(key, place.SealEventKey(key))
		}
	}
	if w.in.Turn != "" {
		key := space.Turn(s.Inc, w.in.Turn)
		b.Guard(key, nil)
		b.Set(key, heads.SealTurn(key, head.Revision(revision)))
	}
}

// addBlobs adds what the commit refers to and, where it is new, its bytes.
func (w *writer) addBlobs(b *engine.Batch) error {
	s, store := w.s, w.store.Blobs
	seen := map[blob.ID]bool{}
	add := func(d *blobs.Draft) error {
		if d == nil || seen[d.ID] {
			return nil
		}
		seen[d.ID] = true
		return w.stage.Add(b, d)
	}
	for _, d := range w.payloads {
		if err := add(d); err != nil {
			return err
		}
	}
	for _, p := range w.built.parts {
		// A part that carries over needs no guard: the head that is guarded holds it.
		v := w.parts[p.Name]
		if v == nil || p.Set != w.built.commit.Revision {
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
			if !seen[a.ID] && !store.Rely(b, a.ID, w.stage.Marks) {
				return fmt.Errorf("%w: %s", ErrUploadExpired, a.ID)
			}
			// The first place stays: forks see up to a revision.
			key := w.store.Space.Attachment(s.Inc, w.store.Space.BlobHash(a.ID))
			if own, seen := w.attached[string(key)]; own != nil {
				b.Guard(key, own)
			} else if seen {
				delete(w.attached, string(key)) // once
				place := pack.Position{Revision: w.built.pack.Revision, Index: i}
				b.Set(key, place.SealAttachment(key))
			}
		}
	}
	return nil
}

// checkOlder verifies that the nodes that the commit goes on from, and that are
// neither new nor the head's leaf, are of this session's graph. It guards and sets the
// lifecycle record: so none of them is removed meanwhile, and vacuum, which reads where
// the head stands, does not take a node for unreachable that the commit goes on from.
func (w *writer) checkOlder(ctx context.Context, h *heads.Head) error {
	if len(w.built.older) == 0 {
		return nil
	}
	var id graph.ID // that is looked at
	_, err := history.WithLifecycles(ctx, w.s.Session, func(l *history.Lifecycles) (struct{}, error) {
		for _, id = range w.built.older {
			if err := w.s.NotPruned(ctx, h.Revision, id); err != nil {
				return struct{}{}, err
			}
		}
		next := l.Own.Next()
		w.batch.Guard(l.Keys[0], l.Values[0])
		w.batch.Set(l.Keys[0], next.Seal(l.Keys[0]))
		return struct{}{}, nil
	})
	if errors.Is(err, history.ErrNodeNotFound) {
		err = change.NewInvalid("commit", "node %s is not in the graph of session %q", id, w.s.ID)
	}
	return err
}

// checkKeys verifies that no ancestor of a fork gave an event key of the new nodes to
// a node that the fork shares. What a fork shares does not change, so that nothing
// has to be guarded, and one look is enough. A key that the session has itself is
// found by the guard on its entry.
func (w *writer) checkKeys(ctx context.Context) error {
	if w.s.Origin == nil || w.keysFree {
		return nil
	}
	layers := slices.DeleteFunc(w.s.Layers(0), func(l history.Layer) bool { return l.Last == 0 })
	type entry struct{ node, layer int }
	var all []entry
	for i := range w.in.Nodes {
		for j := range layers {
			if w.in.Nodes[i].Key != "" {
				all = append(all, entry{i, j})
			}
		}
	}
	for part := range slices.Chunk(all, 1000) {
		ks := make([][]byte, len(part))
		for i, e := range part {
			ks[i] = w.store.Space.EventKey(layers[e.layer].Inc, w.in.Nodes[e.node].Key)
		}
		vs, err := w.store.Engine.Get(ctx, ks...)
		if err != nil {
			return err
		}
		for i, e := range part {
			if vs[i] == nil {
				continue
			}
			place, err := pack.OpenPosition(ks[i], vs[i], keys.EventKey)
			if err != nil {
				return codec.Corrupt(err, "event key %q of incarnation %x", w.in.Nodes[e.node].Key, layers[e.layer].Inc)
			}
			if layers[e.layer].Has(place) {
				return w.keyTaken(e.node, place, ", which the session inherits")
			}
		}
	}
	w.keysFree = true
	return nil
}

// keyTaken says that the event key of a new node belongs to the one at a place.
func (w *writer) keyTaken(node int, place pack.Position, whose string) error {
	return change.NewInvalid(fmt.Sprintf("node %d", node), "event key %q belongs to a node of revision %d%s already", w.in.Nodes[node].Key, place.Revision, whose)
}
