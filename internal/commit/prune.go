package commit

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/session"
)

// A limit says which revisions of a session to retain.
type limit struct {
	revisions uint64    // so many, or all if it is 0
	since     time.Time // those that were committed then or later, or all if it is zero
	dry       bool      // change nothing
}

// Prune moves the floor of a session up, so that the session retains its last keep revisions
// and those that are kept by name. It reports whether it moved the floor.
func (st *Lifecycle) Prune(ctx context.Context, s *history.Session, keep uint64) (moved bool, err error) {
	n, err := st.prune(ctx, s, limit{revisions: keep})
	return n > 0, err
}

// prune moves the floor of a session up, and returns by how much, or with a dry limit by how much it would.
func (st *Lifecycle) prune(ctx context.Context, s *history.Session, l limit) (by uint64, err error) {
	var before head.Revision // the floor before the first attempt that may stand
	err = st.changeLife(ctx, s, func(c *history.Change, h *head.Head, life *head.Life, _ *engine.Batch) (needed bool, err error) {
		if !c.Unknown {
			before = life.Floor
		}
		floor := life.Floor
		if l.revisions > 0 && uint64(h.Revision) >= l.revisions {
			floor = max(floor, h.Revision-head.Revision(l.revisions)+1)
		}
		if !l.since.IsZero() && h.Revision > 0 {
			if floor, err = firstSince(ctx, s, max(floor, 1), h, l.since); err != nil {
				return false, err
			}
		}
		by = uint64(max(floor, before) - before)
		needed = floor > life.Floor && !l.dry
		life.Floor = floor
		return needed, nil
	})
	if err != nil {
		return 0, err
	}
	return by, nil
}

// firstSince returns the first revision from floor on that was committed at since or later. If there is none, it
// returns the head's. It reads the commits up to the one that it returns.
func firstSince(ctx context.Context, s *history.Session, floor head.Revision, h *head.Head, since time.Time) (head.Revision, error) {
	if h.Revision <= floor || h.Time.Before(since) {
		return max(floor, h.Revision), nil
	}
	found := errors.New("found")
	err := s.Turns(ctx, floor-1, h.Revision, func(t *history.Turn) error {
		if floor = t.Revision; t.Time.Before(since) {
			return nil
		}
		return found
	})
	if errors.Is(err, found) {
		err = nil
	}
	return floor, err
}

// PruneAll prunes all sessions, and deletes those that the options say. What it returns beside an error was done.
func (st *Lifecycle) PruneAll(ctx context.Context, o *gc.PruneOptions) (*gc.PruneReport, error) {
	r := &gc.PruneReport{}
	err := st.pruneAll(ctx, o, r)
	c := history.Change{Partly: !o.DryRun && (r.Sessions > 0 || len(r.Deleted) > 0)}
	return r, c.Result(err)
}

func (st *Lifecycle) pruneAll(ctx context.Context, o *gc.PruneOptions, r *gc.PruneReport) error {
	now := st.Now()
	dry := map[head.Incarnation]bool{} // what a dry run would delete
	if o.Inactive > 0 || o.Bytes > 0 {
		if err := st.deleteOld(ctx, o, now, r, dry); err != nil {
			return err
		}
	}
	abouts := st.Abouts(ctx)
	if o.Group != "" {
		abouts = st.grouped(ctx, o.Group)
	}
	for about, err := range abouts {
		if err != nil {
			return err
		}
		if about.Retention == head.KeepAll || dry[about.Incarnation] {
			continue
		}
		l := limit{revisions: cmp.Or(uint64(about.Retention), o.Revisions), dry: o.DryRun}
		if since := now.Add(-o.Age); o.Age > 0 && about.Created.Before(since) {
			l.since = since
		}
		if l.revisions == 0 && l.since.IsZero() {
			continue
		}
		by, err := st.pruneIncarnation(ctx, about.Incarnation, l)
		if err != nil {
			return err
		}
		if by > 0 {
			r.Sessions, r.Revisions = r.Sessions+1, r.Revisions+by
		}
	}
	return nil
}

// grouped yields the sessions of a group, and of the groups below it.
func (st *Lifecycle) grouped(ctx context.Context, group string) iter.Seq2[*head.About, error] {
	return func(yield func(*head.About, error) bool) {
		for q := (session.ListQuery{Limit: 500, Group: group}); ; {
			page, err := session.List(ctx, st.Store.Store, q)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page.Items {
				if !yield(page.Items[i].About, nil) {
					return
				}
			}
			if q.After = page.Next; q.After == "" {
				return
			}
		}
	}
}

// pruneIncarnation is prune for an incarnation. It does nothing if the session is deleted
// meanwhile.
func (st *Lifecycle) pruneIncarnation(ctx context.Context, inc head.Incarnation, l limit) (by uint64, err error) {
	s, state, err := st.ByIncarnation(ctx, inc)
	if err == nil && s != nil {
		s.See(state.Head, nil)
		by, err = st.prune(ctx, s, l)
	}
	if errors.Is(err, history.ErrSessionNotFound) || errors.Is(err, history.ErrSessionDeleted) {
		err = nil
	}
	return by, err
}

// deleteOld deletes the sessions that were inactive for too long, and those that were updated least recently as
// long as all others have more bytes than they may have. A dry run adds them to dry instead.
func (st *Lifecycle) deleteOld(ctx context.Context, o *gc.PruneOptions, now time.Time, r *gc.PruneReport, dry map[head.Incarnation]bool) error {
	q := session.ListQuery{Limit: 500, Group: o.Group}
	for total, full := uint64(0), false; ; {
		page, err := session.List(ctx, st.Store.Store, q)
		if err != nil {
			return err
		}
		for i := range page.Items {
			seen := &page.Items[i]
			size := seen.Head.Bytes + seen.Head.PartBytes
			full = full || o.Bytes > 0 && total+size > uint64(o.Bytes)
			became := stays
			if full || o.Inactive > 0 && !seen.About.LastUpdate(seen.Head).Add(o.Inactive).After(now) {
				if became, err = st.deleteUnlessActive(ctx, o, seen, now, full); err != nil {
					return err
				}
			}
			switch became {
			case deleted:
				r.Deleted, r.Bytes = append(r.Deleted, seen.About.ID), r.Bytes+size
				if o.DryRun {
					dry[seen.About.Incarnation] = true
				}
			case stays:
				total += size
			}
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

// A fate is what becomes of a session.
type fate int

const (
	stays fate = iota
	deleted
	gone // by somebody else
)

// deleteUnlessActive deletes a session, unless the session retains everything or was updated since it was seen. If
// full is false, only its inactivity is a reason to delete the session: then a record that was set within o.Inactive
// also keeps it. Its children stay.
func (st *Lifecycle) deleteUnlessActive(ctx context.Context, o *gc.PruneOptions, seen *session.ListItem, now time.Time, full bool) (became fate, err error) {
	inc := seen.About.Incarnation
	active := func(ctx context.Context, h *head.Head, about *head.About) (bool, error) {
		if about.Retention == head.KeepAll || h.Commit != seen.Head.Commit || !about.Updated.Equal(seen.About.Updated) {
			return true, nil
		}
		if full {
			return false, nil
		}
		return session.RecordSetSince(ctx, st.Store.Store, inc, now.Add(-o.Inactive))
	}
	if o.DryRun {
		is, err := active(ctx, seen.Head, seen.About)
		if err == nil && !is {
			became = deleted
		}
		return became, err
	}
	err = history.Settle(ctx, st.Engine, func(c *history.Change) error {
		s, state, err := st.ByIncarnation(ctx, inc)
		if err != nil || s == nil {
			if became = gone; c.Unknown {
				became = deleted
			}
			return err
		}
		did, err := st.delete(ctx, c, s, state.Head.Revision, Any, KeepChildren, nil, active)
		if errors.Is(err, history.ErrSessionDeleted) {
			err = engine.ErrConflict
		}
		if became = stays; did {
			became = deleted
		}
		return err
	})
	return became, err
}
