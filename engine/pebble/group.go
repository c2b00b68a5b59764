package pebble

import (
	"bytes"
	"fmt"
	"time"

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
	batch   *pebble.Batch // the writes of the commits whose guards hold, or nil
	number  uint64        // of the group, or 0 if nothing was written
	end     uint64        // Pebble's sequence number after the group
	err     error         // of handing batch to Pebble
}

// commitBatches is the committer: it alone hands batches to Pebble. It takes the batches that
// wait, checks the guards of one after the other, and passes the group to the syncer. While the
// syncer waits for one group, and another one is ready, batches gather for the next.
// When idle, it writes a promise. It may be parked within Pebble for ever; nobody
// waits for it then.
func (e *Engine) commitBatches() {
	defer close(e.synced)
	defer func() {
		if r := recover(); r != nil {
			e.fail(fmt.Errorf("pebble panics: %v", r))
		}
	}()
	var logged uint64 // number of the log that the last group went to, or an older one
	var p promise
	idle := time.NewTimer(promiseDelay)
	defer idle.Stop()
	last := 0 // number of batches in the group before
	for {
		select {
		case _, open := <-e.line.wake:
			if !open {
				return
			}
		case <-idle.C:
			switch {
			case e.failure() != nil:
			case e.entered.Load() > e.durableNow():
				idle.Reset(promiseDelay)
			case e.promised.Load() > p.durable:
				e.synced <- e.promiseAlone(&p)
			}
			continue
		}
		for more := true; more; {
			var g group
			g.commits, more = e.line.gather(last)
			if len(g.commits) == 0 {
				break // The signal was for batches that an earlier group took.
			}
			last = len(g.commits)
			e.commit(&g, &p)
			if g.number != 0 && e.files.newestLog.Load() != logged {
				// The log was changed before or beside this group: the next group
				// is in the new log in any case.
				logged, p.start = e.files.newestLog.Load(), g.end
			}
			e.synced <- &g
		}
		idle.Reset(promiseDelay)
	}
}

// promiseDelay is how long the committer is idle before it writes a promise of its
// own. Until then no promise says that the last batches are durable, and damage of
// theirs passes for a torn end. It costs a sync that nobody waits for.
const promiseDelay = 20 * time.Millisecond

// promiseAlone writes that all batches are durable.
func (e *Engine) promiseAlone(p *promise) *group {
	g := &group{batch: e.pebbleBatch(&engine.Batch{}), number: e.entered.Load()}
	e.insert(g, p)
	return g
}

// commit checks the guards of the commits of g, one after the other, and makes the writes of
// those that hold visible.
func (e *Engine) commit(g *group, p *promise) {
	var pending writes
	if len(g.commits) > 1 {
		pending = writes{}
	}
	for _, c := range g.commits {
		if c.err = e.check(c, pending); c.err == nil && c.batch.Count() > 0 {
			g.add(c, pending)
		}
	}
	if g.batch != nil {
		g.number = e.entered.Add(1)
		e.insert(g, p)
	}
}

// check returns an error if c is not to be committed. pending has the writes of the commits
// before it in its group.
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
		}
		if (v == nil) != (guard.Value == nil) || !bytes.Equal(v, guard.Value) {
			return &engine.ConflictError{Key: bytes.Clone(guard.Key)}
		}
	}
	return nil
}

// writes are the values that a group has set so far, or nil for keys that it has deleted.
type writes map[string][]byte

// add adds the writes of c to the group, and to pending if that is not nil.
func (g *group) add(c *commit, pending writes) {
	c.wrote = true
	if g.batch == nil {
		g.batch = c.batch
	} else {
		_ = g.batch.Apply(c.batch, nil) // it was made by pebbleBatch
	}
	for r := c.batch.Reader(); pending != nil; {
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

// insert hands the batch of g to Pebble, with a promise.
func (e *Engine) insert(g *group, p *promise) {
	repr, count := g.batch.Repr(), g.batch.Count()
	p.durable = e.promised.Load()
	p.put(repr[promiseAt:])
	if err := e.db.ApplyNoSyncWait(g.batch, pebble.Sync); err != nil {
		e.fail(err)
		g.err = fmt.Errorf("%w: pebble apply: %w", engine.ErrUnknown, err)
		return
	}
	// Pebble has written the number into repr. It takes large batches away, so they
	// can't be asked.
	g.end = uint64(batchrepr.ReadSeqNum(repr)) + uint64(count)
}

// syncBatches is the syncer: it waits until groups are durable, in their order,
// and answers their callers. A verdict of guards can rest on a batch that is not
// durable yet, so it waits in the same line.
func (e *Engine) syncBatches() {
	for g := range e.synced {
		durable := uint64(0)
		if g.number != 0 && g.err == nil {
			if err := g.batch.SyncWait(); err != nil {
				g.err = fmt.Errorf("%w: pebble sync: %w", engine.ErrUnknown, err)
				e.fail(err)
			} else {
				if !e.files.noSync {
					e.promised.Store(g.end)
				}
				durable = g.number
			}
		}
		e.mu.Lock()
		if durable > e.durable {
			e.durable = durable
			e.signal()
		}
		failed := e.failed
		e.mu.Unlock()
		g.answer(failed)
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
		if c.batch != g.batch {
			_ = c.batch.Close()
		}
		c.done <- c.err
	}
	if g.batch != nil {
		_ = g.batch.Close()
	}
}
