package gc

import (
	"context"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file tells vacuum which sessions need work. A collection that takes over a
// change of a session knows what the change leaves to vacuum, and says so in the session's
// bookmark. A session whose bookmark says so has a stale record, so that vacuum reads nothing
// of a session that has none.
//
//	commit                       ──▶ dueSeal    vacuum seals
//	floor, release of a kept     ──▶ dueErase   vacuum looks for content to erase, and for
//	revision, tombstone,                        versions and records to remove
//	deletion
//
// What is due is set in the batch that writes the bookmark. So a change that the bookmark has
// taken over is not forgotten, and the session has a dirty record for any other change.

// A due is what vacuum has to do with a session. It is part of the session's bookmark:
// the collection that finds a change of the session sets it, with the stale record by
// which vacuum finds the session, and vacuum clears both when it is done.
type due uint64

const (
	dueSeal  due = 1 << iota // seal the commits that were made
	dueErase                 // look for content that no session shows any more
	dueEnd
)

// outdate sets in the bookmark what vacuum has to do. old is the bookmark before the update.
func (cy *cycle) outdate(ctx context.Context, v *view, old *bookmark) error {
	deleted := v.life.State == head.Deleted && old.live()
	tombstoned := v.mark.stones != old.stones
	if v.mark.revision != old.revision && v.life.State == head.Live {
		v.mark.due |= dueSeal
	}
	if deleted || tombstoned || v.mark.floor != old.floor || len(without(old.kept, v.mark.kept)) > 0 {
		v.mark.due |= dueErase
	}
	if deleted || tombstoned {
		return cy.outdateAncestors(ctx, v.inc)
	}
	return nil
}

// outdateAncestors makes vacuum look for content to erase in the sessions that a fork shares
// history with. The fork was deleted, or has new tombstones: it may have been the last session
// that showed some of their nodes.
func (cy *cycle) outdateAncestors(ctx context.Context, fork head.Incarnation) error {
	ancestors, err := cy.ancestors(ctx, fork)
	if err != nil || len(ancestors) == 0 {
		return err
	}
	marks, err := rows(ctx, cy, ancestors, cy.space.Bookmark)
	if err != nil {
		return err
	}
	for i, inc := range ancestors {
		if marks[i][0].Value == nil {
			continue // Vacuum has removed the ancestor, or no collection has seen it yet.
		}
		m, err := decodeBookmarkOf(marks[i][0], inc)
		if err != nil {
			return err
		}
		if m.due&dueErase != 0 {
			continue
		}
		// This batch comes before that of the fork's own bookmark. If the cycle is cut off in
		// between, the fork is looked at again.
		m.due |= dueErase
		b := &batch{}
		cy.setBookmark(&b.Batch, inc, &m)
		if err := cy.apply(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// setBookmark makes b set the bookmark of a session, and the stale record, which is there if
// and only if anything is due.
func (cy *cycle) setBookmark(b *engine.Batch, inc head.Incarnation, m *bookmark) {
	key := cy.space.Bookmark(inc)
	b.Set(key, m.encode(key))
	if key := cy.space.Stale(inc); m.due != 0 {
		b.Set(key, codec.Encode(key, keys.Stale, []byte{1}))
	} else {
		b.Delete(key)
	}
}
