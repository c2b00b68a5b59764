package turnstone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// base is what a commit builds on: the head, or for a comparison with what was
// committed, the state before that commit.
type base struct {
	revision   Revision
	commit     CommitID
	leaf, last NodeID
	partsAt    Revision
	parts      []head.Part
}

func baseOf(h *head.Head) base {
	return base{revision: h.Revision, commit: h.Commit, leaf: h.Leaf, last: h.Last, partsAt: h.PartsAt, parts: h.Parts}
}

// built is a commit in all its parts.
type built struct {
	pack   graph.Pack
	commit head.Commit
	body   []byte
	id     CommitID
	ids    []NodeID
	parts  []head.Part
	bytes  uint64 // of payloads
	older  []NodeID
}

// assemble is the commit that in makes on top of b: a pure function, so that a
// turn that is committed again can be compared with what is stored.
func assemble(in *Commit, payloads []*blob.Draft, parts map[string]*version, b base, salt graph.Salt, now time.Time) (*built, error) {
	revision := b.revision + 1
	out := &built{
		pack: graph.Pack{Revision: uint64(revision), Salt: salt, Nodes: make([]graph.Node, len(in.Nodes))},
		ids:  make([]NodeID, len(in.Nodes)),
	}
	resolve := func(what string, of int, r Ref, fallback NodeID) (NodeID, error) {
		switch r.kind {
		case refNone:
			return NodeID{}, nil
		case refID:
			if r.id.IsZero() {
				return NodeID{}, invalid(fmt.Sprintf(what, of), "names the zero node id")
			}
			if r.id != b.leaf {
				out.older = append(out.older, r.id)
			}
			return r.id, nil
		case refNew:
			if r.index < 0 || r.index >= of {
				return NodeID{}, invalid(fmt.Sprintf(what, of), "names new node %d of %d before it", r.index, of)
			}
			return out.ids[r.index], nil
		}
		return fallback, nil
	}
	previous := b.leaf
	var scratch []byte
	for i := range in.Nodes {
		n, stored := &in.Nodes[i], &out.pack.Nodes[i]
		parent, err := resolve("parent of node %d", i, n.Parent, previous)
		if err != nil {
			return nil, err
		}
		*stored = graph.Node{Parent: parent, Kind: n.Kind, Key: n.Key, Size: int64(len(n.Payload)), Attachments: n.Attachments}
		if d := payloads[i]; d != nil {
			stored.Blob = d.ID
		} else {
			stored.Inline = n.Payload
		}
		scratch = stored.Derive(salt, i, scratch)
		out.ids[i], previous = stored.ID, stored.ID
		out.bytes += uint64(len(n.Payload))
	}
	leaf, err := resolve("leaf after %d nodes", len(in.Nodes), in.Leaf, previous)
	if err != nil {
		return nil, err
	}
	last := b.last
	if len(out.ids) > 0 {
		last = out.ids[len(out.ids)-1]
	}
	var changed bool
	out.parts, changed = mergeParts(b.parts, parts, in.Drop, revision)
	if len(out.parts) > MaxParts {
		return nil, &LimitError{Limit: "checkpoint parts", Where: "session", Have: int64(len(out.parts)), Max: MaxParts}
	}
	out.commit = head.Commit{
		Revision: revision, Previous: b.commit, Leaf: leaf, Last: last, Nodes: len(out.ids),
		PartsAt: b.partsAt, Usage: in.Usage, Turn: in.Turn, Time: now,
	}
	if changed {
		out.commit.PartsAt, out.commit.Parts = revision, out.parts
	}
	if !out.pack.Linear(leaf) {
		out.commit.NodeDigest = out.pack.Digest()
	}
	out.body = out.commit.Body()
	out.id = head.IDOf(out.body)
	return out, nil
}

// mergeParts returns the checkpoint after a commit, by name, and whether it
// differs from the one before. A part set to what it was is no change.
func mergeParts(old []head.Part, set map[string]*version, drop []string, revision Revision) (parts []head.Part, changed bool) {
	if len(set) == 0 && len(drop) == 0 {
		return old, false
	}
	for _, p := range old {
		if slices.Contains(drop, p.Name) {
			changed = true
			continue
		}
		if v := set[p.Name]; v != nil && v.id != p.Blob {
			parts = append(parts, v.part(p.Name, revision, p.Whole))
			changed = true
			continue
		}
		parts = append(parts, p)
	}
	for name, v := range set {
		if !slices.ContainsFunc(parts, func(p head.Part) bool { return p.Name == name }) {
			parts = append(parts, v.part(name, revision, revision))
			changed = true
		}
	}
	slices.SortFunc(parts, func(a, b head.Part) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return parts, changed
}

// A version is what a commit sets a checkpoint part to.
type version struct {
	id    BlobID
	size  int64
	delta bool // it is stored as a delta of the part's version before
	// How it is stored; neither is there in a comparison with what was committed.
	draft *blob.Draft // whole, or
	data  []byte      // the delta, of
	base  *blob.Base
}

// part returns the checkpoint part that the commit of revision sets to v. If v is stored
// as a delta, the part's chain of deltas goes on: it began with the version that the
// revision whole set. Otherwise a chain begins with v.
func (v *version) part(name string, revision, whole Revision) head.Part {
	if !v.delta {
		whole = revision
	}
	return head.Part{Name: name, Blob: v.id, Size: v.size, Set: revision, Whole: whole}
}

// build makes the batch for a commit on top of h, whose record is raw.
func (w *writer) build(ctx context.Context, h *head.Head, raw []byte) (err error) {
	s, space := w.s, w.s.store.space
	if w.built, err = assemble(w.in, w.payloads, w.parts, baseOf(h), w.salt, w.now); err != nil {
		return err
	}
	c, pack := &w.built.commit, &w.built.pack
	b := &engine.Batch{Sets: make([]engine.Pair, 0, 8+len(w.in.Nodes)), Guards: make([]engine.Pair, 0, 4)}
	w.batch = b
	b.Guard(s.history.HeadKey, raw)
	if err := w.checkOlder(ctx, h); err != nil {
		return err
	}
	if err := w.checkKeys(ctx); err != nil {
		return err
	}
	next := &head.Head{
		Incarnation: s.history.Inc, Revision: c.Revision, Leaf: c.Leaf, Last: c.Last, Commit: w.built.id,
		PartsAt: c.PartsAt, Parts: w.built.parts,
		Nodes: h.Nodes + uint64(len(pack.Nodes)), Bytes: h.Bytes + w.built.bytes, Raw: h.Raw,
		Usage: head.Sum(slices.Clone(h.Usage), w.in.Usage), Updated: w.now,
	}
	if len(next.Usage) > MaxSessionModels {
		return &LimitError{Limit: "models", Where: "session", Have: int64(len(next.Usage)), Max: MaxSessionModels}
	}
	if len(pack.Nodes) > 0 {
		if n := pack.Size(); n > MaxCommitNodeBytes {
			return &LimitError{Limit: "node bytes", Where: "commit", Have: int64(n), Max: MaxCommitNodeBytes}
		}
		next.Raw += pack.Raw()
		ks, vs, err := graph.EncodeSegment(space, s.history.Inc, []graph.Pack{*pack}, h.Last, codec.Fast)
		if err != nil {
			return err
		}
		for i := range ks {
			b.Set(ks[i], vs[i])
		}
	}
	key := s.store.space.Commit(s.history.Inc, uint64(c.Revision))
	b.Set(key, head.SealCommit(key, w.built.body))
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
	w.stage.finish(b)
	for _, t := range w.tickets[:min(len(w.tickets), maxTickets)] {
		b.Delete(t)
	}
	s.store.setDirty(b, s.history.DirtyKey)
	s.mu.Lock()
	orderTime := s.orderTime
	s.mu.Unlock()
	s.store.moveOrder(b, s.history.Inc, s.history.Hash, orderTime, w.now)
	w.head, w.raw = next, next.Seal(s.history.HeadKey)
	b.Set(s.history.HeadKey, w.raw)
	// The same on every engine, so that what one of them holds another one takes.
	switch {
	case b.Ops() > MaxCommitWrites:
		return &LimitError{Limit: "writes", Where: "commit", Have: int64(b.Ops()), Max: MaxCommitWrites}
	case b.Bytes() > MaxCommitBytes:
		return &LimitError{Limit: "bytes", Where: "commit", Have: int64(b.Bytes()), Max: MaxCommitBytes}
	}
	return nil
}

// maxTickets is how many uploads a commit ends; the rest of them expire.
const maxTickets = 1000

// index adds the index entries of the new nodes' keys and of the turn.
func (w *writer) index(b *engine.Batch) {
	s, space := w.s, w.s.store.space
	revision := w.built.pack.Revision
	for i := range w.built.pack.Nodes {
		n := &w.built.pack.Nodes[i]
		if n.Key != "" {
			key, place := space.EventKey(s.history.Inc, n.Key), graph.Position{Revision: revision, Index: i}
			b.Guard(key, nil)
			b.Set(key, place.SealEventKey(key))
		}
	}
	if w.in.Turn != "" {
		key := space.Turn(s.history.Inc, w.in.Turn)
		b.Guard(key, nil)
		b.Set(key, head.SealTurn(key, Revision(revision)))
	}
}

// addBlobs adds what the commit refers to and, where it is new, its bytes.
func (w *writer) addBlobs(b *engine.Batch) error {
	s, blobs := w.s, w.s.store.blobs
	seen := map[blob.ID]bool{}
	add := func(d *blob.Draft) error {
		if d == nil || seen[d.ID] {
			return nil
		}
		seen[d.ID] = true
		return w.stage.add(b, d)
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
			blobs.AddDelta(b, s.history.Chain(p.Name), uint64(p.Set), v.base.Revision, v.data)
		} else if err := add(v.draft); err != nil {
			return err
		}
	}
	for i := range w.in.Nodes {
		for _, a := range w.in.Nodes[i].Attachments {
			if !seen[a.ID] && !blobs.Rely(b, a.ID, w.stage.marks) {
				return fmt.Errorf("%w: %s", ErrUploadExpired, a.ID)
			}
			// The first place stays: forks see up to a revision.
			key := s.store.space.Attachment(s.history.Inc, s.store.space.BlobHash(a.ID))
			if own, seen := w.attached[string(key)]; own != nil {
				b.Guard(key, own)
			} else if seen {
				delete(w.attached, string(key)) // once
				place := graph.Position{Revision: w.built.pack.Revision, Index: i}
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
func (w *writer) checkOlder(ctx context.Context, h *head.Head) error {
	if len(w.built.older) == 0 {
		return nil
	}
	var id NodeID // that is looked at
	_, err := history.WithLifecycles(ctx, w.s.history, func(l *history.Lifecycles) (struct{}, error) {
		for _, id = range w.built.older {
			if err := w.s.notPruned(ctx, h.Revision, id); err != nil {
				return struct{}{}, err
			}
		}
		next := l.Own.Next()
		w.batch.Guard(l.Keys[0], l.Values[0])
		w.batch.Set(l.Keys[0], next.Seal(l.Keys[0]))
		return struct{}{}, nil
	})
	if errors.Is(err, ErrNodeNotFound) {
		err = invalid("commit", "node %s is not in the graph of session %q", id, w.s.history.ID)
	}
	return err
}

// checkKeys verifies that no ancestor of a fork gave an event key of the new nodes to
// a node that the fork shares. What a fork shares does not change, so that nothing
// has to be guarded, and one look is enough. A key that the session has itself is
// found by the guard on its entry.
func (w *writer) checkKeys(ctx context.Context) error {
	if w.s.history.Origin == nil || w.keysFree {
		return nil
	}
	layers := slices.DeleteFunc(w.s.history.Layers(0), func(l history.Layer) bool { return l.Last == 0 })
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
			ks[i] = w.s.store.space.EventKey(layers[e.layer].Inc, w.in.Nodes[e.node].Key)
		}
		vs, err := w.s.store.engine.Get(ctx, ks...)
		if err != nil {
			return err
		}
		for i, e := range part {
			if vs[i] == nil {
				continue
			}
			place, err := graph.OpenPosition(ks[i], vs[i], keys.EventKey)
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
func (w *writer) keyTaken(node int, place graph.Position, whose string) error {
	return invalid(fmt.Sprintf("node %d", node), "event key %q belongs to a node of revision %d%s already", w.in.Nodes[node].Key, place.Revision, whose)
}

// notPruned returns ErrRevisionPruned if no commit and no fork can go on from a node,
// because it went with the revisions that led to it.
func (s *Session) notPruned(ctx context.Context, last Revision, id NodeID) error {
	pruned, err := s.history.Pruned(ctx, last, id)
	if err == nil && !pruned.IsZero() {
		err = fmt.Errorf("%w: node %s of session %q", ErrRevisionPruned, pruned, s.history.ID)
	}
	return err
}
