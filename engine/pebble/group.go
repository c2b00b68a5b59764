package pebble

import (
	"bytes"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"

	"github.com/turnstonedb/turnstone/engine"
)

// groupBytes bounds a group, unless it is one batch. It is about the largest batch that the
// engine takes, so that a group needs no more room in memtable and log than a batch may.
const groupBytes = 2 << 20

// A group is the batches that the committer hands to Pebble as one batch, with one sync.
type group struct {
	commits []*commit
	batch   *pebble.Batch // the writes of the commits whose guards hold, or nil: that of a lone commit, or one of Engine.spare
	view    *view         // what readers see once the group is durable, or nil if nothing was written
	end     uint64        // Pebble's sequence number after the group
	err     error         // of handing batch to Pebble
}

// commitBatches is the committer: it alone hands batches to Pebble. It takes the batches that
// wait, checks the guards of one after the other, and passes the group to the syncer. While the
// syncer waits for one group, and another one is ready, batches gather for the next.
// It may be parked within Pebble for ever; nobody waits for it then.
func (e *Engine) commitBatches() {
	defer close(e.synced)
	defer func() {
		if r := recover(); r != nil {
			e.fail(fmt.Errorf("pebble panics: %v", r))
		}
	}()
	var logged uint64 // number of the log that the last group went to, or an older one
	p := promise{epoch: e.files.epoch}
	last := 0 // number of batches in the group before
	for range e.line.wake {
		for more := true; more; {
			var g group
			g.commits, more = e.line.gather(last)
			if len(g.commits) == 0 {
				break // The signal was for batches that an earlier group took.
			}
			last = len(g.commits)
			e.commit(&g, &p)
			if newest := e.files.newest.Load(); g.view != nil && newest != logged {
				// The log was changed before or beside this group: the next group
				// is in the new log in any case.
				logged, p.start = newest, g.end
			}
			if !more && e.syncing.Load() == 0 && e.line.len() == 0 {
				e.land(&g) // to wake the syncer would take longer
				continue
			}
			e.syncing.Add(1)
			e.synced <- &g
		}
	}
}

// commit checks the guards of the commits of g, one after the other, and makes the writes of
// those that hold visible.
func (e *Engine) commit(g *group, p *promise) {
	var pending writes
	if len(g.commits) > 1 {
		pending = writes{}
	}
	for _, c := range g.commits {
		if c.err = e.check(c, pending); c.err != nil || c.batch.Count() == 0 {
			continue
		}
		if pending != nil && g.batch == nil {
			g.batch = e.joined()
		}
		g.add(c, pending)
	}
	if g.batch != nil {
		e.insert(g, p)
	}
}

// check returns an error if c is not to be committed. pending has the values that the commits before it in its group
// have read and written.
func (e *Engine) check(c *commit, pending writes) error {
	if err := e.failure(); err != nil {
		return err
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}
	for _, guard := range c.guards {
		v, found := pending[string(guard.Key)]
		if !found {
			var err error
			if v, err = get(e.db, guard.Key); err != nil {
				return mapped(err)
			}
			if pending != nil {
				pending[string(guard.Key)] = v // Others of the group may guard it, too.
			}
		}
		if (v == nil) != (guard.Value == nil) || !bytes.Equal(v, guard.Value) {
			return &engine.ConflictError{Key: bytes.Clone(guard.Key)}
		}
	}
	return nil
}

// writes are the values of those keys that a group has read or written so far; nil if there is none.
type writes map[string][]byte

// add adds the writes of c to the group, and to pending, which is nil if c is alone.
func (g *group) add(c *commit, pending writes) {
	c.wrote = true
	if pending == nil {
		g.batch = c.batch
		return
	}
	_ = g.batch.Apply(c.batch, nil) // it was made by pebbleBatch
	for r := c.batch.Reader(); ; {
		kind, key, value, ok, _ := r.Next()
		if !ok {
			return
		}
		switch kind {
		case pebble.InternalKeyKindSet:
			pending[string(key)] = value
		case pebble.InternalKeyKindDelete:
			pending[string(key)] = nil
		}
	}
}

// joined returns an empty batch for the writes of several commits. Such a batch is as large as a group. It stays
// out of Pebble's pool, from which single commits take their batches.
func (e *Engine) joined() *pebble.Batch {
	select {
	case b := <-e.spare:
		return b
	default:
		return e.db.NewBatch()
	}
}

// insert hands the batch of g to Pebble, with a promise.
func (e *Engine) insert(g *group, p *promise) {
	repr, count := g.batch.Repr(), g.batch.Count()
	p.durable = e.promised.Load()
	p.put(repr[promiseAt:])
	e.wrote.Store(true)
	if err := e.db.ApplyNoSyncWait(g.batch, pebble.Sync); err != nil {
		e.fail(err)
		g.err = fmt.Errorf("%w: pebble apply: %w", engine.ErrUnknown, err)
		return
	}
	// Pebble has written the number into repr. It takes large batches away, so they
	// can't be asked.
	g.end = uint64(batchrepr.ReadSeqNum(repr)) + uint64(count)
	g.view = newView(e.db)
}

// syncBatches is the syncer: it lands groups while the committer writes the next ones.
func (e *Engine) syncBatches() {
	defer close(e.rest)
	for g := range e.synced {
		e.land(g)
		e.syncing.Add(-1)
	}
}

// land waits until g is durable, lets readers see it, and answers its callers. Groups land in
// their order. A verdict on guards can depend on an earlier batch that is not durable yet. So the verdict also
// waits its turn.
func (e *Engine) land(g *group) {
	if g.view != nil {
		if err := g.batch.SyncWait(); err != nil {
			g.err = fmt.Errorf("%w: pebble sync: %w", engine.ErrUnknown, err)
			e.fail(err)
		} else if err := e.dir.Here(); err != nil {
			g.err = fmt.Errorf("%w: %w", engine.ErrUnknown, err)
			e.fail(err)
		} else if !e.files.noSync {
			e.promised.Store(g.end)
		}
	}
	g.answer(e.show(g))
	if len(g.commits) > 1 && g.batch != nil && g.err == nil {
		g.batch.Reset()
		select {
		case e.spare <- g.batch:
		default:
		}
	}
}

// answer answers the commits of g. failed is why the engine has failed, or nil.
func (g *group) answer(failed error) {
	for _, c := range g.commits {
		switch {
		case c.wrote:
			c.err = g.err
		case failed != nil:
			c.err = failed // the verdict may rest on a batch that is not durable
		}
		_ = c.batch.Close()
		c.done <- c.err
	}
}
