package commit

import (
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
)

// Tombstone hides nodes from a session. The error is history.ErrNodeNotFound if the
// session's graph does not have one of them, and then Tombstone changes nothing.
func (st *Lifecycle) Tombstone(ctx context.Context, s *history.Session, ids []graph.ID) error {
	return history.Settle(ctx, st.Engine, func(c *history.Change) error {
		return c.Alter(ctx, s, func(l *history.Lifecycles, next *head.Life, b *engine.Batch) (needed bool, err error) {
			h, vs, err := s.Head(ctx, st.Space.Feed())
			if err != nil {
				return false, err
			}
			b.Reclaim = true
			b.Set(s.DirtyKey, head.EncodeDirty(s.DirtyKey))
			if needed, err = history.TombstoneNodes(ctx, l, h.Revision, ids, next, b); needed {
				_, err = st.tell(b, vs[0], h, feed.Change{Kind: feed.Tombstoned, Session: s.ID}, next.Epoch, st.Now())
			}
			return needed, err
		})
	})
}

// Keep keeps revision r under a name. If r is 0, it keeps the revision of the head. The error
// is ErrExists if the name keeps another revision.
func (st *Lifecycle) Keep(ctx context.Context, s *history.Session, name string, r head.Revision) error {
	key := st.Space.Ref(s.Inc, name)
	at := r // It stays the same for all attempts: one of them may stand although its outcome is unknown.
	return st.changeLife(ctx, s, func(_ *history.Change, h *head.Head, life *head.Life, b *engine.Batch) (needed bool, err error) {
		if at == 0 {
			at = h.Revision
		}
		vs, err := st.Engine.Get(ctx, key)
		if err != nil {
			return false, err
		}
		if vs[0] != nil {
			return false, checkKept(s, name, at, key, vs[0])
		}
		if err := st.checkRetained(ctx, s, h, life, at); err != nil {
			return false, err
		}
		if err := st.tellKept(ctx, s, h, life, b); err != nil {
			return false, err
		}
		return true, history.KeepRevision(s, head.Kept{Name: name, Revision: at}, true, st.Store.Limits.Kept, life, b)
	})
}

// tellKept tells the feed that the names of kept revisions change.
func (st *Lifecycle) tellKept(ctx context.Context, s *history.Session, h *head.Head, life *head.Life, b *engine.Batch) error {
	vs, err := st.Engine.Get(ctx, st.Space.Feed())
	if err == nil {
		_, err = st.tell(b, vs[0], h, feed.Change{Kind: feed.Saved, Session: s.ID}, life.Epoch, st.Now())
	}
	return err
}

// checkKept fails with ErrExists if a name keeps another revision than r. key and value are
// those of the name's record.
func checkKept(s *history.Session, name string, r head.Revision, key, value []byte) error {
	kept, err := head.DecodeKept(key, value)
	if err != nil {
		return codec.Corrupt(err, "kept revision %q of session %q", name, s.ID)
	}
	if kept.Revision != r {
		return fmt.Errorf("%w: %q keeps revision %d of session %q", ErrExists, name, kept.Revision, s.ID)
	}
	return nil
}

// checkRetained fails with ErrRevisionNotFound if the session has no revision r, and with
// ErrRevisionPruned if the session does not retain it.
func (st *Lifecycle) checkRetained(ctx context.Context, s *history.Session, h *head.Head, life *head.Life, r head.Revision) error {
	if r > h.Revision || r == 0 {
		return fmt.Errorf("%w: %d of session %q, which is at %d", history.ErrRevisionNotFound, r, s.ID, h.Revision)
	}
	retained, err := st.Retained(ctx, s.Inc, life, r)
	if err == nil && !retained {
		err = fmt.Errorf("%w: %d of session %q, whose floor is %d", history.ErrRevisionPruned, r, s.ID, life.Floor)
	}
	return err
}

// Release ends Keep. It is no error if the name keeps nothing.
func (st *Lifecycle) Release(ctx context.Context, s *history.Session, name string) error {
	key := st.Space.Ref(s.Inc, name)
	return st.changeLife(ctx, s, func(_ *history.Change, h *head.Head, life *head.Life, b *engine.Batch) (needed bool, err error) {
		vs, err := st.Engine.Get(ctx, key)
		if needed = err == nil && vs[0] != nil; needed {
			life.Refs--
			b.Delete(key)
			err = st.tellKept(ctx, s, h, life, b)
		}
		return needed, err
	})
}

// changeLife applies what edit adds to the batch and to the lifecycle record, unless edit
// reports that there is nothing to do. It calls edit again after a conflict. The conflict may
// be with an earlier attempt whose outcome was unknown. Then edit finds that attempt's
// result, and has nothing to do.
func (st *Lifecycle) changeLife(ctx context.Context, s *history.Session, edit func(*history.Change, *head.Head, *head.Life, *engine.Batch) (needed bool, err error)) error {
	return history.Settle(ctx, st.Engine, func(c *history.Change) error {
		return c.Alter(ctx, s, func(_ *history.Lifecycles, next *head.Life, b *engine.Batch) (needed bool, err error) {
			h, _, err := s.Head(ctx)
			if err != nil {
				return false, err
			}
			b.Reclaim = true
			b.Set(s.DirtyKey, head.EncodeDirty(s.DirtyKey))
			return edit(c, h, next, b)
		})
	})
}
