package gc

import (
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file drops the edges of a deleted session. Forks that live hold the nodes that they
// share with it, up to their fork nodes: edges of these stay. When a fork is deleted in turn,
// it lets go of its deleted ancestors, and the collector looks at them again.
//
//	deleted    o──o──o──o──o──o       revisions 1 to 6
//	              │     └─ fork B     lives: revisions up to 4 are held
//	              └─ fork A           lives, too
//
// Here edges of revisions 5 and 6 are dropped. When B is deleted, the edges of 3 and 4 go. When A
// is deleted, too, the rest goes. Nobody can read a checkpoint of a deleted session, and a fork
// has edges of its own to the checkpoint that it began with. So the edges of checkpoint parts all
// go at once.

// release drops the edges of a deleted session that no attached fork holds. The revision up
// to which forks hold a deleted session never rises: only a fork that holds it already can be
// forked, and the new fork holds no more. The one exception is the copy of a history for a
// flattened fork: a collection may have seen the copy while it was empty, before the fork was
// made.
func (cy *cycle) release(ctx context.Context, v *view) error {
	if v.held >= v.mark.held {
		v.mark.held = v.held
		return nil
	}
	l := &linker{cy: cy, guards: v.guards}
	drop := func(h keys.Hash) { l.add(v.edit(h, func(u use) use { return u.until(v.held) })) }
	// The nodes are read anew each time that forks let go of some of them. The checkpoint parts
	// went the first time.
	if v.mark.live() {
		var err error
		if v.freed, err = cy.deletedAncestors(ctx, v.inc); err != nil {
			return err
		}
		if err := cy.everyPart(ctx, v, l, drop); err != nil {
			return err
		}
	}
	// Vacuum may have removed what forks had let go of before.
	err := cy.turns(ctx, v.inc, 0, min(v.mark.revision, v.mark.held), head.CommitID{}, func(t *history.Turn) error {
		for h := range cy.blobsOf(&t.Pack) {
			drop(h)
		}
		return l.flushMany(ctx)
	})
	if err != nil {
		return err
	}
	v.mark.held = v.held
	return l.flush(ctx)
}

// everyPart calls drop for all blobs that the session ever had as checkpoint parts, or began
// with as a fork, and links the changes that drop adds to l. A blob of a pruned revision has no
// edge any more, and then the change changes nothing.
func (cy *cycle) everyPart(ctx context.Context, v *view, l *linker, drop func(keys.Hash)) error {
	origin, err := cy.origin(ctx, v.inc)
	if err != nil {
		return err
	}
	for _, p := range cy.inherited(origin) {
		drop(p.blob)
	}
	err = cy.turns(ctx, v.inc, 0, v.mark.revision, head.CommitID{}, func(t *history.Turn) error {
		for _, h := range cy.partBlobs(&t.Commit) {
			drop(h)
		}
		return l.flushMany(ctx)
	})
	if err != nil {
		return err
	}
	return l.flush(ctx)
}

// deletedAncestors returns the deleted sessions whose history a fork shares. The fork may have
// been the last one that held some of their nodes. An ancestor that lives keeps its nodes by
// itself.
func (cy *cycle) deletedAncestors(ctx context.Context, fork head.Incarnation) ([]head.Incarnation, error) {
	ancestors, err := cy.ancestors(ctx, fork)
	if err != nil || len(ancestors) == 0 {
		return nil, err
	}
	lives, err := rows(ctx, cy, ancestors, cy.space.Life)
	if err != nil {
		return nil, err
	}
	var out []head.Incarnation
	for i, inc := range ancestors {
		if lives[i][0].Value == nil {
			continue // Vacuum has removed it.
		}
		life, err := decodeLife(lives[i][0], inc)
		if err != nil {
			return nil, err
		}
		if life.State == head.Deleted {
			out = append(out, inc)
		}
	}
	return out, nil
}

// A holder is a fork that lives, as one of its ancestors sees it.
type holder struct {
	inc      head.Incarnation
	ancestor head.Ancestor // what the fork shares of the ancestor's history
}

// holders returns the forks of an incarnation that live, forks of forks included. life is the
// incarnation's lifecycle record, which counts the entries of forks: an entry that damage hides
// must not free what its fork reads. A batch that guards that record applies only if no fork
// has been made meanwhile, because making a fork sets the record of each ancestor. A fork that
// is deleted meanwhile is counted as one that lives, and does no harm.
func (cy *cycle) holders(ctx context.Context, inc head.Incarnation, life *head.Life) ([]holder, error) {
	if life.Forks == 0 {
		return nil, nil
	}
	var out []holder
	var forks []head.Incarnation
	n := uint64(0)
	flush := func() error {
		more, err := cy.living(ctx, inc, forks)
		out, forks = append(out, more...), forks[:0]
		return err
	}
	err := cy.each(ctx, cy.space.Of(keys.Fork, inc), "fork", func(e entry) error {
		n++
		if forks = append(forks, head.Incarnation(e.fields[16:])); len(forks) < 500 {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	if err != nil {
		return nil, err
	}
	if n != life.Forks {
		return nil, cy.unlessMoved(ctx, inc, life, codec.Corrupt(fmt.Errorf("%w: %d of %d", damage.ErrMissing, n, life.Forks), "forks of incarnation %x", inc))
	}
	return out, nil
}

// living filters forks of an incarnation: it returns those that live, each with the entry for the
// incarnation in the fork's origin.
func (cy *cycle) living(ctx context.Context, inc head.Incarnation, forks []head.Incarnation) ([]holder, error) {
	recs, err := rows(ctx, cy, forks, cy.space.Life, cy.space.Origin)
	if err != nil {
		return nil, err
	}
	var out []holder
	for i, fork := range forks {
		life, err := head.DecodeLife(recs[i][0].Key, recs[i][0].Value)
		if err != nil {
			return nil, codec.Corrupt(err, "lifecycle of fork %x", fork)
		}
		if life.State != head.Live {
			continue
		}
		origin, err := head.DecodeOrigin(recs[i][1].Key, recs[i][1].Value)
		if err != nil {
			return nil, codec.Corrupt(err, "origin of fork %x", fork)
		}
		for _, a := range origin.Ancestors {
			if a.Incarnation == inc {
				out = append(out, holder{inc: fork, ancestor: a})
			}
		}
	}
	return out, nil
}

// held returns the last revision of a deleted session that forks hold. A fork's origin has the
// id of the last commit that the fork shares. That commit has to be there, and commits chain by
// hash. So the collector notices damage that hides the end of a history.
func (cy *cycle) held(ctx context.Context, v *view) (most head.Revision, err error) {
	holders, err := cy.holders(ctx, v.inc, v.life)
	if err != nil {
		return 0, err
	}
	for _, h := range holders {
		a := h.ancestor
		if a.Revision == 0 {
			continue // The fork began before the first commit.
		}
		most = max(most, a.Revision)
		t, err := cy.commit(ctx, v.inc, a.Revision)
		if err != nil {
			return 0, err
		}
		if t.ID != a.Commit {
			return 0, codec.Corrupt(damage.ErrHash, "commit %d of incarnation %x, which fork %x holds", a.Revision, v.inc, h.inc)
		}
	}
	return most, nil
}
