package commit

import (
	"context"
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
)

// This file flattens a fork that would have too many ancestors. The history that its parent
// inherits is copied into an incarnation of its own, which takes the place of all of the parent's
// ancestors:
//
//	parent    A1 ─ A2 ─ … ─ A256 ─ parent
//	fork      copy ─ parent ─ fork
//
// The ids of nodes don't depend on the session that has them, so the copied nodes keep their ids. The batch that
// creates the fork makes the copy what a deleted session is that the fork holds: see hidden.
//
// The copy relies on blobs that it does not guard. It refers only to blobs of nodes that the parent
// shows, and these are there as long as the parent lives and tombstones nothing more. The parent's
// lifecycle record says both, and the batch that creates the fork guards that record. The batch also
// sets the dirty record of the copy, so that the collector finds the copy's references.

// A copied is a copy of what a session inherits.
type copied struct {
	hidden
	of     history.Inherited // what is copied
	parent head.Incarnation  // the session that inherits it
	stones uint64            // how many tombstones the parent had when the copy was begun

	unseen *history.Tombstones // the nodes that the parent does not show
}

// flatten makes a copy of what the parent inherits the only ancestor of the fork beside the parent.
func (f *forker) flatten(ctx context.Context, l *history.Lifecycles, fork *history.Fork) error {
	last := len(fork.Ancestors) - 1
	of, own := fork.Ancestors[:last], fork.Ancestors[last]
	if slices.ContainsFunc(of, func(a head.Ancestor) bool { return a.Incarnation == fork.Of }) {
		_, key, value, err := l.Of(fork.Of)
		if err != nil {
			return err
		}
		f.batch.Guard(key, value) // So the revision whose checkpoint the fork takes over is still retained.
	}
	a, err := f.shareCopy(ctx, of)
	if err == nil && a == nil {
		a, err = f.makeCopy(ctx, l, of)
	}
	if err != nil {
		return err
	}
	key := f.Space.Fork(a.Incarnation, f.about.Incarnation)
	f.batch.Set(key, head.EncodeFork(key, f.Space.Session(f.about.ID)))
	fork.Ancestors = []head.Ancestor{*a, own}
	return nil
}

// makeCopy copies the history of some ancestors, unless an earlier attempt has done so, and makes the
// batch hold the copy.
func (f *forker) makeCopy(ctx context.Context, l *history.Lifecycles, of []head.Ancestor) (*head.Ancestor, error) {
	c := f.copied
	same := c.parent == f.parent.Inc && c.stones == l.Own.Stones && slices.Equal(c.of.Ancestors, of)
	stands, err := c.stands(ctx)
	if err != nil {
		return nil, err
	}
	if !same || !stands {
		*c = copied{hidden: hidden{Lifecycle: f.Lifecycle}, of: history.Inherited{Store: f.Uncached(), Ancestors: slices.Clone(of)}, parent: f.parent.Inc, stones: l.Own.Stones}
		if c.unseen, err = f.parent.AllTombstones(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.copy(ctx); err != nil {
		return nil, err
	}
	next := c.life.Next()
	next.Forks, next.Floor = 1, c.end.Revision+1
	key, dirty := f.Space.Life(c.inc), f.Space.Dirty(c.inc)
	f.batch.Guard(key, c.record)
	f.batch.Set(key, next.Encode(key))
	f.batch.Set(dirty, head.EncodeDirty(dirty))
	return &head.Ancestor{Incarnation: c.inc, Revision: c.end.Revision, Commit: c.end.Commit, Node: of[len(of)-1].Node, Epoch: next.Epoch}, nil
}

// copy makes the copy, or finishes one that an earlier attempt has begun.
func (c *copied) copy(ctx context.Context) error {
	if c.record == nil {
		if err := c.start(ctx); err != nil {
			return err
		}
	}
	if err := c.of.Turns(ctx, c.take); err != nil {
		return err
	}
	return c.flush(ctx)
}

// start writes the lifecycle record of the copy, and its tombstones.
func (c *copied) start(ctx context.Context) error {
	stones, err := c.of.Tombstones(ctx)
	if err != nil {
		return err
	}
	if err := c.begin(ctx, nil, 0); err != nil {
		return err
	}
	return c.hide(ctx, stones)
}

// take adds a turn to the copy. If cut is not 0, the parent shares so many of its nodes, and neither its
// leaf nor its checkpoint. The copy has no usage and no turn id, which are the ancestor's own.
//
// No checkpoint of a deleted session can be read. The copy lists the parts all the same: so a fork at
// a node whose checkpoint was not empty is refused, and does not begin with an empty one.
func (c *copied) take(ctx context.Context, t *history.Turn, parts []head.Part, cut int) error {
	out := history.Copied(t, parts, cut, &c.end, c.unseen.Has)
	return c.add(ctx, &out)
}
