package pebble

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

// fail makes e refuse all writes from now on, because of err. Their error matches
// engine.ErrClosed, and also the kind of err, for example engine.ErrNoSpace.
func (e *Engine) fail(err error) {
	e.fence.lower()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed != nil {
		return
	}
	e.cause = e.dir.Named(mapped(err))
	e.failed = fmt.Errorf("%w until it is reopened: %w", engine.ErrClosed, e.cause)
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

// enter begins a call that uses db; the caller holds mu.
func (e *Engine) enter() error {
	if e.closed || e.db == nil { // the zero Engine has none
		return engine.ErrClosed
	}
	e.users++
	return nil
}

// exit ends a call that uses db; the caller holds mu.
func (e *Engine) exit() {
	if e.users--; e.users == 0 && e.closed {
		close(e.unused)
	}
}

func (e *Engine) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.exit()
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
	if e.users == 0 {
		close(e.unused)
	}
	e.cancel()
	e.mu.Unlock()
	closed := make(chan error, 1)
	go func() { closed <- e.closePebble() }()
	err, done := e.awaitClose(closed)
	if !done && !e.fence.drain(drainTime) {
		return fmt.Errorf("engine: close %s: an operation of the file system does not end; the directory stays locked", e.dir.Path)
	}
	if done {
		e.giveBack()
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
	<-e.unused
	close(e.line.wake)
	<-e.rest
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("engine: pebble panics while it closes: %v", r)
		}
	}()
	flushed := false
	if e.readOnly == nil {
		if err := e.files.freshLogs(true); err != nil {
			return err
		}
		flushed = e.flush()
	}
	if err := e.awaitReaders(context.Background()); err != nil {
		return err
	}
	e.drop(e.shown)
	if err := e.db.Close(); err != nil {
		return mapped(err)
	}
	return mapped(e.files.end(flushed))
}

// flush moves the content of the log into tables if there is space for that. It reports whether
// all of it is there.
func (e *Engine) flush() bool {
	if !e.wrote.Load() {
		return true // Open has flushed what it found
	}
	if e.short() != nil || e.dir.NeedNow(context.Background(), reserve) != nil {
		return false
	}
	flushed, err := e.db.AsyncFlush()
	if err != nil {
		return false
	}
	select {
	case <-flushed:
		return true
	case <-e.down:
	case <-time.After(longCloseTime / 2):
	}
	return false
}
