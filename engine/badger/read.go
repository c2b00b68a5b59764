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

// view runs f on what is durable: Badger holds groups whose sync is still going on
// as well, with later timestamps, and they may fail.
func (e *Engine) view(ctx context.Context, f func(*badger.Txn) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.usable(); err != nil {
		return err
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	defer caught(&err)
	if e.db.IsClosed() {
		return engine.ErrClosed
	}
	txn := e.db.NewTransactionAt(e.acked.Load(), false)
	defer txn.Discard()
	return f(txn)
}

// caught makes an error of a panic: Badger panics on some kinds of damage.
func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%w: badger panicked on its tables", engine.ErrCorrupt)
	}
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	out := make([][]byte, len(keys))
	err := e.view(ctx, func(txn *badger.Txn) error {
		for i, k := range keys {
			var known bool
			if out[i], known = e.recent.at(txn.ReadTs(), k); known {
				continue
			}
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
