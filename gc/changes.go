package gc

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file finds the sessions that changed since the last cycle. A session that changed has a
// dirty record. The change sets the record in its own batch. A commit need not set it as long as
// the head says that the record is there. A dirty record may be lost, which a scan can't notice. So
// the collector also takes the sessions that were updated lately from the list of all sessions, and
// compares them with their bookmarks.
//
// The collector reads no other session. So the cost of a collection depends on what changed since
// the last one, and not on the number of sessions: cost_test.go counts the reads.

// skew is how much the clocks of hosts may differ, and how far the list of all sessions may
// lag. Within that time, the list still shows every session that changed.
const skew = 5 * time.Second

// changes brings the index up to date with all sessions that changed. since is when the last
// complete cycle began, in Unix nanoseconds. A sweep calls changes once more after it has
// condemned candidates: everything that was applied before the scan of dirty records begins is
// in the index then.
func (cy *cycle) changes(ctx context.Context, since uint64) error {
	q := &queue{cy: cy}
	// The collector removes dirty records that this scan has passed. The scan only goes forward:
	// the next cycle comes to a session that becomes dirty after the scan has passed it.
	err := cy.each(ctx, cy.space.All(keys.Dirty), "dirty record", func(e entry) error { return q.add(ctx, e.inc()) })
	if err != nil {
		return err
	}
	if err := q.flush(ctx); err != nil {
		return err
	}
	if err := cy.updated(ctx, since, q); err != nil {
		return err
	}
	if err := q.flush(ctx); err != nil {
		return err
	}
	return cy.freed(ctx)
}

// A queue gathers sessions that the index is to be brought up to date with. The collector works
// on them when the scan that finds them has found a thousand or is done, so that the scan reads
// many records at a time.
type queue struct {
	cy   *cycle
	incs []head.Incarnation
}

// add adds a session, and empties the queue if it is full.
func (q *queue) add(ctx context.Context, inc head.Incarnation) error {
	if q.incs = append(q.incs, inc); len(q.incs) < 1000 {
		return nil
	}
	return q.flush(ctx)
}

// flush brings the index up to date with the sessions of the queue.
func (q *queue) flush(ctx context.Context) error {
	err := q.cy.follow(ctx, q.incs)
	q.incs = q.incs[:0]
	return err
}

// follow brings the index up to date with some sessions.
func (cy *cycle) follow(ctx context.Context, incs []head.Incarnation) error {
	for _, inc := range incs {
		if err := cy.session(ctx, inc); err != nil {
			return err
		}
		cy.step(1)
	}
	return nil
}

// freed looks at the deleted sessions that forks have let go of, once for all forks: a parent
// of thousands of forks would else be read again for each. Such a session may let go of its own
// deleted ancestors in turn. If the cycle is cut off, these sessions have dirty records.
func (cy *cycle) freed(ctx context.Context) error {
	for len(cy.again) > 0 {
		incs := slices.Collect(maps.Keys(cy.again))
		clear(cy.again)
		if err := cy.follow(ctx, incs); err != nil {
			return err
		}
	}
	return nil
}

// updated looks at the sessions that were updated after since, or a little before it. It adds
// to q those that have commits which the index lacks.
func (cy *cycle) updated(ctx context.Context, since uint64, q *queue) error {
	var entries []head.Entry
	for p, err := range cy.engine.Scan(ctx, cy.space.Of(keys.Entry, keys.List{})) {
		if err != nil {
			return err
		}
		e, err := head.DecodeEntry(cy.space, p)
		if err != nil {
			return err
		}
		if e.Time+uint64(skew) < since {
			break // The latest update comes first.
		}
		if entries = append(entries, e); len(entries) == 500 {
			if err := cy.behind(ctx, entries, q); err != nil {
				return err
			}
			entries = entries[:0]
		}
	}
	return cy.behind(ctx, entries, q)
}

// behind compares the heads of some sessions with their bookmarks. It adds to q the sessions that
// have commits which the index lacks.
func (cy *cycle) behind(ctx context.Context, entries []head.Entry, q *queue) error {
	recs, err := rows(ctx, cy, entries,
		func(e head.Entry) []byte { return cy.space.Head(e.Session) },
		func(e head.Entry) []byte { return cy.space.Bookmark(e.Incarnation) })
	if err != nil {
		return err
	}
	for i, e := range entries {
		at, err := bookmarked(recs[i][1], e.Incarnation)
		if err != nil {
			return err
		}
		// A head that is gone, of another incarnation or damaged is a reason to look, too.
		h, err := head.DecodeHead(recs[i][0].Key, recs[i][0].Value)
		if err == nil && h.Incarnation == e.Incarnation && h.Revision == at {
			continue
		}
		if err := q.add(ctx, e.Incarnation); err != nil {
			return err
		}
	}
	return nil
}

// bookmarked returns the revision that the index follows a session to. Without a bookmark
// it is 0.
func bookmarked(p engine.Pair, inc head.Incarnation) (head.Revision, error) {
	if p.Value == nil {
		return 0, nil
	}
	m, err := decodeBookmarkOf(p, inc)
	return m.revision, err
}
