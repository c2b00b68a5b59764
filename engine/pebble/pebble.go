// Package pebble is the embedded default engine: Pebble, a log-structured merge tree that
// Cockroach Labs keeps.
//
// Pebble ends the process when it can't go on. A library must not, so the driver
// stands between Pebble and the files, and between Pebble and the callers:
//
//	Apply, Get, Scan, Vacuum, Close     callers wait for results, not for Pebble
//	        |
//	committer, syncer, views            one hands batches to Pebble, one waits for their syncs and answers; readers see what is durable
//	        |
//	     Pebble
//	        |
//	      noted                         writes down what must be in logs and MANIFEST, checks blocks
//	        |
//	      fence                         stops everything the first time that changing a file fails
//	        |
//	  file system
//
// After a failure the engine is stopped: the batch under way fails with
// engine.ErrUnknown and later ones with engine.ErrClosed. Reads go on. The next Open has everything that was
// acknowledged. Pebble then keeps up to 60 MiB of memory and a few goroutines until the process ends.
package pebble

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

var _ engine.Engine = (*Engine)(nil)

// Durability says what an acknowledged Apply survives.
type Durability int

const (
	// Power: a loss of power. Each group of batches is synced before it is acknowledged.
	Power Durability = iota
	// Process: the end of the process, not of the machine. A loss of power takes the last batches: at most those that
	// were written since the last log was begun. It leaves all batches before them.
	Process
)

// Options of Open. Nil and the zero value mean the defaults.
type Options struct {
	// Durability of acknowledged batches. Default Power.
	Durability Durability
	// MinFreeBytes is the free disk space below which Apply fails with
	// engine.ErrNoSpace, except for batches that reclaim. Default 64 MiB.
	MinFreeBytes uint64
	// Memory is the budget of which memtables and blocks take a quarter. While batches come faster than tables can be
	// written, memtables take up to 24 MiB more. Default: the process's own.
	Memory *engine.MemoryBudget
	// ReadOnly opens an existing store that no process has open, and changes nothing in its directory, which may be on a
	// medium that can't be written. Several processes can read a store at once, but none can open it otherwise
	// meanwhile. Apply and Vacuum fail with engine.ErrReadOnly. What a process that was killed has written last is
	// shown, although a loss of power may still take it away.
	ReadOnly bool
	// Logger receives Pebble's messages without their arguments. Default: none.
	Logger *slog.Logger

	fs       vfs.FS // of tests; vfs.Default
	memTable int    // of tests; memTableSize
	boot     uint64 // of tests; which run of the machine this is
}

const (
	memTableSize = 8 << 20
	maxMemTables = 4
	blockSize    = 32 << 10
	filterBits   = 10 // of a table's Bloom filter for each key: one look in a hundred is in vain
)

// reserve is what must be left for a batch that reclaims, and for opening a store
// beside the content of its logs. Pebble can't survive a log or a MANIFEST that
// finds no space; it retries tables. 8 MiB hold three of the largest batches that
// can be on their way to the log at once, and an edit of the MANIFEST for each.
var reserve = localdir.Resources{Bytes: 8 << 20, Inodes: 20, Files: 16}

// Engine is an open Pebble database. The zero Engine is a closed one.
type Engine struct {
	dir      *localdir.Dir
	minFree  localdir.Resources // new data is refused when less is free
	db       *pebble.DB
	fence    *fence
	files    *noted
	giveBack func()             // its part of Options.Memory
	readOnly error              // why Apply and Vacuum are refused: Options.ReadOnly, or a disk that was full at Open
	toOpen   localdir.Resources // what a disk must have that is not full at Open
	log      logger

	line     line               // of batches that wait for the committer
	synced   chan *group        // from the committer to the syncer, in the order of groups
	spare    chan *pebble.Batch // of groups that have landed, for later ones
	syncing  atomic.Int32       // groups that the syncer has
	rest     chan struct{}      // closed when the syncer has ended
	vacuum   chan struct{}      // holds a token while a Vacuum runs
	closing  context.Context
	cancel   context.CancelFunc
	down     chan struct{} // closed when the engine fails
	unused   chan struct{} // closed when Close was called and no other call is under way
	promised atomic.Uint64 // sequence number up to which batches are synced
	wrote    atomic.Bool   // a batch was handed to Pebble

	tidying atomic.Bool // a range is compacted for readers, or was a moment ago

	lastNoSpace atomic.Int64 // when Pebble last ran out of space, in Unix nanoseconds

	mu      sync.Mutex         // guards the fields below
	shown   *view              // what readers see
	old     map[*view]struct{} // views from before that are not closed
	unread  []*view            // those of them that nobody reads
	failed  error              // what Apply returns after a failure
	cause   error              // why it failed
	trouble chan struct{}      // closed, and made anew, when Pebble finds no space
	users   int                // calls that are using db
	closed  bool
}

// Open opens the store in dir and creates it if it does not exist. It fails with
// *engine.LockedError, which names the holder, when it is open already, and with
// engine.ErrCorrupt, naming the file, when the files are damaged.
//
// Opening needs the space of the log's content and 8 MiB. With less left, a store
// is opened for reading only: Apply and Vacuum fail with engine.ErrNoSpace, and once there is
// space with engine.ErrClosed, until it is opened again.
func Open(dir string, o *Options) (*Engine, error) {
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
	e := newEngine(d, o)
	if err := e.openFiles(o); err != nil {
		if e.fence.drain(drainTime) {
			err = errors.Join(d.Named(err), d.Close())
		}
		return nil, fmt.Errorf("engine: open pebble in %s: %w", d.Path, err)
	}
	if err := e.private(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// private takes the permissions of others from the files, unless e was opened for reading only.
func (e *Engine) private() error {
	if errors.Is(e.readOnly, engine.ErrReadOnly) {
		return nil
	}
	return e.dir.Private()
}

func newEngine(d *localdir.Dir, o *Options) *Engine {
	e := &Engine{
		dir:     d,
		minFree: localdir.Resources{Bytes: o.MinFreeBytes, Inodes: 200, Files: 64},
		log:     logger{to: o.Logger},
		line:    line{wake: make(chan struct{}, 1)},
		synced:  make(chan *group, 1),
		spare:   make(chan *pebble.Batch, 3), // one is written, one waits, one is synced
		rest:    make(chan struct{}),
		trouble: make(chan struct{}),
		vacuum:  make(chan struct{}, 1),
		down:    make(chan struct{}),
		unused:  make(chan struct{}),
		old:     map[*view]struct{}{},
	}
	if e.minFree.Bytes == 0 {
		e.minFree.Bytes = 64 << 20
	}
	e.log.fatal = e.fail
	e.closing, e.cancel = context.WithCancel(context.Background())
	fs, at, mem := o.fs, d.Path, int64(o.memTable)
	if fs == nil {
		fs, at = below{vfs.Default, d.At()}, d.At()
	}
	if mem == 0 {
		mem = memTableSize
	}
	e.fence = newFence(fs, e.fail, e.noSpace)
	if o.ReadOnly {
		e.readOnly, e.fence.readOnly = engine.ErrReadOnly, true
	}
	boot := o.boot
	if boot == 0 {
		boot = localdir.Boot()
	}
	// A memtable counts more bytes for a batch than a log does, so no log grows
	// beyond this length.
	e.files = &noted{fence: e.fence, dir: at, logBytes: mem * 3 / 2, noSync: o.Durability == Process, boot: boot, epoch: rand.Uint64() | 1}
	return e
}

// below is a file system with a directory that has none above it: localdir has made that durable, and what is above
// localdir.Dir.At is none of Pebble's business.
type below struct {
	vfs.FS
	top string
}

// PathDir implements vfs.FS.
func (b below) PathDir(path string) string {
	if path == b.top {
		return path
	}
	return b.FS.PathDir(path)
}

// openFiles inspects the files and opens Pebble on them.
func (e *Engine) openFiles(o *Options) error {
	var err error
	if e.files.names, err = e.fence.OpenDir(e.files.dir); err != nil {
		return mapped(err)
	}
	in, err := e.files.inspect()
	if err != nil {
		return mapped(err)
	}
	if e.readOnly == nil {
		err = e.needToOpen(in)
	} else if !in.exists {
		err = fmt.Errorf("there is no store: %w", fs.ErrNotExist)
	}
	if err == nil && !in.exists {
		err = e.dir.Unused(ofPebble)
	}
	if err != nil {
		return err
	}
	if err := e.openPebble(o, in); err != nil {
		return err
	}
	e.shown = newView(e.db)
	go e.commitBatches()
	go e.syncBatches()
	return nil
}

// needToOpen looks at the free space. With too little of it, an existing store is opened for reading only.
func (e *Engine) needToOpen(in *inspection) error {
	e.toOpen = reserve
	e.toOpen.Bytes += uint64(in.logUsed)
	err := e.dir.NeedNow(context.Background(), e.toOpen)
	if err == nil || !in.exists || !errors.Is(err, engine.ErrNoSpace) {
		return err
	}
	e.readOnly = fmt.Errorf("%w when %s was opened; open it again", engine.ErrNoSpace, e.dir.Path)
	return nil
}

// writable returns why Apply and Vacuum are refused, if they are.
func (e *Engine) writable(ctx context.Context) error {
	if e.readOnly != nil && !errors.Is(e.readOnly, engine.ErrReadOnly) && e.dir.NeedNow(ctx, e.toOpen) == nil {
		return fmt.Errorf("%w for changes: %s was opened on a full disk, and there is space now; open it again", engine.ErrClosed, e.dir.Path)
	}
	return e.readOnly
}

// storeFormat is the version of Pebble's own format that a new store gets. An older store is
// raised to it, which can't be undone; a newer one keeps what it has. It is fixed here, and
// not pebble.FormatNewest, so that a newer version of the library alone changes no store.
const storeFormat = pebble.FormatValueSeparation

// openPebble opens Pebble in a goroutine of its own, which is given up if a change
// of a file fails.
func (e *Engine) openPebble(o *Options, in *inspection) error {
	memory := o.Memory.Bytes() / 4
	cache := pebble.NewCache(int64(memory)) // Pebble counts memtables in it
	defer cache.Unref()
	options := &pebble.Options{
		Cache:                       cache,
		Cleaner:                     remover{},
		MemTableSize:                uint64(e.files.logBytes * 2 / 3),
		MemTableStopWritesThreshold: maxMemTables,
		MaxOpenFiles:                500,
		FormatMajorVersion:          storeFormat,
		ReadOnly:                    e.readOnly != nil,
		FS:                          e.files,
		Logger:                      e.log,
		EventListener:               &pebble.EventListener{BackgroundError: e.background, DataCorruption: func(pebble.DataCorruptionInfo) {}},
	}
	// A compaction makes a system call for each block, whatever its size. Pebble's default of 4 KiB makes many.
	options.Levels[0].BlockSize, options.Levels[0].IndexBlockSize = blockSize, 8*blockSize
	// Most guards are on keys that are absent, and they must not read a block of each table.
	options.Levels[0].FilterPolicy = bloom.FilterPolicy(filterBits)
	// Readers must not begin compactions: they would wait for the MANIFEST.
	options.Experimental.ReadSamplingMultiplier = -1
	e.fence.opening.Store(true)
	defer e.fence.opening.Store(false)
	opened := make(chan error, 1)
	var db *pebble.DB
	go func() {
		defer func() {
			if r := recover(); r != nil {
				opened <- mappedOpen(fmt.Errorf("pebble panics: %v", r))
			}
		}()
		if e.readOnly == nil {
			if err := e.files.begin(in); err != nil {
				opened <- mapped(err)
				return
			}
		}
		var err error
		if db, err = pebble.Open(e.files.dir, options); err != nil {
			err = mappedOpen(err)
		} else {
			err = mapped(e.files.complete(uint64(db.FormatMajorVersion())))
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		if err == nil {
			e.db, e.giveBack = db, o.Memory.Take(memory)
		}
		return err
	case <-e.down:
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.cause
	}
}

// A remover removes obsolete files, as pebble.DeleteCleaner does. It also has the method of
// pebble.ArchiveCleaner that says that the cleaner needs the content of files. So Pebble does
// not recycle old logs: their ends would hold removed bytes, and they would take space.
type remover struct {
	pebble.DeleteCleaner
	unrecycled
}

type unrecycled struct{ pebble.ArchiveCleaner }

// Limits implements engine.Engine.
func (e *Engine) Limits() engine.Limits { return engine.DriverLimits }

// logger passes the fixed part of Pebble's messages on. Pebble calls Fatalf where
// it can't go on, sometimes with its locks held and never expecting a return.
type logger struct {
	to    *slog.Logger
	fatal func(error)
}

func (l logger) Infof(string, ...any) {}

func (l logger) Errorf(f string, _ ...any) {
	if l.to != nil {
		l.to.Error("pebble: " + strings.TrimSpace(f))
	}
}

func (l logger) Fatalf(f string, args ...any) {
	l.Errorf(f)
	for _, a := range args {
		if err, ok := a.(error); ok {
			l.fatal(err)
			park()
		}
	}
	l.fatal(errors.New("pebble can't go on"))
	park()
}

// drainTime is how long operations on files that are under way may take before the
// engine leaves its directory locked.
const drainTime = time.Second
