package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// This file brings the index up to date with one session. The collector reads the records of
// the session (a view), adds the edges of new commits (index.go), derives edges anew from
// which vacuum has detached a reference (detach.go), and drops the edges that retention or
// deletion has ended (retain.go, release.go). Finally it writes the bookmark and removes the
// dirty record. The removal guards the dirty record as it was read before, and the head. So a change that came in
// between keeps its dirty record.
//
//	read       lifecycle, dirty record, bookmark, head
//	add        edges of the commits after the bookmark        no guards
//	drop       edges that have ended                          guard the lifecycle record
//	write      bookmark, stale record                         guard the lifecycle record
//	remove     dirty record, and note that in the head        guard both, and the lifecycle record
//
// A cycle that is cut off between two of these steps leaves the dirty record. The next cycle does the same work
// again, from the bookmark in the store. Adding and dropping edges a second time changes nothing.

// A view has the records of a session, from one moment, and what an update of the index has
// found out about the session.
type view struct {
	inc    head.Incarnation
	life   *head.Life
	record []byte        // the record of life
	dirty  []byte        // the dirty record, or nil
	mark   bookmark      // The bookmark. It moves as commits are indexed.
	known  bool          // There is a bookmark in the store.
	target head.Revision // the last commit that the index is to follow
	commit head.CommitID // of target, as the head says; zero for a deleted session
	head   *head.Head    // nil for a deleted session
	seen   engine.Pair   // the record of head
	held   head.Revision // Of a deleted session: the last revision that forks hold.
	guards []engine.Pair // Of batches that drop edges: the lifecycle record is as it was.
	wholes wholes        // the versions after the bookmark that vacuum has stored whole
	read   int           // commits that were read since the bookmark was written last

	renewed bool               // mark.parts was derived anew, so the bookmark has to be written
	freed   []head.Incarnation // deleted ancestors that the session has let go of
}

// errMoved reports that the session was renamed, deleted or otherwise changed between two
// reads. Whoever gets it reads the session again.
var errMoved = errors.New("gc: session moved")

// hasChanged reports whether err says that a session has changed under its reader.
func hasChanged(err error) bool {
	return errors.Is(err, errMoved) || errors.Is(err, engine.ErrConflict)
}

// A retrier decides whether work on a session that failed begins anew.
type retrier struct{ damaged int }

// again reports whether to begin anew after err. A record that is absent may only have been
// moved between two reads, by sealing, vacuum or a rename. Damage stays, and is returned after
// the fourth time.
func (r *retrier) again(err error) bool {
	if hasChanged(err) {
		return true
	}
	if !isCorrupt(err) || r.damaged == 3 {
		return false
	}
	r.damaged++
	return true
}

// session brings the index up to date with one session. It begins anew when the session changes meanwhile, and
// keeps what it has read, so that each attempt reads only what has come since. A sweep needs the edges of all commits
// that were there when the attempt began, and these are added whatever else changes: a commit that comes later has
// seen the candidates condemned. So what somebody prevents by changing the session all the time is left to the next
// cycle, which finds the dirty record: from the fourth attempt on the removal of that record, which fails because
// of any commit, and at the last attempt the edges that would be dropped.
func (cy *cycle) session(ctx context.Context, inc head.Incarnation) error {
	before := cy.Commits
	defer func() {
		if cy.Commits > before {
			cy.Sessions++
		}
	}()
	var r retrier
	for attempt := 0; ; attempt++ {
		if err := cy.update(ctx, inc, attempt); !r.again(err) {
			return err
		}
	}
}

// update is one attempt of session, of which there were some before.
func (cy *cycle) update(ctx context.Context, inc head.Incarnation, before int) error {
	v, err := cy.view(ctx, inc)
	if err != nil || v == nil {
		return err
	}
	old := v.mark
	// Edges are added before any are dropped: a blob that a commit uses again while an older use
	// ends is never without edges.
	if err := cy.index(ctx, v); err != nil {
		return err
	}
	if before > 0 && v.mark.revision > old.revision {
		if err := cy.moveBookmark(ctx, v); err != nil {
			return err
		}
	}
	if before >= maxAttempts {
		cy.busy[inc] = true
		return nil
	}
	detached, err := cy.detached(ctx, v)
	if err != nil {
		return err
	}
	if v.life.State == head.Deleted {
		err = cy.release(ctx, v)
	} else {
		err = cy.retain(ctx, v)
	}
	if err != nil {
		return err
	}
	v.mark.stones = v.life.Stones
	if err := cy.outdate(ctx, v, &old); err != nil {
		return err
	}
	return cy.finish(ctx, v, &old, detached, before < 3)
}

// finish writes the bookmark of a session if it differs from old, the bookmark before the update, and then removes
// the records that the update has dealt with: those of detached references, and the dirty record if settle is set.
//
// The records of detached references go after the bookmark stands. An update that begins at
// the old bookmark adds the edges of the commits after it again, and has to see these records.
func (cy *cycle) finish(ctx context.Context, v *view, old *bookmark, detached [][]byte, settle bool) error {
	b := cy.bookmarkBatch(v, old)
	for some := range slices.Chunk(detached, batchOps) {
		if err := cy.applyUpdate(ctx, v, b); err != nil {
			return err
		}
		b = &batch{}
		b.Deletes = some
	}
	if settle && (v.dirty != nil || v.head != nil && !v.head.Collected) {
		cy.settle(v, b)
	}
	return cy.applyUpdate(ctx, v, b)
}

// settle makes b remove the dirty record of a session, and say so in the head: the next commit sets
// a dirty record again. Commits in between have not set it, so the head is guarded as well.
func (cy *cycle) settle(v *view, b *batch) {
	key := cy.space.Dirty(v.inc)
	b.Guard(key, v.dirty)
	b.Delete(key)
	if v.head == nil {
		return
	}
	b.Guard(v.seen.Key, v.seen.Value)
	if !v.head.Collected {
		next := *v.head
		next.Collected = true
		b.Set(v.seen.Key, next.Encode(v.seen.Key))
	}
}

// bookmarkBatch returns a batch that sets the bookmark, if it has changed. The same batch
// gives the deleted ancestors that the session has let go of dirty records, so that they are
// looked at even if this cycle is cut off.
func (cy *cycle) bookmarkBatch(v *view, old *bookmark) *batch {
	b := &batch{}
	if !v.known || v.renewed || !sameBookmark(old, &v.mark) {
		cy.setBookmark(&b.Batch, v.inc, &v.mark)
	}
	for _, a := range v.freed {
		key := cy.space.Dirty(a)
		b.Set(key, head.EncodeDirty(key))
		cy.again[a] = true
	}
	switch lives, lived := v.mark.live(), v.known && old.live(); {
	case lives && !lived:
		b.sessions++
	case lived && !lives:
		b.sessions--
	}
	return b
}

// applyUpdate applies a batch of an update, if it has any writes. It guards the lifecycle
// record, on which the update rests.
func (cy *cycle) applyUpdate(ctx context.Context, v *view, b *batch) error {
	if b.Ops() == 0 {
		return nil
	}
	b.Guard(cy.space.Life(v.inc), v.record)
	if err := cy.apply(ctx, b); err != nil {
		return err
	}
	cy.Commits, v.read = cy.Commits+v.read, 0
	return nil
}

// view reads the records of a session. It returns nil if vacuum has removed the session. The
// lifecycle record, the dirty record and the bookmark are of one moment, and the head is of a later
// one. A commit that comes after the head was read stays noticed: the batch that removes the dirty
// record guards the head.
func (cy *cycle) view(ctx context.Context, inc head.Incarnation) (*view, error) {
	lifeKey, markKey := cy.space.Life(inc), cy.space.Bookmark(inc)
	vs, err := cy.get(ctx, lifeKey, cy.space.Dirty(inc), markKey)
	if err != nil {
		return nil, err
	}
	v := &view{inc: inc, record: vs[0], dirty: vs[1], known: vs[2] != nil, mark: unread()}
	if v.known {
		if v.mark, err = decodeBookmarkOf(engine.Pair{Key: markKey, Value: vs[2]}, inc); err != nil {
			return nil, err
		}
	}
	if v.record == nil {
		return nil, cy.forget(ctx, v)
	}
	life := engine.Pair{Key: lifeKey, Value: v.record}
	if v.life, err = decodeLife(life, inc); err != nil {
		return nil, err
	}
	v.guards = []engine.Pair{life}
	if v.life.State == head.Live && v.known && !v.mark.live() {
		v.mark, v.known = unread(), false // It came in a bundle, and was hidden when it was seen before.
	}
	if v.life.State == head.Deleted {
		v.target = v.life.Floor - 1
		v.held, err = cy.held(ctx, v)
		return v, err
	}
	return v, cy.viewHead(ctx, v)
}

// forget removes the dirty record of a session that has no lifecycle record: vacuum has
// removed the session, with its bookmark.
func (cy *cycle) forget(ctx context.Context, v *view) error {
	if v.known {
		return codec.Corrupt(damage.ErrMissing, "lifecycle of incarnation %x", v.inc)
	}
	if v.dirty == nil {
		return nil
	}
	b, dirtyKey := &batch{}, cy.space.Dirty(v.inc)
	b.Guard(cy.space.Life(v.inc), nil)
	b.Guard(dirtyKey, v.dirty)
	b.Delete(dirtyKey)
	return cy.apply(ctx, b)
}

// viewHead reads the head of a session that lives: the index is to follow the session up to
// there. The head stands under the session's id, which a rename changes, so the lifecycle
// record is read again with it.
func (cy *cycle) viewHead(ctx context.Context, v *view) error {
	key := cy.space.Head(v.life.Session)
	vs, err := cy.get(ctx, key, cy.space.Life(v.inc))
	if err != nil {
		return err
	}
	if string(vs[1]) != string(v.record) {
		return errMoved
	}
	h, err := decodeHead(engine.Pair{Key: key, Value: vs[0]}, v.inc)
	if err != nil {
		return err
	}
	v.target, v.commit, v.head, v.seen = h.Revision, h.Commit, h, engine.Pair{Key: key, Value: vs[0]}
	if v.target < v.mark.revision {
		return codec.Corrupt(fmt.Errorf("it is at revision %d, and was at %d", v.target, v.mark.revision), "head of incarnation %x", v.inc)
	}
	return nil
}
