package pebble

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/turnstonedb/turnstone/engine"
)

// A commit is a batch on its way through the committer and the syncer.
type commit struct {
	ctx    context.Context
	guards []engine.Pair
	batch  *pebble.Batch // the writes
	wrote  bool          // the group has the writes
	err    error         // the answer, once all earlier batches are durable
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
	if err := e.checkSpace(ctx, b); err != nil {
		return err
	}
	c := &commit{ctx: ctx, guards: b.Guards, batch: e.pebbleBatch(b), done: make(chan error, 1)}
	e.line.join(c)
	return e.answer(c, trouble)
}

// A line has the batches that wait for the committer, which takes a group of them at once.
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

// Writers whose group was answered come back one by one. So after a large group the
// committer lets them run before it begins the next one; otherwise the first of them would
// get a sync of its own. It yields and does not sleep, because a sleep takes about a
// millisecond when nothing else runs. Before small groups yields gain nothing.
const (
	crowd  = 8 // batches that make a group large
	yields = 3 // before a group
)

// gather is take after a group of last batches.
func (l *line) gather(last int) (group []*commit, more bool) {
	for yielded := 0; last > crowd && yielded < yields && l.len() < last; yielded++ {
		runtime.Gosched()
	}
	return l.take()
}

func (l *line) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// take returns those who wait, in their order, up to the size of a group. It reports
// whether others still wait.
func (l *line) take() (group []*commit, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	size, n := 0, 0
	for n < len(l.waiting) && (n == 0 || size+l.waiting[n].batch.Len() <= groupBytes) {
		size += l.waiting[n].batch.Len()
		n++
	}
	group = l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	return group, len(l.waiting) > 0
}

// checkSpace returns an error if too little space is left for b.
func (e *Engine) checkSpace(ctx context.Context, b *engine.Batch) error {
	if err := e.writable(ctx); err != nil {
		return err
	}
	if b.Ops() == 0 {
		return nil
	}
	err := e.dir.Need(ctx, e.minFree)
	if errors.Is(err, engine.ErrReplaced) {
		e.fail(err)
		return err
	}
	if err != nil && b.Reclaim {
		return e.dir.NeedNow(ctx, reserve)
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
		if gone := (*engine.ReplacedError)(nil); errors.As(cause, &gone) {
			return fmt.Errorf("%w: %w", engine.ErrUnknown, gone)
		}
		return fmt.Errorf("%w: %v", engine.ErrUnknown, cause)
	}
}
