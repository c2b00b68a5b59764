package gc

import (
	"context"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/session"
)

// This file removes the records of deleted sessions. A session that no fork holds goes as a
// whole, its lifecycle record last: only the absence of that record says that the session is
// gone. A session that forks hold is cut after the last revision that they hold. In both cases
// vacuum first lowers the floor in the lifecycle record: on a deleted session the floor says how many
// commits are expected to be there.
//
//	1  floor        no commit is expected any more, so one that is gone is no damage
//	2  records      with the number of tombstones in the lifecycle record
//	3  fork entries of deleted forks, with their number
//	4  lifecycle    with the origin, the entries in ancestors, the bookmark and the stale record
//
// A vacuum that is cut off is repeated from the start. It finds fewer records to remove.

// sessionLetters are the records of a session whose keys begin with its incarnation, and to
// which nothing else refers.
var sessionLetters = []byte{
	keys.Segment, keys.Version, keys.Index, keys.Attachment, keys.Tombstone, keys.Ref, keys.Detached, keys.Record,
}

// remove removes a deleted session that no fork holds.
func (c *cleaning) remove(ctx context.Context) error {
	if err := c.lowerFloor(ctx, 1); err != nil {
		return err
	}
	nodes, err := c.removeRecords(ctx)
	if err != nil {
		return err
	}
	b, err := c.removeForks(ctx)
	if err != nil {
		return err
	}
	if err := c.leaveAncestors(ctx, b); err != nil {
		return err
	}
	if err := c.removeLife(ctx, b); err != nil {
		return err
	}
	c.out.Nodes += nodes
	c.out.Removed++
	return nil
}

// lowerFloor records that no commits from a revision on are expected to be there.
func (c *cleaning) lowerFloor(ctx context.Context, floor head.Revision) error {
	if c.life.Floor <= floor {
		return nil
	}
	return c.apply(ctx, &batch{}, func(l *head.Life) { l.Floor = floor })
}

// removeRecords removes the records of sessionLetters, and returns how many nodes the commits
// among them had. The lifecycle record counts the tombstones that are left. The batches set it,
// so that a reader of a fork that was deleted meanwhile notices.
func (c *cleaning) removeRecords(ctx context.Context) (nodes int, err error) {
	stones := uint64(0) // of the batch
	var count history.NodeCount
	w := newWriter(func(ctx context.Context, b *batch) error {
		c.out.Records += b.Ops()
		err := c.apply(ctx, b, func(l *head.Life) { l.Stones -= min(stones, l.Stones) })
		stones = 0
		return err
	})
	for _, letter := range sessionLetters {
		for p, err := range c.engine.Scan(ctx, c.space.Of(letter, c.inc)) {
			if err != nil {
				return 0, err
			}
			switch letter {
			case keys.Segment:
				if err := count.Add(c.space, p); err != nil {
					return 0, err
				}
			case keys.Tombstone:
				stones++
			case keys.Record:
				c.unlist(w, p.Key)
			}
			w.Delete(p.Key)
			if err := w.flushMany(ctx); err != nil {
				return 0, err
			}
		}
	}
	return count.Nodes, w.flush(ctx)
}

// unlist removes the entry of a record in the list of all sessions' records.
func (c *cleaning) unlist(w *writer, key []byte) {
	_, fields, _ := c.space.Fields(key)
	if inc, text := keys.RecordFields(fields); session.RecordListed(text) {
		w.Delete(c.space.Listing(text, inc))
	}
}

// removeForks removes the entries of the forks that held the session. These are deleted, and
// may be removed before or after the session; a fork that is removed later finds its entry gone.
// The last of the entries are in the batch that removeForks returns, which is to remove the
// session.
func (c *cleaning) removeForks(ctx context.Context) (*batch, error) {
	w := newWriter(func(ctx context.Context, b *batch) error {
		n := b.Ops()
		err := c.apply(ctx, b, func(l *head.Life) { l.Forks -= uint64(n) })
		if err == nil {
			c.out.Records += n
		}
		return err
	})
	for p, err := range c.engine.Scan(ctx, c.space.Of(keys.Fork, c.inc)) {
		if err != nil {
			return nil, err
		}
		w.Delete(p.Key)
		if err := w.flushMany(ctx); err != nil {
			return nil, err
		}
	}
	return w.batch, nil
}

// leaveAncestors makes b remove the records that make the session a fork: its origin, and its
// entry in each ancestor.
func (c *cleaning) leaveAncestors(ctx context.Context, b *batch) error {
	ancestors, err := c.ancestors(ctx, c.inc)
	if err != nil || ancestors == nil {
		return err
	}
	b.Delete(c.space.Origin(c.inc))
	for _, a := range ancestors {
		if err := c.leave(ctx, b, a); err != nil {
			return err
		}
	}
	return nil
}

// leave makes b remove the session's entry as a fork of an ancestor, and lower the number of forks
// in the ancestor's lifecycle record. It does nothing if vacuum has removed the ancestor before.
// b guards the lifecycle record, so a conflict may be with a change of any ancestor.
func (c *cleaning) leave(ctx context.Context, b *batch, ancestor head.Incarnation) error {
	forkKey, lifeKey := c.space.Fork(ancestor, c.inc), c.space.Life(ancestor)
	vs, err := c.get(ctx, forkKey, lifeKey)
	if err != nil || vs[0] == nil {
		return err
	}
	b.Delete(forkKey)
	if vs[1] == nil {
		return nil
	}
	life, err := decodeLife(engine.Pair{Key: lifeKey, Value: vs[1]}, ancestor)
	if err != nil {
		return err
	}
	next := life.Next()
	next.Forks--
	b.Guard(lifeKey, vs[1])
	b.Set(lifeKey, next.Encode(lifeKey))
	return nil
}

// removeLife applies b, which also removes the lifecycle record and what the index has of the
// session. The stale record, which need not be there, is not counted.
func (c *cleaning) removeLife(ctx context.Context, b *batch) error {
	key := c.space.Life(c.inc)
	b.Guard(key, c.record)
	b.Delete(key)
	b.Delete(c.space.Bookmark(c.inc))
	c.out.Records += b.Ops()
	b.Delete(c.space.Stale(c.inc))
	return c.cycle.apply(ctx, b)
}

// cut removes the records of a deleted session that come after the last revision that forks
// hold, and those that forks never read: versions of checkpoint parts, kept revisions and records. A fork
// begins with a checkpoint of its own. Entries of the index that lead to what was removed do no harm.
func (c *cleaning) cut(ctx context.Context) error {
	if err := c.lowerFloor(ctx, c.mark.held+1); err != nil {
		return err
	}
	if err := c.erase(ctx, c.mark.held); err != nil {
		return err
	}
	w := newWriter(func(ctx context.Context, b *batch) error {
		c.out.Records += b.Ops()
		return c.apply(ctx, b, nil)
	})
	var count history.NodeCount
	for _, letter := range []byte{keys.Segment, keys.Version, keys.Attachment, keys.Ref, keys.Record} {
		if err := c.cutRecords(ctx, w, letter, &count); err != nil {
			return err
		}
	}
	c.out.Nodes += count.Nodes
	c.out.Records += w.Ops()
	c.setNothingDue(w.batch)
	return c.apply(ctx, w.batch, nil)
}

// cutRecords removes the records of a letter that no fork reads, and counts the nodes of segments.
func (c *cleaning) cutRecords(ctx context.Context, w *writer, letter byte, count *history.NodeCount) error {
	r := c.space.Of(letter, c.inc)
	if letter == keys.Segment {
		r.Start = c.space.Segment(c.inc, uint64(c.mark.held+1), 0)
	}
	for p, err := range c.engine.Scan(ctx, r) {
		if err != nil {
			return err
		}
		switch letter {
		case keys.Segment:
			if err := count.Add(c.space, p); err != nil {
				return err
			}
		case keys.Attachment:
			at, err := graph.DecodeAttachment(p.Key, p.Value)
			if err != nil {
				return codec.Corrupt(err, "index entry at key %x", p.Key)
			}
			if head.Revision(at.Revision) <= c.mark.held {
				continue
			}
		case keys.Record:
			c.unlist(w, p.Key)
		}
		w.Delete(p.Key)
		if err := w.flushMany(ctx); err != nil {
			return err
		}
	}
	return nil
}
