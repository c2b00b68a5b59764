package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
)

// Prune retains the last keep revisions of a session, and those kept by name. It reports
// whether it moved the floor.
func (st *Store) Prune(ctx context.Context, s *commit.Session, keep uint64) (moved bool, err error) {
	var before head.Revision // the floor that the first attempt met
	err = st.changeLife(ctx, s, func(c *change.Change, h *heads.Head, life *heads.Life, _ *engine.Batch) (needed bool, err error) {
		if !c.Unknown {
			before = life.Floor
		}
		floor := life.Floor
		if keep > 0 && uint64(h.Revision) >= keep {
			floor = max(floor, h.Revision-head.Revision(keep)+1)
		}
		needed = floor > life.Floor
		life.Floor = floor
		moved = floor > before
		return needed, nil
	})
	return moved && err == nil, err
}

// KeepAll retains every revision.
const KeepAll = ^uint64(0)

// PruneAll prunes all sessions: each by its own retention or, if it has none, by keep. 0 is
// no retention. PruneAll returns how many floors it moved.
func (st *Store) PruneAll(ctx context.Context, keep uint64) (moved int, err error) {
	for about, err := range st.Abouts(ctx) {
		if err != nil {
			return moved, err
		}
		own := about.Keep
		if own == 0 {
			own = keep
		}
		if own == 0 || own == KeepAll {
			continue
		}
		s, state, err := st.ByIncarnation(ctx, about.Incarnation)
		if err == nil && s != nil {
			session := commit.NewSession(s)
			session.See(state.Head, nil)
			var did bool
			if did, err = st.Prune(ctx, session, own); did {
				moved++
			}
		}
		if err != nil && !errors.Is(err, history.ErrSessionNotFound) && !errors.Is(err, history.ErrSessionDeleted) {
			return moved, err
		}
	}
	return moved, nil
}

// Keep keeps revision r, or the head's as Keep finds it if r is 0, under a name. If the name
// keeps another revision, the error is ErrExists.
func (st *Store) Keep(ctx context.Context, s *commit.Session, name string, r head.Revision) error {
	key := st.Space.Ref(s.Inc, name)
	at := r // the same for all attempts: the first one may stand although its outcome is unknown
	return st.changeLife(ctx, s, func(_ *change.Change, h *heads.Head, life *heads.Life, b *engine.Batch) (needed bool, err error) {
		if at == 0 {
			at = h.Revision
		}
		vs, err := st.Engine.Get(ctx, key)
		if err != nil {
			return false, err
		}
		if vs[0] != nil {
			ref, err := heads.OpenKept(key, vs[0])
			if err == nil && ref.Revision != at {
				err = fmt.Errorf("%w: %q keeps revision %d of session %q", ErrExists, name, ref.Revision, s.ID)
				return false, err
			}
			return false, codec.Corrupt(err, "kept revision %q of session %q", name, s.ID)
		}
		if at > h.Revision || at == 0 {
			return false, fmt.Errorf("%w: %d of session %q, which is at %d", history.ErrRevisionNotFound, at, s.ID, h.Revision)
		}
		if kept, err := st.Retained(ctx, s.Inc, life, at); err != nil {
			return false, err
		} else if !kept {
			return false, fmt.Errorf("%w: %d of session %q, whose floor is %d", history.ErrRevisionPruned, at, s.ID, life.Floor)
		}
		if int(life.Refs) >= st.Limits.Kept {
			return false, &change.Limit{Limit: "kept revisions", Where: "session " + s.ID, Have: int64(life.Refs) + 1, Max: int64(st.Limits.Kept)}
		}
		life.Refs++
		b.Set(key, heads.SealKept(key, head.Kept{Name: name, Revision: at}))
		return true, nil
	})
}

// Release ends Keep. A name that keeps nothing is no error.
func (st *Store) Release(ctx context.Context, s *commit.Session, name string) error {
	key := st.Space.Ref(s.Inc, name)
	return st.changeLife(ctx, s, func(_ *change.Change, _ *heads.Head, life *heads.Life, b *engine.Batch) (needed bool, err error) {
		vs, err := st.Engine.Get(ctx, key)
		if needed = err == nil && vs[0] != nil; needed {
			life.Refs--
			b.Delete(key)
		}
		return needed, err
	})
}

// changeLife applies a change of the lifecycle record, again when somebody else
// was faster, unless edit reports that there is nothing to do. After an unknown
// outcome a conflict may be with the call's own first attempt: what was asked for
// stands then, and edit finds so.
func (st *Store) changeLife(ctx context.Context, s *commit.Session, edit func(*change.Change, *heads.Head, *heads.Life, *engine.Batch) (needed bool, err error)) error {
	return change.Settle(ctx, st.Engine, func(c *change.Change) error {
		return c.Alter(ctx, s.Session, func(next *heads.Life, b *engine.Batch) (needed bool, err error) {
			h, _, err := s.Head(ctx)
			if err != nil {
				return false, err
			}
			b.Reclaim = true
			b.Set(s.DirtyKey, heads.SealDirty(s.DirtyKey))
			return edit(c, h, next, b)
		})
	})
}
