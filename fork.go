package turnstone

import (
	"context"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// fork adds to b what makes the new session about a child of r.Parent, and
// returns the origin of an attached fork, or nil. It copies nothing: the origin
// names, for the parent and each of its own ancestors, how far their history is
// shared. The lifecycle record of each is guarded and set, so that nothing that
// removes or rewrites can pass unnoticed.
func (s *Store) fork(ctx context.Context, b *engine.Batch, r *Request, about *head.About) (*head.Origin, error) {
	parent, err := s.Session(ctx, r.Parent)
	if err != nil {
		return nil, fmt.Errorf("parent: %w", err)
	}
	h, _, err := parent.readHead(ctx)
	if err != nil {
		return nil, fmt.Errorf("parent: %w", err)
	}
	if about.ForkNode.IsZero() {
		about.ForkNode = h.Leaf
	}
	key := s.space.Child(parent.hash, about.Incarnation)
	child := s.space.Session(r.ID)
	b.Set(key, codec.Seal(key, keys.Child, append(child[:], parent.inc[:]...)))
	if about.ForkNode != h.Leaf {
		if err := parent.notPruned(ctx, about.ForkNode); err != nil {
			return nil, err
		}
	}

	var origin *head.Origin
	var from layer // whose checkpoint the fork begins with, if that is not the head's
	switch {
	case r.Detached && about.ForkNode.IsZero():
	case r.Detached:
		if _, err := parent.find(ctx, h.Revision, about.ForkNode); err != nil {
			return nil, err
		}
	default:
		if origin, from, err = parent.originAt(ctx, h, about.ForkNode); err != nil {
			return nil, err
		}
	}
	incs := []head.Incarnation{parent.inc}
	if origin != nil {
		incs = incs[:0]
		for _, a := range origin.Ancestors {
			incs = append(incs, a.Incarnation)
		}
	}
	for i, inc := range incs {
		key := s.space.Life(inc)
		vs, err := s.engine.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		life, err := head.OpenLife(key, vs[0])
		if vs[0] == nil && parent.gone(ctx) { // a session keeps its ancestors
			return nil, fmt.Errorf("parent: %w: %q", ErrSessionNotFound, r.Parent)
		}
		if err != nil {
			return nil, codec.Corrupt(err, "lifecycle of incarnation %x", inc)
		}
		if inc == parent.inc && (life.State != head.Live || life.Session != parent.hash) {
			return nil, fmt.Errorf("parent: %w: %q", ErrSessionNotFound, r.Parent)
		}
		next := life.Next()
		b.Guard(key, vs[0])
		if origin == nil {
			b.Set(key, next.Seal(key))
			continue
		}
		next.Forks++
		b.Set(key, next.Seal(key))
		a := &origin.Ancestors[i]
		if inc == parent.inc {
			a.Epoch = next.Epoch
		}
		if inc == from.inc && len(origin.Parts) > 0 {
			if kept, err := s.retained(ctx, inc, life, from.last); err != nil {
				return nil, err
			} else if !kept { // pruned since it was found to be retained: look again
				return nil, engine.ErrConflict
			}
		}
		key = s.space.Fork(inc, about.Incarnation)
		b.Set(key, codec.Seal(key, keys.Fork, child[:]))
	}
	if origin != nil && len(origin.Parts) > 0 {
		s.setDirty(b, s.space.Dirty(about.Incarnation))
	}
	return origin, nil
}

// originAt returns what a fork of s at node begins with. from is the session, and
// its revision, that the checkpoint is read from when it is not at hand: it must be
// retained.
func (s *Session) originAt(ctx context.Context, h *head.Head, node NodeID) (o *head.Origin, from layer, err error) {
	o = &head.Origin{}
	if s.origin != nil {
		o.Ancestors = slices.Clone(s.origin.Ancestors)
	}
	if len(o.Ancestors) >= MaxAncestors {
		return nil, from, &LimitError{Limit: "ancestors", Where: "session " + s.id, Have: int64(len(o.Ancestors) + 1), Max: MaxAncestors}
	}
	own := head.Ancestor{Incarnation: s.inc, Node: node, Commit: head.Genesis(s.inc, s.origin)}
	if node == h.Leaf {
		own.Revision, own.Commit, o.Parts = h.Revision, h.Commit, inherited(h.Parts)
		o.Ancestors = append(o.Ancestors, own)
		return o, from, nil
	}
	if s.origin != nil && node == o.Ancestors[len(o.Ancestors)-1].Node {
		own.Commit = CommitID{} // nothing of s but its tombstones
		o.Ancestors = append(o.Ancestors, own)
		o.Parts, from, err = s.partsFor(ctx, h, node, spot{})
		return o, from, err
	}
	if _, err := s.find(ctx, h.Revision, node); err != nil {
		return nil, from, err
	}
	at, err := s.place(ctx, h.Revision, node)
	if err != nil {
		return nil, from, err
	}
	o.Ancestors = append(o.Ancestors, own)
	shared := false
	for i := range o.Ancestors {
		a := &o.Ancestors[i]
		switch {
		case a.Incarnation == at.layer.inc:
			c, id, err := s.store.commitAt(ctx, a.Incarnation, at.revision)
			if err != nil {
				return nil, from, err
			}
			a.Revision, a.Commit, a.Node, shared = at.revision, id, node, true
			if a.Nodes = 0; at.position+1 < c.Nodes {
				a.Nodes = at.position + 1
			}
		case shared: // nothing of it but its tombstones
			a.Revision, a.Commit, a.Node, a.Nodes = 0, CommitID{}, node, 0
		}
	}
	o.Parts, from, err = s.partsFor(ctx, h, node, at)
	return o, from, err
}

// inherited returns parts as a fork begins with them.
func inherited(parts []head.Part) []head.Part {
	parts = slices.Clone(parts)
	for i := range parts {
		parts[i].Set = 0
	}
	return parts
}

// partsFor returns the checkpoint that a fork of s at node begins with, and the
// session and revision that it is of: the newest retained revision that ended at the
// node, or where no turn ended there the one before the turn that made the node. The
// revisions of s come before those of its ancestors. If the checkpoint is not empty
// and none of these revisions is retained, the error is ErrRevisionPruned.
//
// made says where the node is. It may be zero for the node that s forked from, at
// which revision 0 of s ended. The commits since the node was made are read.
func (s *Session) partsFor(ctx context.Context, h *head.Head, node NodeID, made spot) ([]head.Part, layer, error) {
	turn, err := retried(ctx, s, func() (turn, error) { return s.turnAt(ctx, h, node, made) })
	if err != nil {
		return nil, layer{}, err
	}
	if !turn.retained && len(turn.parts) > 0 {
		return nil, layer{}, fmt.Errorf("%w: the checkpoint at node %s of session %q", ErrRevisionPruned, node, s.id)
	}
	return inherited(turn.parts), layer{inc: turn.of.inc, last: turn.revision}, nil
}

// A turn is a revision of a session's history, with the checkpoint then.
type turn struct {
	of       *Session // s or an ancestor; of an ancestor only the history can be read
	revision Revision
	retained bool
	parts    []head.Part
}

// turnAt finds the revision whose checkpoint belongs to a node: see partsFor.
func (s *Session) turnAt(ctx context.Context, h *head.Head, node NodeID, made spot) (found turn, err error) {
	layers := s.layers(h.Revision)
	slices.Reverse(layers)
	for _, l := range layers {
		here := made.layer.inc == l.inc
		if l.last == 0 && l.inc != s.inc {
			continue // an ancestor of which only tombstones count
		}
		of := s
		if l.inc != s.inc {
			if of, err = s.store.history(ctx, l.inc); err != nil {
				return found, err
			}
		}
		after := Revision(0)
		if here {
			after = made.revision - 1
		}
		ended, err := of.endedAt(ctx, l, after, node)
		if err != nil {
			return found, err
		}
		if here && len(ended) == 0 && found.of == nil {
			ended = []Revision{after}
		}
		if len(ended) > 0 {
			newest, retained, err := s.newest(ctx, l.inc, ended)
			if err != nil {
				return found, err
			}
			if retained || found.of == nil {
				found = turn{of: of, revision: newest, retained: retained}
			}
		}
		if found.retained || here {
			break
		}
	}
	found.parts, err = found.of.partsOf(ctx, found.revision)
	return found, err
}

// endedAt returns the revisions of layer l, which s is of, that are behind a revision
// and ended at a node, in their order. Revision 0 is that with which a fork began.
func (s *Session) endedAt(ctx context.Context, l layer, after Revision, node NodeID) (ended []Revision, err error) {
	if after == 0 && s.origin != nil && l.first == node {
		ended = append(ended, 0)
	}
	last := l.last
	if l.nodes > 0 { // of the last turn only a part is shared: it ended elsewhere
		last--
	}
	err = s.commits(ctx, after, last, func(c *head.Commit, _ CommitID) error {
		if c.Leaf == node {
			ended = append(ended, c.Revision)
		}
		return nil
	})
	return ended, err
}

// newest returns the newest of some revisions of an incarnation that is retained, or
// if none is the newest one.
func (s *Session) newest(ctx context.Context, inc head.Incarnation, of []Revision) (r Revision, retained bool, err error) {
	key := s.store.space.Life(inc)
	vs, err := s.store.engine.Get(ctx, key)
	if err != nil {
		return 0, false, err
	}
	life, err := head.OpenLife(key, vs[0])
	if err != nil {
		return 0, false, codec.Corrupt(err, "lifecycle of incarnation %x", inc)
	}
	newest := of[len(of)-1]
	if newest >= life.Floor || life.State != head.Live {
		return newest, life.State == head.Live, nil
	}
	refs, err := head.Refs(ctx, s.store.engine, s.store.space, inc, life)
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

// history returns a handle on an incarnation, alive or not, by which its commits can
// be read.
func (s *Store) history(ctx context.Context, inc head.Incarnation) (*Session, error) {
	key := s.space.Origin(inc)
	vs, err := s.engine.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	ses := &Session{store: s, inc: inc, id: fmt.Sprintf("%x", inc)}
	if vs[0] != nil {
		if ses.origin, err = head.OpenOrigin(key, vs[0]); err != nil {
			return nil, codec.Corrupt(err, "origin of incarnation %x", inc)
		}
	}
	return ses, nil
}

// partsOf returns the checkpoint at revision r.
func (s *Session) partsOf(ctx context.Context, r Revision) ([]head.Part, error) {
	b, err := s.baseBefore(ctx, r+1)
	return b.parts, err
}

const (
	// KeepChildren leaves them whole: attached forks keep what they share alive.
	KeepChildren ChildPolicy = iota
	// RefuseChildren deletes nothing and returns ErrHasChildren.
	RefuseChildren
	// CascadeChildren deletes them too, deepest first. It is not one atomic
	// step: an error that matches ErrIncomplete leaves some deleted.
	CascadeChildren
)
