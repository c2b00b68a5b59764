package pebble

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// Vacuum implements engine.Engine: it flushes and compacts the whole key space,
// and returns when the files that held removed pairs are gone; for that it waits for readers
// that began before. Pebble's MANIFEST goes on naming the first and last keys of removed files.
// Vacuum needs as much free space as the store has tables. When its context ends, the
// compactions under way go on, and Close waits for them.
func (e *Engine) Vacuum(ctx context.Context) error {
	if e.db == nil {
		return engine.ErrClosed
	}
	select {
	case e.vacuum <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	e.mu.Lock()
	err := e.failed
	if err == nil || e.closed {
		err = e.enter()
	}
	e.mu.Unlock()
	if err == nil {
		if err = e.writable(); err != nil {
			e.leave()
		}
	}
	if err != nil {
		<-e.vacuum
		return err
	}
	work, stop := context.WithCancel(e.closing)
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
	defer stop()
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

// compactAll checks the free space, flushes, compacts all keys, and waits until the replaced
// tables and older logs are removed.
func (e *Engine) compactAll(ctx context.Context) error {
	m := e.db.Metrics()
	total, need := m.Total(), reserve
	need.Bytes += uint64(total.TablesSize) + m.MemTable.Size
	need.Files = e.minFree.Files
	if err := e.dir.NeedNow(need); err != nil {
		return err
	}
	flushed, err := e.db.AsyncFlush()
	if err != nil {
		return err
	}
	kept := e.files.newestLog.Load()
	select {
	case <-flushed:
	case <-ctx.Done():
		return ctx.Err()
	}
	// Deletes outside the live range must go as well: compact all keys there can be.
	end := bytes.Repeat([]byte{0xff}, e.Limits().KeyBytes+1)
	if err := e.db.Compact(ctx, []byte{0}, end, true); err != nil {
		return err
	}
	for {
		m := e.db.Metrics()
		logs, err := e.files.logsBefore(kept)
		if err != nil {
			return err
		}
		if m.Table.ObsoleteCount == 0 && m.Table.ZombieCount == 0 && logs == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// logsBefore counts the logs with numbers below num.
func (n *noted) logsBefore(num uint64) (count int, err error) {
	names, err := n.List(n.dir)
	for _, name := range names {
		if k, ok := logNumber(name); ok && k < num {
			count++
		}
	}
	return count, err
}
