package badger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/dgraph-io/badger/v4"

	"github.com/turnstonedb/turnstone/engine"
)

// view runs f in a read transaction. Badger shows a group whose sync is still
// going on, or has just failed; so a read that saw one waits for its verdict.
func (e *Engine) view(ctx context.Context, f func(*badger.Txn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.usable(); err != nil {
		return err
	}
	db, ts, err := e.read(f)
	if err != nil {
		return err
	}
	for !e.settled(db, ts) {
		e.setMu.Lock()
		change := e.change
		e.setMu.Unlock()
		if e.settled(db, ts) {
			break
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return e.usable()
}

func (e *Engine) read(f func(*badger.Txn) error) (db *badger.DB, ts uint64, err error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	defer caught(&err)
	if e.db.IsClosed() {
		return nil, 0, engine.ErrClosed
	}
	txn := e.db.NewTransaction(false)
	defer txn.Discard()
	return e.db, txn.ReadTs(), f(txn)
}

// caught makes an error of a panic: Badger panics on some kinds of damage.
func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%w: badger panicked on its tables", engine.ErrCorrupt)
	}
}

// settled reports whether what a read of db at ts saw is durable or known not
// to be. A generation that was replaced is settled: timestamps begin anew.
func (e *Engine) settled(db *badger.DB, ts uint64) bool {
	if e.usable() != nil {
		return true
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.db != db || e.acked.Load() >= ts
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	out := make([][]byte, len(keys))
	err := e.view(ctx, func(txn *badger.Txn) error {
		for i, k := range keys {
			var err error
			if out[i], err = get(txn, inner(k)); err != nil {
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

// inner is key as Badger is given it: behind one byte, as Badger refuses keys
// that begin with "!badger!".
func inner(key []byte) []byte {
	return append(append(make([]byte, 0, len(key)+1), keyByte), key...)
}

const keyByte = 'k'

func get(txn *badger.Txn, key []byte) ([]byte, error) {
	item, err := txn.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: badger get: %w", engine.ErrCorrupt, errText(err))
	}
	v, err := item.ValueCopy(nil)
	if err == nil && len(v) == 0 {
		err = errors.New("empty value") // none is ever stored
	}
	if err != nil {
		return nil, fmt.Errorf("%w: badger value: %w", engine.ErrCorrupt, errText(err))
	}
	return v, nil
}

// errText keeps the first line of Badger's error: what follows dumps data.
func errText(err error) error {
	s, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(s[:min(len(s), 200)])
}

// Scan implements engine.Engine.
func (e *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return engine.Paged(r, func(r engine.Range) (page []engine.Pair, more bool, err error) {
		start, end := inner(r.Start), []byte{keyByte + 1}
		if r.End != nil {
			end = inner(r.End)
		}
		err = e.view(ctx, func(txn *badger.Txn) error {
			it := txn.NewIterator(iteratorOptions(start, end))
			defer it.Close()
			size := 0
			for it.Seek(start); it.Valid(); it.Next() {
				item := it.Item()
				if bytes.Compare(item.Key(), end) >= 0 || r.Limit > 0 && len(page) == r.Limit {
					return nil
				}
				if more = len(page) == pagePairs || size >= pageBytes; more {
					return nil
				}
				v, err := item.ValueCopy(nil)
				if err == nil && len(v) == 0 {
					err = errors.New("empty value")
				}
				if err != nil {
					return fmt.Errorf("%w: badger scan: %w", engine.ErrCorrupt, errText(err))
				}
				page = append(page, engine.Pair{Key: item.KeyCopy(nil)[1:], Value: v})
				size += len(v)
			}
			return nil
		})
		return page, more, err
	})
}

// iteratorOptions narrows Badger's choice of tables to those that can hold keys
// from start to end.
func iteratorOptions(start, end []byte) badger.IteratorOptions {
	n := 0
	for n < len(start) && n < len(end) && start[n] == end[n] {
		n++
	}
	return badger.IteratorOptions{Prefix: start[:n]}
}
