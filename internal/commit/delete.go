package commit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/feed"
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

// ErrHasChildren says that Delete with RefuseChildren found children.
var ErrHasChildren = errors.New("turnstone: session has children")

// Delete deletes an incarnation, whatever its session id is by now. It does nothing if the incarnation does not live
// any more. Unless expected is Any, it fails with *Conflict if the head is at another revision. It returns the
// incarnations that it has deleted: that one, and with CascadeChildren its children and theirs.
func (st *Lifecycle) Delete(ctx context.Context, inc head.Incarnation, expected head.Revision, policy Policy) (deleted []head.Incarnation, err error) {
	err = history.Settle(ctx, st.Engine, func(c *history.Change) error {
		s, state, err := st.ByIncarnation(ctx, inc)
		if err != nil || s == nil {
			return err
		}
		if expected != Any && state.Head.Revision != expected { // before any child is deleted
			return conflict(s, state.Head, expected)
		}
		_, err = st.delete(ctx, c, s, state.Head.Revision, expected, policy, &deleted, nil)
		if errors.Is(err, history.ErrSessionDeleted) {
			err = engine.ErrConflict // It was deleted or renamed meanwhile, so look again.
		}
		return err
	})
	return append(deleted, inc), err
}

// delete is one attempt of Delete. seen is the revision at which the head was seen last. Children that it deletes are
// added to children. If spare is not nil and says so of the head and the metadata, the session is not deleted.
func (st *Lifecycle) delete(ctx context.Context, c *history.Change, s *history.Session, seen, expected head.Revision, policy Policy, children *[]head.Incarnation,
	spare func(context.Context, *head.Head, *head.About) (bool, error),
) (deleted bool, err error) {
	err = c.Alter(ctx, s, func(_ *history.Lifecycles, next *head.Life, b *engine.Batch) (needed bool, err error) {
		if policy != KeepChildren {
			if err := st.deleteChildren(ctx, c, s, policy, children); err != nil {
				return false, err
			}
		}
		h, _, vs, err := s.ReadHead(ctx, seen, s.HeadKey, st.Space.Place(s.Inc), s.AboutKey, st.Space.Feed())
		if err != nil {
			return false, err
		}
		if expected != Any && h.Revision != expected {
			return false, conflict(s, h, expected)
		}
		if spare != nil {
			about, err := head.DecodeAbout(s.AboutKey, vs[2])
			if err != nil {
				return false, codec.Corrupt(err, "metadata of session %q", s.ID)
			}
			if spared, err := spare(ctx, h, about); err != nil || spared {
				return false, err
			}
			b.Guard(s.AboutKey, vs[2])
		}
		if _, err := st.tell(b, vs[3], h, feed.Change{Kind: feed.Deleted, Session: s.ID}, next.Epoch, st.Now()); err != nil {
			return false, err
		}
		deleted = true
		next.State, next.Floor = head.Deleted, h.Revision+1
		b.Reclaim = true
		b.Guard(s.HeadKey, vs[0])
		b.Delete(s.HeadKey)
		b.Delete(s.AboutKey)
		head.RemoveFromLists(b, st.Space, s.Inc, vs[1])
		b.Set(s.DirtyKey, head.EncodeDirty(s.DirtyKey))
		key := st.Space.Predecessor(s.Hash)
		b.Set(key, head.EncodePredecessor(key, s.Inc, st.Now()))
		return true, nil
	})
	return deleted && err == nil, err
}

// deleteChildren deletes the children of a session, and theirs. If the policy is
// RefuseChildren and there is a child, it fails with ErrHasChildren instead.
func (st *Lifecycle) deleteChildren(ctx context.Context, c *history.Change, s *history.Session, policy Policy, all *[]head.Incarnation) error {
	deleted := map[head.Incarnation]bool{}
	for { // A child that was updated meanwhile may have passed the scan: see history.Store.Children.
		children, err := st.Children(ctx, s.Inc)
		if err != nil {
			return err
		}
		if len(children) > 0 && policy == RefuseChildren {
			return fmt.Errorf("%w: %q", ErrHasChildren, s.ID)
		}
		children = slices.DeleteFunc(children, func(inc head.Incarnation) bool { return deleted[inc] })
		if len(children) == 0 {
			return nil
		}
		for _, child := range children {
			gone, err := st.Delete(ctx, child, Any, policy)
			if err != nil {
				return err
			}
			*all = append(*all, gone...)
			deleted[child], c.Partly = true, true
		}
	}
}
