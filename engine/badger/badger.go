// Package badger is the embedded default engine. It stores pairs in Badger v4's tables
// and skip lists, with a log, a manifest and a committer of its own.
//
// Badger's own database syncs once for each transaction, writes through memory mappings
// that end the process when the disk is full, and goes on without an error after some
// failures (docs/engines.md lists them). So this driver uses only the parts of Badger
// that hold the data, and does all writing to the disk itself:
//
//		Apply → committer → log, synced → memtable → answer
//		                                      │ full: flush
//		                          run of tables ─ … ─ run of tables
//		                                      │ too many, or Vacuum: rewrite
//		                                one run of tables
//
//	  - One committer applies all batches that wait as one group (group commit). So it
//	    checks guards one batch after the other. A group is one frame of the log
//	    (log.go). While a group is synced, the committer writes the next one (sync.go).
//	    A caller who is alone commits in its own goroutine (commit.go).
//	  - The groups of a log are also in a memtable, which is Badger's skip list. A full
//	    memtable is flushed into a run of Badger's tables (flush.go).
//	  - When there are too many runs, and on Vacuum, they are merged into one
//	    (rewrite.go).
//	  - MANIFEST lists the tables and the first log (manifest.go). It is replaced before
//	    any file that it no longer lists is removed.
//
// All data has checksums. Open checks logs, the manifest and the indexes of tables. Reads
// check each block of a table. Data that can't be read is an error that names the file,
// and never looks like an absent key.
//
// The directory holds MANIFEST, logs, tables, and a lock file that names the process that
// has the store open.
package badger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4/skl"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

var _ engine.Engine = (*Engine)(nil)

// Durability says what an acknowledged Apply survives.
type Durability int

const (
	// Power makes acknowledged batches survive a loss of power. Every group is synced
	// before it is acknowledged.
	Power Durability = iota
	// Process makes acknowledged batches survive a crash of the process, but not of the
	// machine, like SQLite's synchronous=NORMAL in WAL mode. A loss of power may lose
	// the last seconds, and damage to them can't be distinguished from such a loss.
	Process
)

// Options of Open. Nil and the zero value mean the defaults.
type Options struct {
	// Durability says what acknowledged batches survive. The default is Power.
	Durability Durability
	// MinFreeBytes is the free disk space below which Apply refuses new data with
	// engine.ErrNoSpace. The default is 128 MiB. Opening, reading and batches that
	// reclaim need no free space. If the disk is full all the same, nothing is
	// damaged: batches that do not fit are refused with the same error.
	MinFreeBytes uint64
	// ReadOnly opens an existing store that no process has open, and changes nothing in its directory, which may be on a
	// medium that can't be written. Several processes can read a store at once, but none can open it otherwise
	// meanwhile. Apply and Vacuum fail with engine.ErrReadOnly. What a process that was killed has written last is
	// shown, although a loss of power may still take it away.
	ReadOnly bool
	// Logger gets the errors of work in the background. Nil means no log.
	Logger *slog.Logger
}

const (
	// A page of a Scan is read under one lock.
	pageBytes = 256 << 10
	pagePairs = 1000

	// A group is not larger than this, unless it is one batch.
	groupBytes = 2_400_000
	groupOps   = 20_000

	// Free inodes and file descriptors below which new data is refused.
	minInodes = 100
	minFiles  = 16

	// Close waits closeWait for work in the background, because a disk that hangs can
	// block it for ever. If the engine has not failed, Close waits slowWait more.
	closeWait = 4 * time.Second
	slowWait  = time.Minute
)

// Engine is an open store. The zero Engine is a closed one.
type Engine struct {
	opts    Options
	dir     *localdir.Dir
	files   files
	minFree localdir.Resources // new data is refused when less is free

	logSize int64 // of new logs: the size of a memtable and logExtra

	mu      sync.RWMutex // guards content; the committer adds to the last memtable without it, as skip lists allow
	content content

	// Each group has a timestamp. Timestamps ascend by one.
	committing sync.Mutex    // held by who commits a group: the committer, or a caller that is alone; guards written and writer
	written    uint64        // the last timestamp in the log
	writer     groupWriter   // makes a group
	acked      atomic.Uint64 // the last timestamp that is durable; readers see up to it
	busy       atomic.Bool   // the committer has a request, or its last group had several; then no caller commits alone
	busyUntil  time.Time     // small groups are not gathered before that; the committer's own

	failed atomic.Pointer[error] // why the engine refuses everything
	halted chan struct{}         // closed when the engine has failed
	queue  chan *request         // to the committer
	stop   chan struct{}         // closed by Close
	done   chan struct{}         // closed when the committer and syncLoop have returned
	once   sync.Once

	toSync   chan *group    // groups that are written; the committer closes it
	unsynced atomic.Int32   // number of groups that syncLoop has not answered
	syncing  sync.WaitGroup // waits for these groups; only who holds committing adds to it

	spare atomic.Pointer[skl.Skiplist] // for the next memtable, or nil; flushLoop makes it
	used  usedLog                      // for the next log

	flushing sync.Mutex // held by each flush
	removing sync.Mutex // guards unneeded
	unneeded []string   // files that could not be removed

	install    sync.Mutex    // held while the manifest is replaced; guards nextNumber
	nextNumber uint64        // number of the next log or table
	full       chan struct{} // of one element; signals that a memtable waits to be flushed
	tried      chan struct{} // closed, and replaced, after each try to flush a memtable; guarded by mu
	background sync.WaitGroup
	rewriting  chan struct{} // of one element; the rewrite that runs holds it, and Close takes it for good

	// Why the last flush and the last rewrite failed; nil after a success.
	flushTrouble, rewriteTrouble atomic.Pointer[error]

	ctx    context.Context // for work in the background
	cancel context.CancelFunc
}

// Open opens the store in dir and creates it if it does not exist. If another process
// has the store open, Open fails with *engine.LockedError, which names that process. If a
// file is damaged or missing, Open fails with an error that matches engine.ErrCorrupt and
// changes nothing. Opening an existing store needs no free space.
func Open(dir string, o *Options) (*Engine, error) {
	lock, mode := localdir.Open, os.O_RDWR
	if o != nil && o.ReadOnly {
		lock, mode = localdir.OpenReadOnly, os.O_RDONLY
	}
	d, err := lock(dir)
	if err != nil {
		return nil, err
	}
	names, err := openDirectory(d.Path, mode)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("engine: open %s: %w", d.Path, mapped(err)), d.Close())
	}
	e, err := openFiles(names, memTableSize+logExtra, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("engine: open %s: %w", d.Path, err), names.close(), d.Close())
	}
	e.dir = d
	e.start()
	return e, nil
}

// start starts the goroutines of the engine.
func (e *Engine) start() {
	if e.opts.ReadOnly {
		close(e.done)
		return
	}
	go e.commitLoop()
	go e.syncLoop()
	e.background.Go(e.flushLoop)
}

// openFiles recovers the store in d. The engine that it returns has no directory lock
// and is not started.
func openFiles(d files, logSize int64, o *Options) (*Engine, error) {
	e := &Engine{
		files:     d,
		logSize:   logSize,
		rewriting: make(chan struct{}, 1),
		queue:     make(chan *request, 1024),
		toSync:    make(chan *group, 1),
		halted:    make(chan struct{}),
		stop:      make(chan struct{}),
		done:      make(chan struct{}),
		full:      make(chan struct{}, 1),
		tried:     make(chan struct{}),
	}
	if o != nil {
		e.opts = *o
	}
	if e.opts.MinFreeBytes == 0 {
		e.opts.MinFreeBytes = 128 << 20
	}
	e.minFree = localdir.Resources{Bytes: e.opts.MinFreeBytes, Inodes: minInodes, Files: minFiles}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e, mapped(e.recover())
}

// need returns an error if less than r is free.
func (e *Engine) need(r localdir.Resources) error {
	if e.dir == nil { // in tests
		return nil
	}
	return e.dir.Need(context.Background(), r)
}

// needNow is like need, but uses no cached values.
func (e *Engine) needNow(r localdir.Resources) error {
	if e.dir == nil {
		return nil
	}
	return e.dir.NeedNow(context.Background(), r)
}

// mapped makes an error of the file system that means a shortage match ErrNoSpace.
func mapped(err error) error {
	if localdir.Short(err) && !errors.Is(err, engine.ErrNoSpace) {
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	}
	return err
}

// fail makes e refuse everything from now on.
func (e *Engine) fail(err error) {
	err = fmt.Errorf("%w until it is reopened: %v", engine.ErrClosed, err) // err is not wrapped, because later calls have no unknown outcome
	if !e.failed.CompareAndSwap(nil, &err) {
		return
	}
	close(e.halted)
	if e.opts.Logger != nil {
		e.opts.Logger.Error("badger: the store refuses everything until it is reopened", "error", err)
	}
}

// writable returns an error if the engine takes no changes.
func (e *Engine) writable() error {
	if err := e.usable(); err != nil {
		return err
	}
	if e.opts.ReadOnly {
		return engine.ErrReadOnly
	}
	return nil
}

// usable returns an error if the engine has failed or is closed.
func (e *Engine) usable() error {
	if err := e.failed.Load(); err != nil {
		return *err
	}
	if e.stop == nil { // the zero Engine
		return engine.ErrClosed
	}
	return nil
}

// Limits implements engine.Engine.
func (e *Engine) Limits() engine.Limits { return engine.MinLimits }

// Close implements engine.Engine. It waits for batches that were submitted. It returns an
// error if the last flush or rewrite failed: no data is lost, but the store takes
// more space than it should. If the disk does not answer, Close returns an error after
// four seconds if the store has failed, and otherwise after a minute. The files then stay
// open, and the directory stays locked until the process ends.
func (e *Engine) Close() error {
	if e.stop == nil {
		return nil
	}
	var err error
	e.once.Do(func() {
		e.cancel()
		close(e.stop)
		rested := make(chan error, 1)
		go func() { rested <- e.rest() }()
		select {
		case err = <-rested:
			return
		case <-time.After(closeWait):
		}
		if e.usable() == nil { // the disk may just be slow
			select {
			case err = <-rested:
				return
			case <-time.After(slowWait):
			}
		}
		e.fail(errors.New("the disk does not answer"))
		err = e.usable()
	})
	return err
}

// rest ends the work in the background and closes the files.
func (e *Engine) rest() error {
	<-e.done
	e.background.Wait()
	e.rewriting <- struct{}{}
	var err error
	if !e.opts.ReadOnly {
		err = e.flushOnClose()
	}
	if l := e.used.take(); e.usable() == nil {
		err = errors.Join(err, e.discard(l))
	} else if l != nil {
		err = errors.Join(err, l.f.Close())
	}
	closed := error(engine.ErrClosed)
	e.failed.CompareAndSwap(nil, &closed)
	e.mu.Lock() // waits for readers
	defer e.mu.Unlock()
	err = errors.Join(err, mapped(e.content.close()), e.files.close())
	if e.dir != nil {
		err = errors.Join(err, e.dir.Close())
	}
	return err
}

// flushOnClose flushes memtables and ends the log, so that the next Open has little to
// replay. It returns the error of any flush or rewrite that failed. If the disk has
// no space for a table, the next Open replays the log instead.
func (e *Engine) flushOnClose() error {
	if e.usable() != nil {
		return nil // all acknowledged batches are durable, and a failed engine must not write
	}
	flushed := e.flushAll()
	if flushed == nil && e.content.active().log.pos > replayBytes {
		if flushed = e.rotate(); flushed == nil {
			flushed = e.flushAll()
		}
	}
	if e.usable() != nil {
		return flushed
	}
	if !errors.Is(flushed, engine.ErrNoSpace) {
		e.note(&e.flushTrouble, flushed)
	}
	var err error
	if m := e.content.active(); !m.log.short {
		if e.opts.Durability != Power { // the closed frame says that all groups before it are durable
			err = lost(m.log.f.SyncData())
		}
		if err == nil {
			err = mapped(m.log.close(e.written))
		}
		if errors.Is(err, engine.ErrNoSpace) {
			err = nil // the next Open finds the log as after a kill
		}
	}
	for _, trouble := range []*atomic.Pointer[error]{&e.flushTrouble, &e.rewriteTrouble} {
		if given := trouble.Load(); given != nil {
			err = errors.Join(err, fmt.Errorf("engine: nothing is lost, but tables could not be written: %w", *given))
		}
	}
	return err
}

// replayBytes is the size of a log that Open replays in a few milliseconds. Close flushes
// a larger log to a table.
const replayBytes = 1 << 20

// note stores why a flush or a rewrite failed, or nil if it succeeded.
func (e *Engine) note(trouble *atomic.Pointer[error], err error) {
	if err == nil {
		trouble.Store(nil)
		return
	}
	if e.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return
	}
	trouble.Store(&err)
	if e.opts.Logger != nil {
		e.opts.Logger.Error("badger: flush or rewrite failed", "error", err)
	}
}

// active returns the memtable that is being written.
func (c *content) active() *memtable { return c.memtables[len(c.memtables)-1] }

// close closes the files of c.
func (c *content) close() error {
	var err error
	for _, m := range c.memtables {
		err = errors.Join(err, m.log.f.Close())
	}
	for _, r := range c.runs {
		err = errors.Join(err, r.close())
	}
	return err
}
