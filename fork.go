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
			} else if !kept {
				return nil, fmt.Errorf("%w: the checkpoint at node %s of session %q", ErrRevisionPruned, about.ForkNode, r.Parent)
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

// originAt returns what a fork of s at node begins with. from is the session,
// and its revision, that the checkpoint is read from when it is not at hand: it
// must be retained.
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
		own.Commit, o.Parts = CommitID{}, s.origin.Parts // nothing of s but its tombstones
		o.Ancestors = append(o.Ancestors, own)
		return o, layer{inc: s.inc, last: 0}, nil // its revision 0
	}
	if _, err := s.find(ctx, h.Revision, node); err != nil {
		return nil, from, err
	}
	at, err := s.place(ctx, h.Revision, node)
	if err != nil {
		return nil, from, err
	}
	from = layer{inc: at.layer.inc, last: at.revision}
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
			if c.Leaf != node { // the turn was not over: see partsFor
				from.last--
			}
			parts, err := s.store.partsFor(ctx, a.Incarnation, c, node)
			if err != nil {
				return nil, from, err
			}
			o.Parts = inherited(parts)
		case shared: // nothing of it but its tombstones
			a.Revision, a.Commit, a.Node, a.Nodes = 0, CommitID{}, node, 0
		}
	}
	return o, from, nil
}

// inherited returns parts as a fork begins with them.
func inherited(parts []head.Part) []head.Part {
	parts = slices.Clone(parts)
	for i := range parts {
		parts[i].Set = 0
	}
	return parts
}

// partsFor returns the checkpoint that belongs to a node of commit c of an
// incarnation: of c when node is its leaf, else of the commit before, as the
// turn that c is was not over.
func (s *Store) partsFor(ctx context.Context, inc head.Incarnation, c *head.Commit, node NodeID) ([]head.Part, error) {
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
	var parts []head.Part
	if c.Leaf == node {
		parts, err = ses.partsAt(ctx, c)
	} else {
		var b base
		b, err = ses.baseBefore(ctx, c.Revision)
		parts = b.parts
	}
	return parts, err
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
