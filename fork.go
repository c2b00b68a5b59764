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
			} else if !kept { // pruned since it was found to be retained: look again
				return nil, engine.ErrConflict
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
	added := map[BlobID]bool{} // parts of equal content are one blob
	for i := range parts {
		p := &parts[i]
		if p.IsDelta() && !added[p.Blob] {
			added[p.Blob] = true
			ses, err := s.historyOf(ctx, owner)
			if err != nil {
				return err
			}
			content, _, err := ses.readPart(ctx, *p)
			if err != nil {
				return err
			}
			d, err := g.draft(ctx, p.Blob, content)
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
		own.Commit = CommitID{} // nothing of s but its tombstones
		o.Ancestors = append(o.Ancestors, own)
		o.Parts, from, err = s.partsFor(ctx, h, node, spot{})
		return o, from, err
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

// partsFor returns the checkpoint that a fork of s at node begins with, and the
// session and revision that it is of: the newest retained revision that ended at the
// node, or where no turn ended there the one before the turn that made the node. The
// revisions of s come before those of its ancestors. If the checkpoint is not empty
// and none of these revisions is retained, the error is ErrRevisionPruned.
//
// made says where the node is. It may be zero for the node that s forked from, at
// which revision 0 of s ended. The commits since the node was made are read.
func (s *Session) partsFor(ctx context.Context, h *head.Head, node NodeID, made spot) ([]head.Part, layer, error) {
	turn, err := s.turnAt(ctx, h, node, made)
	if err != nil {
		return nil, layer{}, err
	}
	if !turn.retained && len(turn.parts) > 0 {
		return nil, layer{}, fmt.Errorf("%w: the checkpoint at node %s of session %q", ErrRevisionPruned, node, s.id)
	}
	return slices.Clone(turn.parts), layer{inc: turn.of.inc, last: turn.revision}, nil
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
			if of, err = s.store.historyOf(ctx, l.inc); err != nil {
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

// partsOf returns the checkpoint at revision r.
func (s *Session) partsOf(ctx context.Context, r Revision) ([]head.Part, error) {
	b, err := s.baseBefore(ctx, r+1)
	return b.parts, err
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
