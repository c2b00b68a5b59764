package badger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"

	"github.com/turnstonedb/turnstone/engine"
)

// A content holds the pairs of a store: in the memtable that is being written, in the
// memtables that wait to be flushed, and in runs of tables. The newest version of a key
// counts: memtables are newer than runs.
type content struct {
	memtables []*memtable // the last one is being written
	runs      []run       // the first one is the newest
	flushed   uint64      // timestamp up to which groups are in runs
	once      bool        // tables are released when they were read, so that a rewrite takes little memory
}

// get returns the value of a key as of a timestamp, or nil. The caller must not change
// the value.
func (c *content) get(key []byte, ts uint64) ([]byte, error) {
	seek := y.KeyWithTs(key, ts)
	for i := len(c.memtables) - 1; i >= 0; i-- {
		if v, found := c.memtables[i].get(seek); found {
			return v, nil
		}
	}
	hash := y.Hash(key)
	for _, r := range c.runs {
		if v, found, err := r.get(seek, hash); found || err != nil {
			return v, err
		}
	}
	return nil, nil
}

// iterator returns an iterator over all versions. If a table is damaged, the iterator sets
// damaged and may skip pairs.
func (c *content) iterator(damaged *error) y.Iterator {
	var its []y.Iterator
	for i := len(c.memtables) - 1; i >= 0; i-- {
		its = append(its, c.memtables[i].list.NewUniIterator(false))
	}
	for _, r := range c.runs {
		its = append(its, &runIterator{run: r, once: c.once, damaged: damaged})
	}
	return table.NewMergeIterator(its, false)
}

// newest calls f with the newest version up to a timestamp of each key from start on,
// until f returns false. The version may be a deletion. f must not keep the slices.
func (c *content) newest(start []byte, ts uint64, f func(key []byte, v y.ValueStruct) bool) error {
	var damaged error
	it := c.iterator(&damaged)
	defer it.Close()
	var last []byte
	for it.Seek(y.KeyWithTs(start, math.MaxUint64)); it.Valid() && damaged == nil; it.Next() {
		key := it.Key()
		if y.ParseTs(key) > ts || last != nil && y.SameKey(key, last) {
			continue
		}
		last = append(last[:0], key...)
		if !f(key, it.Value()) {
			break
		}
	}
	return damaged
}

// read calls f with the content and the last timestamp that is durable. Memtables also
// hold groups with later timestamps, whose sync has not ended and may fail.
func (e *Engine) read(ctx context.Context, f func(c *content, ts uint64) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if err := e.usable(); err != nil {
		return err
	}
	defer caught(&err)
	return f(&e.content, e.acked.Load())
}

// caught turns a panic into an error; defer it. Badger panics on some kinds of damage, and
// reading a mapped file faults if the disk can't be read.
func caught(err *error) {
	if r := recover(); r != nil {
		*err = panicked(r)
	}
}

// panicked returns the error for a panic.
func panicked(r any) error {
	if _, fault := r.(interface{ Addr() uintptr }); fault { // see debug.SetPanicOnFault
		return fmt.Errorf("engine: a page can't be read: %w", syscall.EIO)
	}
	return fmt.Errorf("%w: badger panicked", engine.ErrCorrupt)
}

// faults makes memory faults of this goroutine panics until restore is called.
func faults() (restore func()) {
	old := debug.SetPanicOnFault(true)
	return func() { debug.SetPanicOnFault(old) }
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	defer faults()()
	out := make([][]byte, len(keys))
	err := e.read(ctx, func(c *content, ts uint64) error {
		for i, k := range keys {
			v, err := c.get(k, ts)
			if err != nil {
				return err
			}
			out[i] = bytes.Clone(v)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Scan implements engine.Engine.
func (e *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return engine.Paged(r, func(r engine.Range) (page []engine.Pair, more bool, err error) {
		defer faults()()
		err = e.read(ctx, func(c *content, ts uint64) error {
			size := 0
			return c.newest(r.Start, ts, func(key []byte, v y.ValueStruct) bool {
				key = y.ParseKey(key)
				if r.End != nil && bytes.Compare(key, r.End) >= 0 {
					return false
				}
				if v.Meta == deletion {
					return true
				}
				if more = len(page) == pagePairs || size >= pageBytes; more {
					return false
				}
				page = append(page, engine.Pair{Key: bytes.Clone(key), Value: bytes.Clone(v.Value)})
				size += len(v.Value)
				return len(page) != r.Limit
			})
		})
		return page, more, err
	})
}

// errText returns the first line of an error of Badger. The other lines dump data.
func errText(err error) error {
	s, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(s[:min(len(s), 200)])
}
