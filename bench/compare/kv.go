package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	pebbledb "github.com/cockroachdb/pebble/v2"
	badgerdb "github.com/dgraph-io/badger/v4"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/turnstonedb/turnstone/engine"
)

// A Replayer stores the batches that Turnstone makes of a turn, as they are:
// each one transaction of a plain database, without guards.
type Replayer interface {
	Apply(b *engine.Batch) error
}

// noTurns is embedded by stores that take batches only.
type noTurns struct{}

func (noTurns) Commit(string, int, *Turn) error { return errLeftOut }

type bolt struct {
	noTurns
	db *bbolt.DB
}

var bucket = []byte("turnstone")

func openBolt(dir string, bulk bool) (Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	db, err := bbolt.Open(filepath.Join(dir, "bolt.db"), 0o600, &bbolt.Options{NoSync: bulk, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(bucket)
		return err
	})
	return &bolt{db: db}, err
}

func (s *bolt) Apply(b *engine.Batch) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		to := tx.Bucket(bucket)
		for _, p := range b.Sets {
			if err := to.Put(p.Key, p.Value); err != nil {
				return err
			}
		}
		for _, k := range b.Deletes {
			if err := to.Delete(k); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *bolt) Close() error { return errors.Join(s.db.Sync(), s.db.Close()) }

type plainBadger struct {
	noTurns
	db *badgerdb.DB
}

// openPlainBadger opens Badger with what it recommends, synced writes and a
// quiet logger.
func openPlainBadger(dir string, bulk bool) (Store, error) {
	db, err := badgerdb.Open(badgerdb.DefaultOptions(dir).WithSyncWrites(!bulk).WithLogger(nil))
	return &plainBadger{db: db}, err
}

func (s *plainBadger) Apply(b *engine.Batch) error {
	return s.db.Update(func(txn *badgerdb.Txn) error {
		for _, p := range b.Sets {
			if err := txn.Set(p.Key, p.Value); err != nil {
				return err
			}
		}
		for _, k := range b.Deletes {
			if err := txn.Delete(k); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *plainBadger) Close() error { return s.db.Close() }

type plainPebble struct {
	noTurns
	db   *pebbledb.DB
	sync *pebbledb.WriteOptions
}

func openPlainPebble(dir string, bulk bool) (Store, error) {
	db, err := pebbledb.Open(dir, &pebbledb.Options{Logger: quiet{}})
	s := &plainPebble{db: db, sync: pebbledb.Sync}
	if bulk {
		s.sync = pebbledb.NoSync
	}
	return s, err
}

// quiet drops Pebble's messages; what is fatal to it is fatal here.
type quiet struct{}

func (quiet) Infof(string, ...any)                   {}
func (quiet) Errorf(string, ...any)                  {}
func (quiet) Fatalf(format string, args ...any)      { panic(fmt.Sprintf(format, args...)) }
func (quiet) Eventf(context.Context, string, ...any) {}
func (quiet) IsTracingEnabled(context.Context) bool  { return false }

func (s *plainPebble) Apply(b *engine.Batch) error {
	to := s.db.NewBatch()
	defer to.Close()
	for _, p := range b.Sets {
		if err := to.Set(p.Key, p.Value, nil); err != nil {
			return err
		}
	}
	for _, k := range b.Deletes {
		if err := to.Delete(k, nil); err != nil {
			return err
		}
	}
	return to.Commit(s.sync)
}

func (s *plainPebble) Close() error { return s.db.Close() }

// appendLog is what the disk allows: the bytes of the batches, nothing else,
// appended to one file; whoever waits while one writes and syncs is written by
// the next one (group commit).
type appendLog struct {
	noTurns
	file  *os.File
	bulk  bool
	ahead bool // the file exists already, as where a database recycles its log

	mu      sync.Mutex // guards what follows
	waiting []byte
	done    chan struct{} // closed when waiting is durable
	busy    bool          // somebody writes
	err     error
	at      int64
	ready   int64 // up to here the file is written with zeros
}

const logAhead = 64 << 20

func openLog(ahead bool) func(dir string, bulk bool) (Store, error) {
	return func(dir string, bulk bool) (Store, error) { return newLog(dir, bulk, ahead) }
}

func newLog(dir string, bulk, ahead bool) (*appendLog, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	s := &appendLog{file: f, bulk: bulk, ahead: ahead, done: make(chan struct{})}
	return s, s.prepare()
}

// prepare writes zeros ahead, so that a sync has no metadata to write.
func (s *appendLog) prepare() error {
	if !s.ahead {
		return nil
	}
	_, err := s.file.WriteAt(make([]byte, logAhead), s.ready)
	s.ready += logAhead
	if err == nil {
		err = s.file.Sync()
	}
	return err
}

func (s *appendLog) Apply(b *engine.Batch) error {
	return s.add(func(group []byte) []byte {
		for _, p := range b.Sets {
			group = append(append(group, p.Key...), p.Value...)
		}
		for _, k := range b.Deletes {
			group = append(group, k...)
		}
		return group
	})
}

// add appends to the group that is written next, and returns when that is
// durable.
func (s *appendLog) add(to func(group []byte) []byte) error {
	s.mu.Lock()
	s.waiting = to(s.waiting)
	done := s.done
	if !s.busy {
		s.busy = true
		go s.lead()
	}
	s.mu.Unlock()
	<-done
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// lead writes what waits until nothing does.
func (s *appendLog) lead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.waiting) > 0 {
		group, finished := s.waiting, s.done
		s.waiting, s.done = nil, make(chan struct{})
		s.mu.Unlock()
		err := s.write(group)
		s.mu.Lock()
		s.err = errors.Join(s.err, err)
		close(finished)
	}
	s.busy = false
}

func (s *appendLog) write(group []byte) error {
	for s.ahead && s.at+int64(len(group)) > s.ready {
		if err := s.prepare(); err != nil {
			return err
		}
	}
	n, err := s.file.WriteAt(group, s.at)
	s.at += int64(n)
	if err != nil || s.bulk {
		return err
	}
	return unix.Fdatasync(int(s.file.Fd()))
}

// Close leaves what was written.
func (s *appendLog) Close() error { return errors.Join(s.file.Truncate(s.at), s.file.Close()) }
