package gc

import (
	"context"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file is the course of a vacuum: collect, do the work that is due on each stale session, compress
// loose blobs, and collect what that freed. The work on one session is a cleaning. What it
// removes of a session that lives is in erase.go and versions.go, of a deleted session in
// remove.go.
//
//	session   lives, seals only  ──▶ seal
//	          lives              ──▶ seal, store versions whole, erase nodes
//	          deleted, held      ──▶ cut after the last revision that forks hold, erase nodes
//	          deleted            ──▶ remove all records
//
// Vacuum waits for the index in two ways. It erases no nodes of revisions that the index has not
// reached: their blobs would have no edges, and never become candidates. And it removes what
// nobody holds of a deleted session only when the index has dropped its edges: afterwards the
// collector could not tell which edges these are.

// Vacuum collects. Then it does the work that is due on the sessions that changed since the last
// vacuum: it seals what was committed; it removes the content of nodes that every session
// which shows them has tombstoned, and of side branches that no retained revision leads
// to; and it removes the records of deleted sessions that no fork holds. It compresses
// new blobs further, and collects what all of that freed. Finally it makes the engine
// give the space back, after which none of the removed bytes is left in the engine's
// files. Commits go on meanwhile. Vacuum also returns the incarnations of the sessions that
// it could not finish, because they changed again and again; the next vacuum does the rest.
func (c *Collector) Vacuum(ctx context.Context, o Pass) (*VacuumReport, []head.Incarnation, error) {
	cy, err := c.begin(ctx, c.engine, c.blobs, o, c.patience)
	if err != nil {
		return nil, nil, err
	}
	v := &vacuum{cycle: cy}
	err = cy.end(ctx, cy.verdict(ctx, v.all(ctx)))
	if err == nil && !o.NoCompaction {
		cy.enter("engine")
		err = c.engine.Vacuum(ctx)
		cy.step(1)
	}
	cy.Duration = c.now().Sub(cy.began)
	v.out.Report = cy.Report
	for inc := range cy.busy {
		if !slices.Contains(v.unfinished, inc) {
			v.unfinished = append(v.unfinished, inc)
		}
	}
	return &v.out, v.unfinished, err
}

// A vacuum is a cycle that also removes content and records.
type vacuum struct {
	*cycle
	out        VacuumReport
	unfinished []head.Incarnation
}

// all is the work of a vacuum, but for what the engine does.
func (v *vacuum) all(ctx context.Context) error {
	if err := v.collect(ctx); err != nil {
		return err
	}
	v.enter("records")
	if err := v.records(ctx); err != nil {
		return err
	}
	// Erased nodes have left detached records for a second collection. If the index was derived anew, it
	// is whole by now.
	v.Full = false
	v.Roots = 0 // The second collection counts them again.
	return v.collect(ctx)
}

// records removes content and records: of the session that was asked for, or of all stale
// sessions, and then it compresses loose blobs.
func (v *vacuum) records(ctx context.Context) error {
	if v.Session != nil {
		return v.session(ctx, *v.Session)
	}
	err := v.each(ctx, v.space.All(keys.Stale), "stale record", func(e entry) error {
		err := v.session(ctx, e.inc())
		if err == nil {
			v.step(1)
		}
		return err
	})
	if err != nil {
		return err
	}
	v.enter("blobs")
	return v.pack(ctx)
}

// maxAttempts is how often the work on a session is begun anew because it changed, here and in sessions.go.
const maxAttempts = 20

// session does the work that is due on a session. It begins anew when the session changes. A session that
// changes again and again is left to the next vacuum, which finds it by its stale record. Plain
// commits do not set the lifecycle record. They are such a change only if attachment entries are
// to change, as those batches guard the head.
func (v *vacuum) session(ctx context.Context, inc head.Incarnation) error {
	var r retrier
	for attempt := 0; ; attempt++ {
		err := v.clean(ctx, inc)
		if !r.again(err) {
			return err
		}
		if hasChanged(err) && attempt >= maxAttempts {
			v.unfinished = append(v.unfinished, inc)
			return nil
		}
	}
}

// A cleaning is the work on one session. Each of its batches guards and sets the lifecycle
// record. So a fork, a seal, a tombstone and the like either come before and are seen, or find
// the record changed. A reader of a history that changes under it notices by that record,
// too.
type cleaning struct {
	*vacuum
	inc     head.Incarnation
	life    *head.Life
	record  []byte // the record of life
	mark    bookmark
	holders []holder
}

// clean is one attempt of session. It leaves the stale record of a deleted session if a
// collection has yet to drop edges that nobody holds any more.
func (v *vacuum) clean(ctx context.Context, inc head.Incarnation) error {
	c, err := v.cleaning(ctx, inc)
	if err != nil || c == nil {
		return err
	}
	if err := c.sealAll(ctx); err != nil {
		return err
	}
	if c.mark.due&dueErase == 0 {
		return c.clearDue(ctx)
	}
	if err := c.readLife(ctx); err != nil {
		return err
	}
	// Without a floor and without tombstones, a session that lives shows everything.
	if c.life.State == head.Live && c.life.Floor == 0 && c.life.Stones == 0 {
		return c.clearDue(ctx)
	}
	if c.holders, err = v.holders(ctx, inc, c.life); err != nil {
		return err
	}
	if c.life.State == head.Live {
		return c.prune(ctx)
	}
	return c.cleanDeleted(ctx)
}

// cleaning returns the work on a session, or nil if the session has no bookmark: vacuum has
// removed it.
func (v *vacuum) cleaning(ctx context.Context, inc head.Incarnation) (*cleaning, error) {
	key := v.space.Bookmark(inc)
	vs, err := v.get(ctx, key)
	if err != nil || vs[0] == nil {
		return nil, err
	}
	c := &cleaning{vacuum: v, inc: inc}
	if c.mark, err = decodeBookmarkOf(engine.Pair{Key: key, Value: vs[0]}, inc); err != nil {
		return nil, err
	}
	if c.mark.due == 0 { // The caller asked for this session, or it has a stray stale record.
		c.mark.due = dueSeal | dueErase
	}
	return c, nil
}

// sealAll seals what was committed to the session, step by step.
func (c *cleaning) sealAll(ctx context.Context) error {
	if c.mark.due&dueSeal == 0 || c.Seal == nil {
		return nil
	}
	for more := true; more; {
		var err error
		if more, err = c.Seal(ctx, c.inc); err == nil {
			err = c.beat(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readLife reads the lifecycle record of the session, which sealing may have set.
func (c *cleaning) readLife(ctx context.Context) error {
	key := c.space.Life(c.inc)
	vs, err := c.get(ctx, key)
	if err != nil {
		return err
	}
	c.record = vs[0]
	c.life, err = decodeLife(engine.Pair{Key: key, Value: c.record}, c.inc)
	return err
}

// cleanDeleted removes a deleted session, or what no fork holds of it. It does nothing until a
// collection has dropped the edges of what is to be removed, and has added those of a copy that
// a fork holds by now.
func (c *cleaning) cleanDeleted(ctx context.Context) error {
	held := head.Revision(0)
	for _, h := range c.holders {
		held = max(held, h.ancestor.Revision)
	}
	switch {
	case c.mark.held != held:
		return nil
	case len(c.holders) == 0:
		return c.remove(ctx)
	}
	return c.cut(ctx)
}

// prune removes of a session that lives what no retained revision leads to, and the content of
// what was tombstoned.
func (c *cleaning) prune(ctx context.Context) error {
	refs, err := c.kept(ctx, c.inc, c.life)
	if err != nil {
		return err
	}
	if err := c.cutChains(ctx, revisions(refs)); err != nil {
		return err
	}
	if err := c.erase(ctx, head.Revision(open)); err != nil {
		return err
	}
	return c.clearDue(ctx)
}

// clearDue records that no work is due on the session. No guard is needed: only collectors
// set bookmarks, and they take turns.
func (c *cleaning) clearDue(ctx context.Context) error {
	b := &batch{}
	c.setNothingDue(b)
	return c.cycle.apply(ctx, b)
}

// setNothingDue makes b record that no work is due on the session.
func (c *cleaning) setNothingDue(b *batch) {
	c.mark.due = 0
	c.setBookmark(&b.Batch, c.inc, &c.mark)
}

// apply applies b, which guards the lifecycle record and sets it with the next epoch and with
// what change changes in it. After engine.ErrConflict the session is read anew: see session.
func (c *cleaning) apply(ctx context.Context, b *batch, change func(*head.Life)) error {
	key := c.space.Life(c.inc)
	next := c.life.Next()
	if change != nil {
		change(&next)
	}
	record := next.Encode(key)
	b.Guard(key, c.record)
	b.Set(key, record)
	if err := c.cycle.apply(ctx, b); err != nil {
		return err
	}
	c.life, c.record = &next, record
	return nil
}

// applyPlain is apply that changes nothing in the lifecycle record but its epoch.
func (c *cleaning) applyPlain(ctx context.Context, b *batch) error { return c.apply(ctx, b, nil) }

// detach makes b record that nodes or versions of the session do not refer to some blobs any
// more: the next collection derives the session's edges to them anew.
func (c *cleaning) detach(b *batch, blobs ...keys.Hash) {
	if len(blobs) == 0 {
		return
	}
	for _, h := range blobs {
		key := c.space.Detached(c.inc, h)
		b.Set(key, codec.Encode(key, keys.Detached, []byte{1}))
	}
	key := c.space.Dirty(c.inc)
	b.Set(key, head.EncodeDirty(key))
}
