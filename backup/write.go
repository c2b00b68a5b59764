package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/zeebo/blake3"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
)

const (
	maxGroup = 100 // sessions of a bundle
	attempts = 6   // to write a bundle of sessions that are changed meanwhile
)

// A change is a session of which something is to be written.
type change struct {
	turnstone.Standing
	since  head.Revision // of the bundle
	before int           // the run whose bundle goes before; 0 if all is written
	with   []*change     // new forks in the same bundle
	done   bool          // It is written, or in the bundle of another one.
}

// some writes what has changed of some sessions. attempt counts how often that was not possible.
func (r *running) some(ctx context.Context, refs []ref, attempt int) error {
	changes, err := r.compare(ctx, refs, attempt)
	if err != nil {
		return err
	}
	by := map[string]*change{}
	for _, c := range changes {
		by[c.ID] = c
	}
	if attempt < attempts/2 {
		group(changes, by)
	}
	var write func(c *change) error
	write = func(c *change) error {
		if c.done {
			return nil
		}
		c.done = true
		if p := by[c.Parent]; p != nil { // Its entry is what the bundle of c goes on from.
			if err := write(p); err != nil {
				return err
			}
		}
		return r.write(ctx, c, attempt)
	}
	for _, c := range changes {
		if err := write(c); err != nil {
			return err
		}
	}
	return nil
}

// group puts new forks into the bundles of their parents, if these are new as well.
func group(changes []*change, by map[string]*change) {
	root := func(c *change) *change {
		for range maxGroup {
			p := by[c.Parent]
			if c.Parent == "" || c.before > 0 || p == nil || p.before > 0 {
				break
			}
			c = p
		}
		return c
	}
	for _, c := range changes {
		if to := root(c); to != c && !to.done && len(c.with) == 0 && len(to.with) < maxGroup-1 {
			to.with, c.done = append(to.with, c), true
		}
	}
}

// write writes the bundle of a session, and of those with it.
func (r *running) write(ctx context.Context, c *change, attempt int) error {
	changes := append([]*change{c}, c.with...)
	var refs []ref
	for _, one := range changes {
		refs = append(refs, ref{session: one.Incarnation})
	}
	p, from, err := r.parentOf(ctx, c, attempt)
	if errors.Is(err, errParent) {
		return r.some(ctx, refs, attempt+1)
	}
	if err != nil {
		return err
	}
	if p != nil {
		changes = append([]*change{from}, changes...)
	}
	var of []turnstone.Bundled
	for _, one := range changes {
		of = append(of, turnstone.Bundled{ID: one.ID, Since: one.since, Incarnation: one.Incarnation})
	}
	if r.pack == nil {
		r.pack = newPack(ctx, r.to, r.generation, r.Run+1)
	}
	at, hash := extent{Pack: r.pack.name, Offset: r.pack.n}, blake3.New()
	bundled, err := r.st.Bundle(ctx, io.MultiWriter(r.pack, hash), of...)
	if err != nil {
		return r.notWritten(ctx, c, refs, err, attempt)
	}
	at.Size, at.Sum = r.pack.n-at.Offset, sum(hash.Sum(nil))
	exact, err := r.standStill(ctx, changes)
	if err != nil {
		return err
	}
	if p != nil && bundled.Heads[0].Revision == from.stood() { // It has brought nothing of the parent.
		changes, bundled.Heads = changes[1:], bundled.Heads[1:]
	} else if p != nil && p.Run > r.Run { // The parent has moved on since its bundle of this run.
		return r.some(ctx, refs, attempt+1)
	}
	r.report.Bytes += at.Size
	for i, one := range changes {
		stood := bundled.Heads[i]
		e := &entry{
			Session: one.Incarnation, ID: one.ID, Run: r.Run + 1, Genesis: one.Genesis, Revision: stood.Revision, Commit: stood.Commit, Rest: one.Rest,
			Bundle: at, Expanded: bundled.Expanded, Exact: exact[one.Incarnation] && stood.Revision == one.Revision, Before: one.before,
		}
		if one != from {
			e.Parent = p
		}
		r.set(e)
		r.report.Sessions++
	}
	r.used = true
	if r.pack.n < packBytes {
		return nil
	}
	return r.flush(ctx, r.partial())
}

// stood returns the revision of the backup's entry, of which since is made.
func (c *change) stood() head.Revision {
	if c.since == turnstone.RevisionZero {
		return 0
	}
	return c.since
}

// notWritten goes on after a bundle of c, and of those with it, could not be written because of err: it tries again, or
// notes what can't be read.
func (r *running) notWritten(ctx context.Context, c *change, refs []ref, err error, attempt int) error {
	is := func(of error) bool { return errors.Is(err, of) }
	switch again := attempt+1 < attempts; {
	case ctx.Err() != nil, is(errEnded), is(io.ErrClosedPipe): // It is not because of the sessions.
		return err
	case again && is(turnstone.ErrRevisionPruned):
		r.whole[c.Incarnation] = true
		return r.some(ctx, refs, attempt+1)
	case again && (is(turnstone.ErrConflict) || is(turnstone.ErrSessionNotFound) || is(turnstone.ErrSessionDeleted) || is(turnstone.ErrRevisionNotFound)):
		return r.some(ctx, refs, attempt+1)
	case !is(damage.ErrDamaged):
		return fmt.Errorf("session %q: %w", c.ID, err)
	case len(refs) == 1 && attempt >= attempts/2: // without a parent
		r.fail(c.ID, err)
		return nil
	}
	for _, one := range refs {
		if err := r.some(ctx, []ref{one}, max(attempt+1, attempts/2)); err != nil {
			return err
		}
	}
	return nil
}

// standStill returns which sessions stand as they did when they were compared.
func (r *running) standStill(ctx context.Context, changes []*change) (map[string]bool, error) {
	queries := make([]turnstone.StandingQuery, len(changes))
	by := map[string]*change{}
	for i, c := range changes {
		queries[i].ID = c.ID
		by[c.Incarnation] = c
	}
	found, err := r.standings(ctx, queries)
	still := map[string]bool{}
	for i := range found {
		s := &found[i]
		c := by[s.Incarnation]
		still[s.Incarnation] = c != nil && c.ID == s.ID && c.Revision == s.Revision && c.Rest == s.Rest
	}
	return still, err
}

// parentOf returns the session that a new fork goes on from, if the backup has it as it is now, and what is written of
// it once more. It returns nil if the fork comes with a copy of what it inherits.
func (r *running) parentOf(ctx context.Context, c *change, attempt int) (*parent, *change, error) {
	if c.Parent == "" || c.before > 0 || attempt >= attempts/2 {
		return nil, nil, nil
	}
	q := turnstone.StandingQuery{ID: c.Parent}
	for range 2 { // The first answer says which session that is.
		found, err := r.standings(ctx, []turnstone.StandingQuery{q})
		if err != nil {
			return nil, nil, err
		}
		if len(found) == 0 {
			return nil, nil, errParent
		}
		e := r.alive(found[0].Incarnation)
		if e == nil {
			return nil, nil, nil
		}
		if !e.standsFor(&found[0]) {
			q.At = []head.Revision{e.Revision}
			continue
		}
		if e.Run > r.Run && e.Revision != found[0].Revision { // What comes of it now goes on from its bundle of this run.
			if err := r.flush(ctx, r.partial()); err != nil {
				return nil, nil, err
			}
		}
		from := &change{Standing: found[0], since: since(e), before: e.Run}
		return &parent{Session: e.Session, ID: c.Parent, Run: e.Run}, from, nil
	}
	return nil, nil, nil
}

// errParent says that the parent of a fork was renamed or deleted since the fork was compared.
var errParent = errors.New("the parent has another id")

// partial returns the header of a run that has not come to all sessions.
func (r *running) partial() header {
	return header{Complete: r.Complete, Cursor: r.Cursor, Switches: r.Switches, Lacking: r.Lacking}
}

// flush stores what was written, and makes it a run with a header.
func (r *running) flush(ctx context.Context, h header) error {
	if p := r.pack; p != nil {
		r.pack = nil
		var err error
		if r.used {
			err = p.close(ctx, r.to)
		} else {
			err = p.abort()
		}
		if err != nil {
			return err
		}
		r.used = false
	}
	h.Time, h.Store = time.Now().UTC(), r.st.ID()
	if !h.Time.After(r.Time) {
		h.Time = r.Time.Add(1)
	}
	return r.writeRun(ctx, r.to, h)
}
