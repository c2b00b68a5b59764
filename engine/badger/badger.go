// Package badger is the embedded default engine: Badger v4 behind a driver that
// does not trust it.
//
// Badger syncs once per transaction, compacts in the background and loses data
// without an error when a file cannot be created meanwhile, reports a full disk
// by SIGBUS, and goes on after a failed sync (docs/engines.md lists what was
// found). So this driver
//
//   - hands all batches to one committer, which applies those that wait as one
//     transaction (group commit) and so serialises guards by construction, and
//     syncs Badger's log itself, beside the next group (sync.go);
//   - never lets Badger compact: when level 0 has grown, and on Vacuum, it copies
//     what is live into a new directory, compares the copy with the original,
//     and switches atomically ("generations", see rewrite.go);
//   - keeps the value log empty, as it returns empty values for unreadable ones;
//   - looks for free disk, inodes and descriptors before it writes;
//   - refuses everything after an error whose outcome is unknown, until reopened.
//
// The directory holds CURRENT (the name of the generation), the generation, and
// a lock file that names the process that has it open.
package badger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"

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
	// power; where one of Badger's logs ends and the next one begins, not only
	// the last ones, which Verify then reports.
	Process
)

// Options of Open. Nil and the zero value mean the defaults.
type Options struct {
	// Durability; default Power.
	Durability Durability
	// MinFreeBytes is the free disk space below which Apply fails with
	// engine.ErrNoSpace. Default 128 MiB: Badger maps sparse files, and dies by
	// SIGBUS when the disk fills beneath them. Lower it on small disks only
	// where nothing else writes.
	MinFreeBytes uint64
	// Logger receives Badger's messages without their arguments, which would
	// contain keys and values. Default: none.
	Logger *slog.Logger
}

// Sizes chosen for an embedder. 16 MiB memtables keep an open store near 40 MB
// resident; Badger admits 15 % of one as a transaction, which bounds a group.
const (
	memTableSize = 16 << 20
	pageBytes    = 256 << 10 // of a Scan, read under one transaction
	pagePairs    = 1000
	groupBytes   = 2_400_000 // of a transaction: Badger admits 2,516,582, with
	writeBytes   = 16        // at most so much for each write beside key and value
	groupOps     = 20_000
	minInodes    = 1000
	minFiles     = 64
)

// Engine is an open Badger directory.
type Engine struct {
	opts Options
	dir  *localdir.Dir

	mu  sync.RWMutex // guards db and gen against the switch to a new generation
	db  *badger.DB
	gen string

	// Every group has a timestamp of its own in db, ascending by one.
	written uint64        // the last one that was written; the committer's
	acked   atomic.Uint64 // the last one that is durable: what readers see

	recent recent // values of guarded keys

	failed atomic.Pointer[error] // why the engine refuses everything
	queue  chan *request
	stop   chan struct{} // closed by Close
	done   chan struct{} // closed when the committer has returned
	once   sync.Once

	flights  chan *flight         // to syncLoop; closed by the committer
	inFlight atomic.Int32         // flights that it has; the committer adds
	landed   sync.WaitGroup       // likewise
	syncData func(*os.File) error // fdatasync

	// Of the log, see sync.go. The committer's, but for log and logNumber when
	// something is in flight: then syncLoop's.
	number    int // of the log that the last group was written to
	logged    int // more than what its memtable has
	log       *os.File
	logNumber int // of log

	applied   uint64             // bytes applied since the last look at level 0; the committer's
	trimming  atomic.Bool        // whether tables are being unmapped
	resident  atomic.Bool        // that this can't be done was said
	rewriting chan struct{}      // of one element, taken by the one rewrite that runs, and by Close for good
	ctx       context.Context    // of background rewrites,
	cancel    context.CancelFunc // which Close ends
}

// Open opens the store in dir and creates it if it does not exist. It fails
// with *engine.LockedError, which names the holder, when it is open already.
func Open(dir string, o *Options) (*Engine, error) {
	e := &Engine{
		rewriting: make(chan struct{}, 1),
		queue:     make(chan *request, 1024),
		flights:   make(chan *flight, 1),
		syncData:  localdir.SyncData,
		stop:      make(chan struct{}),
		done:      make(chan struct{}),
	}
	if o != nil {
		e.opts = *o
	}
	if e.opts.MinFreeBytes == 0 {
		e.opts.MinFreeBytes = 128 << 20
	}
	d, err := localdir.Open(dir, localdir.Need{Bytes: e.opts.MinFreeBytes, Inodes: minInodes, Files: minFiles})
	if err != nil {
		return nil, err
	}
	e.dir = d
	if err := e.openCurrent(); err != nil {
		d.Close()
		return nil, err
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	go e.commitLoop()
	go e.syncLoop()
	return e, nil
}

// fail makes e refuse everything from now on.
func (e *Engine) fail(err error) {
	err = fmt.Errorf("%w until it is reopened: %v", engine.ErrClosed, err) // not wrapped: later calls have no unknown outcome
	e.failed.CompareAndSwap(nil, &err)
}

func (e *Engine) usable() error {
	if err := e.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Limits implements engine.Engine.
func (e *Engine) Limits() engine.Limits { return engine.MinLimits }

// Close implements engine.Engine. It waits for batches that were handed over.
func (e *Engine) Close() error {
	var err error
	e.once.Do(func() {
		e.cancel()
		e.rewriting <- struct{}{} // a Vacuum that runs ends first, a rewrite gives up
		e.rewriteOnClose()
		close(e.stop)
		<-e.done
		closed := error(engine.ErrClosed)
		e.failed.CompareAndSwap(nil, &closed)
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.log != nil {
			err = e.log.Close()
		}
		if cerr := e.db.Close(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("engine: close badger: %w", errText(cerr)))
		}
		err = errors.Join(err, localdir.Private(filepath.Join(e.dir.Path, e.gen)), e.dir.Close())
	})
	return err
}

// redacted passes the fixed part of Badger's messages on: the arguments can
// hold keys and values.
type redacted struct{ to *slog.Logger }

func (l redacted) log(level slog.Level, format string) {
	if l.to != nil {
		l.to.Log(context.Background(), level, "badger: "+strings.TrimSpace(format))
	}
}

func (l redacted) Errorf(f string, _ ...any)   { l.log(slog.LevelError, f) }
func (l redacted) Warningf(f string, _ ...any) { l.log(slog.LevelWarn, f) }
func (l redacted) Infof(f string, _ ...any)    { l.log(slog.LevelDebug, f) }
func (l redacted) Debugf(f string, _ ...any)   {}
