package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A Policy says what Delete does with the children of a session.
type Policy int

// The policies: see turnstone.ChildPolicy.
const (
	KeepChildren Policy = iota
	RefuseChildren
	CascadeChildren
)

// ErrHasChildren: Delete with RefuseChildren found children.
var ErrHasChildren = errors.New("turnstone: session has children")

// Delete deletes an incarnation, under whatever id it lives, and no other session that may
// have its id by then.
func (st *Store) Delete(ctx context.Context, inc heads.Incarnation, policy Policy) error {
	return change.Settle(ctx, st.Engine, func(c *change.Change) error {
		s, state, err := st.ByIncarnation(ctx, inc)
		if err != nil || s == nil {
			return err
		}
		err = st.delete(ctx, c, s, state.Head.Revision, policy)
		if errors.Is(err, history.ErrSessionDeleted) {
			err = engine.ErrConflict // deleted or renamed meanwhile: look again
		}
		return err
	})
}

// delete is one attempt of Delete. guess is the revision at which the head was seen last.
func (st *Store) delete(ctx context.Context, c *change.Change, s *history.Session, guess head.Revision, policy Policy) error {
	return c.Alter(ctx, s, func(next *heads.Life, b *engine.Batch) (needed bool, err error) {
		if policy != KeepChildren {
			kids, err := st.Children(ctx, s.Inc)
			if err != nil {
				return false, err
			}
			for _, kid := range kids {
				if policy == RefuseChildren {
					return false, fmt.Errorf("%w: %q", ErrHasChildren, s.ID)
				}
				if err := st.Delete(ctx, kid, policy); err != nil {
					return false, err
				}
				c.Partly = true
			}
		}
		timeKey := st.Space.OrderTime(s.Inc)
		h, _, vs, err := s.ReadHead(ctx, guess, s.HeadKey, s.AboutKey, timeKey)
		if err != nil {
			return false, err
		}
		about, err := s.OpenAbout(vs[1])
		if err != nil {
			return false, err
		}
		next.State, next.Floor = heads.Deleted, h.Revision+1
		b.Reclaim = true
		b.Guard(s.HeadKey, vs[0])
		b.Guard(timeKey, vs[2])
		b.Delete(s.HeadKey)
		b.Delete(s.AboutKey)
		heads.RemoveFromOrder(b, st.Space, s.Inc, vs[2])
		b.Set(s.DirtyKey, heads.SealDirty(s.DirtyKey))
		key := st.Space.Predecessor(s.Hash)
		b.Set(key, heads.SealPredecessor(key, s.Inc))
		if about.Parent != (heads.Incarnation{}) {
			b.Delete(st.Space.Child(about.Parent, s.Inc))
		}
		return true, nil
	})
}
