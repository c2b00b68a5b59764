package turnstone

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
)

// A ChildPolicy says what Delete does with the children of a session.
type ChildPolicy int

const (
	// KeepChildren leaves them whole: attached forks keep what they share alive.
	// They have no parent any more.
	KeepChildren ChildPolicy = iota
	// RefuseChildren deletes nothing and returns ErrHasChildren.
	RefuseChildren
	// CascadeChildren deletes them too, deepest first. It is not one atomic
	// step: an error that matches ErrIncomplete leaves some deleted.
	CascadeChildren
)

// setChild makes b list child under its parent.
func (s *Store) setChild(b *engine.Batch, parent, child head.Incarnation) {
	key := s.space.Child(parent, child)
	b.Set(key, head.SealChild(key))
}

// Delete removes a session from all reads and lists at once. Deleting one that
// does not exist is no error. Its data is garbage as far as no fork holds it. An
// error that matches ErrOutcomeUnknown leaves open whether the session is deleted,
// and one of CascadeChildren that matches ErrIncomplete leaves some deleted.
func (s *Store) Delete(ctx context.Context, id string, policy ChildPolicy) error {
	_, err := observed(ctx, s, OpDelete, id, func(ctx context.Context) (struct{}, error) {
		if err := policy.check(); err != nil {
			return struct{}{}, err
		}
		ses, err := s.Session(ctx, id)
		if errors.Is(err, ErrSessionNotFound) {
			return struct{}{}, nil
		}
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, s.deleteIncarnation(ctx, ses.session.Inc, policy)
	}, nil)
	return err
}

// deleteIncarnation deletes one session and no other that may have its id by
// then; a rename meanwhile does not save it.
func (s *Store) deleteIncarnation(ctx context.Context, inc head.Incarnation, policy ChildPolicy) error {
	return change.Settle(ctx, s.engine, func(c *change.Change) error {
		ses, err := s.byIncarnation(ctx, inc)
		if err != nil || ses == nil {
			return err
		}
		err = ses.delete(ctx, c, policy)
		if errors.Is(err, ErrSessionDeleted) {
			err = engine.ErrConflict // deleted or renamed meanwhile: look again
		}
		return err
	})
}

func (s *Session) delete(ctx context.Context, c *change.Change, policy ChildPolicy) error {
	return c.Alter(ctx, s.session.Session, func(next *head.Life, b *engine.Batch) (needed bool, err error) {
		if policy != KeepChildren {
			kids, err := s.store.histories.Children(ctx, s.session.Inc)
			if err != nil {
				return false, err
			}
			for _, kid := range kids {
				if policy == RefuseChildren {
					return false, fmt.Errorf("%w: %q", ErrHasChildren, s.session.ID)
				}
				if err := s.store.deleteIncarnation(ctx, kid, policy); err != nil {
					return false, err
				}
				c.Partly = true
			}
		}
		timeKey := s.store.space.OrderTime(s.session.Inc)
		h, vs, err := s.session.Head(ctx, s.session.HeadKey, s.session.AboutKey, timeKey)
		if err != nil {
			return false, err
		}
		about, err := s.session.OpenAbout(vs[1])
		if err != nil {
			return false, err
		}
		next.State, next.Floor = head.Deleted, h.Revision+1
		b.Reclaim = true
		b.Guard(s.session.HeadKey, vs[0])
		b.Guard(timeKey, vs[2])
		b.Delete(s.session.HeadKey)
		b.Delete(s.session.AboutKey)
		head.RemoveFromOrder(b, s.store.space, s.session.Inc, vs[2])
		b.Set(s.session.DirtyKey, head.SealDirty(s.session.DirtyKey))
		key := s.store.space.Predecessor(s.session.Hash)
		b.Set(key, head.SealPredecessor(key, s.session.Inc))
		if about.Parent != (head.Incarnation{}) {
			b.Delete(s.store.space.Child(about.Parent, s.session.Inc))
		}
		return true, nil
	})
}
