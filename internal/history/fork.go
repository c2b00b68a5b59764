package history

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/internal/turns"
)

var (
	// ErrRevisionNotFound says that the session has not reached the revision.
	ErrRevisionNotFound = errors.New("turnstone: revision not found")
	// ErrRevisionPruned says that the session does not retain the revision any more.
	ErrRevisionPruned = errors.New("turnstone: revision pruned")
)

// A Fork is the state that a new fork begins with.
type Fork struct {
	heads.Origin
	// Of and At are the incarnation and the revision whose checkpoint the fork takes
	// over. Origin.Parts is that checkpoint, as it is there. The caller has to make sure
	// that the revision is still retained when the fork is created.
	Of heads.Incarnation
	At head.Revision
}

// ForkAt returns the state that a fork of the session at node begins with. now is the session's
// head. The fork may have one ancestor more than an origin can have: the caller flattens it then.
//
// The fork takes over the checkpoint of the newest retained revision whose leaf was the node.
// If the node was the leaf of no revision, the fork takes over the checkpoint before the commit
// that added the node. Revisions of the session come before those of its ancestors. The error
// is ErrRevisionPruned if none of these revisions is retained and the checkpoint has parts.
func (h *History) ForkAt(ctx context.Context, now *heads.Head, node graph.ID) (*Fork, error) {
	f := &Fork{}
	if h.Origin != nil {
		f.Ancestors = slices.Clone(h.Origin.Ancestors)
	}
	own := heads.Ancestor{Incarnation: h.Inc, Node: node, Commit: heads.Genesis(h.Inc, h.Origin)}
	if node == now.Leaf {
		own.Revision, own.Commit = now.Revision, now.Commit
		f.Parts, f.Of, f.At = slices.Clone(now.Parts), h.Inc, now.Revision
		f.Ancestors = append(f.Ancestors, own)
		return f, nil
	}
	_, at, err := h.Find(ctx, now.Revision, node)
	if err != nil {
		return nil, err
	}
	if h.Origin != nil && node == h.Origin.Node() {
		own.Commit = head.CommitID{} // The fork shares only the tombstones of the session.
		f.Ancestors = append(f.Ancestors, own)
		return f, h.takeCheckpoint(ctx, f, now, node, at)
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
	return f, h.takeCheckpoint(ctx, f, now, node, at)
}

// takeCheckpoint sets the checkpoint of a fork at node. added is the position of the node.
func (h *History) takeCheckpoint(ctx context.Context, f *Fork, now *heads.Head, node graph.ID, added Position) error {
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
func (h *History) turnOf(ctx context.Context, now *heads.Head, node graph.ID, added Position) (best turn, err error) {
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
		ended, err := of.endedAt(ctx, l, here, added.Position, node)
		if err != nil {
			return best, err
		}
		if here && len(ended) == 0 && best.of == nil {
			ended = []head.Revision{head.Revision(added.Revision) - 1}
		}
		if len(ended) > 0 {
			r, retained, err := h.newestRetained(ctx, l.Inc, ended)
			if err != nil {
				return best, err
			}
			if retained || best.of == nil {
				best = turn{of: of, revision: r, retained: retained}
			}
		}
		if best.retained || here {
			break
		}
	}
	st, err := best.of.StateAt(ctx, best.revision)
	best.parts = st.Parts
	return best, err
}

// endedAt returns the revisions of layer l whose leaf was node, in order. They include the one that
// added the node, if that is here, and revision 0 of a fork that began at the node. l is the layer
// of h's own incarnation, and added is where the node is if that is in this layer.
func (h *History) endedAt(ctx context.Context, l Layer, here bool, added pack.Position, node graph.ID) (ended []head.Revision, err error) {
	last := l.Last
	if l.Nodes > 0 { // The session shares only a part of the last commit, without its leaf.
		last--
	}
	places, err := h.places(ctx, Layer{Inc: l.Inc, Last: last}, turns.Name{Kind: turns.LeafEntry, ID: node})
	if err != nil {
		return nil, err
	}
	if here && head.Revision(added.Revision) <= last {
		places = append(places, added)
	}
	for _, p := range places {
		t, err := h.TurnAt(ctx, head.Revision(p.Revision))
		if err != nil {
			return nil, err
		}
		if t.Leaf == node {
			ended = append(ended, t.Revision)
		}
	}
	if h.Origin != nil && l.First == node {
		ended = append(ended, 0)
	}
	slices.Sort(ended)
	return ended, nil
}

// newestRetained returns the newest retained revision among some revisions of an incarnation. If
// none is retained, it returns the newest one and false.
func (s Store) newestRetained(ctx context.Context, inc heads.Incarnation, of []head.Revision) (r head.Revision, retained bool, err error) {
	key := s.Space.Life(inc)
	values, err := s.Engine.Get(ctx, key)
	if err != nil {
		return 0, false, err
	}
	life, err := heads.OpenLife(key, values[0])
	if err != nil {
		return 0, false, codec.Corrupt(err, "lifecycle of %s", nameOf(inc))
	}
	newest := of[len(of)-1]
	if newest >= life.Floor || life.State != heads.Live {
		return newest, life.State == heads.Live, nil
	}
	refs, err := heads.Kept(ctx, s.Engine, s.Space, inc, life)
	for _, ref := range refs {
		if _, ended := slices.BinarySearch(of, ref.Revision); ended && (!retained || ref.Revision > r) {
			r, retained = ref.Revision, true
		}
	}
	if !retained {
		r = newest
	}
	return r, retained, err
}

// Retained reports whether the state at revision r of an incarnation can be read: the
// revision is not below the floor, or a host has kept it by name.
func (s Store) Retained(ctx context.Context, inc heads.Incarnation, life *heads.Life, r head.Revision) (bool, error) {
	if r >= life.Floor {
		return true, nil
	}
	if life.State != heads.Live {
		return false, nil
	}
	refs, err := heads.Kept(ctx, s.Engine, s.Space, inc, life)
	return slices.ContainsFunc(refs, func(ref head.Kept) bool { return ref.Revision == r }), err
}

// RetainedNow returns a function that reports whether the state at a revision of the session can
// be read. The function answers from what RetainedNow has read.
func (s *Session) RetainedNow(ctx context.Context) (func(head.Revision) bool, error) {
	return WithLifecycles(ctx, s, func(l *Lifecycles) (func(head.Revision) bool, error) {
		refs, err := heads.Kept(ctx, s.Engine, s.Space, s.Inc, l.Own)
		kept := map[head.Revision]bool{}
		for _, r := range refs {
			kept[r.Revision] = true
		}
		return func(r head.Revision) bool { return r >= l.Own.Floor || kept[r] }, err
	})
}
