package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
)

// fork adds to b what makes the new session about a child of r.Parent, and returns
// the origin of an attached fork, or nil. It copies no history: the origin names, for
// the parent and each of its own ancestors, how far their history is shared. The
// lifecycle record of each is guarded and set, so that nothing that removes or
// rewrites can pass unnoticed.
func (st *Store) fork(ctx context.Context, b *engine.Batch, r *Request, about *heads.About, g *commit.Stage) (*heads.Origin, error) {
	parent, state, err := st.OpenSession(ctx, r.Parent)
	if err != nil {
		return nil, fmt.Errorf("parent: %w", err)
	}
	about.Parent, g.Owner = parent.Inc, parent.Inc
	origin, err := history.WithLifecycles(ctx, parent, func(l *history.Lifecycles) (*heads.Origin, error) {
		return st.forkOf(ctx, parent, state.Head.Revision, b, l, r, about, g)
	})
	if errors.Is(err, history.ErrSessionDeleted) {
		err = fmt.Errorf("parent: %w: %q", history.ErrSessionNotFound, r.Parent)
	}
	return origin, err
}

// forkOf is one attempt of fork. guess is the revision at which the parent was seen last.
func (st *Store) forkOf(ctx context.Context, s *history.Session, guess head.Revision, out *engine.Batch, l *history.Lifecycles, r *Request, about *heads.About, g *commit.Stage) (*heads.Origin, error) {
	h, _, _, err := s.ReadHead(ctx, guess)
	if err != nil {
		return nil, err
	}
	if about.ForkNode = r.ForkNode; about.ForkNode.IsZero() {
		about.ForkNode = h.Leaf
	}
	if !about.ForkNode.IsZero() && about.ForkNode != h.Leaf {
		if err := s.NotPruned(ctx, h.Revision, about.ForkNode); err != nil {
			return nil, err
		}
	}
	var b engine.Batch // of this attempt
	key := st.Space.Child(s.Inc, about.Incarnation)
	b.Set(key, heads.SealChild(key))
	if about.Detached {
		next := l.Own.Next()
		b.Guard(l.Keys[0], l.Values[0])
		b.Set(l.Keys[0], next.Seal(l.Keys[0]))
		merge(out, &b)
		return nil, nil
	}
	if s.Origin != nil && len(s.Origin.Ancestors) >= st.Limits.Ancestors {
		have := int64(len(s.Origin.Ancestors) + 1)
		return nil, &change.Limit{Limit: "ancestors", Where: "session " + s.ID, Have: have, Max: int64(st.Limits.Ancestors)}
	}
	f, err := s.ForkAt(ctx, h, about.ForkNode)
	if err != nil {
		return nil, err
	}
	child := st.Space.Session(about.ID)
	for i := range f.Ancestors {
		a := &f.Ancestors[i]
		life, key, raw, err := l.Of(a.Incarnation)
		if err != nil {
			return nil, err
		}
		next := life.Next()
		next.Forks++
		b.Guard(key, raw)
		b.Set(key, next.Seal(key))
		if a.Incarnation == s.Inc {
			a.Epoch = next.Epoch
		}
		if a.Incarnation == f.Of && len(f.Parts) > 0 {
			if kept, err := st.Retained(ctx, f.Of, life, f.At); err != nil {
				return nil, err
			} else if !kept { // pruned since it was found to be retained: look again
				return nil, engine.ErrConflict
			}
		}
		key = st.Space.Fork(a.Incarnation, about.Incarnation)
		b.Set(key, heads.SealFork(key, child))
	}
	if len(f.Parts) > 0 {
		if err := st.inherit(ctx, &b, f.Of, f.Parts, g); err != nil {
			return nil, err
		}
		key := st.Space.Dirty(about.Incarnation)
		b.Set(key, heads.SealDirty(key))
	}
	merge(out, &b)
	return &f.Origin, nil
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
func (st *Store) inherit(ctx context.Context, b *engine.Batch, owner heads.Incarnation, parts []head.Part, g *commit.Stage) error {
	added := map[blob.ID]bool{} // parts of equal content are one blob
	for i := range parts {
		p := &parts[i]
		if heads.IsDelta(*p) && !added[p.Blob] {
			added[p.Blob] = true
			h, err := st.Open(ctx, owner)
			if err != nil {
				return err
			}
			content, _, err := h.ReadPart(ctx, *p)
			if err != nil {
				return err
			}
			d, err := g.Draft(ctx, p.Blob, content)
			if err != nil {
				return err
			}
			if _, err := st.Blobs.Refresh(ctx, g.Marks, g.IDs()); err != nil {
				return err
			}
			if err := g.Add(b, d); err != nil {
				return err
			}
		}
		p.Set, p.Whole = 0, 0
	}
	g.Finish(b)
	return nil
}
