// Package badger is the embedded default engine: Badger v4's tables and skip
// lists beneath a log, a manifest and a committer of this driver.
//
// Badger's database around them syncs once per transaction, writes through
// mappings that end the process when the disk is full, and goes on without an
// error after some failures (docs/engines.md lists what was found). So the driver
// uses the parts that hold what is stored, and does everything that goes to the
// disk itself:
//
//		Apply → committer → log, synced → memtable → answer
//		                                      │ full: flush
//		                          run of tables ─ … ─ run of tables
//		                                      │ too many, or Vacuum: rewrite
//		                                one run of tables
//
//	  - One committer applies all batches that wait as one group (group commit),
//	    and so serialises guards by construction. A group is a frame of the log
//	    (log.go), which is synced beside the next group (sync.go).
//	  - What is in the log is also in a memtable, Badger's skip list. A full one is
//	    flushed into a run of Badger's tables (flush.go).
//	  - When there are too many runs, and on Vacuum, all of them are merged into one
//	    (rewrite.go).
//	  - MANIFEST lists the tables and the first log (manifest.go). It is replaced
//	    before what it no longer names is removed.
//
// Everything that is read has a checksum: a log, the manifest and the indexes of
// tables when the store is opened, each block of a table when it is read. What
// can't be read is an error that names the file, never an absent key.
//
// The directory holds MANIFEST, logs, tables, and a lock file that names the
// process that has it open.
package badger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

var _ engine.Engine = (*Engine)(nil)

// Durability says what an acknowledged Apply survives.
type Durability int

const (
	// Power: loss of power. Every group is synced before it is acknowledged.
	Power Durability = iota
	// Process: a crash of the process, not of the machine (SQLite's
	// synchronous=NORMAL in WAL mode). The last seconds may be lost with the
	// power, and damage to them can't be told from that.
	Process
)

// Options of Open. Nil and the zero value mean the defaults.
type Options struct {
	// Durability; default Power.
	Durability Durability
	// MinFreeBytes is the free disk space below which Apply refuses new data with
	// engine.ErrNoSpace. Default 128 MiB. Opening, reading and batches that
	// reclaim need none. A disk that is full all the same does no damage: what
	// does not fit is refused with the same error.
	MinFreeBytes uint64
	// Logger is told what happens in the background and what is given up there.
	// Default: none.
	Logger *slog.Logger
}

const (
	pageBytes  = 256 << 10 // of a Scan, read under one lock
	pagePairs  = 1000
	groupBytes = 2_400_000
	groupOps   = 20_000
	minInodes  = 100
	minFiles   = 16

	// closeWait is how long Close waits for what runs in the background, which a
	// disk that hangs can hold up for ever.
	closeWait = 4 * time.Second
	slowWait  = time.Minute
)

// Engine is an open store. The zero Engine is a closed one.
type Engine struct {
	opts  Options
	dir   *localdir.Dir
	files files
	room  localdir.Room // what must be left for new data

	logSize int64 // of new logs, and logExtra more than their memtables

	mu      sync.RWMutex // guards content; who only adds to the last memtable holds it for reading
	content content

	// Every group has a timestamp, ascending by one.
	written uint64        // the last one that is in the log; the committer's
	buf     []byte        // for the next frame; likewise
	acked   atomic.Uint64 // the last one that is durable: what readers see

	failed atomic.Pointer[error] // why the engine refuses everything
	halted chan struct{}         // closed when that is a failure
	queue  chan *request
	stop   chan struct{} // closed by Close
	done   chan struct{} // closed when the committer and syncLoop have returned
	once   sync.Once

	flights  chan *flight   // to syncLoop; closed by the committer
	inFlight atomic.Int32   // flights that it has; the committer adds
	landed   sync.WaitGroup // likewise

	install    sync.Mutex    // held while the manifest is replaced; guards nextNumber
	nextNumber uint64        // of a log or table
	full       chan struct{} // told that a memtable waits to be flushed; of one element
	tried      chan struct{} // closed, and replaced, after each try to flush one; guarded by mu
	background sync.WaitGroup
	rewriting  chan struct{} // of one element, taken by the one rewrite that runs, and by Close for good
	// Why the last flush and the last rewrite were given up; nil after a success.
	flushTrouble, rewriteTrouble atomic.Pointer[error]
	ctx                          context.Context    // of what runs in the background,
	cancel                       context.CancelFunc // which Close ends
}

// Open opens the store in dir and creates it if it does not exist. It fails with
// *engine.LockedError, which names the holder, when it is open already, and with
// an error that matches engine.ErrCorrupt, before anything is changed, when a
// file is damaged or missing. Opening an existing store needs no free space.
func Open(dir string, o *Options) (*Engine, error) {
	d, err := localdir.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := openDirectory(d.Path)
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

// start begins the work of the background.
func (e *Engine) start() {
	go e.commitLoop()
	go e.syncLoop()
	e.background.Go(e.flushLoop)
}

// openFiles recovers the store in d. The engine has no directory and is not
// started.
func openFiles(d files, logSize int64, o *Options) (*Engine, error) {
	e := &Engine{
		files:     d,
		logSize:   logSize,
		rewriting: make(chan struct{}, 1),
		queue:     make(chan *request, 1024),
		flights:   make(chan *flight, 1),
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
	e.room = localdir.Room{Bytes: e.opts.MinFreeBytes, Inodes: minInodes, Files: minFiles}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e, mapped(e.recover())
}

// need returns an error unless what r says is left.
func (e *Engine) need(r localdir.Room) error {
	if e.dir == nil { // a test's
		return nil
	}
	return e.dir.Need(r)
}

// needNow is like need, and looks anew.
func (e *Engine) needNow(r localdir.Room) error {
	if e.dir == nil {
		return nil
	}
	return e.dir.NeedNow(r)
}

// mapped names an error of the file system that means shortage.
func mapped(err error) error {
	if localdir.Short(err) && !errors.Is(err, engine.ErrNoSpace) {
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	}
	return err
}

// fail makes e refuse everything from now on.
func (e *Engine) fail(err error) {
	err = fmt.Errorf("%w until it is reopened: %v", engine.ErrClosed, err) // not wrapped: later calls have no unknown outcome
	if !e.failed.CompareAndSwap(nil, &err) {
		return
	}
	close(e.halted)
	if e.opts.Logger != nil {
		e.opts.Logger.Error("badger: the store refuses everything until it is reopened", "error", err)
	}
}

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

// Close implements engine.Engine. It waits for batches that were handed over, and
// returns an error when a flush or a rewrite could not be done since the last one
// that was: what is stored is safe, but takes more space than it should. A disk
// that does not answer holds it up for four seconds once the store has failed, and
// for a minute else; then it returns an error, the files stay open, and the
// directory stays locked until the process ends.
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

// rest ends what runs and closes the files.
func (e *Engine) rest() error {
	<-e.done
	e.background.Wait()
	e.rewriting <- struct{}{}
	err := e.settleFiles()
	closed := error(engine.ErrClosed)
	e.failed.CompareAndSwap(nil, &closed)
	e.mu.Lock() // readers are through
	defer e.mu.Unlock()
	err = errors.Join(err, mapped(e.content.close()), e.files.close())
	if e.dir != nil {
		err = errors.Join(err, e.dir.Close())
	}
	return err
}

// settleFiles leaves little to replay for the next Open, if there is room for
// that, and returns what was given up.
func (e *Engine) settleFiles() error {
	if e.usable() != nil {
		return nil // everything that was acknowledged is durable, and nothing else may be written
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
	// Without room for a table the next Open replays the log.
	if !errors.Is(flushed, engine.ErrNoSpace) {
		e.note(&e.flushTrouble, flushed)
	}
	var err error
	if m := e.content.active(); !m.log.short {
		if e.opts.Durability != Power { // the closed frame says that all before it is durable
			err = lost(m.log.f.SyncData())
		}
		if err == nil {
			err = mapped(m.log.close(e.written))
		}
		if errors.Is(err, engine.ErrNoSpace) {
			err = nil // the log is as after a kill
		}
	}
	for _, trouble := range []*atomic.Pointer[error]{&e.flushTrouble, &e.rewriteTrouble} {
		if given := trouble.Load(); given != nil {
			err = errors.Join(err, fmt.Errorf("engine: nothing is lost, but tables could not be written: %w", *given))
		}
	}
	return err
}

// replayBytes of a log are replayed by Open in a few milliseconds; a larger one is
// made a table by Close.
const replayBytes = 1 << 20

// note remembers why a flush or a rewrite was given up, or that it was not.
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
		e.opts.Logger.Error("badger: flush or rewrite given up", "error", err)
	}
}

// active is the memtable that is being written.
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
