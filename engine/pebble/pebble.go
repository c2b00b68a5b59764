// Package pebble is the second embedded engine: Pebble, which groups commits by
// itself and stops on corruption. It passes the same suites as the others.
package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

var _ engine.Engine = (*Engine)(nil)

// Options of Open. Nil and the zero value mean the defaults.
type Options struct {
	// NoSync acknowledges before the write-ahead log is synced: what is
	// acknowledged survives a crash of the process, not a loss of power.
	NoSync bool
	// MinFreeBytes is the free disk space below which Apply fails with
	// engine.ErrNoSpace. Default 64 MiB.
	MinFreeBytes uint64
	// Logger receives Pebble's messages without their arguments. Default: none.
	Logger *slog.Logger
}

const (
	memTableSize = 16 << 20
	maxMemTables = 4 // Pebble keeps one log more than this for reuse
	cacheSize    = 16 << 20
	pageBytes    = 256 << 10 // of a Scan, read from one snapshot
	pagePairs    = 1000
)

// Engine is an open Pebble database.
type Engine struct {
	dir  *localdir.Dir
	room localdir.Room // what must be left for a write of new data
	db   *pebble.DB
	sync *pebble.WriteOptions

	// Batches enter Pebble one at a time, in the order of their numbers, and
	// are synced together; readers wait until what they saw is durable.
	mu      sync.Mutex // guards applied, durable, failed and closed; held from guards to visibility
	turn    *sync.Cond // on mu: durable, failed or users changed
	applied uint64     // number of the last batch that became visible
	durable uint64     // number up to which batches are synced
	failed  error      // why the engine refuses everything
	users   int        // calls that are using db
	closed  bool
	epoch   int    // +1 by every Vacuum
	readers [2]int // views that began in an even or odd epoch

	vacuum sync.Mutex // held by the one Vacuum that runs
}

// Open opens the store in dir and creates it if it does not exist. It fails
// with *engine.LockedError, which names the holder, when it is open already.
func Open(dir string, o *Options) (*Engine, error) {
	if o == nil {
		o = &Options{}
	}
	d, err := localdir.Open(dir)
	if err != nil {
		return nil, err
	}
	e := &Engine{dir: d, sync: pebble.Sync, room: localdir.Room{Bytes: o.MinFreeBytes, Inodes: 200, Files: 64}}
	if e.room.Bytes == 0 {
		e.room.Bytes = 64 << 20
	}
	if o.NoSync {
		e.sync = pebble.NoSync
	}
	e.turn = sync.NewCond(&e.mu)
	cache := pebble.NewCache(cacheSize)
	defer cache.Unref()
	e.db, err = pebble.Open(dir, &pebble.Options{
		Cache:                       cache,
		MemTableSize:                memTableSize,
		MemTableStopWritesThreshold: maxMemTables,
		MaxOpenFiles:                500,
		FormatMajorVersion:          pebble.FormatNewest,
		FS:                          freshLogs{vfs.Default},
		Logger:                      logger{o.Logger},
	})
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("engine: open pebble in %s: %w", d.Path, mapped(err))
	}
	if err := localdir.Private(d.Path); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// enter begins a call that uses db; the caller holds mu.
func (e *Engine) enter() error {
	if e.closed {
		return engine.ErrClosed
	}
	if e.failed != nil {
		return e.failed
	}
	e.users++
	return nil
}

func (e *Engine) leave() {
	e.mu.Lock()
	e.users--
	e.turn.Broadcast()
	e.mu.Unlock()
}

// fail makes e refuse everything from now on.
func (e *Engine) fail(err error) {
	e.mu.Lock()
	if e.failed == nil {
		e.failed = fmt.Errorf("%w until it is reopened: %v", engine.ErrClosed, err)
	}
	e.turn.Broadcast()
	e.mu.Unlock()
}

// view runs f on a snapshot, and returns when what it shows is durable.
func (e *Engine) view(ctx context.Context, f func(*pebble.Snapshot) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	if err := e.enter(); err != nil {
		e.mu.Unlock()
		return err
	}
	defer e.leave()
	seen, snap, epoch := e.applied, e.db.NewSnapshot(), e.epoch%2
	e.readers[epoch]++
	e.mu.Unlock()
	err := f(snap)
	err = errors.Join(err, snap.Close())
	e.mu.Lock()
	defer e.mu.Unlock()
	e.readers[epoch]--
	e.turn.Broadcast()
	if err != nil {
		return mapped(err)
	}
	return e.awaitDurable(seen)
}

// awaitDurable waits until batch n is durable; the caller holds mu.
func (e *Engine) awaitDurable(n uint64) error {
	for e.durable < n && e.failed == nil {
		e.turn.Wait()
	}
	return e.failed
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	out := make([][]byte, len(keys))
	err := e.view(ctx, func(s *pebble.Snapshot) (err error) {
		for i, k := range keys {
			if out[i], err = get(s, k); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func get(r pebble.Reader, key []byte) ([]byte, error) {
	v, done, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer done.Close()
	return bytes.Clone(v), nil
}

// Scan implements engine.Engine.
func (e *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return engine.Paged(r, func(r engine.Range) (page []engine.Pair, more bool, err error) {
		err = e.view(ctx, func(s *pebble.Snapshot) error {
			if r.End != nil && len(r.End) == 0 {
				return nil
			}
			it, err := s.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: r.Start, UpperBound: r.End})
			if err != nil {
				return err
			}
			size := 0
			for ok := it.First(); ok; ok = it.Next() {
				if r.Limit > 0 && len(page) == r.Limit {
					break
				}
				if more = len(page) == pagePairs || size >= pageBytes; more {
					break
				}
				v, err := it.ValueAndErr()
				if err != nil {
					return errors.Join(err, it.Close())
				}
				page = append(page, engine.Pair{Key: bytes.Clone(it.Key()), Value: bytes.Clone(v)})
				size += len(v)
			}
			return errors.Join(it.Error(), it.Close())
		})
		return page, more, err
	})
}

// Apply implements engine.Engine.
func (e *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	if err := b.Check(e.Limits()); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	err := e.enter()
	e.mu.Unlock()
	if err != nil {
		return err
	}
	defer e.leave()
	if err := e.dir.Need(e.room); err != nil {
		return err
	}
	batch := e.db.NewBatchWithSize(b.Bytes() + 32*b.Ops() + 64)
	defer batch.Close()
	for _, p := range b.Sets {
		if err := batch.Set(p.Key, p.Value, nil); err != nil {
			return mapped(err)
		}
	}
	for _, k := range b.Deletes {
		if err := batch.Delete(k, nil); err != nil {
			return mapped(err)
		}
	}
	n, err := e.insert(b, batch)
	if err != nil || n == 0 {
		return err
	}
	if e.sync == pebble.Sync {
		if err := batch.SyncWait(); err != nil {
			err = fmt.Errorf("%w: pebble sync: %w", engine.ErrUnknown, err)
			e.fail(err)
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.durable = max(e.durable, n) // the log is synced in order
	e.turn.Broadcast()
	return nil
}

// insert checks the guards and makes the batch visible, alone in time. It
// returns the batch's number, or 0 when there was nothing to write.
func (e *Engine) insert(b *engine.Batch, batch *pebble.Batch) (n uint64, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed != nil {
		return 0, e.failed
	}
	defer func() {
		if r := recover(); r != nil { // see logger.Fatalf
			err = fmt.Errorf("%w: pebble: %v", engine.ErrUnknown, r)
			e.failed = fmt.Errorf("%w until it is reopened: %v", engine.ErrClosed, err)
		}
	}()
	for _, g := range b.Guards {
		v, err := get(e.db, g.Key)
		if err != nil {
			return 0, mapped(err)
		}
		if (v == nil) != (g.Value == nil) || !bytes.Equal(v, g.Value) {
			// The verdict may rest on a batch that is not durable yet.
			if err := e.awaitDurable(e.applied); err != nil {
				return 0, err
			}
			return 0, &engine.ConflictError{Key: bytes.Clone(g.Key)}
		}
	}
	if b.Ops() == 0 {
		return 0, e.awaitDurable(e.applied)
	}
	if e.sync == pebble.Sync {
		err = e.db.ApplyNoSyncWait(batch, e.sync)
	} else {
		err = e.db.Apply(batch, e.sync)
	}
	if err != nil {
		err = fmt.Errorf("%w: pebble apply: %w", engine.ErrUnknown, err)
		e.failed = fmt.Errorf("%w until it is reopened: %v", engine.ErrClosed, err)
		return 0, err
	}
	e.applied++
	return e.applied, nil
}

// mapped gives Pebble's errors the engine's names.
func mapped(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case pebble.IsCorruptionError(err):
		return fmt.Errorf("%w: %w", engine.ErrCorrupt, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EMFILE):
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	case errors.Is(err, pebble.ErrClosed):
		return engine.ErrClosed
	}
	return err
}

// Vacuum implements engine.Engine: it flushes and compacts the whole key space,
// and returns when the files that held removed pairs are gone. Pebble's MANIFEST
// goes on naming the first and last keys of removed files.
func (e *Engine) Vacuum(ctx context.Context) error {
	e.vacuum.Lock()
	defer e.vacuum.Unlock()
	e.mu.Lock()
	err := e.enter()
	if err == nil { // snapshots of readers that began before hold what was removed
		old := e.epoch % 2
		for e.epoch++; e.readers[old] > 0; {
			e.turn.Wait()
		}
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	defer e.leave()
	if err := e.db.Flush(); err != nil {
		return mapped(err)
	}
	// Deletes outside the live range must go as well: compact all keys there can be.
	end := bytes.Repeat([]byte{0xff}, e.Limits().KeyBytes+1)
	if err := e.db.Compact(ctx, []byte{0}, end, true); err != nil {
		return mapped(err)
	}
	// Every flush begins a new log, which takes the place of one kept for reuse.
	for range maxMemTables + 2 {
		if err := e.db.Flush(); err != nil {
			return mapped(err)
		}
	}
	for {
		if m := e.db.Metrics(); m.Table.ObsoleteCount == 0 && m.Table.ZombieCount == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// freshLogs makes Pebble begin each log in a new file. One that is reused keeps
// the bytes of its former life behind its end.
type freshLogs struct{ vfs.FS }

func (f freshLogs) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.Remove(old); err != nil {
		return nil, err
	}
	return f.Create(name, c)
}

// Limits implements engine.Engine.
func (e *Engine) Limits() engine.Limits { return engine.MinLimits }

// Close implements engine.Engine. It waits for the calls that are under way.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	for e.users > 0 {
		e.turn.Wait()
	}
	e.mu.Unlock()
	err := e.db.Close()
	return errors.Join(err, localdir.Private(e.dir.Path), e.dir.Close())
}

// logger passes the fixed part of Pebble's messages on. Pebble calls Fatalf
// when it can't go on. Where that happens in a commit of ours the panic becomes
// ErrUnknown; in a goroutine of Pebble, or while it rotates its log, it ends the
// process, as Pebble means it to.
type logger struct{ to *slog.Logger }

func (l logger) Infof(string, ...any) {}

func (l logger) Errorf(f string, _ ...any) {
	if l.to != nil {
		l.to.Error("pebble: " + strings.TrimSpace(f))
	}
}

func (l logger) Fatalf(f string, args ...any) {
	l.Errorf(f)
	panic(fmt.Sprintf(f, args...))
}
