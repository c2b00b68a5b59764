package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

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
	err := e.failed
	if err == nil || e.closed {
		err = e.enter()
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	defer e.leave()
	if err := e.roomFor(b); err != nil {
		return err
	}
	c := &commit{ctx: ctx, guards: b.Guards, batch: e.pebbleBatch(b), done: make(chan error, 1)}
	select {
	case e.commits <- c:
		return e.answer(c)
	case <-ctx.Done():
		return ctx.Err()
	case <-e.down:
		return e.failure()
	}
}

func (e *Engine) fullAtOpen() error {
	return fmt.Errorf("%w when %s was opened; open it again", engine.ErrNoSpace, e.dir.Path)
}

// roomFor returns an error when too little space is left for b.
func (e *Engine) roomFor(b *engine.Batch) error {
	if e.readOnly {
		return e.fullAtOpen()
	}
	if b.Ops() == 0 {
		return nil
	}
	err := e.dir.Need(e.room)
	if err != nil && b.Reclaim {
		return e.dir.NeedNow(reserve)
	}
	if err == nil {
		err = e.short()
	}
	return err
}

// pebbleBatch copies the writes of b, behind room for a promise.
func (e *Engine) pebbleBatch(b *engine.Batch) *pebble.Batch {
	batch := e.db.NewBatchWithSize(b.Bytes() + 32*b.Ops() + 64)
	var room [promiseBytes]byte
	_ = batch.LogData(room[:], nil)
	for _, p := range b.Sets {
		_ = batch.Set(p.Key, p.Value, nil) // a batch in memory takes everything
	}
	for _, k := range b.Deletes {
		_ = batch.Delete(k, nil)
	}
	return batch
}

// answer waits for the outcome of c, which the committer has taken.
func (e *Engine) answer(c *commit) error {
	var cause error
	select {
	case err := <-c.done:
		return err
	default:
	}
	tick := time.NewTimer(answerTime)
	defer tick.Stop()
	for cause == nil {
		select {
		case err := <-c.done:
			return err
		case <-c.ctx.Done():
			cause = c.ctx.Err()
		case <-e.down:
			cause = e.failure()
		case <-tick.C: // a flush that finds no space can hold up the committer
			cause = e.short()
			tick.Reset(answerTime)
		}
	}
	select {
	case err := <-c.done:
		return err
	case <-time.After(answerTime):
		return fmt.Errorf("%w: %v", engine.ErrUnknown, cause)
	}
}

// commitBatches is the committer: it alone hands batches to Pebble. It may be
// parked within Pebble for ever; nobody waits for it then.
func (e *Engine) commitBatches() {
	var started *commit
	defer func() {
		if r := recover(); r != nil {
			e.fail(fmt.Errorf("pebble panics: %v", r))
		}
		close(e.synced)
	}()
	var logged uint64 // number of the log that the last batch went to, or an older one
	var p promise
	for started = range e.commits {
		started.err = e.commit(started, &p)
		if started.number != 0 && e.files.newestLog.Load() != logged {
			// The log was changed before or beside this batch: the next batch is
			// in the new log in any case.
			logged, p.start = e.files.newestLog.Load(), started.end
		}
		e.synced <- started
	}
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
	p.durable = e.promised.Load()
	p.put(c.batch.Repr()[promiseAt:])
	c.number = e.entered.Add(1)
	if err := e.db.ApplyNoSyncWait(c.batch, pebble.Sync); err != nil {
		e.fail(err)
		return fmt.Errorf("%w: pebble apply: %w", engine.ErrUnknown, err)
	}
	c.end = uint64(c.batch.SeqNum()) + uint64(c.batch.Count())
	return nil
}

// syncBatches is the syncer: it waits until batches are durable, in their order,
// and answers their callers. A verdict of guards can rest on a batch that is not
// durable yet, so it waits in the same line.
func (e *Engine) syncBatches() {
	for c := range e.synced {
		if c.number != 0 && c.err == nil {
			if err := c.batch.SyncWait(); err != nil {
				c.err = fmt.Errorf("%w: pebble sync: %w", engine.ErrUnknown, err)
				e.fail(err)
			} else {
				if !e.files.noSync {
					e.promised.Store(c.end)
				}
				e.mu.Lock()
				e.durable = c.number
				e.signal()
				e.mu.Unlock()
			}
		} else if err := e.failure(); err != nil && !errors.Is(c.err, engine.ErrUnknown) {
			c.err = err // the verdict may rest on a batch that is not durable
		}
		_ = c.batch.Close()
		c.done <- c.err
	}
}
