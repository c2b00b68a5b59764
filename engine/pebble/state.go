package pebble

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

// fail makes e refuse all writes from now on, because of err. The error that they
// get matches engine.ErrClosed and what err is, for example engine.ErrNoSpace.
func (e *Engine) fail(err error) {
	e.fence.lower()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed != nil {
		return
	}
	e.cause = mapped(err)
	e.failed = fmt.Errorf("%w until it is reopened: %w", engine.ErrClosed, e.cause)
	e.signal()
	close(e.down)
}

// failure returns why the engine failed, or nil.
func (e *Engine) failure() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failed
}

// background is called by Pebble, with its lock held, when a flush, a compaction
// or a removal failed. Shortage of space passes; Pebble tries again.
func (e *Engine) background(err error) {
	if localdir.Short(err) && !e.fence.opening.Load() {
		e.noSpace(err)
		return
	}
	if e.fence.shut.Load() {
		park() // the handle was given up: no reader needs the lock any more
	}
	e.fail(err)
}

// shortFor is how long the engine counts as short of space after Pebble failed to
// write a table. Pebble tries again several times within that time.
const shortFor = time.Second

func (e *Engine) noSpace(error) {
	e.lastNoSpace.Store(time.Now().UnixNano())
	e.mu.Lock()
	close(e.trouble)
	e.trouble = make(chan struct{})
	e.mu.Unlock()
}

// short returns an error while Pebble finds no space for its tables.
func (e *Engine) short() error {
	if last := e.lastNoSpace.Load(); last != 0 && time.Since(time.Unix(0, last)) < shortFor {
		return e.noSpaceForTable()
	}
	return nil
}

func (e *Engine) noSpaceForTable() error {
	return fmt.Errorf("%w for a table in %s", engine.ErrNoSpace, e.dir.Path)
}

// signal wakes those who wait for a change; the caller holds mu.
func (e *Engine) signal() {
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// wait waits until ready, which it calls with mu held, reports true or an error,
// or until ctx ends. The caller holds mu, and holds it again afterwards.
func (e *Engine) wait(ctx context.Context, ready func() (bool, error)) error {
	for {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		if e.changed == nil {
			e.changed = make(chan struct{})
		}
		changed := e.changed
		e.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		e.mu.Lock()
		if err != nil {
			return err
		}
	}
}

// enter begins a call that uses db; the caller holds mu.
func (e *Engine) enter() error {
	if e.closed || e.db == nil { // the zero Engine has none
		return engine.ErrClosed
	}
	e.users++
	return nil
}

func (e *Engine) leave() {
	e.mu.Lock()
	e.users--
	e.signal()
	e.mu.Unlock()
}

// durableNow returns the number up to which batches are durable.
func (e *Engine) durableNow() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.durable
}

// awaitDurable waits until batch n is durable.
func (e *Engine) awaitDurable(ctx context.Context, n uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.durable >= n {
		return nil
	}
	return e.wait(ctx, func() (bool, error) { return e.durable >= n, e.failed })
}

const (
	// closeTime is how long Close waits for an engine that failed or is short of
	// space, before it gives Pebble up. With drainTime that stays below five seconds.
	closeTime = 3 * time.Second
	// longCloseTime is the same for a healthy engine, which may have to finish a
	// compaction.
	longCloseTime = time.Minute
)

// Close implements engine.Engine. It waits for the calls that are under way, moves
// the content of the log into tables and closes Pebble. If that takes more than a
// minute, or the engine has failed, Close gives Pebble up: it stops all changes of
// files, closes them and unlocks the directory. The next Open has everything that
// was acknowledged. If an operation of the system does not end, the directory
// stays locked until the process ends, so that nobody else writes to it.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed || e.db == nil {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	e.cancel()
	e.mu.Unlock()
	closed := make(chan error, 1)
	go func() { closed <- e.closePebble() }()
	err, done := e.awaitClose(closed)
	if !done && !e.fence.drain(drainTime) {
		return fmt.Errorf("engine: close %s: an operation of the file system does not end; the directory stays locked", e.dir.Path)
	}
	if done {
		e.fence.drain(drainTime)
		err = errors.Join(err, e.private())
	}
	return errors.Join(err, e.dir.Close())
}

// awaitClose waits for closed, and reports whether Pebble closed in time.
func (e *Engine) awaitClose(closed <-chan error) (err error, done bool) {
	begun := time.Now()
	down := e.down
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-closed:
			return err, true
		case <-down:
			return nil, false
		case <-tick.C:
			waited := time.Since(begun)
			if waited > longCloseTime || waited > closeTime && e.short() != nil {
				return nil, false
			}
		}
	}
}

// closePebble waits for the users and closes Pebble.
func (e *Engine) closePebble() (err error) {
	e.mu.Lock()
	_ = e.wait(context.Background(), func() (bool, error) { return e.users == 0, nil })
	e.mu.Unlock()
	close(e.line.wake)
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("engine: pebble panics while it closes: %v", r)
		}
	}()
	if e.readOnly == nil && e.short() == nil && e.dir.NeedNow(reserve) == nil {
		if flushed, err := e.db.AsyncFlush(); err == nil {
			select {
			case <-flushed:
			case <-e.down:
			case <-time.After(longCloseTime / 2):
			}
		}
	}
	return mapped(e.db.Close())
}
