package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/blake3"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
)

// A change is a session of which something is to be written.
type change struct {
	turnstone.Standing
	since  head.Revision // of the bundle
	stood  head.Revision // in the backup
	before int           // the run whose bundle goes before; 0 if all is written
	with   []*change
	done   bool // It is written, or in the bundle of another one.
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
	// A new fork is written with its parent, if that is new as well.
	root := func(c *change) *change {
		for range maxGroup {
			p := by[c.Parent]
			if c.Parent == "" || c.before > 0 || p == nil || p.before > 0 {
				return c
			}
			c = p
		}
		return c
	}
	if attempt < attempts/2 {
		for _, c := range changes {
			if to := root(c); to != c && !to.done && len(c.with) == 0 && len(to.with) < maxGroup-1 {
				to.with, c.done = append(to.with, c), true
			}
		}
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

// write writes the bundle of a session, and of those with it.
func (r *running) write(ctx context.Context, c *change, attempt int) error {
	of := []turnstone.Bundled{{ID: c.ID, Since: c.since, Incarnation: c.Incarnation}}
	refs := []ref{{session: c.Incarnation}}
	for _, with := range c.with {
		of = append(of, turnstone.Bundled{ID: with.ID, Incarnation: with.Incarnation})
		refs = append(refs, ref{session: with.Incarnation})
	}
	changes := append([]*change{c}, c.with...)
	p, from, err := r.parentOf(ctx, c, attempt)
	if errors.Is(err, errParent) {
		return r.some(ctx, refs, attempt+1)
	}
	if err != nil {
		return err
	}
	if p != nil {
		of = append([]turnstone.Bundled{{ID: p.ID, Since: from.since, Incarnation: p.Session}}, of...)
		changes = append([]*change{from}, changes...)
	}
	if r.pack == nil {
		r.pack = newPack(ctx, r.to, r.generation, r.Run+1)
	}
	begin, hash := r.pack.n, blake3.New()
	bundled, err := r.st.Bundle(ctx, io.MultiWriter(r.pack, hash), of...)
	switch again := attempt+1 < attempts; {
	case err == nil:
	case ctx.Err() != nil, errors.Is(err, errEnded), errors.Is(err, io.ErrClosedPipe):
		return err
	case errors.Is(err, turnstone.ErrRevisionPruned) && again:
		r.whole[c.Incarnation] = true
		return r.some(ctx, refs, attempt+1)
	case again && (errors.Is(err, turnstone.ErrConflict) || errors.Is(err, turnstone.ErrSessionNotFound) || errors.Is(err, turnstone.ErrSessionDeleted) || errors.Is(err, turnstone.ErrRevisionNotFound)):
		return r.some(ctx, refs, attempt+1)
	case errors.Is(err, damage.ErrDamaged) && len(of) > 1:
		for _, one := range refs {
			if err := r.some(ctx, []ref{one}, max(attempt+1, attempts/2)); err != nil {
				return err
			}
		}
		return nil
	case errors.Is(err, damage.ErrDamaged):
		r.fail(c.ID, err)
		return nil
	default:
		return fmt.Errorf("session %q: %w", c.ID, err)
	}
	exact, err := r.standStill(ctx, changes)
	if err != nil {
		return err
	}
	if p != nil && bundled.Heads[0].Revision == from.stood { // It has brought nothing of the parent.
		changes, bundled.Heads = changes[1:], bundled.Heads[1:]
	} else if p != nil && p.Run > r.Run {
		return r.some(ctx, refs, attempt+1) // The parent has moved on since its bundle of this run.
	}
	at := extent{Pack: r.pack.name, Offset: begin, Size: r.pack.n - begin, Sum: sum(hash.Sum(nil))}
	r.report.Bytes += at.Size
	for i, one := range changes {
		stood := bundled.Heads[i]
		e := &entry{
			Session: one.Incarnation, ID: one.ID, Run: r.Run + 1, Genesis: one.Genesis, Revision: stood.Revision, Commit: stood.Commit, Rest: one.Rest,
			Bundle: at, Content: bundled.Content, Exact: exact[one.Incarnation] && stood.Revision == one.Revision, Before: one.before,
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

// parentOf returns the session that a new fork goes on from, if the backup has it as it is now, and what is written of it
// once more. It returns nil if the fork comes with a copy of what it inherits.
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
		from := &change{Standing: found[0], since: cmp.Or(e.Revision, turnstone.RevisionZero), stood: e.Revision, before: e.Run}
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
	h.Time, h.Store = r.now().UTC(), r.st.ID()
	if !h.Time.After(r.Time) {
		h.Time = r.Time.Add(1)
	}
	return r.writeRun(ctx, r.to, h)
}
