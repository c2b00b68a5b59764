// Package badger is a driver on Badger, the key-value database of Dgraph. It opens a database of its own, or
// uses one that the host has open, under a prefix of its own. The files are Badger's: its tools and its options
// apply. What Badger does not survive is in docs/engines.md, and the default engine is package pebble.
//
// Badger syncs once for each transaction, and the next transaction waits for that. So one goroutine, the
// committer, takes all batches that wait, checks their guards in order, and commits them as one transaction.
package badger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

var _ engine.Engine = (*Engine)(nil)

// Durability says what an acknowledged Apply survives.
type Durability int

const (
	// Power: a loss of power. Badger syncs each transaction (badger.Options.SyncWrites).
	Power Durability = iota
	// Process: the end of the process, not of the machine.
	Process
)

// Options of Open and Use. Nil and the zero value mean the defaults.
type Options struct {
	// Durability of acknowledged batches. Default Power. Use refuses Power if the database does not sync its writes.
	Durability Durability
	// MinFreeBytes is the free disk space below which Apply fails with engine.ErrNoSpace, except for batches that
	// reclaim. Default 128 MiB: Badger maps files that have no blocks yet, and a full disk ends the process with SIGBUS.
	MinFreeBytes uint64
	// ReadOnly opens an existing store that no process has open. Apply and Vacuum fail with engine.ErrReadOnly.
	// Badger can't open a store for reading after a process that had it open was killed. Use ignores this field.
	ReadOnly bool
	// Logger receives the fixed text of Badger's messages. The driver leaves their arguments out, because they can contain
	// keys and values. Nil means no logger. Use ignores this field.
	Logger *slog.Logger
	// Memory is the budget from which two memtables of 22 MiB are taken. While Badger compacts it takes several hundred
	// megabytes more, which no budget bounds. Default: the process's own. Use ignores this field.
	Memory *engine.MemoryBudget
	// Configure changes the options of the database before Open opens it. It must leave Dir, ValueDir, ReadOnly,
	// SyncWrites and NumVersionsToKeep as they are. Nil changes nothing. Use ignores this field.
	Configure func(badger.Options) badger.Options
}

const (
	// memTableSize is the least size of memtables: a transaction may have 15 % of one, and must take the largest batch.
	memTableSize = 22 << 20
	// reserveBytes must be free for a batch that reclaims: Badger extends its files by so much at once.
	reserveBytes = 4 * memTableSize
	minInodes    = 1000
	minFiles     = 64
	// closeTime bounds Close: Badger waits for ever for a disk that is gone.
	closeTime = time.Minute
	// goneTime is the same for a directory that is not at its path any more: Badger waits for ever for one that was
	// removed.
	goneTime = 2 * time.Second
)

// Engine is a store in a Badger database. The zero Engine is a closed one.
type Engine struct {
	dir      *localdir.Dir
	prefix   []byte // of all keys in the database
	config   badger.Options
	giveBack func() // its part of Options.Memory
	own      bool   // Open has opened the database, and Close closes it
	sync     bool   // acknowledged batches survive a loss of power
	minFree  localdir.Resources
	witness  *witness // nil if the database is the host's, or can only be read
	reading  bool     // Options.ReadOnly

	maxBytes, maxOps int64                         // of a transaction
	verdict          atomic.Pointer[chan struct{}] // closed when the group being committed is durable or has failed

	queue   chan *request
	vacuum  chan struct{} // holds a token while a Vacuum runs
	stop    chan struct{} // closed by Close
	stopped chan struct{} // closed when the committer has returned
	once    sync.Once
	closed  error // what Close returned

	mu sync.RWMutex // read-held by who uses db; held by Vacuum while it opens db again
	db *badger.DB

	failing sync.Mutex // guards failed
	failed  error      // why the engine refuses everything, or nil
}

// Open opens the store in dir and creates it if it does not exist. It fails with *engine.LockedError, which names the
// holder, when it is open already, and with an error that matches engine.ErrCorrupt when files are not as the driver
// left them, or acknowledged batches are missing.
func Open(dir string, o *Options) (_ *Engine, err error) {
	if o == nil {
		o = &Options{}
	}
	lock := localdir.Open
	if o.ReadOnly {
		lock = localdir.OpenReadOnly
	}
	d, err := lock(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("engine: open badger in %s: %w", d.Path, d.Named(err)), d.Close())
		}
	}()
	at := d.At()
	config := badger.DefaultOptions(at).
		WithSyncWrites(o.Durability == Power).
		WithReadOnly(o.ReadOnly).
		WithBypassLockGuard(true). // the directory is locked already
		WithLogger(redacted{o.Logger}).
		WithMemTableSize(memTableSize).WithNumMemtables(2).
		WithValueThreshold(1 << 20).WithValueLogFileSize(2 << 20). // no value is as large, so the value log stays empty
		WithCompression(options.None).WithBlockCacheSize(0).       // values are compressed already
		WithNumCompactors(2).
		WithDetectConflicts(false). // there is one committer
		WithMetricsEnabled(false)
	if o.Configure != nil {
		config = o.Configure(config)
	}
	if config.Dir != at || config.ValueDir != at || config.ReadOnly != o.ReadOnly || config.SyncWrites != (o.Durability == Power) || config.NumVersionsToKeep != 1 {
		return nil, errors.New("Options.Configure changed Dir, ValueDir, ReadOnly, SyncWrites or NumVersionsToKeep")
	}
	e := newEngine(o, d)
	e.own, e.config = true, config
	if err := e.openOwn(o); err != nil {
		return nil, err
	}
	e.giveBack = o.Memory.Take(2 * memTableSize)
	go e.commitLoop()
	return e, nil
}

// Use returns an engine in db, a database that the host has opened and goes on to use. All keys of the engine begin
// with prefix. Only one Engine may use a prefix at a time, and nobody else may write keys that begin with the prefix.
// Close leaves db open, so the host closes the engine before it closes db. Vacuum calls db.Flatten and
// db.RunValueLogGC, which work on all keys of db. Removed values stay in Badger's memtable and log until Badger
// flushes them. Use fails with engine.ErrInvalid if db is managed, closed, keeps several versions of a value, does
// not sync its writes (unless the durability is Process), or has memtables that are too small for the largest batch.
func Use(db *badger.DB, prefix []byte, o *Options) (*Engine, error) {
	if o == nil {
		o = &Options{}
	}
	if o.Durability == Power && !db.Opts().SyncWrites && !db.Opts().InMemory {
		return nil, fmt.Errorf("%w: the database does not sync its writes: open it with SyncWrites, or ask for Process", engine.ErrInvalid)
	}
	nothing := errors.New("no transaction is committed")
	if err := caught(func() error { return db.Update(func(*badger.Txn) error { return nothing }) }); !errors.Is(err, nothing) {
		return nil, fmt.Errorf("%w: the database can't be used: %w", engine.ErrInvalid, err) // it is managed, or closed
	}
	if db.Opts().NumVersionsToKeep != 1 {
		return nil, fmt.Errorf("%w: the database keeps %d versions of a value, and a removed one is to go", engine.ErrInvalid, db.Opts().NumVersionsToKeep)
	}
	e := newEngine(o, &localdir.Dir{Path: db.Opts().Dir})
	e.db, e.config, e.prefix, e.reading = db, db.Opts(), bytes.Clone(prefix), db.Opts().ReadOnly
	if err := e.fits(); err != nil {
		return nil, err
	}
	go e.commitLoop()
	return e, nil
}

func newEngine(o *Options, d *localdir.Dir) *Engine {
	e := &Engine{
		dir:     d,
		sync:    o.Durability == Power,
		minFree: localdir.Resources{Bytes: o.MinFreeBytes, Inodes: minInodes, Files: minFiles},
		queue:   make(chan *request, 1024),
		vacuum:  make(chan struct{}, 1),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
	}
	if e.minFree.Bytes == 0 {
		e.minFree.Bytes = 128 << 20
	}
	return e
}

// fits returns an error if a transaction of the database can't take the largest batch.
func (e *Engine) fits() error {
	l := e.Limits()
	e.maxBytes, e.maxOps = e.db.MaxBatchSize(), e.db.MaxBatchCount()
	if e.maxBytes < int64(l.BatchBytes+l.BatchOps*(writeBytes+len(e.prefix)))+reservedBytes || e.maxOps < int64(l.BatchOps)+2 {
		return fmt.Errorf("%w: a transaction of this database takes %d bytes: open it with memtables of %d bytes or more", engine.ErrInvalid, e.maxBytes, memTableSize)
	}
	return nil
}

// openOwn compares the files with the witness and opens the database.
func (e *Engine) openOwn(o *Options) error {
	seen, err := readWitness(e.config.Dir)
	if err != nil {
		return err
	}
	if e.reading = o.ReadOnly; e.reading {
		if _, err := os.Stat(filepath.Join(e.config.Dir, badger.ManifestFilename)); err != nil {
			return fmt.Errorf("there is no store: %w", err)
		}
	} else {
		if err := e.orNew(seen); err != nil {
			return err
		}
		if err := e.dir.NeedNow(context.Background(), localdir.Resources{Bytes: reserveBytes, Inodes: minInodes, Files: minFiles}); err != nil {
			return err
		}
		if e.witness, err = seen.begin(e.config.Dir, e.sync); err != nil {
			return err
		}
	}
	if e.db, err = openDB(e.config); err != nil {
		return errors.Join(err, e.witness.close())
	}
	err = e.fits()
	if err == nil {
		err = e.missing(seen)
	}
	if err != nil {
		return errors.Join(err, e.db.Close(), e.witness.close())
	}
	if e.reading {
		return nil
	}
	return e.dir.Private()
}

// orNew returns an error unless there is a MANIFEST, or no table, log or witness of a
// store and nobody else's files. Without a MANIFEST Badger makes a new store,
// over what is left of an old one and beside the files of others.
func (e *Engine) orNew(seen *witness) error {
	entries, err := os.ReadDir(e.config.Dir)
	if err != nil {
		return err
	}
	there := ""
	if seen.group > 0 || seen.files != "" {
		there = witnessName
	}
	for _, d := range entries {
		switch name := d.Name(); {
		case name == badger.ManifestFilename:
			return nil
		case ofBadger(name) && name != badger.KeyRegistryFileName:
			there = name
		}
	}
	if there != "" {
		return fmt.Errorf("%w: %s is missing, but there is %s", engine.ErrCorrupt, badger.ManifestFilename, there)
	}
	return e.dir.Unused(func(name string) bool {
		return ofBadger(name) || name == "LOCK" || name == "DISCARD" || strings.HasPrefix(name, badger.ManifestFilename)
	})
}

// openDB opens a database. Badger panics on some damage, in the goroutine that opens it, and fails if it finds a log
// of no length, which a process leaves that ends while it makes one.
func openDB(config badger.Options) (*badger.DB, error) { return openWith(badger.Open, config) }

func openWith(open func(badger.Options) (*badger.DB, error), config badger.Options) (db *badger.DB, err error) {
	if err := removeEmptyLogs(config); err != nil {
		return nil, err
	}
	err = caught(func() (err error) { db, err = open(config); return err })
	if err == nil {
		return db, nil
	}
	has := func(text string) bool { return strings.Contains(err.Error(), text) } // Badger wraps no error
	says := func(e error) bool { return has(e.Error()) }
	switch {
	case errors.Is(err, engine.ErrCorrupt):
		return nil, err
	case config.ReadOnly && (says(badger.ErrTruncateNeeded) || has("Create a new file")):
		return nil, errors.New("a process that had it open was killed: open it for changes first")
	case slices.ContainsFunc([]error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE}, says):
		return nil, fmt.Errorf("%w: badger: %s", engine.ErrNoSpace, firstLine(err))
	case slices.ContainsFunc([]error{syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.EIO, syscall.ENOMEM}, says):
		return nil, fmt.Errorf("badger: %s", firstLine(err))
	}
	return nil, fmt.Errorf("%w: badger: %s", engine.ErrCorrupt, firstLine(err))
}

func removeEmptyLogs(config badger.Options) error {
	if config.ReadOnly || config.InMemory {
		return nil
	}
	entries, err := os.ReadDir(config.Dir)
	for _, d := range entries {
		if suffix := filepath.Ext(d.Name()); suffix != ".mem" && suffix != ".vlog" {
			continue
		}
		if info, ierr := d.Info(); ierr == nil && info.Size() == 0 {
			err = errors.Join(err, os.Remove(filepath.Join(config.Dir, d.Name())))
		}
	}
	return err
}

// fail makes e refuse everything from now on, because of err.
func (e *Engine) fail(err error) {
	e.failing.Lock()
	defer e.failing.Unlock()
	if e.failed == nil {
		if errors.Is(err, engine.ErrUnknown) {
			err = errors.New(err.Error()) // later calls have no unknown outcome
		}
		e.failed = fmt.Errorf("%w until it is reopened: %w", engine.ErrClosed, err)
	}
}

// usable returns why e refuses everything, or nil.
func (e *Engine) usable() error {
	if e.stop == nil {
		return engine.ErrClosed
	}
	select {
	case <-e.stop:
		return engine.ErrClosed
	default:
		return e.failure()
	}
}

func (e *Engine) failure() error {
	e.failing.Lock()
	defer e.failing.Unlock()
	return e.failed
}

// Limits implements engine.Engine.
func (e *Engine) Limits() engine.Limits { return engine.DriverLimits }

// Close implements engine.Engine. It waits for the calls that are under way, and closes the database if Open has
// opened it. If that does not end within a minute, or two seconds if the directory is not at its path any more, the
// directory stays locked until the process ends.
func (e *Engine) Close() error {
	if e.stop == nil {
		return nil
	}
	e.once.Do(func() {
		close(e.stop)
		done := make(chan error, 1)
		go func() { done <- e.closeWhenUnused() }()
		wait := closeTime
		if errors.Is(e.failure(), engine.ErrReplaced) {
			wait = goneTime
		}
		select {
		case e.closed = <-done:
		case <-time.After(wait):
			e.closed = fmt.Errorf("engine: close %s: badger does not end; the directory stays locked", e.dir.Path)
		}
	})
	return e.closed
}

func (e *Engine) closeWhenUnused() error {
	<-e.stopped
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.own {
		return nil
	}
	err := caught(e.db.Close)
	e.giveBack()
	if err == nil && e.failure() == nil {
		err = e.witness.end(e.config.Dir)
	}
	return errors.Join(err, e.witness.close(), e.dir.Close())
}

// redacted passes the fixed part of Badger's messages on.
type redacted struct{ to *slog.Logger }

func (l redacted) log(level slog.Level, format string) {
	if l.to != nil {
		l.to.Log(context.Background(), level, "badger: "+strings.TrimSpace(format))
	}
}

func (l redacted) Errorf(f string, _ ...any)   { l.log(slog.LevelError, f) }
func (l redacted) Warningf(f string, _ ...any) { l.log(slog.LevelWarn, f) }
func (l redacted) Infof(f string, _ ...any)    { l.log(slog.LevelDebug, f) }
func (l redacted) Debugf(string, ...any)       {}

// caught runs f and makes a panic of Badger's an error.
func caught(f func() error) (err error) {
	defer func() {
		r := recover()
		switch {
		case r == nil:
		case strings.Contains(fmt.Sprint(r), badger.ErrDBClosed.Error()):
			err = badger.ErrDBClosed
		default:
			err = fmt.Errorf("%w: badger panics: %s", engine.ErrCorrupt, firstLine(fmt.Errorf("%v", r)))
		}
	}()
	return f()
}

// firstLine returns the first line of an error of Badger's: the others are a stack.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
