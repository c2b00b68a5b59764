package turnstone

import (
	"context"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
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
	for about, err := range s.histories.Abouts(ctx) {
		if err != nil {
			return moved, err
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
	return s.store.lifecycle.Prune(ctx, s.session, uint64(keep))
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
	return public(s.store.lifecycle.Keep(ctx, s.session, name, r))
}

// Release ends Keep. A name that stands for nothing is no error.
func (s *Session) Release(ctx context.Context, name string) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	return s.store.lifecycle.Release(ctx, s.session, name)
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
