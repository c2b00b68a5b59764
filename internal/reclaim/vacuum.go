package reclaim

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
)

// Vacuum collects. Then it does what is due to the sessions that changed since the last
// vacuum: it seals what was committed; it removes the content of nodes that every session
// which shows them has tombstoned, and of side branches that no retained revision leads
// to; and it removes the records of deleted sessions that no fork holds. It compresses
// new blobs further, and collects what all of that freed. At last it makes the engine
// give the space back, after which none of the removed bytes is left in the engine's
// files. Commits go on meanwhile. Vacuum also returns the incarnations of the sessions that
// it could not finish, because they changed again and again; the next vacuum does the rest.
func (c *Collector) Vacuum(ctx context.Context, o Options) (*gc.VacuumReport, []heads.Incarnation, error) {
	r, err := c.begin(ctx, c.engine, c.blobs, o, c.patience)
	if err != nil {
		return nil, nil, err
	}
	v := &vacuum{cycle: r}
	err = r.end(ctx, r.verdict(ctx, v.all(ctx)))
	if err == nil {
		r.enter("engine")
		err = c.engine.Vacuum(ctx)
		r.step(1)
	}
	r.Duration = c.now().Sub(r.began)
	v.out.Report = r.Report
	return &v.out, v.unfinished, err
}

type vacuum struct {
	*cycle
	out        gc.VacuumReport
	unfinished []heads.Incarnation
}

func (v *vacuum) all(ctx context.Context) error {
	if err := v.collect(ctx); err != nil {
		return err
	}
	v.enter("records")
	if v.Session != nil {
		if err := v.session(ctx, *v.Session); err != nil {
			return err
		}
	} else {
		if err := v.sessions(ctx); err != nil {
			return err
		}
		v.enter("blobs")
		if err := v.pack(ctx); err != nil {
			return err
		}
	}
	v.Full = false
	v.Roots = 0
	return v.collect(ctx)
}

// sessions does what is due to all stale sessions.
func (v *vacuum) sessions(ctx context.Context) error {
	for p, err := range v.engine.Scan(ctx, v.space.All(keys.Stale)) {
		if err != nil {
			return err
		}
		_, fields, ok := v.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(record.ErrMalformed, "stale record at key %x", p.Key)
		}
		if err := v.session(ctx, heads.Incarnation(fields)); err != nil {
			return err
		}
		v.step(1)
	}
	return nil
}

// maxAttempts is how often the work on a session is begun anew because it changed.
const maxAttempts = 20

// session does what is due to a session.
func (v *vacuum) session(ctx context.Context, inc heads.Incarnation) error {
	for attempt, damaged := 0, 0; ; attempt++ {
		err := v.clean(ctx, inc)
		var damage *record.CorruptError
		switch {
		case errors.Is(err, errMoved), errors.Is(err, engine.ErrConflict):
			if attempt == maxAttempts {
				v.unfinished = append(v.unfinished, inc)
				return nil // it changes all the time: the next vacuum has it
			}
			continue
		case errors.As(err, &damage) && damaged < 3:
			damaged++
			continue
		}
		return err
	}
}

// clean is one attempt of session, which has a stale record or was asked for. It leaves the stale record if the session, or a fork
// of it, has changed since the collection before: the next vacuum does the rest.
func (v *vacuum) clean(ctx context.Context, inc heads.Incarnation) error {
	lifeKey, markKey := v.space.Life(inc), v.space.Bookmark(inc)
	vs, err := v.get(ctx, markKey)
	if err != nil || vs[0] == nil {
		return err
	}
	c := &cleaning{vacuum: v, inc: inc}
	if c.mark, err = openBookmark(markKey, vs[0]); err != nil {
		return codec.Corrupt(err, "bookmark of incarnation %x", inc)
	}
	if c.mark.due == 0 { // its stale record knows better, or the caller
		c.mark.due = dueSeal | dueErase
	}
	for more := c.mark.due&dueSeal != 0 && v.Seal != nil; more; {
		if more, err = v.Seal(ctx, inc); err == nil {
			err = v.beat(ctx)
		}
		if err != nil {
			return err
		}
	}
	if c.mark.due&dueErase == 0 {
		return c.finish(ctx)
	}
	if vs, err = v.get(ctx, lifeKey); err != nil {
		return err
	}
	if c.life, err = heads.OpenLife(lifeKey, vs[0]); err != nil {
		return codec.Corrupt(err, "lifecycle of incarnation %x", inc)
	}
	c.raw = vs[0]
	if c.life.State == heads.Live && c.life.Floor == 0 && c.life.Stones == 0 {
		return c.finish(ctx)
	}
	if c.holders, err = v.holders(ctx, inc, c.life); err != nil {
		return err
	}
	if c.life.State == heads.Live {
		return c.prune(ctx)
	}
	held := head.Revision(0)
	for _, h := range c.holders {
		held = max(held, h.ancestor.Revision)
	}
	switch {
	case c.mark.held > held:
		return nil // no collection has dropped the edges yet of what nobody holds any more
	case len(c.holders) == 0:
		return c.remove(ctx)
	}
	return c.cut(ctx)
}

// A cleaning is the work on one session. Each of its batches guards and sets the
// lifecycle record, so that forks, seals, tombstones and the like see it or are
// seen; the reader of a history that changes under it notices by that, too.
type cleaning struct {
	*vacuum
	inc     heads.Incarnation
	life    *heads.Life
	raw     []byte // of life
	mark    bookmark
	holders []holder
}

// finish says that nothing is due to the session. No guard is needed: only collectors
// set its bookmark, and they take turns.
func (c *cleaning) finish(ctx context.Context) error {
	b := &batch{}
	c.finished(b)
	return c.cycle.apply(ctx, b)
}

func (c *cleaning) finished(b *batch) {
	c.mark.due = 0
	c.setBookmark(&b.Batch, c.inc, &c.mark)
}

// apply applies b with the next epoch of the session.
func (c *cleaning) apply(ctx context.Context, b *batch, change func(*heads.Life)) error {
	key := c.space.Life(c.inc)
	next := c.life.Next()
	if change != nil {
		change(&next)
	}
	raw := next.Seal(key)
	b.Guard(key, c.raw)
	b.Set(key, raw)
	if err := c.cycle.apply(ctx, b); err != nil {
		return err
	}
	c.life, c.raw = &next, raw
	return nil
}

// sessionLetters are the records of a session that begin with its incarnation and
// that nothing else refers to.
var sessionLetters = []byte{
	keys.Child, keys.Pack, keys.Commit, keys.Version, keys.Index, keys.EventKey, keys.Attachment, keys.Turn, keys.Tombstone, keys.Ref, keys.Detached,
}

// remove removes a deleted session that no fork holds, its lifecycle record last.
func (c *cleaning) remove(ctx context.Context) error {
	if c.life.Floor > 1 { // nothing of it is expected to be there from now on
		if err := c.apply(ctx, &batch{}, func(l *heads.Life) { l.Floor = 1 }); err != nil {
			return err
		}
	}
	nodes, stones := 0, uint64(0)
	b := &batch{}
	flush := func() error {
		c.out.Records += b.Ops()
		err := c.apply(ctx, b, func(l *heads.Life) { l.Stones -= min(stones, l.Stones) })
		b, stones = &batch{}, 0
		return err
	}
	for _, letter := range sessionLetters {
		for p, err := range c.engine.Scan(ctx, c.space.Of(letter, c.inc)) {
			if err == nil && letter == keys.Commit {
				var commit *heads.Commit
				if commit, _, err = heads.OpenCommit(p.Key, p.Value); err == nil {
					nodes += commit.Nodes
				}
				err = codec.Corrupt(err, "commit at key %x", p.Key)
			}
			if err != nil {
				return err
			}
			if b.Delete(p.Key); letter == keys.Tombstone {
				stones++
			}
			if b.Ops() >= batchOps {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	if b.Ops() > 0 {
		if err := flush(); err != nil {
			return err
		}
	}
	// Forks that held it are deleted: they may be removed before or after.
	for p, err := range c.engine.Scan(ctx, c.space.Of(keys.Fork, c.inc)) {
		if err != nil {
			return err
		}
		b.Delete(p.Key)
		if b.Ops() >= batchOps {
			n := b.Ops()
			if err := c.apply(ctx, b, func(l *heads.Life) { l.Forks -= uint64(n) }); err != nil {
				return err
			}
			c.out.Records += n
			b = &batch{}
		}
	}
	origin, err := c.origin(ctx, c.inc)
	if err != nil {
		return err
	}
	if origin != nil {
		b.Delete(c.space.Origin(c.inc))
		for _, a := range origin.Ancestors {
			if err := c.letGo(ctx, b, a.Incarnation); err != nil {
				return err
			}
		}
	}
	lifeKey := c.space.Life(c.inc)
	b.Guard(lifeKey, c.raw)
	b.Delete(lifeKey)
	b.Delete(c.space.Bookmark(c.inc))
	c.out.Records += b.Ops()
	b.Delete(c.space.Stale(c.inc))
	if err := c.cycle.apply(ctx, b); err != nil {
		return err
	}
	c.out.Nodes += nodes
	c.out.Removed++
	return nil
}

// letGo makes b remove the entry by which the session holds an ancestor.
func (c *cleaning) letGo(ctx context.Context, b *batch, ancestor heads.Incarnation) error {
	forkKey, lifeKey := c.space.Fork(ancestor, c.inc), c.space.Life(ancestor)
	vs, err := c.get(ctx, forkKey, lifeKey)
	if err != nil || vs[0] == nil {
		return err
	}
	b.Delete(forkKey)
	if vs[1] == nil {
		return nil // the ancestor was removed before
	}
	life, err := heads.OpenLife(lifeKey, vs[1])
	if err != nil {
		return codec.Corrupt(err, "lifecycle of incarnation %x", ancestor)
	}
	next := life.Next()
	next.Forks--
	b.Guard(lifeKey, vs[1])
	b.Set(lifeKey, next.Seal(lifeKey))
	return nil
}

// cut removes of a deleted session what is behind the last revision that forks
// hold, and what no fork asks for.
func (c *cleaning) cut(ctx context.Context) error {
	held := c.mark.held
	if c.life.Floor > held+1 { // nothing behind is expected to be there from now on
		if err := c.apply(ctx, &batch{}, func(l *heads.Life) { l.Floor = held + 1 }); err != nil {
			return err
		}
	}
	if err := c.erase(ctx, held); err != nil {
		return err
	}
	b := &batch{}
	drop := func(key []byte) error {
		b.Delete(key)
		if b.Ops() < batchOps {
			return nil
		}
		c.out.Records += b.Ops()
		err := c.apply(ctx, b, nil)
		b = &batch{}
		return err
	}
	for _, letter := range []byte{keys.Commit, keys.Version, keys.EventKey, keys.Attachment, keys.Turn, keys.Ref} {
		r := c.space.Of(letter, c.inc)
		if letter == keys.Commit {
			r.Start = c.space.Commit(c.inc, uint64(held+1))
		}
		for p, err := range c.engine.Scan(ctx, r) {
			if err != nil {
				return err
			}
			switch letter {
			case keys.Commit:
				commit, _, err := heads.OpenCommit(p.Key, p.Value)
				if err != nil {
					return codec.Corrupt(err, "commit at key %x", p.Key)
				}
				c.out.Nodes += commit.Nodes
			case keys.EventKey, keys.Attachment:
				at, err := pack.OpenPosition(p.Key, p.Value, letter)
				if err != nil {
					return codec.Corrupt(err, "index entry at key %x", p.Key)
				}
				if head.Revision(at.Revision) <= held {
					continue
				}
			}
			if err := drop(p.Key); err != nil {
				return err
			}
		}
	}
	c.out.Records += b.Ops()
	c.finished(b)
	return c.apply(ctx, b, nil)
}

// prune removes of a session that lives what no retained revision leads to, and what
// was tombstoned.
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
	return c.finish(ctx)
}

// detach makes b say that the session has references less to blobs: the next
// collection derives its edges to them anew.
func (c *cleaning) detach(b *batch, blobs ...keys.Hash) {
	if len(blobs) == 0 {
		return
	}
	for _, h := range blobs {
		key := c.space.Detached(c.inc, h)
		b.Set(key, codec.Seal(key, keys.Detached, []byte{1}))
	}
	key := c.space.Dirty(c.inc)
	b.Set(key, heads.SealDirty(key))
}
