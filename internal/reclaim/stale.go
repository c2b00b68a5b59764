package reclaim

import (
	"context"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A due says what vacuum has to do with a session. It is part of the session's bookmark:
// the collection that finds a change of the session sets it, with the stale record by
// which vacuum finds the session, and vacuum clears both when it is done.
type due uint64

const (
	dueSeal  due = 1 << iota // seal what was committed
	dueErase                 // look for content that nobody shows any more
	dueEnd
)

// outdate sets what is due to a session whose bookmark was old. Tombstones and deletion
// of a fork concern its ancestors, too: it may have been the last session that showed
// some of their nodes.
func (cy *cycle) outdate(ctx context.Context, v *view, old *bookmark) error {
	deleted := v.life.State == heads.Deleted && old.held == head.Revision(open)
	tombstoned := v.mark.stones != old.stones
	released := func(k head.Revision) bool {
		_, still := slices.BinarySearch(v.mark.kept, k)
		return !still
	}
	if v.mark.revision != old.revision && v.life.State == heads.Live {
		v.mark.due |= dueSeal
	}
	if deleted || tombstoned || v.mark.floor != old.floor || slices.ContainsFunc(old.kept, released) {
		v.mark.due |= dueErase
	}
	if !deleted && !tombstoned {
		return nil
	}
	origin, err := cy.origin(ctx, v.inc)
	if err != nil || origin == nil {
		return err
	}
	ks := make([][]byte, len(origin.Ancestors))
	for i, a := range origin.Ancestors {
		ks[i] = cy.space.Bookmark(a.Incarnation)
	}
	vs, err := cy.get(ctx, ks...)
	if err != nil {
		return err
	}
	for i, a := range origin.Ancestors {
		if vs[i] == nil {
			continue // vacuum has removed it, or no collection has seen it yet
		}
		m, err := openBookmark(ks[i], vs[i])
		if err != nil {
			return codec.Corrupt(err, "bookmark of incarnation %x", a.Incarnation)
		}
		if m.due&dueErase != 0 {
			continue
		}
		m.due |= dueErase
		b := &batch{}
		cy.setBookmark(&b.Batch, a.Incarnation, &m)
		if err := cy.apply(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// setBookmark makes b set the bookmark of a session, and the stale record, which is there
// if anything is due.
func (cy *cycle) setBookmark(b *engine.Batch, inc heads.Incarnation, m *bookmark) {
	key := cy.space.Bookmark(inc)
	b.Set(key, m.seal(key))
	if key := cy.space.Stale(inc); m.due != 0 {
		b.Set(key, codec.Seal(key, keys.Stale, []byte{1}))
	} else {
		b.Delete(key)
	}
}
