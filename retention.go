package turnstone

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Retention says how many of a session's latest revisions can be read as they
// were. 0 leaves it to the store; a session's own comes before the store's. The
// nodes of the active path are never dropped by it: what goes is checkpoints that
// only older revisions have, and side branches that only they lead to and that no
// revision kept by name shows.
type Retention uint64

// KeepAll retains every revision.
const KeepAll = ^Retention(0)

// Prune applies retention to all sessions: a session's own, or else the one of
// Options. It moves the floor, below which revisions are ErrRevisionPruned at
// once; GC and Vacuum reclaim what that frees. It returns how many sessions it
// moved.
func (s *Store) Prune(ctx context.Context) (moved int, err error) {
	return observed(ctx, s, OpPrune, "", s.prune, func(moved int, o *Outcome) { o.Items = moved })
}

func (s *Store) prune(ctx context.Context) (moved int, err error) {
	for p, err := range s.engine.Scan(ctx, s.space.All(keys.About)) {
		if err != nil {
			return moved, err
		}
		about, err := head.OpenAbout(p.Key, p.Value)
		if err != nil {
			return moved, codec.Corrupt(err, "metadata at key %x", p.Key)
		}
		keep := Retention(about.Keep)
		if keep == 0 {
			keep = s.opts.Retention
		}
		if keep == 0 || keep == KeepAll {
			continue
		}
		ses, err := s.Session(ctx, about.ID)
		if err == nil {
			var did bool
			did, err = ses.Prune(ctx, keep)
			if did {
				moved++
			}
		}
		if err != nil && !errors.Is(err, ErrSessionNotFound) && !errors.Is(err, ErrSessionDeleted) {
			return moved, err
		}
	}
	return moved, nil
}

// Prune retains the last keep revisions of the session, and those kept by name;
// older ones are ErrRevisionPruned from now on. The floor never moves back. It
// reports whether it moved.
func (s *Session) Prune(ctx context.Context, keep Retention) (moved bool, err error) {
	if _, err := s.usable(ctx); err != nil {
		return false, err
	}
	var before Revision // the floor that the first attempt met
	err = s.changeLife(ctx, func(c *change.Change, h *head.Head, life *head.Life, _ *engine.Batch) (needed bool, err error) {
		if !c.Unknown {
			before = life.Floor
		}
		floor := life.Floor
		if keep > 0 && uint64(h.Revision) >= uint64(keep) {
			floor = max(floor, h.Revision-Revision(keep)+1)
		}
		needed = floor > life.Floor
		life.Floor = floor
		moved = floor > before
		return needed, nil
	})
	return moved && err == nil, err
}

// changeLife applies a change of the lifecycle record, again when somebody else
// was faster, unless edit reports that there is nothing to do. After an unknown
// outcome a conflict may be with the call's own first attempt: what was asked for
// stands then, and edit finds so.
func (s *Session) changeLife(ctx context.Context, edit func(*change.Change, *head.Head, *head.Life, *engine.Batch) (needed bool, err error)) error {
	return change.Settle(ctx, s.store.engine, func(c *change.Change) error {
		return c.Alter(ctx, s.session.Session, func(next *head.Life, b *engine.Batch) (needed bool, err error) {
			h, _, err := s.session.Head(ctx)
			if err != nil {
				return false, err
			}
			b.Reclaim = true
			b.Set(s.session.DirtyKey, head.SealDirty(s.session.DirtyKey))
			return edit(c, h, next, b)
		})
	})
}

// A Kept revision has a name, and can be read whatever retention says.
type Kept = head.Ref

// Keep keeps revision r of the session, or the head's as Keep finds it if r is 0,
// under a name until Release. A name that keeps another revision is ErrExists; one
// that keeps the same revision is no error. Load and Checkpoint give of a kept
// revision, after pruning and vacuum, all that they gave of it before, side branches
// included. A kept revision goes with its session when that is deleted.
func (s *Session) Keep(ctx context.Context, name string, r Revision) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	c := checker{of: "kept revision"}
	c.text("name", name, 1, MaxLabel)
	if c.err != nil {
		return c.err
	}
	if err := checkRevision("kept revision", "it", r); err != nil {
		return err
	}
	key := s.store.space.Ref(s.session.Inc, name)
	at := r // the same for all attempts: the first one may stand although its outcome is unknown
	return s.changeLife(ctx, func(_ *change.Change, h *head.Head, life *head.Life, b *engine.Batch) (needed bool, err error) {
		if at == 0 {
			at = h.Revision
		}
		vs, err := s.store.engine.Get(ctx, key)
		if err != nil {
			return false, err
		}
		if vs[0] != nil {
			ref, err := head.OpenRef(key, vs[0])
			if err == nil && ref.Revision != at {
				err = fmt.Errorf("%w: %q keeps revision %d of session %q", ErrExists, name, ref.Revision, s.session.ID)
				return false, err
			}
			return false, codec.Corrupt(err, "kept revision %q of session %q", name, s.session.ID)
		}
		if at > h.Revision || at == 0 {
			return false, fmt.Errorf("%w: %d of session %q, which is at %d", ErrRevisionNotFound, at, s.session.ID, h.Revision)
		}
		if kept, err := s.store.histories.Retained(ctx, s.session.Inc, life, at); err != nil {
			return false, err
		} else if !kept {
			return false, fmt.Errorf("%w: %d of session %q, whose floor is %d", ErrRevisionPruned, at, s.session.ID, life.Floor)
		}
		if life.Refs >= MaxKept {
			return false, &LimitError{Limit: "kept revisions", Where: "session " + s.session.ID, Have: int64(life.Refs) + 1, Max: MaxKept}
		}
		life.Refs++
		ref := head.Ref{Name: name, Revision: at}
		b.Set(key, ref.Seal(key))
		return true, nil
	})
}

// Release ends Keep. A name that stands for nothing is no error.
func (s *Session) Release(ctx context.Context, name string) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	key := s.store.space.Ref(s.session.Inc, name)
	return s.changeLife(ctx, func(_ *change.Change, _ *head.Head, life *head.Life, b *engine.Batch) (needed bool, err error) {
		vs, err := s.store.engine.Get(ctx, key)
		if needed = err == nil && vs[0] != nil; needed {
			life.Refs--
			b.Delete(key)
		}
		return needed, err
	})
}

// Kept returns the revisions that are kept by name, oldest first.
func (s *Session) Kept(ctx context.Context) ([]Kept, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	return history.WithLifecycles(ctx, s.session.Session, func(l *history.Lifecycles) ([]Kept, error) {
		refs, err := head.Refs(ctx, s.store.engine, s.store.space, s.session.Inc, l.Own)
		slices.SortFunc(refs, func(a, b Kept) int { return int(int64(a.Revision) - int64(b.Revision)) })
		return refs, err
	})
}
