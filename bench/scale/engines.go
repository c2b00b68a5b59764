//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	pebbledb "github.com/cockroachdb/pebble/v2"
	badgerdb "github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

// A kv is what is compared. Apply is durable.
type kv interface {
	Apply(keys, values [][]byte) error
	Get(key []byte) ([]byte, error)
	Scan() (pairs int, err error)
	Vacuum() error
	Close() error
}

// open opens the engine of a name. The databases beneath have the sizes that the drivers give them.
func open(name, dir string) (kv, error) {
	switch name {
	case "pebble":
		e, err := pebble.Open(dir, nil)
		return driver{e}, err
	case "badger":
		e, err := badger.Open(dir, nil)
		return driver{e}, err
	case "plain-pebble":
		cache := pebbledb.NewCache(engine.DefaultMemory / 4)
		defer cache.Unref()
		o := &pebbledb.Options{Cache: cache, MemTableSize: 8 << 20, MemTableStopWritesThreshold: 4, Logger: quiet{}}
		o.Levels[0].BlockSize, o.Levels[0].IndexBlockSize = 32<<10, 256<<10
		db, err := pebbledb.Open(dir, o)
		return plainPebble{db}, err
	case "plain-badger":
		db, err := badgerdb.Open(badgerdb.DefaultOptions(dir).WithSyncWrites(true).WithLogger(nil).WithMemTableSize(16 << 20).WithNumMemtables(2).
			WithValueThreshold(1 << 20).WithCompression(options.None).WithBlockCacheSize(0).WithNumCompactors(2).WithMetricsEnabled(false))
		return plainBadger{db}, err
	}
	return nil, fmt.Errorf("unknown engine %q", name)
}

// allocated returns the bytes of the blocks that a file takes.
func allocated(info fs.FileInfo) int64 { return info.Sys().(*syscall.Stat_t).Blocks * 512 }

var background = context.Background()

type driver struct{ engine.Engine }

func (d driver) Apply(keys, values [][]byte) error {
	var b engine.Batch
	b.Guard(keys[0], nil)
	for i := range keys {
		b.Set(keys[i], values[i])
	}
	return d.Engine.Apply(background, &b)
}

func (d driver) Get(key []byte) ([]byte, error) {
	v, err := d.Engine.Get(background, key)
	if err != nil {
		return nil, err
	}
	return v[0], nil
}

func (d driver) Scan() (n int, err error) {
	for _, err := range d.Engine.Scan(background, engine.Range{}) {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func (d driver) Vacuum() error { return d.Engine.Vacuum(background) }

type plainPebble struct{ *pebbledb.DB }

func (p plainPebble) Apply(keys, values [][]byte) error {
	if _, err := p.Get(keys[0]); err != nil { // as the guard of a driver
		return err
	}
	b := p.NewBatch()
	defer b.Close()
	for i := range keys {
		if err := b.Set(keys[i], values[i], nil); err != nil {
			return err
		}
	}
	return b.Commit(pebbledb.Sync)
}

func (p plainPebble) Get(key []byte) ([]byte, error) {
	v, done, err := p.DB.Get(key)
	if errors.Is(err, pebbledb.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return bytes.Clone(v), done.Close()
}

func (p plainPebble) Scan() (n int, err error) {
	it, err := p.NewIter(nil)
	if err != nil {
		return 0, err
	}
	for ok := it.First(); ok; ok = it.Next() {
		if _, err := it.ValueAndErr(); err != nil {
			return n, errors.Join(err, it.Close())
		}
		n++
	}
	return n, it.Close()
}

func (p plainPebble) Vacuum() error {
	return p.Compact(background, []byte{0}, bytes.Repeat([]byte{0xff}, 100), true)
}

// quiet drops Pebble's messages.
type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

type plainBadger struct{ *badgerdb.DB }

func (p plainBadger) Apply(keys, values [][]byte) error {
	return p.Update(func(txn *badgerdb.Txn) error {
		if _, err := txn.Get(keys[0]); err != nil && !errors.Is(err, badgerdb.ErrKeyNotFound) {
			return err
		}
		for i := range keys {
			if err := txn.Set(keys[i], values[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p plainBadger) Get(key []byte) (v []byte, err error) {
	err = p.View(func(txn *badgerdb.Txn) error {
		item, err := txn.Get(key)
		if errors.Is(err, badgerdb.ErrKeyNotFound) {
			return nil
		}
		if err == nil {
			v, err = item.ValueCopy(nil)
		}
		return err
	})
	return v, err
}

func (p plainBadger) Scan() (n int, err error) {
	err = p.View(func(txn *badgerdb.Txn) error {
		it := txn.NewIterator(badgerdb.DefaultIteratorOptions)
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			if err := it.Item().Value(func([]byte) error { return nil }); err != nil {
				return err
			}
			n++
		}
		return nil
	})
	return n, err
}

func (p plainBadger) Vacuum() error { return p.Flatten(1) }
