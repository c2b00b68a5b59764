package gc

import (
	"context"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file adds the edges of commits that the index does not have yet. It reads the commits
// after the bookmark with their nodes in windows, and after each window moves the bookmark.
// This work never drops an edge. Commits chain by hash up to the head, and each commit says how many
// nodes it has. So the collector notices a record that damage hides, and no blob loses a reference
// because of it.
//
// The batches that add edges guard the cycle record only. An edge too many only keeps a blob for
// longer. If the session is deleted or pruned meanwhile, it has a dirty record, and the update for
// that record drops the edge. A cycle that begins where another one was cut off may add an edge
// twice. The edge has the same value both times.

// windowSize is how many commits are indexed at once: what they refer to is in memory.
const windowSize = 256

// index adds the edges of the commits after the bookmark, and moves the bookmark. At the end, in
// a session that lives, the last commit has to be the one that the head names, by its id: the
// chain of hashes from the bookmark to the head is whole then.
func (cy *cycle) index(ctx context.Context, v *view) error {
	if v.mark.revision == 0 {
		if err := cy.indexOrigin(ctx, v); err != nil {
			return err
		}
	}
	if err := cy.resume(ctx, v); err != nil {
		return err
	}
	// A bookmark may be ahead of the target: vacuum cuts the commits of a deleted session.
	for v.mark.revision < v.target {
		if err := cy.window(ctx, v, min(v.target, v.mark.revision+windowSize)); err != nil {
			return err
		}
	}
	if !v.commit.IsZero() && !v.mark.commit.IsZero() && v.mark.commit != v.commit {
		return codec.Corrupt(damage.ErrHash, "commit %d of incarnation %x: it is not the head's", v.target, v.inc)
	}
	return nil
}

// indexOrigin adds the edges of the checkpoint that a fork began with, and begins the
// bookmark of a session before its first commit.
func (cy *cycle) indexOrigin(ctx context.Context, v *view) error {
	origin, err := cy.origin(ctx, v.inc)
	if err != nil {
		return err
	}
	v.mark.commit = head.Genesis(v.inc, origin)
	if origin == nil || v.known {
		return nil
	}
	var found uses
	v.mark.parts = cy.inherited(origin)
	for _, p := range v.mark.parts {
		found.of(p.blob).opened()
	}
	return cy.add(ctx, v, &found, 0)
}

// resume reads what is needed to go on after the bookmark and is not in it: versions that are stored
// whole.
func (cy *cycle) resume(ctx context.Context, v *view) (err error) {
	if v.mark.revision < v.life.Floor && v.life.State == head.Live {
		// Vacuum may have stored versions whole that commits made as deltas.
		if v.wholes, err = cy.wholes(ctx, v.inc, v.mark.revision+1, v.life.Floor); err != nil {
			return err
		}
	}
	return err
}

// uses has the uses that commits make of blobs, in the order in which the blobs came up.
type uses struct {
	order []keys.Hash
	by    map[keys.Hash]*use
}

// of returns the use of a blob, which the caller may change.
func (u *uses) of(h keys.Hash) *use {
	if u.by == nil {
		u.by = map[keys.Hash]*use{}
	}
	if u.by[h] == nil {
		u.by[h] = &use{}
		u.order = append(u.order, h)
	}
	return u.by[h]
}

// add adds edges for the blobs that commits up to revision end refer to.
//
// A reference may have ended before the index saw it, because the session was deleted or its
// floor rose. Its blob may then be gone, and gets no edge. If the blob is there, it still has
// to become a candidate: see ended.
func (cy *cycle) add(ctx context.Context, v *view, found *uses, end head.Revision) error {
	var changes []change
	var ended []keys.Hash
	for _, h := range found.order {
		u := *found.by[h]
		if v.life.State == head.Deleted {
			u = u.until(v.held)
		}
		if u.node == 0 && (!u.parts || min(u.last, uint64(end)) < uint64(v.life.Floor)) {
			ended = append(ended, h)
		}
		if u != (use{}) {
			changes = append(changes, v.edit(h, func(was use) use { return was.then(u) }))
		}
	}
	if len(ended) > 0 {
		absent, err := cy.ended(ctx, v, ended)
		if err != nil {
			return err
		}
		// An edge to a blob that is not stored would be counted as damage.
		changes = slices.DeleteFunc(changes, func(c change) bool { return absent[c.blob] })
	}
	return cy.link(ctx, changes, nil)
}

// ended returns which of some blobs, whose references by a session have ended, are not
// stored. In a session that lives the others get edges, and become candidates when retain
// drops these. In a deleted session they get none, and become candidates here.
func (cy *cycle) ended(ctx context.Context, v *view, hashes []keys.Hash) (absent map[keys.Hash]bool, err error) {
	marks, err := rows(ctx, cy, hashes, cy.space.Mark)
	if err != nil {
		return nil, err
	}
	absent = map[keys.Hash]bool{}
	var stored []keys.Hash
	for i, h := range hashes {
		if marks[i][0].Value == nil {
			absent[h] = true
		} else {
			stored = append(stored, h)
		}
	}
	if v.life.State == head.Deleted {
		err = cy.abandon(ctx, stored, nil)
	}
	return absent, err
}

// edit returns a change of the session's edge to a blob. f gets the use that the edge says,
// or the zero use if there is no edge, and returns the use that it is to say. The zero use
// removes the edge.
func (v *view) edit(h keys.Hash, f func(use) use) change {
	return change{blob: h, kind: bySession, holder: v.inc, edit: func(key, old []byte) (_ []byte, err error) {
		var was use
		if old != nil {
			if was, err = decodeUse(key, old); err != nil {
				return nil, err
			}
		}
		u := f(was)
		if u == (use{}) {
			return nil, nil
		}
		return u.encode(key), nil
	}}
}

// A window is the commits that are indexed at once. Its edges are added before its bookmark is
// written:
//
//	bookmark 0 ──▶ edges of 1 to 256 ──▶ bookmark 256 ──▶ edges of 257 to 300 ──▶ bookmark 300
type window struct {
	mark  bookmark // as it is to be after the window
	found uses
}

// window indexes the commits after the bookmark up to last.
func (cy *cycle) window(ctx context.Context, v *view, last head.Revision) error {
	w := &window{mark: v.mark}
	w.mark.parts = slices.Clone(w.mark.parts)
	if err := cy.windowTurns(ctx, v, w, last); err != nil {
		return err
	}
	if err := cy.add(ctx, v, &w.found, last); err != nil {
		return err
	}
	v.read += int(last - v.mark.revision)
	v.mark = w.mark
	if len(w.found.order) == 0 || v.mark.revision == v.target {
		return nil // The bookmark is written when the update of the session ends.
	}
	return cy.moveBookmark(ctx, v)
}

// windowTurns reads the turns of a window. It notes which blobs became checkpoint parts and which
// ceased to be one, and to which the nodes refer. A commit that sets no part leaves the checkpoint as
// it was. An erased node refers to nothing.
func (cy *cycle) windowTurns(ctx context.Context, v *view, w *window, last head.Revision) error {
	return cy.turns(ctx, v.inc, w.mark.revision, last, w.mark.commit, func(t *history.Turn) error {
		w.mark.revision, w.mark.commit = t.Revision, t.ID
		for h := range cy.blobsOf(&t.Pack) {
			w.found.of(h).at(uint64(t.Revision))
		}
		if t.PartsAt != t.Revision {
			return nil
		}
		parts, err := cy.nextParts(v.inc, w.mark.parts, &t.Commit, v.wholes)
		if err != nil {
			return err
		}
		for _, h := range lost(w.mark.parts, parts) {
			w.found.of(h).closed(uint64(t.Revision) - 1)
		}
		for _, h := range lost(parts, w.mark.parts) {
			w.found.of(h).opened()
		}
		w.mark.parts = parts
		return nil
	})
}

// moveBookmark writes the bookmark before an update has ended: between two windows, so that a cycle that is cut off
// later goes on from there, and when the session changes all the time. Nothing but the revision has moved so far.
func (cy *cycle) moveBookmark(ctx context.Context, v *view) error {
	b := &batch{}
	if v.life.State == head.Live {
		v.mark.due |= dueSeal
	}
	cy.setBookmark(&b.Batch, v.inc, &v.mark)
	if !v.known {
		b.sessions++
	}
	v.known = true
	if err := cy.apply(ctx, b); err != nil {
		return err
	}
	cy.Commits, v.read = cy.Commits+v.read, 0
	return nil
}
