package turnstone

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// fork adds to b what makes the new session about a child of r.Parent, and returns
// the origin of an attached fork, or nil. It copies no history: the origin names, for
// the parent and each of its own ancestors, how far their history is shared. The
// lifecycle record of each is guarded and set, so that nothing that removes or
// rewrites can pass unnoticed.
func (s *Store) fork(ctx context.Context, b *engine.Batch, r *Request, about *head.About, g *stage) (*head.Origin, error) {
	parent, err := s.Session(ctx, r.Parent)
	if err != nil {
		return nil, fmt.Errorf("parent: %w", err)
	}
	about.Parent, g.owner = parent.inc, parent.inc
	origin, err := withLives(ctx, parent, func(l *lives) (*head.Origin, error) { return parent.fork(ctx, b, l, r, about, g) })
	if errors.Is(err, ErrSessionDeleted) {
		err = fmt.Errorf("parent: %w: %q", ErrSessionNotFound, r.Parent)
	}
	return origin, err
}

func (s *Session) fork(ctx context.Context, out *engine.Batch, l *lives, r *Request, about *head.About, g *stage) (*head.Origin, error) {
	space := s.store.space
	h, _, err := s.readHead(ctx)
	if err != nil {
		return nil, err
	}
	if about.ForkNode = r.ForkNode; about.ForkNode.IsZero() {
		about.ForkNode = h.Leaf
	}
	if !about.ForkNode.IsZero() && about.ForkNode != h.Leaf {
		if err := s.notPruned(ctx, h.Revision, about.ForkNode); err != nil {
			return nil, err
		}
	}
	var b engine.Batch // of this attempt
	s.store.setChild(&b, s.inc, about.Incarnation)
	if r.Detached {
		next := l.life.Next()
		b.Guard(l.keys[0], l.raws[0])
		b.Set(l.keys[0], next.Seal(l.keys[0]))
		merge(out, &b)
		return nil, nil
	}
	origin, from, err := s.originAt(ctx, h, about.ForkNode)
	if err != nil {
		return nil, err
	}
	child := space.Session(r.ID)
	for i := range origin.Ancestors {
		a := &origin.Ancestors[i]
		life, key, raw, err := l.of(a.Incarnation)
		if err != nil {
			return nil, err
		}
		next := life.Next()
		next.Forks++
		b.Guard(key, raw)
		b.Set(key, next.Seal(key))
		if a.Incarnation == s.inc {
			a.Epoch = next.Epoch
		}
		if a.Incarnation == from.inc && len(origin.Parts) > 0 {
			if kept, err := s.store.retained(ctx, from.inc, life, from.last); err != nil {
				return nil, err
			} else if !kept {
				return nil, fmt.Errorf("%w: the checkpoint at node %s of session %q", ErrRevisionPruned, about.ForkNode, s.id)
			}
		}
		key = space.Fork(a.Incarnation, about.Incarnation)
		b.Set(key, codec.Seal(key, keys.Fork, child[:]))
	}
	if len(origin.Parts) > 0 {
		if err := s.store.inherit(ctx, &b, from.inc, origin.Parts, g); err != nil {
			return nil, err
		}
		s.store.setDirty(&b, space.Dirty(about.Incarnation))
	}
	merge(out, &b)
	return origin, nil
}

// merge adds the writes and guards of more to b.
func merge(b, more *engine.Batch) {
	b.Guards = append(b.Guards, more.Guards...)
	b.Sets = append(b.Sets, more.Sets...)
	b.Deletes = append(b.Deletes, more.Deletes...)
}

// inherit makes parts, which are as owner has them, those that a fork begins with. A
// delta belongs to its session alone, so b stores the fork's version whole, as a blob,
// unless another fork has done so.
func (s *Store) inherit(ctx context.Context, b *engine.Batch, owner head.Incarnation, parts []Part, g *stage) error {
	for i := range parts {
		p := &parts[i]
		if p.IsDelta() {
			ses, err := s.historyOf(ctx, owner)
			if err != nil {
				return err
			}
			content, _, err := ses.readPart(ctx, *p)
			if err != nil {
				return err
			}
			d, err := g.draft(ctx, content)
			if err != nil {
				return err
			}
			if _, err := s.blobs.Refresh(ctx, g.marks, g.ids()); err != nil {
				return err
			}
			if err := g.add(b, d); err != nil {
				return err
			}
		}
		p.Set, p.Whole = 0, 0
	}
	g.finish(b)
	return nil
}

// originAt returns what a fork of s at node begins with. Parts are as the session
// has them that from names, with the revision that they are of: it must be retained.
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
		own.Revision, own.Commit, o.Parts = h.Revision, h.Commit, slices.Clone(h.Parts)
		o.Ancestors = append(o.Ancestors, own)
		return o, layer{inc: s.inc, last: h.Revision}, nil
	}
	if s.origin != nil && node == o.Ancestors[len(o.Ancestors)-1].Node {
		own.Commit, o.Parts = CommitID{}, slices.Clone(s.origin.Parts) // nothing of s but its tombstones
		o.Ancestors = append(o.Ancestors, own)
		return o, layer{inc: s.inc, last: 0}, nil // its revision 0
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
			if o.Parts, err = s.store.partsFor(ctx, a.Incarnation, c, node); err != nil {
				return nil, from, err
			}
		case shared: // nothing of it but its tombstones
			a.Revision, a.Commit, a.Node, a.Nodes = 0, CommitID{}, node, 0
		}
	}
	return o, from, nil
}

// partsFor returns the checkpoint that belongs to a node of commit c of an
// incarnation: of c when node is its leaf, else of the commit before, as the
// turn that c is was not over.
func (s *Store) partsFor(ctx context.Context, inc head.Incarnation, c *head.Commit, node NodeID) ([]head.Part, error) {
	ses, err := s.historyOf(ctx, inc)
	if err != nil {
		return nil, err
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

// historyOf returns a handle for reading the own history of an incarnation, which may
// be deleted.
func (s *Store) historyOf(ctx context.Context, inc head.Incarnation) (*Session, error) {
	key := s.space.Origin(inc)
	vs, err := s.engine.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	ses := &Session{store: s, id: fmt.Sprintf("incarnation %x", inc)}
	ses.is(inc)
	if vs[0] != nil {
		if ses.origin, err = head.OpenOrigin(key, vs[0]); err != nil {
			return nil, codec.Corrupt(err, "origin of incarnation %x", inc)
		}
	}
	return ses, nil
}
