package gc

import (
	"context"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file drops the edges of checkpoint parts in a session that lives. A part is needed as
// long as a retained revision has it: one from the floor up, or one that is kept by name. The
// batches guard the lifecycle record, which every change of the floor, of kept revisions and
// of forks sets.
//
//	revision   1   2   3   4   5   6
//	part       A   A   B   B   C   C
//	                   kept    floor      A ended at 2, B at 4, and C is open
//
// Here the floor has risen to 5 and revision 3 is kept by name: the edge to A loses its use as
// a part, those to B and C keep it. When revision 3 is released, the edge to B loses it, too.
//
// A fork that takes over a checkpoint has edges of its own, so forks do not matter here.

// retain drops the edges of checkpoint parts that no retained revision has any more, if the
// floor rose or a kept revision was released since the bookmark was written. It also removes
// the versions that the session stores itself and that no retained revision needs. It reads
// the commits from the floor before to the floor now.
func (cy *cycle) retain(ctx context.Context, v *view) error {
	refs, err := cy.kept(ctx, v.inc, v.life)
	if err != nil {
		return err
	}
	kept := revisions(refs)
	if v.life.Floor == v.mark.floor && slices.Equal(kept, v.mark.kept) {
		return nil
	}
	// A blob can have lost its last revision in two ways: the floor has passed the revision, or
	// the name under which the revision was kept is gone.
	still, err := cy.blobsAt(ctx, v.inc, below(kept, v.life.Floor))
	if err != nil {
		return err
	}
	gone, err := cy.blobsAt(ctx, v.inc, below(without(v.mark.kept, kept), v.life.Floor))
	if err != nil {
		return err
	}
	if err := cy.passed(ctx, v, gone); err != nil {
		return err
	}
	if err := cy.dropParts(ctx, v, gone, still); err != nil {
		return err
	}
	if err := cy.dropBelow(ctx, v, kept); err != nil {
		return err
	}
	v.mark.floor, v.mark.kept = v.life.Floor, kept
	return nil
}

// passed adds to gone the blobs of checkpoint parts that the floor has passed since it was
// that of the bookmark.
func (cy *cycle) passed(ctx context.Context, v *view, gone map[keys.Hash]bool) error {
	from, to := v.mark.floor, min(v.life.Floor, v.mark.revision)
	if to <= from {
		return nil
	}
	parts, err := cy.partsAt(ctx, v.inc, from)
	if err != nil {
		return err
	}
	return cy.turns(ctx, v.inc, from, to, head.CommitID{}, func(t *history.Turn) error {
		next, err := cy.nextParts(v.inc, parts, &t.Commit, v.wholes)
		if err != nil {
			return err
		}
		for _, h := range lost(parts, next) {
			gone[h] = true
		}
		parts = next
		return nil
	})
}

// dropParts drops, of the blobs in gone, the uses as checkpoint parts that ended below the
// floor, but for the blobs in still, which kept revisions need. A blob that became a part again
// later has an edge that says so, and keeps it. An edge goes as a whole if no node of the
// session refers to the blob.
func (cy *cycle) dropParts(ctx context.Context, v *view, gone, still map[keys.Hash]bool) error {
	delete(gone, keys.Hash{}) // of a chain that needs no blob
	var changes []change
	for h := range gone {
		changes = append(changes, v.edit(h, func(u use) use {
			if u.parts && u.last < uint64(v.life.Floor) && !still[h] {
				u.parts, u.last = false, 0
			}
			return u
		}))
	}
	return cy.link(ctx, changes, v.guards)
}

// kept reads the kept revisions of a session that lives. life is its lifecycle record, which
// counts them.
func (cy *cycle) kept(ctx context.Context, inc head.Incarnation, life *head.Life) ([]head.Kept, error) {
	refs, err := head.ReadKept(ctx, cy.engine, cy.space, inc, life)
	if isCorrupt(err) {
		err = cy.unlessMoved(ctx, inc, life, err)
	}
	return refs, err
}

// unlessMoved returns err, which says that a scan found other records than the lifecycle
// record life counts. If the lifecycle record is another one by now, it returns errMoved.
func (cy *cycle) unlessMoved(ctx context.Context, inc head.Incarnation, life *head.Life, err error) error {
	key := cy.space.Life(inc)
	vs, gerr := cy.get(ctx, key)
	if gerr != nil || string(vs[0]) != string(life.Encode(key)) {
		return errors.Join(gerr, errMoved)
	}
	return err
}

// revisions returns the revisions that are kept, ascending and each once.
func revisions(refs []head.Kept) []head.Revision {
	out := make([]head.Revision, len(refs))
	for i, ref := range refs {
		out[i] = ref.Revision
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// below returns the revisions of all that are below a floor. all is ascending.
func below(all []head.Revision, floor head.Revision) []head.Revision {
	n, _ := slices.BinarySearch(all, floor)
	return all[:n:n]
}

// without returns the revisions of all that are not in some. some is ascending.
func without(all, some []head.Revision) []head.Revision {
	return slices.DeleteFunc(slices.Clone(all), func(r head.Revision) bool {
		_, found := slices.BinarySearch(some, r)
		return found
	})
}
