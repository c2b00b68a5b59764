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

// vacuumBytes is about how many bytes of tables Vacuum compacts at once, and so about how much
// free space it needs beside the store.
const vacuumBytes = 128 << 20

// Vacuum implements engine.Engine. It flushes and compacts the whole key space, range by range, and
// returns when the files that held removed pairs are gone. So it also waits for readers that began
// before. Pebble's MANIFEST goes on naming the first and last keys of removed files. Each range needs
// about 128 MiB of free space. The first range needs as much as all tables above the last level take, if
// that is more. When the context ends, the compactions under way go on, and Close waits for them. A
// later Vacuum passes over the ranges that an interrupted one has compacted.
func (e *Engine) Vacuum(ctx context.Context) error {
	if e.db == nil {
		return engine.ErrClosed
	}
	select {
	case e.vacuum <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.down: // a Vacuum that was under way then never ends
		return e.failure()
	case <-e.closing.Done():
		return engine.ErrClosed
	}
	e.mu.Lock()
	err := e.failed
	if err == nil || e.closed {
		err = e.enter()
	}
	e.mu.Unlock()
	if err != nil {
		<-e.vacuum
		return err
	}
	work, stop := context.WithCancel(e.closing)
	defer stop()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Errorf("engine: pebble panics in a vacuum: %v", r)
			}
			e.leave()
			<-e.vacuum
		}()
		done <- e.compactAll(work)
	}()
	for {
		select {
		case err := <-done:
			if err != nil && e.closing.Err() != nil {
				return engine.ErrClosed
			}
			return mapped(err)
		case <-ctx.Done():
			return ctx.Err()
		case <-e.down:
			return e.failure()
		case <-time.After(answerTime):
			if err := e.short(); err != nil {
				return err
			}
		}
	}
}

// compactAll flushes, compacts all keys, and waits until the replaced tables and older logs are
// removed.
func (e *Engine) compactAll(ctx context.Context) (err error) {
	if err := e.writable(ctx); err != nil {
		return err
	}
	if err := e.room(ctx, e.db.Metrics().MemTable.Size); err != nil {
		return err
	}
	if err := e.files.freshLogs(true); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.files.freshLogs(false)) }()
	if err := e.awaitReaders(ctx); err != nil {
		return err
	}
	newest, err := e.flushTo(ctx)
	if err != nil {
		return err
	}
	if err := e.compactRanges(ctx); err != nil {
		return err
	}
	if err := e.unpin(ctx); err != nil {
		return err
	}
	for {
		m := e.db.Metrics()
		if m.Table.ObsoleteCount == 0 && m.Table.ZombieCount == 0 && !e.files.hasLogBefore(newest) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// room returns an error if there is no space for tables of so many bytes.
func (e *Engine) room(ctx context.Context, bytes uint64) error {
	need := reserve
	need.Bytes += bytes
	need.Files = e.minFree.Files
	return e.dir.NeedNow(ctx, need)
}

// flushTo moves what was written into tables, and returns the number of a log that was begun after that.
func (e *Engine) flushTo(ctx context.Context) (log uint64, err error) {
	flushed, err := e.db.AsyncFlush()
	if err != nil {
		return 0, err
	}
	log = e.files.newest.Load()
	select {
	case <-flushed:
		return log, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// compactRanges compacts all keys there can be, also those outside the live range, because their
// tombstones must go as well.
func (e *Engine) compactRanges(ctx context.Context) error {
	levels, err := e.db.SSTables()
	if err != nil {
		return err
	}
	bottom := levels[len(levels)-1]
	last := bytes.Repeat([]byte{0xff}, e.Limits().KeyBytes+1)
	above := uint64(0) // bytes of the tables that are above the last level
	for _, tables := range levels[:len(levels)-1] {
		for _, t := range tables {
			above += t.Size
		}
	}
	start, size := []byte{0}, above
	for i := 0; ; i++ {
		end := last
		if i < len(bottom) {
			size += bottom[i].Size
			if size < vacuumBytes && i+1 < len(bottom) {
				continue
			}
			if i+1 < len(bottom) {
				end = bottom[i].Largest.UserKey
			}
		}
		if bytes.Compare(start, end) < 0 {
			if err := e.room(ctx, size); err != nil {
				return err
			}
			if err := e.db.Compact(ctx, start, end, true); err != nil {
				return err
			}
		}
		if bytes.Equal(end, last) {
			return nil
		}
		start, size = end, 0
	}
}

// unpin rewrites the tables that have pairs which were replaced or removed, and which a view still
// showed when the tables were written. A compaction does not rewrite what lies alone in the tree,
// so the first key of such a table is written again, as it is.
func (e *Engine) unpin(ctx context.Context) error {
	levels, err := e.db.SSTables(pebble.WithProperties())
	if err != nil {
		return err
	}
	for _, level := range levels {
		for _, t := range level {
			if t.Properties.SnapshotPinnedKeys == 0 {
				continue
			}
			if err := e.writeAgain(ctx, t.Smallest.UserKey); err != nil {
				return err
			}
			if err := e.room(ctx, t.Size); err != nil {
				return err
			}
			if err := e.db.Compact(ctx, t.Smallest.UserKey, engine.Successor(t.Largest.UserKey), false); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeAgain sets key to the value that it has, or deletes it if it is absent.
func (e *Engine) writeAgain(ctx context.Context, key []byte) error {
	for {
		v, err := get(e.db, key)
		if err != nil {
			return err
		}
		b := &engine.Batch{Guards: []engine.Pair{{Key: key, Value: v}}}
		if v == nil {
			b.Delete(key)
		} else {
			b.Set(key, v)
		}
		c := &commit{ctx: ctx, guards: b.Guards, batch: e.pebbleBatch(b), done: make(chan error, 1)}
		e.line.join(c)
		if err := e.answer(c, nil); !errors.Is(err, engine.ErrConflict) {
			return err
		}
	}
}
