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

// build makes the batch for a commit on top of head h, which record encodes.
func (w *writer) build(ctx context.Context, h *heads.Head, record []byte) (err error) {
	s := w.s
	if w.built, err = assemble(w.in, w.payloads, w.parts, baseOf(h), w.salt, w.now); err != nil {
		return err
	}
	if n := len(w.built.parts); n > w.store.Limits.Parts {
		return &change.Limit{Limit: "checkpoint parts", Where: "session", Have: int64(n), Max: int64(w.store.Limits.Parts)}
	}
	b := &engine.Batch{Sets: make([]engine.Pair, 0, 8+len(w.in.Nodes)), Guards: make([]engine.Pair, 0, 4)}
	w.batch = b
	b.Guard(s.HeadKey, record)
	if err := w.checkOlder(ctx, h); err != nil {
		return err
	}
	if err := w.checkKeys(ctx); err != nil {
		return err
	}
	next, err := w.nextHead(h)
	if err != nil {
		return err
	}
	if err := w.setPack(b, h); err != nil {
		return err
	}
	key := w.store.Space.Commit(s.Inc, uint64(w.built.commit.Revision))
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
	heads.MoveInLists(b, w.store.Space, s.Inc, s.Hash, s.Place(), w.now)
	w.head, w.record = next, next.Seal(s.HeadKey)
	b.Set(s.HeadKey, w.record)
	return w.checkBatch(b)
}

// nextHead returns the head after the commit. h is the head before.
func (w *writer) nextHead(h *heads.Head) (*heads.Head, error) {
	c, p := &w.built.commit, &w.built.pack
	next := *h // what a commit does not change stays
	next.Revision, next.Commit, next.Updated = c.Revision, w.built.id, w.now
	next.Leaf, next.Last = c.Leaf, c.Last
	next.PartsAt, next.Parts = c.PartsAt, w.built.parts
	next.Nodes, next.Bytes = h.Nodes+uint64(len(p.Nodes)), h.Bytes+w.built.bytes
	next.Usage = head.AddUsage(slices.Clone(h.Usage), w.in.Usage)
	if len(p.Nodes) > 0 {
		next.PackBytes += p.Uncompressed()
	}
	if len(next.Usage) > w.store.Limits.Models {
		return nil, &change.Limit{Limit: "models", Where: "session", Have: int64(len(next.Usage)), Max: int64(w.store.Limits.Models)}
	}
	return &next, nil
}

// setPack adds the pack of the new nodes, if there are any. h is the head before.
func (w *writer) setPack(b *engine.Batch, h *heads.Head) error {
	p := &w.built.pack
	if len(p.Nodes) == 0 {
		return nil
	}
	if n := p.Size(); n > w.store.Limits.NodeBytes {
		return &change.Limit{Limit: "node bytes", Where: "commit", Have: int64(n), Max: int64(w.store.Limits.NodeBytes)}
	}
	ks, vs, err := pack.EncodeSegment(w.store.Space, w.s.Inc, []pack.Pack{*p}, h.Last, codec.Fast)
	if err != nil {
		return err
	}
	for i := range ks {
		b.Set(ks[i], vs[i])
	}
	return nil
}

// checkBatch fails if the batch exceeds a limit. The limits are the same for all engines, so
// that a store can be copied to any of them.
func (w *writer) checkBatch(b *engine.Batch) error {
	switch {
	case b.Ops() > w.store.Limits.Writes:
		return &change.Limit{Limit: "writes", Where: "commit", Have: int64(b.Ops()), Max: int64(w.store.Limits.Writes)}
	case b.Bytes() > w.store.Limits.Bytes:
		return &change.Limit{Limit: "bytes", Where: "commit", Have: int64(b.Bytes()), Max: int64(w.store.Limits.Bytes)}
	}
	return nil
}

// maxGrants is how many grants of uploads a commit deletes. The others expire.
const maxGrants = 1000

// index adds the entries by which the new nodes are found by their event keys, and the commit
// by its turn id. Guards make sure that none of them is taken.
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

// addBlobs makes the batch store the new blobs and deltas, and guard the marks of the blobs
// that are stored already. It adds an entry for each attachment that the session did not have.
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
		// A part that the commit does not change needs no guard of its own: the head, which
		// the batch guards, keeps its blob.
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
			// The entry of an attachment points to the first node that has it. A later node
			// must not replace it: a fork may share the first node and not the later one.
			key := w.store.Space.Attachment(s.Inc, w.store.Space.BlobHash(a.ID))
			if own, seen := w.attached[string(key)]; own != nil {
				b.Guard(key, own)
			} else if seen {
				delete(w.attached, string(key)) // A later node of this commit adds no second entry.
				place := pack.Position{Revision: w.built.pack.Revision, Index: i}
				b.Set(key, place.SealAttachment(key))
			}
		}
	}
	return nil
}

// checkOlder checks the nodes that the commit names as parents or as its leaf, except new nodes
// and the leaf of the head: they must be in the session's graph. It guards and sets the lifecycle
// record. So nobody removes such a node meanwhile, and a vacuum that has read the head before
// the commit can't remove it as unreachable afterwards.
func (w *writer) checkOlder(ctx context.Context, h *heads.Head) error {
	if len(w.built.older) == 0 {
		return nil
	}
	var id graph.ID // the node that is checked
	_, err := history.WithLifecycles(ctx, w.s, func(l *history.Lifecycles) (struct{}, error) {
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

// checkKeys checks that no node which a fork shares of its ancestors has the event key of a
// new node. The shared nodes never change, so checkKeys looks only once for each call of Commit,
// and adds no guards. The session's own event keys are not checked here: the batch guards their
// entries.
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

// keyTaken returns the error for a new node whose event key belongs to the node at a position.
func (w *writer) keyTaken(node int, place pack.Position, whose string) error {
	return change.NewInvalid(fmt.Sprintf("node %d", node), "event key %q belongs to a node of revision %d%s already", w.in.Nodes[node].Key, place.Revision, whose)
}
