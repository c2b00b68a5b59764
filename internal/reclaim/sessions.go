package reclaim

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/record"
)

// A view is what stands of a session, from one moment.
type view struct {
	inc    heads.Incarnation
	life   *heads.Life
	raw    []byte // of life
	dirty  []byte
	mark   bookmark
	known  bool // there is a bookmark
	target head.Revision
	commit head.CommitID // at target; zero when that is not known
	held   head.Revision // of a deleted session: forks hold its history up to here
	guards []engine.Pair // of batches that drop edges: the lifecycle is as it was
	wholes wholes        // those behind the bookmark
	read   int           // commits that were read since the bookmark was written last

	renewed bool                // mark.parts was derived anew
	freed   []heads.Incarnation // deleted ancestors, which the session does not hold any more
}

// errMoved: the session was renamed or deleted between two reads.
var errMoved = errors.New("gc: session moved")

// session brings the index up to date with one session.
func (cy *cycle) session(ctx context.Context, inc heads.Incarnation) error {
	before := cy.Commits
	defer func() {
		if cy.Commits > before {
			cy.Sessions++
		}
	}()
	for attempt, damaged := 0, 0; ; attempt++ {
		err := cy.follow(ctx, inc, attempt < 3)
		var damage *record.CorruptError
		switch {
		case errors.Is(err, errMoved), errors.Is(err, engine.ErrConflict):
			continue
		case errors.As(err, &damage) && damaged < 3:
			damaged++ // what is absent may have been moved meanwhile; damage stays
			continue
		}
		return err
	}
}

// follow is one attempt of session. settle says whether to remove the dirty
// record, which a session that is committed to all the time does not let happen.
func (cy *cycle) follow(ctx context.Context, inc heads.Incarnation, settle bool) error {
	v, err := cy.view(ctx, inc)
	if err != nil || v == nil {
		return err
	}
	old := v.mark
	if err := cy.index(ctx, v); err != nil {
		return err
	}
	done, err := cy.detached(ctx, v)
	if err != nil {
		return err
	}
	if v.life.State == heads.Deleted {
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
	b := &batch{}
	if !v.known || v.renewed || !sameBookmark(&old, &v.mark) {
		cy.setBookmark(&b.Batch, inc, &v.mark)
	}
	for _, a := range v.freed { // in the batch that says that this session was looked at
		key := cy.space.Dirty(a)
		b.Set(key, heads.SealDirty(key))
		cy.again[a] = true
	}
	live := v.mark.held == head.Revision(open)
	switch wasLive := v.known && old.held == head.Revision(open); {
	case live && !wasLive:
		b.sessions++
	case !live && wasLive:
		b.sessions--
	}
	apply := func() error {
		if b.Ops() == 0 {
			return nil
		}
		b.Guard(cy.space.Life(inc), v.raw)
		if err := cy.apply(ctx, b); err != nil {
			return err
		}
		cy.Commits, v.read = cy.Commits+v.read, 0
		return nil
	}
	// What was detached is done when the bookmark stands: who begins at the one before
	// adds the edges anew.
	for len(done) > 0 {
		if err := apply(); err != nil {
			return err
		}
		n := min(batchOps, len(done))
		b = &batch{}
		b.Deletes, done = done[:n], done[n:]
	}
	if v.dirty != nil && settle {
		b.Guard(cy.space.Dirty(inc), v.dirty)
		b.Delete(cy.space.Dirty(inc))
	}
	return apply()
}

// view reads what stands of a session, or returns nil when nothing does.
func (cy *cycle) view(ctx context.Context, inc heads.Incarnation) (*view, error) {
	lifeKey, dirtyKey, markKey := cy.space.Life(inc), cy.space.Dirty(inc), cy.space.Bookmark(inc)
	vs, err := cy.get(ctx, lifeKey, dirtyKey, markKey)
	if err != nil {
		return nil, err
	}
	v := &view{inc: inc, raw: vs[0], dirty: vs[1], mark: bookmark{held: head.Revision(open)}}
	if v.known = vs[2] != nil; v.known {
		if v.mark, err = openBookmark(markKey, vs[2]); err != nil {
			return nil, codec.Corrupt(err, "bookmark of incarnation %x", inc)
		}
	}
	if vs[0] == nil {
		if v.known {
			return nil, codec.Corrupt(record.ErrMissing, "lifecycle of incarnation %x", inc)
		}
		if v.dirty == nil {
			return nil, nil
		}
		b := &batch{} // of a session that vacuum has removed
		b.Guard(lifeKey, nil)
		b.Guard(dirtyKey, v.dirty)
		b.Delete(dirtyKey)
		return nil, cy.apply(ctx, b)
	}
	if v.life, err = heads.OpenLife(lifeKey, vs[0]); err != nil {
		return nil, codec.Corrupt(err, "lifecycle of incarnation %x", inc)
	}
	v.guards = []engine.Pair{{Key: lifeKey, Value: v.raw}}
	if v.life.State == heads.Deleted {
		v.target = v.life.Floor - 1
		v.held, err = cy.held(ctx, v)
		return v, err
	}
	headKey := cy.space.Head(v.life.Session)
	if vs, err = cy.get(ctx, headKey, lifeKey); err != nil {
		return nil, err
	}
	if string(vs[1]) != string(v.raw) {
		return nil, errMoved
	}
	h, err := heads.OpenHead(headKey, vs[0])
	if err == nil && h.Incarnation != inc {
		err = record.ErrHash
	}
	if err != nil {
		return nil, codec.Corrupt(err, "head of incarnation %x", inc)
	}
	v.target, v.commit = h.Revision, h.Commit
	if v.target < v.mark.revision {
		return nil, codec.Corrupt(fmt.Errorf("it is at revision %d, and was at %d", v.target, v.mark.revision), "head of incarnation %x", inc)
	}
	return v, nil
}
