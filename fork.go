package turnstone

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
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

	var origin *head.Origin
	switch {
	case r.Detached && about.ForkNode.IsZero():
	case r.Detached:
		if _, err := parent.find(ctx, h.Revision, about.ForkNode); err != nil {
			return nil, err
		}
	default:
		if origin, err = parent.originAt(ctx, h, about.ForkNode); err != nil {
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
		if err != nil {
			return nil, codec.Corrupt(err, "lifecycle of incarnation %x", inc)
		}
		if inc == parent.inc && life.State != head.Live {
			return nil, fmt.Errorf("parent: %w: %q", ErrSessionNotFound, r.Parent)
		}
		next := life.Next()
		b.Guard(key, vs[0])
		b.Set(key, next.Seal(key))
		if origin == nil {
			continue
		}
		a := &origin.Ancestors[i]
		if inc == parent.inc {
			a.Epoch = next.Epoch
		}
		if a.Revision > 0 && a.Revision < life.Floor {
			return nil, fmt.Errorf("%w: node %s of session %q", ErrRevisionPruned, about.ForkNode, r.Parent)
		}
		key = s.space.Fork(inc, about.Incarnation)
		b.Set(key, codec.Seal(key, keys.Fork, child[:]))
	}
	return origin, nil
}

// originAt returns what a fork of s at node begins with.
func (s *Session) originAt(ctx context.Context, h *head.Head, node NodeID) (*head.Origin, error) {
	o := &head.Origin{}
	if s.origin != nil {
		o.Ancestors = slices.Clone(s.origin.Ancestors)
	}
	if len(o.Ancestors) >= MaxAncestors {
		return nil, &LimitError{Limit: "ancestors", Where: "session " + s.id, Have: int64(len(o.Ancestors) + 1), Max: MaxAncestors}
	}
	own := head.Ancestor{Incarnation: s.inc, Node: node, Commit: head.Genesis(s.inc, s.origin)}
	if node == h.Leaf {
		own.Revision, own.Commit, o.Parts = h.Revision, h.Commit, inherited(h.Parts)
		o.Ancestors = append(o.Ancestors, own)
		return o, nil
	}
	if _, err := s.find(ctx, h.Revision, node); err != nil {
		return nil, err
	}
	at, err := s.place(ctx, h.Revision, node)
	if err != nil {
		return nil, err
	}
	o.Ancestors = append(o.Ancestors, own)
	shared := false
	for i := range o.Ancestors {
		a := &o.Ancestors[i]
		switch {
		case a.Incarnation == at.layer.inc:
			c, id, err := s.store.commitAt(ctx, a.Incarnation, at.revision)
			if err != nil {
				return nil, err
			}
			a.Revision, a.Commit, a.Node, shared = at.revision, id, node, true
			if a.Nodes = 0; at.position+1 < c.Nodes {
				a.Nodes = at.position + 1
			}
			parts, err := s.store.partsFor(ctx, a.Incarnation, c, node)
			if err != nil {
				return nil, err
			}
			o.Parts = inherited(parts)
		case shared: // nothing of it but its tombstones
			a.Revision, a.Commit, a.Node, a.Nodes = 0, CommitID{}, node, 0
		}
	}
	return o, nil
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

// A child is a session that names another one as its parent.
type child struct {
	inc    head.Incarnation
	hash   keys.Hash
	parent head.Incarnation
}

func (s *Store) children(ctx context.Context, parent keys.Hash) ([]child, error) {
	var out []child
	for p, err := range s.engine.Scan(ctx, s.space.Of(keys.Child, parent)) {
		if err != nil {
			return nil, err
		}
		_, fields, ok := s.space.Fields(p.Key)
		body, err := codec.Open(p.Key, p.Value, keys.Child)
		if err == nil && (!ok || len(body) != 32) {
			err = fmt.Errorf("%w: child", codec.ErrMalformed)
		}
		if err != nil {
			return nil, codec.Corrupt(err, "child at key %x", p.Key)
		}
		out = append(out, child{
			inc: head.Incarnation(fields[16:]), hash: keys.Hash(body[:16]), parent: head.Incarnation(body[16:]),
		})
	}
	return out, nil
}

// A ChildPolicy says what Delete does with sessions that name the deleted one
// as their parent.
type ChildPolicy int

const (
	// KeepChildren leaves them whole: attached forks keep what they share alive.
	KeepChildren ChildPolicy = iota
	// RefuseChildren deletes nothing and returns ErrHasChildren.
	RefuseChildren
	// CascadeChildren deletes them too, deepest first. It is not one atomic
	// step: an error leaves some deleted.
	CascadeChildren
)

// Delete removes a session from all reads and lists at once. Deleting one that
// does not exist is no error. Its data is garbage as far as no fork holds it.
func (s *Store) Delete(ctx context.Context, id string, policy ChildPolicy) error {
	for {
		ses, err := s.Session(ctx, id)
		if errors.Is(err, ErrSessionNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		err = ses.delete(ctx, policy)
		if errors.Is(err, ErrSessionDeleted) {
			return nil
		}
		if !errors.Is(err, engine.ErrConflict) && !errors.Is(err, engine.ErrUnknown) {
			return err
		}
	}
}

func (s *Session) delete(ctx context.Context, policy ChildPolicy) error {
	life, lifeRaw, err := s.life(ctx) // before the children: a fork in between conflicts
	if err != nil {
		return err
	}
	if policy != KeepChildren {
		all, err := s.store.children(ctx, s.hash)
		if err != nil {
			return err
		}
		for _, c := range all {
			if c.parent != s.inc {
				continue // of an earlier session of this id
			}
			if policy == RefuseChildren {
				return fmt.Errorf("%w: %q", ErrHasChildren, s.id)
			}
			if err := s.store.deleteChild(ctx, c); err != nil {
				return err
			}
		}
	}
	bucketKey := s.store.space.Bucket(s.inc)
	_, vs, err := s.readHead(ctx, s.headKey, s.aboutKey, bucketKey)
	if err != nil {
		return err
	}
	about, err := s.openAbout(vs[1])
	if err != nil {
		return err
	}
	next := life.Next()
	next.State = head.Deleted
	var b engine.Batch
	b.Guard(s.headKey, vs[0])
	b.Guard(s.lifeKey, lifeRaw)
	b.Guard(bucketKey, vs[2])
	b.Delete(s.headKey)
	b.Delete(s.aboutKey)
	b.Set(s.lifeKey, next.Seal(s.lifeKey))
	s.store.removeOrder(&b, s.inc, vs[2])
	s.store.setDirty(&b, s.dirtyKey)
	s.store.setGrave(&b, s.hash)
	if about.Parent != "" {
		b.Delete(s.store.space.Child(s.store.space.Session(about.Parent), s.inc))
	}
	return s.store.engine.Apply(ctx, &b)
}

func (s *Store) deleteChild(ctx context.Context, c child) error {
	key := s.space.About(c.hash)
	vs, err := s.engine.Get(ctx, key)
	if err == nil && vs[0] == nil { // gone, or renamed
		e, merr := s.moved(ctx, entry{inc: c.inc, hash: c.hash})
		if merr != nil || e.at == 0 {
			return merr
		}
		key = s.space.About(e.hash)
		vs, err = s.engine.Get(ctx, key)
	}
	if err != nil || vs[0] == nil {
		return err
	}
	about, err := head.OpenAbout(key, vs[0])
	if err != nil {
		return codec.Corrupt(err, "metadata of incarnation %x", c.inc)
	}
	if about.Incarnation != c.inc {
		return nil
	}
	return s.Delete(ctx, about.ID, CascadeChildren)
}

// Rename gives the session called from the id to, atomically: lists, reads and
// commits see one or the other. Handles opened before get ErrSessionDeleted. A
// session that exists under to is ErrExists; children that name from as their
// parent make it ErrHasChildren.
func (s *Store) Rename(ctx context.Context, from, to string) error {
	if err := checkSessionID(to); err != nil {
		return err
	}
	ses, err := s.Session(ctx, from)
	if err != nil {
		return err
	}
	for {
		b, err := s.rename(ctx, ses, to)
		if err != nil {
			return err
		}
		unknown, err := s.apply(ctx, b)
		if !errors.Is(err, engine.ErrConflict) {
			return err
		}
		if unknown { // the conflict may be with our own first attempt
			if renamed, err := s.Session(ctx, to); err == nil && renamed.inc == ses.inc {
				return nil
			}
		}
	}
}

func (s *Store) rename(ctx context.Context, ses *Session, to string) (*engine.Batch, error) {
	life, lifeRaw, err := ses.life(ctx)
	if err != nil {
		return nil, err
	}
	if kids, err := s.children(ctx, ses.hash); err != nil {
		return nil, err
	} else if slices.ContainsFunc(kids, func(c child) bool { return c.parent == ses.inc }) {
		return nil, fmt.Errorf("%w: %q", ErrHasChildren, ses.id)
	}
	hash := s.space.Session(to)
	headKey, aboutKey, bucketKey := s.space.Head(hash), s.space.About(hash), s.space.Bucket(ses.inc)
	h, vs, err := ses.readHead(ctx, ses.headKey, ses.aboutKey, bucketKey, headKey)
	if err != nil {
		return nil, err
	}
	if vs[3] != nil {
		return nil, fmt.Errorf("%w: %q", ErrExists, to)
	}
	about, err := ses.openAbout(vs[1])
	if err != nil {
		return nil, err
	}
	about.ID = to
	next := life.Next()
	next.Session = hash
	var b engine.Batch
	b.Guard(ses.headKey, vs[0])
	b.Guard(ses.aboutKey, vs[1])
	b.Guard(headKey, nil)
	b.Guard(ses.lifeKey, lifeRaw)
	b.Guard(bucketKey, vs[2])
	b.Delete(ses.headKey)
	b.Delete(ses.aboutKey)
	b.Set(headKey, h.Seal(headKey))
	b.Set(aboutKey, about.Seal(aboutKey))
	b.Set(ses.lifeKey, next.Seal(ses.lifeKey))
	if at, ok := s.bucketOf(ses.inc, vs[2]); ok {
		key := s.space.Order(at, ses.inc)
		b.Set(key, codec.Seal(key, keys.Order, hash[:]))
	}
	if about.Parent != "" {
		key := s.space.Child(s.space.Session(about.Parent), ses.inc)
		old, err := s.engine.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		body, err := codec.Open(key, old[0], keys.Child)
		if err != nil || len(body) != 32 {
			return nil, codec.Corrupt(err, "child entry of session %q", ses.id)
		}
		b.Set(key, codec.Seal(key, keys.Child, append(slices.Clone(hash[:]), body[16:]...)))
	}
	s.setGrave(&b, ses.hash)
	return &b, nil
}

// setGrave says that a session of this id is gone. Creating one guards what
// stands there: a delayed attempt from before can't bring the old one back.
func (s *Store) setGrave(b *engine.Batch, id keys.Hash) {
	key := s.space.Grave(id)
	b.Set(key, codec.Seal(key, keys.Grave, binary.LittleEndian.AppendUint64(nil, mathrand.Uint64())))
}
