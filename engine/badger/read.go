package badger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/dgraph-io/badger/v4"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

const (
	pageBytes = 272 << 10 // of a Scan, read in one transaction
	pagePairs = 1000
)

// view runs f in a transaction that only reads. If a group is being committed, view returns only after that group is
// durable or has failed.
func (e *Engine) view(ctx context.Context, f func(*badger.Txn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if e.dir != nil { // nil in the zero Engine
		if err := e.dir.Seen(); err != nil {
			e.fail(err)
			return err
		}
	}
	verdict, err := e.transaction(f)
	if err != nil {
		return mapped(err)
	}
	if verdict != nil {
		<-*verdict // Badger shows a group whose sync failed before it says that
	}
	return e.failure()
}

// transaction runs f in a transaction that only reads. verdict is closed once the group that was being committed
// meanwhile is durable or has failed.
func (e *Engine) transaction(f func(*badger.Txn) error) (verdict *chan struct{}, err error) {
	if err := e.usable(); err != nil { // also before waiting: the zero Engine has no lock to wait for
		return nil, err
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if err := e.usable(); err != nil {
		return nil, err
	}
	err = caught(func() error {
		txn := e.db.NewTransaction(false)
		defer txn.Discard()
		verdict = e.verdict.Load()
		return f(txn)
	})
	return verdict, err
}

// mapped gives the errors of Badger the engine's names.
func mapped(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, badger.ErrDBClosed):
		return fmt.Errorf("%w: badger: %w", engine.ErrClosed, err)
	case errors.Is(err, badger.ErrRejected):
		return fmt.Errorf("%w: badger: %w", engine.ErrUnavailable, err) // the host's own call is in the way
	case localdir.Short(err):
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	}
	return err
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	out := make([][]byte, len(keys))
	err := e.view(ctx, func(txn *badger.Txn) (err error) {
		for i, k := range keys {
			if out[i], err = get(txn, e.inner(pairByte, k)); err != nil {
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

// get returns the value at a key of the database, or nil.
func get(txn *badger.Txn, key []byte) ([]byte, error) {
	item, err := txn.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return value(item)
}

// value returns a copy of the value of item. An empty one was never stored: Badger returns it, without an error, for
// one that it can't read from its value log.
func value(item *badger.Item) ([]byte, error) {
	v, err := item.ValueCopy(nil)
	if err == nil && len(v) == 0 {
		err = fmt.Errorf("%w: badger has an empty value", engine.ErrCorrupt)
	}
	return v, err
}

// Scan implements engine.Engine.
func (e *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return engine.Paged(r, func(r engine.Range) (page []engine.Pair, more bool, err error) {
		err = e.view(ctx, func(txn *badger.Txn) (err error) {
			if err := r.Check(func(key []byte) ([]byte, error) { return get(txn, e.inner(pairByte, key)) }); err != nil {
				return err
			}
			page, more, err = e.page(ctx, txn, r)
			return err
		})
		return page, more, err
	})
}

// page reads the first page of r.
func (e *Engine) page(ctx context.Context, txn *badger.Txn, r engine.Range) (page []engine.Pair, more bool, err error) {
	prefix := e.inner(pairByte, nil)
	o := badger.DefaultIteratorOptions
	o.PrefetchValues, o.Prefix = false, prefix
	it := txn.NewIterator(o)
	defer it.Close()
	size := 0
	for it.Seek(e.inner(pairByte, r.Start)); it.ValidForPrefix(prefix); it.Next() {
		key := it.Item().Key()[len(prefix):]
		if r.End != nil && bytes.Compare(key, r.End) >= 0 || r.Limit > 0 && len(page) == r.Limit {
			return page, false, nil
		}
		if len(page) == pagePairs || size >= pageBytes {
			return page, true, nil
		}
		v, err := value(it.Item())
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, false, err
		}
		page = append(page, engine.Pair{Key: bytes.Clone(key), Value: v})
		size += len(v)
	}
	return page, false, nil
}

// Vacuum implements engine.Engine. In a database of the driver's own, Vacuum first closes Badger and opens it again,
// while other calls wait: this moves the memtable and level 0 into the levels below. Then Badger merges its levels into
// one. In the host's database Vacuum only merges. A value that a transaction could still see when its table was written
// stays until Badger rewrites that table. Badger obeys no context, so Vacuum checks its context before each step.
func (e *Engine) Vacuum(ctx context.Context) error {
	if err := errors.Join(ctx.Err(), e.usable()); err != nil {
		return err
	}
	if e.reading {
		return engine.ErrReadOnly
	}
	select {
	case e.vacuum <- struct{}{}:
		defer func() { <-e.vacuum }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if e.own {
		if err := e.reopen(ctx); err != nil {
			return err
		}
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if err := e.room(ctx); err != nil {
		return err
	}
	return mapped(caught(func() error {
		if err := e.db.Flatten(1); err != nil {
			return fmt.Errorf("engine: badger flatten: %s", firstLine(err))
		}
		for {
			err := e.db.RunValueLogGC(0.5)
			if err == nil {
				err = errors.Join(ctx.Err(), e.usable())
			} else if errors.Is(err, badger.ErrNoRewrite) || errors.Is(err, badger.ErrGCInMemoryMode) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	}))
}

// reopen closes the database and opens it again, twice. When Badger closes for the first time, it moves the memtable
// into level 0; the second time, it compacts level 0 and drops the values that no transaction can see. By itself Badger
// knows which these are only some time after it has opened. So reopen tells it, and lets nothing compact before.
func (e *Engine) reopen(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := errors.Join(e.usable(), e.room(ctx)); err != nil {
		return err
	}
	before, store, err := e.groups()
	if err != nil {
		return err
	}
	for _, between := range []bool{true, false} {
		err := caught(e.db.Close)
		var db *badger.DB
		switch {
		case err != nil:
		case between:
			db, err = openWith(badger.OpenManaged, e.config.WithCompactL0OnClose(true).WithNumCompactors(0))
			if err == nil {
				db.SetDiscardTs(db.MaxVersion())
			}
		default:
			db, err = openDB(e.config)
		}
		if err != nil {
			e.fail(err)
			return fmt.Errorf("engine: open badger again: %w", err)
		}
		e.db = db
	}
	// A compaction that could not make a file has deleted its input.
	if err := e.missing(&witness{group: before, store: store, synced: true}); err != nil {
		e.fail(err)
		return fmt.Errorf("engine: vacuum badger: %w", err)
	}
	return e.dir.Private()
}

// room returns an error if space, inodes or descriptors could run out in a vacuum. Badger does not survive that: if a
// compaction can't create a file, Badger deletes the input without an output, and a full disk ends the process. The
// caller holds mu.
func (e *Engine) room(ctx context.Context) error {
	if e.config.InMemory {
		return nil
	}
	need := e.minFree
	need.Bytes = reserveBytes
	for _, t := range e.db.Tables() {
		need.Bytes += 2 * uint64(t.OnDiskSize)
	}
	return e.dir.NeedNow(ctx, need)
}
