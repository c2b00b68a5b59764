package pebble

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"

	"github.com/turnstonedb/turnstone/engine"
)

// A commit is a batch on its way through the committer and the syncer.
type commit struct {
	ctx    context.Context
	guards []engine.Pair
	batch  *pebble.Batch
	number uint64 // of the batch, or 0 if nothing was written
	end    uint64 // Pebble's sequence number after the batch
	err    error  // the answer, once all earlier batches are durable
	done   chan error
}

// answerTime is how long Apply waits for an answer after its context ended or the
// engine ran into trouble, before it reports that the outcome is unknown.
const answerTime = 500 * time.Millisecond

// Apply implements engine.Engine.
func (e *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	if err := b.Check(e.Limits()); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	err, trouble := e.failed, e.trouble
	if err == nil || e.closed {
		err = e.enter()
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	defer e.leave()
	if err := e.checkSpace(b); err != nil {
		return err
	}
	c := &commit{ctx: ctx, guards: b.Guards, batch: e.pebbleBatch(b), done: make(chan error, 1)}
	e.line.join(c)
	return e.answer(c, trouble)
}

// A line is where batches wait for the committer, which takes all of them at once.
type line struct {
	mu      sync.Mutex // guards waiting
	waiting []*commit
	wake    chan struct{} // has room for one signal
}

func (l *line) join(c *commit) {
	l.mu.Lock()
	l.waiting = append(l.waiting, c)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // the committer has yet to see an earlier signal
	}
}

// leave reports whether c was still waiting, and takes it out of the line then.
func (l *line) leave(c *commit) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, c)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	return i >= 0
}

// take returns all who wait, in their order.
func (l *line) take() []*commit {
	l.mu.Lock()
	defer l.mu.Unlock()
	group := l.waiting
	l.waiting = nil
	return group
}

func (e *Engine) fullAtOpen() error {
	return fmt.Errorf("%w when %s was opened; open it again", engine.ErrNoSpace, e.dir.Path)
}

// checkSpace returns an error if too little space is left for b.
func (e *Engine) checkSpace(b *engine.Batch) error {
	if e.readOnly {
		return e.fullAtOpen()
	}
	if b.Ops() == 0 {
		return nil
	}
	err := e.dir.Need(e.minFree)
	if err != nil && b.Reclaim {
		return e.dir.NeedNow(reserve)
	}
	if err == nil {
		err = e.short()
	}
	return err
}

// pebbleBatch copies the writes of b. Space for a promise comes before them.
func (e *Engine) pebbleBatch(b *engine.Batch) *pebble.Batch {
	batch := e.db.NewBatchWithSize(b.Bytes() + 32*b.Ops() + 64)
	var empty [promiseBytes]byte
	_ = batch.LogData(empty[:], nil)
	for _, p := range b.Sets {
		_ = batch.Set(p.Key, p.Value, nil) // a batch in memory takes everything
	}
	for _, k := range b.Deletes {
		_ = batch.Delete(k, nil)
	}
	return batch
}

// answer waits for the outcome of c. It takes c out of the line when its context
// ends or the engine fails before the committer has taken c. Trouble is closed when
// Pebble finds no space, because that can hold up the committer.
func (e *Engine) answer(c *commit, trouble <-chan struct{}) error {
	var cause error
	select {
	case err := <-c.done:
		return err
	case <-c.ctx.Done():
		cause = c.ctx.Err()
	case <-e.down:
		cause = e.failure()
	case <-trouble:
		cause = e.noSpaceForTable()
	}
	if e.line.leave(c) {
		return cause
	}
	select {
	case err := <-c.done:
		return err
	case <-time.After(answerTime):
		return fmt.Errorf("%w: %v", engine.ErrUnknown, cause)
	}
}

// commitBatches is the committer: it alone hands batches to Pebble. It takes all batches that
// wait, checks the guards of one after the other, and passes the group to the syncer. When idle,
// it writes a promise. It may be parked within Pebble for ever; nobody waits for it then.
func (e *Engine) commitBatches() {
	defer close(e.synced)
	defer func() {
		if r := recover(); r != nil {
			e.fail(fmt.Errorf("pebble panics: %v", r))
		}
	}()
	var logged uint64 // number of the log that the last batch went to, or an older one
	var p promise
	idle := time.NewTimer(promiseDelay)
	defer idle.Stop()
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
		group := e.line.take()
		for _, c := range group {
			c.err = e.commit(c, &p)
			if c.number != 0 && e.files.newestLog.Load() != logged {
				// The log was changed before or beside this batch: the next batch
				// is in the new log in any case.
				logged, p.start = e.files.newestLog.Load(), c.end
			}
		}
		e.synced <- group
		idle.Reset(promiseDelay)
	}
}

// promiseDelay is how long the committer is idle before it writes a promise of its
// own. Until then no promise says that the last batches are durable, and damage of
// theirs passes for a torn end. It costs a sync that nobody waits for.
const promiseDelay = 20 * time.Millisecond

// promiseAlone writes that all batches are durable.
func (e *Engine) promiseAlone(p *promise) []*commit {
	c := &commit{batch: e.pebbleBatch(&engine.Batch{}), number: e.entered.Load(), done: make(chan error, 1)}
	c.err = e.insert(c, p)
	return []*commit{c}
}

// commit checks the guards of c and makes its batch visible.
func (e *Engine) commit(c *commit, p *promise) error {
	if err := e.failure(); err != nil {
		return err
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}
	for _, g := range c.guards {
		v, err := get(e.db, g.Key)
		if err != nil {
			return mapped(err)
		}
		if (v == nil) != (g.Value == nil) || !bytes.Equal(v, g.Value) {
			return &engine.ConflictError{Key: bytes.Clone(g.Key)}
		}
	}
	if c.batch.Count() == 0 {
		return nil
	}
	c.number = e.entered.Add(1)
	return e.insert(c, p)
}

// insert hands the batch of c to Pebble, with a promise.
func (e *Engine) insert(c *commit, p *promise) error {
	repr, count := c.batch.Repr(), c.batch.Count()
	p.durable = e.promised.Load()
	p.put(repr[promiseAt:])
	if err := e.db.ApplyNoSyncWait(c.batch, pebble.Sync); err != nil {
		e.fail(err)
		return fmt.Errorf("%w: pebble apply: %w", engine.ErrUnknown, err)
	}
	// Pebble has written the number into repr. It takes large batches away, so they
	// can't be asked.
	c.end = uint64(batchrepr.ReadSeqNum(repr)) + uint64(count)
	return nil
}

// syncBatches is the syncer: it waits until batches are durable, in their order,
// and answers their callers. A verdict of guards can rest on a batch that is not
// durable yet, so it waits in the same line.
func (e *Engine) syncBatches() {
	for group := range e.synced {
		durable := uint64(0)
		for _, c := range group {
			if c.number == 0 || c.err != nil {
				continue
			}
			if err := c.batch.SyncWait(); err != nil {
				c.err = fmt.Errorf("%w: pebble sync: %w", engine.ErrUnknown, err)
				e.fail(err)
				continue
			}
			if !e.files.noSync {
				e.promised.Store(c.end)
			}
			durable = c.number
		}
		e.mu.Lock()
		if durable > e.durable {
			e.durable = durable
			e.signal()
		}
		failed := e.failed
		e.mu.Unlock()
		for _, c := range group {
			if c.number == 0 && failed != nil {
				c.err = failed // the verdict may rest on a batch that is not durable
			}
			_ = c.batch.Close()
			c.done <- c.err
		}
	}
}
