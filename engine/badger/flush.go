package badger

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dgraph-io/badger/v4/y"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

const (
	maxWaiting = 0           // number of memtables that may wait to be flushed when another one is full
	flushAgain = time.Second // when a flush that found no space is tried again
)

// rotate begins a new log and memtable. The committer calls it between two groups, and
// Close calls it after the last group. rotate waits until every group is synced. If
// flushing does not keep up, it also waits for a flush.
func (e *Engine) rotate() error {
	e.syncing.Wait()
	if err := errors.Join(e.usable(), e.awaitFlush(context.Background(), maxWaiting)); err != nil {
		return err
	}
	number, used := e.number(), e.used.take()
	l, err := createLog(e.files, number, e.logSize, used)
	if err == nil {
		if err = e.lead(l); err != nil {
			err = errors.Join(err, l.f.Close())
		}
	}
	if err != nil {
		if localdir.Short(err) { // after another error the current log may lead to l
			names := []string{logName(number)}
			if used != nil {
				names = append(names, logName(used.number))
			}
			err = errors.Join(err, e.remove(names...))
		}
		return e.stopUnlessShort("begin a log", err)
	}
	e.mu.Lock()
	e.content.memtables = append(e.content.memtables, newMemtable(l, e.written, e.spare.Swap(nil)))
	e.mu.Unlock()
	e.flushSoon()
	return nil
}

// flushSoon makes flushLoop look for memtables to flush.
func (e *Engine) flushSoon() {
	select {
	case e.full <- struct{}{}:
	default:
	}
}

// lead ends the current log with a frame that names l as the next log. All groups of the
// current log are durable then, also in Process mode. So a log is never on the disk
// without the logs before it.
func (e *Engine) lead(l *log) error {
	if err := e.files.sync(); err != nil {
		return lost(err)
	}
	old := e.active().log
	if err := old.reserve(0, 0); err != nil { // Close may have cut it
		return err
	}
	if e.opts.Durability != Power { // the frame says that all groups before it are durable
		if err := old.f.SyncData(); err != nil {
			return lost(err)
		}
	}
	if err := old.append(frameNext, l.number, e.written, make([]byte, frameHeader)); err != nil {
		return err
	}
	return lost(old.f.SyncData())
}

// number returns the number for a new file.
func (e *Engine) number() uint64 {
	e.install.Lock()
	defer e.install.Unlock()
	e.nextNumber++
	return e.nextNumber - 1
}

// awaitFlush waits until at most the given number of memtables wait to be flushed. It
// fails if a flush failed.
func (e *Engine) awaitFlush(ctx context.Context, most int) error {
	for {
		e.mu.RLock()
		waiting, tried := len(e.content.memtables)-1, e.tried
		e.mu.RUnlock()
		if waiting <= most {
			return nil
		}
		if err := e.usable(); err != nil {
			return err
		}
		if given := e.flushTrouble.Load(); given != nil {
			return *given
		}
		select {
		case <-tried:
		case <-e.halted:
		case <-ctx.Done():
			return ctx.Err()
		case <-e.stop:
			return engine.ErrClosed
		}
	}
}

// flushLoop flushes memtables that wait. If the disk has no space, it tries again until
// it has. Any other failure stops the engine.
func (e *Engine) flushLoop() {
	again := time.NewTicker(flushAgain)
	defer again.Stop()
	forget := time.NewTicker(askAgain)
	defer forget.Stop()
	for { // look first: Open may have replayed several logs
		for e.waiting() && e.usable() == nil && e.ctx.Err() == nil {
			err := e.flush()
			e.note(&e.flushTrouble, err)
			e.mu.Lock()
			close(e.tried)
			e.tried = make(chan struct{})
			e.mu.Unlock()
			if err != nil {
				break
			}
			// The memory of a list takes milliseconds to clear, in which the committer would
			// commit nothing. The memtable that was flushed had as much.
			if e.spare.Load() == nil {
				e.spare.Store(newList(e.logSize))
			}
			e.rewriteIfGrown()
		}
		select {
		case <-e.full:
		case <-again.C:
		case <-forget.C:
			e.forget()
		case <-e.stop:
			return
		}
	}
}

// flushed waits until no flush runs. A flush that awaitFlush does not wait for any more may still
// have to remove its log.
func (e *Engine) flushed() {
	e.flushing.Lock()
	defer e.flushing.Unlock()
}

// flushAll flushes the memtables that wait. Only Close calls it, after flushLoop.
func (e *Engine) flushAll() (err error) {
	for err == nil && e.waiting() {
		err = e.flush()
	}
	return err
}

// waiting reports whether a memtable waits to be flushed.
func (e *Engine) waiting() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return len(e.content.memtables) > 1
}

// flush writes the oldest memtable, which is complete, as a run of tables. It removes the
// log of the memtable after the manifest lists the run.
func (e *Engine) flush() error {
	e.flushing.Lock()
	defer e.flushing.Unlock()
	e.mu.RLock()
	m := e.content.memtables[0]
	e.mu.RUnlock()
	w := &tableWriter{files: e.files, number: e.number}
	source := content{memtables: []*memtable{m}}
	r, err := e.writeRun(w, &source, func(y.ValueStruct) (bool, error) { return true, nil })
	if err == nil {
		err = e.replace(func(c *content) {
			c.memtables = c.memtables[1:]
			if len(r) > 0 {
				c.runs = append([]run{r}, c.runs...)
			}
			c.flushed = m.last
		})
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}
	if err != nil {
		if e.usable() == nil {
			err = errors.Join(err, e.remove(w.discard()...))
		}
		return e.stopUnlessShort("flush a memtable", err)
	}
	// The manifest no longer names the log, so it is never read again.
	if m.log.size == e.logSize && !m.log.short && e.used.put(m.log) {
		return nil
	}
	return e.discard(m.log)
}

// discard removes a log that was flushed, or does nothing if l is nil.
func (e *Engine) discard(l *log) error {
	if l == nil {
		return nil
	}
	if err := errors.Join(l.f.Close(), e.remove(logName(l.number))); err != nil {
		return e.stopUnlessShort("remove a flushed log", err)
	}
	return nil
}

// remove removes files that nothing refers to, and those that could not be removed before. What
// is left is removed by the next call or the next Open.
func (e *Engine) remove(names ...string) (err error) {
	e.removing.Lock()
	defer e.removing.Unlock()
	names = append(e.unneeded, names...)
	e.unneeded = nil
	for _, n := range names {
		if rerr := removeAll(e.files, []string{n}); rerr != nil {
			err, e.unneeded = errors.Join(err, rerr), append(e.unneeded, n)
		}
	}
	return err
}

// writeRun writes a run with the newest version of each key of c for which keep returns
// true.
func (e *Engine) writeRun(w *tableWriter, c *content, keep func(y.ValueStruct) (bool, error)) (r run, err error) {
	defer faults()()
	defer caught(&err)
	var failed error
	err = c.newest(nil, math.MaxUint64, func(key []byte, v y.ValueStruct) bool {
		var ok bool
		if ok, failed = keep(v); ok && failed == nil {
			failed = w.add(key, v)
		}
		return failed == nil
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	return w.finish()
}

// replace changes the content, first in the manifest and then for readers. If it fails and
// the engine does not, nothing has changed. replace calls change twice, because the
// committer may add a memtable meanwhile.
func (e *Engine) replace(change func(*content)) error {
	e.install.Lock()
	defer e.install.Unlock()
	e.mu.RLock()
	next := e.content
	e.mu.RUnlock()
	change(&next)
	if begun, err := next.manifest().write(e.files); err != nil {
		err = fmt.Errorf("replace the manifest: %w", mapped(err))
		if begun || !errors.Is(err, engine.ErrNoSpace) {
			e.fail(err)
		}
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.content)
	return nil
}
