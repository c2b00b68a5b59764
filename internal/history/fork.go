package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
)

var (
	// ErrRevisionNotFound says that the session has not reached the revision.
	ErrRevisionNotFound = errors.New("turnstone: revision not found")
	// ErrRevisionPruned says that the session does not retain the revision any more.
	ErrRevisionPruned = errors.New("turnstone: revision pruned")
)

// A Fork is the state that a new fork begins with.
type Fork struct {
	head.Origin
	// Of and At are the incarnation and the revision whose checkpoint the fork takes
	// over. Origin.Parts is that checkpoint, as it is there. The caller has to make sure
	// that the revision is still retained when the fork is created.
	Of head.Incarnation
	At head.Revision
}

// A Start says where a fork of a session begins.
type Start struct {
	Node graph.ID
	// At, if set, is a retained state of the session. The fork takes over its checkpoint.
	At *head.State
	// Bare forks take over no checkpoint.
	Bare bool
}

// ForkAt returns the state that a fork of the session begins with. now is the session's
// head. The fork may have one ancestor more than an origin can have: the caller flattens it then.
//
// Unless the start says otherwise, the fork takes over the checkpoint of the newest retained revision whose leaf was
// the node. If the node was the leaf of no revision, the fork takes over the checkpoint before the commit that added
// the node. Revisions of the session come before those of its ancestors. The error is ErrRevisionPruned if none of
// these revisions is retained and the checkpoint has parts.
func (h *History) ForkAt(ctx context.Context, now *head.Head, start Start) (*Fork, error) {
	f, node, from := &Fork{}, start.Node, cmp.Or(start.At, &now.State)
	if h.Origin != nil {
		f.Ancestors = slices.Clone(h.Origin.Ancestors)
	}
	own := head.Ancestor{Incarnation: h.Inc, Node: node, Commit: head.Genesis(h.Inc, h.Origin)}
	if !start.Bare && (start.At != nil || node == from.Leaf) {
		f.Parts, f.Of, f.At = slices.Clone(from.Parts), h.Inc, from.Revision
	}
	if node == from.Leaf {
		own.Revision, own.Commit, f.Depth = from.Revision, from.Commit, from.Depth
		f.Ancestors = append(f.Ancestors, own)
		return f, nil
	}
	var err error
	if f.Depth, err = h.Depth(ctx, now.Revision, node); err != nil {
		return nil, err
	}
	_, at, err := h.Find(ctx, now.Revision, node)
	if err != nil {
		return nil, err
	}
	if h.Origin != nil && node == h.Origin.Node() {
		own.Commit = head.CommitID{} // The fork shares only the tombstones of the session.
		f.Ancestors = append(f.Ancestors, own)
		return f, h.takeCheckpoint(ctx, f, now, start, at)
	}
	f.Ancestors = append(f.Ancestors, own)
	shared := false
	for i := range f.Ancestors {
		a := &f.Ancestors[i]
		switch {
		case a.Incarnation == at.Layer.Inc:
			r := head.Revision(at.Revision)
			t, err := h.Store.TurnAt(ctx, a.Incarnation, r)
			if err != nil {
				return nil, err
			}
			a.Revision, a.Commit, a.Node, shared = r, t.ID, node, true
			if a.Nodes = 0; at.Index+1 < t.Nodes {
				a.Nodes = at.Index + 1
			}
		case shared: // The fork shares only the tombstones of this ancestor.
			a.Revision, a.Commit, a.Node, a.Nodes = 0, head.CommitID{}, node, 0
		}
	}
	return f, h.takeCheckpoint(ctx, f, now, start, at)
}

// takeCheckpoint sets the checkpoint of a fork to that which belongs to the node of its start, unless the start names
// another one. added is the position of the node.
func (h *History) takeCheckpoint(ctx context.Context, f *Fork, now *head.Head, start Start, added Position) error {
	if start.Bare || start.At != nil {
		return nil
	}
	node := start.Node
	turn, err := h.turnOf(ctx, now, node, added)
	if err != nil {
		return err
	}
	if !turn.retained && len(turn.parts) > 0 {
		return fmt.Errorf("%w: the checkpoint at node %s of %s", ErrRevisionPruned, node, h.Name)
	}
	f.Parts, f.Of, f.At = slices.Clone(turn.parts), turn.of.Inc, turn.revision
	return nil
}

// A turn is a revision of the session or of an ancestor, with its checkpoint.
type turn struct {
	of       *History
	revision head.Revision
	retained bool
	parts    []head.Part
}

// turnOf returns the revision whose checkpoint belongs to a node: see ForkAt.
func (h *History) turnOf(ctx context.Context, now *head.Head, node graph.ID, added Position) (best turn, err error) {
	layers := h.Layers(now.Revision)
	slices.Reverse(layers)
	for _, l := range layers {
		here := added.Layer.Inc == l.Inc
		if l.Last == 0 && l.Inc != h.Inc {
			continue
		}
		of := h
		if l.Inc != h.Inc {
			if of, err = h.Open(ctx, l.Inc); err != nil {
				return best, err
			}
		}
		retained, err := h.retained(ctx, l.Inc)
		if err != nil {
			return best, err
		}
		ended, found, err := of.endedAt(ctx, l, here, added.Position, node, retained)
		if err != nil {
			return best, err
		}
		if here && !found && best.of == nil {
			ended, found = head.Revision(added.Revision)-1, true
		}
		if found && (best.of == nil || retained(ended)) {
			best = turn{of: of, revision: ended, retained: retained(ended)}
		}
		if best.retained || here {
			break
		}
	}
	st, err := best.of.StateAt(ctx, best.revision)
	best.parts = st.Parts
	return best, err
}

// endedAt returns the newest retained revision of layer l whose leaf was node or, if none is retained,
// the newest one. The one that added the node counts, if that is here, and revision 0 of a fork that
// began at the node. l is the layer of h's own incarnation, and added is where the node is if that is
// in this layer. However many turns ended at the node, endedAt reads those only that may be the one.
func (h *History) endedAt(ctx context.Context, l Layer, here bool, added graph.Position, node graph.ID, retained func(head.Revision) bool) (newest head.Revision, found bool, err error) {
	last := l.Last
	if l.Nodes > 0 { // The session shares only a part of the last commit, without its leaf.
		last--
	}
	places, err := h.places(ctx, Layer{Inc: l.Inc, Last: last}, Name{Kind: LeafEntry, ID: node})
	if err != nil {
		return 0, false, err
	}
	if here && head.Revision(added.Revision) <= last {
		places = append(places, added)
	}
	slices.SortFunc(places, func(a, b graph.Position) int { return cmp.Compare(b.Revision, a.Revision) })
	for _, p := range places {
		r := head.Revision(p.Revision)
		if found && !retained(r) {
			continue
		}
		t, err := h.TurnAt(ctx, r)
		if err != nil {
			return 0, false, err
		}
		if t.Leaf != node {
			continue
		}
		if retained(r) {
			return r, true, nil
		}
		newest, found = r, true
	}
	if h.Origin != nil && l.First == node && (!found || retained(0)) {
		return 0, true, nil
	}
	return newest, found, nil
}

// retained returns a function that reports whether the state at a revision of an incarnation can be
// read. The function reads nothing: retained has read all that it needs.
func (s Store) retained(ctx context.Context, inc head.Incarnation) (func(head.Revision) bool, error) {
	key := s.Space.Life(inc)
	values, err := s.Engine.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	life, err := head.DecodeLife(key, values[0])
	if err != nil {
		return nil, codec.Corrupt(err, "lifecycle of %s", nameOf(inc))
	}
	if life.State != head.Live {
		return func(head.Revision) bool { return false }, nil
	}
	return s.retainedBy(ctx, inc, life)
}

// retainedBy is retained for an incarnation that lives, with its lifecycle record.
func (s Store) retainedBy(ctx context.Context, inc head.Incarnation, life *head.Life) (func(head.Revision) bool, error) {
	if life.Floor == 0 {
		return func(head.Revision) bool { return true }, nil
	}
	refs, err := head.ReadKept(ctx, s.Engine, s.Space, inc, life)
	kept := make(map[head.Revision]bool, len(refs))
	for _, ref := range refs {
		kept[ref.Revision] = true
	}
	return func(r head.Revision) bool { return r >= life.Floor || kept[r] }, err
}

// Retained reports whether the state at revision r of an incarnation can be read: the
// revision is not below the floor, or a host has kept it by name.
func (s Store) Retained(ctx context.Context, inc head.Incarnation, life *head.Life, r head.Revision) (bool, error) {
	if r >= life.Floor {
		return true, nil
	}
	if life.State != head.Live {
		return false, nil
	}
	refs, err := head.ReadKept(ctx, s.Engine, s.Space, inc, life)
	return slices.ContainsFunc(refs, func(ref head.Kept) bool { return ref.Revision == r }), err
}

// RetainedNow returns a function that reports whether the state at a revision of the session can
// be read. The function answers from what RetainedNow has read.
func (s *Session) RetainedNow(ctx context.Context) (func(head.Revision) bool, error) {
	return Read(ctx, s, func(l *Lifecycles) (func(head.Revision) bool, error) {
		return s.retainedBy(ctx, s.Inc, l.Own)
	})
}
