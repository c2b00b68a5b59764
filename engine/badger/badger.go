// Package badger is the embedded default engine: Badger v4 behind a driver that
// does not trust it.
//
// Badger syncs once per transaction, compacts in the background and loses data
// without an error when a file cannot be created meanwhile, reports a full disk
// by SIGBUS, and goes on after a failed sync (docs/engines.md has the
// experiments). So this driver
//
//   - hands all batches to one committer, which applies those that wait as one
//     synced transaction (group commit) and so serialises guards by construction;
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
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

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
	// power; what is left is a prefix of what was acknowledged.
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

	acked  atomic.Uint64 // the read timestamp of db up to which everything is durable
	setMu  sync.Mutex    // guards change
	change chan struct{} // closed and replaced when acked, failed or db changes

	failed atomic.Pointer[error] // why the engine refuses everything
	queue  chan *request
	stop   chan struct{} // closed by Close
	done   chan struct{} // closed when the committer has returned
	once   sync.Once

	written   uint64             // bytes applied since the last look at level 0; the committer's
	rewriting chan struct{}      // of one element, taken by the one rewrite that runs, and by Close for good
	ctx       context.Context    // of background rewrites,
	cancel    context.CancelFunc // which Close ends
}

// Open opens the store in dir and creates it if it does not exist. It fails
// with *engine.LockedError, which names the holder, when it is open already.
func Open(dir string, o *Options) (*Engine, error) {
	e := &Engine{
		change:    make(chan struct{}),
		rewriting: make(chan struct{}, 1),
		queue:     make(chan *request, 1024),
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
	return e, nil
}

const currentName, genPrefix = "CURRENT", "gen-"

// firstGen is the generation of a new store.
const firstGen = genPrefix + "000001"

// openCurrent opens the generation that CURRENT names, and then removes the
// others, which are rewrites that were not finished or generations that were
// replaced. CURRENT is durable before Badger makes its first file: generations
// without it are damage, not a new store.
func (e *Engine) openCurrent() error {
	path := filepath.Join(e.dir.Path, currentName)
	gens, err := e.generations()
	if err != nil {
		return err
	}
	name, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		for _, g := range gens {
			if files, err := os.ReadDir(filepath.Join(e.dir.Path, g)); err != nil || len(files) > 0 {
				return fmt.Errorf("%w: %s holds %s but no %s, which names the one that counts", engine.ErrCorrupt, e.dir.Path, g, currentName)
			}
		}
		name = []byte(firstGen)
		if err := os.MkdirAll(filepath.Join(e.dir.Path, firstGen), 0o700); err != nil {
			return err
		}
		_, err = localdir.ReplaceFile(path, name)
	}
	if err != nil {
		return fmt.Errorf("engine: open %s: %w", path, err)
	}
	gen := strings.TrimSpace(string(name))
	if !strings.HasPrefix(gen, genPrefix) || gen != filepath.Base(gen) {
		return fmt.Errorf("%w: %s names %q", engine.ErrCorrupt, path, gen)
	}
	if err := complete(filepath.Join(e.dir.Path, gen), gen == firstGen); err != nil {
		return err
	}
	db, err := e.openDB(gen)
	if err != nil {
		return err
	}
	for _, g := range gens {
		if g != gen {
			if err := os.RemoveAll(filepath.Join(e.dir.Path, g)); err != nil {
				db.Close()
				return err
			}
		}
	}
	e.db, e.gen = db, gen
	e.acked.Store(readTs(db))
	return nil
}

// generations lists the generations in the directory.
func (e *Engine) generations() ([]string, error) {
	entries, err := os.ReadDir(e.dir.Path)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, d := range entries {
		if d.IsDir() && strings.HasPrefix(d.Name(), genPrefix) {
			out = append(out, d.Name())
		}
	}
	return out, nil
}

// complete refuses a generation that Badger would take for an empty one, and
// then delete its tables, as its MANIFEST is missing.
func complete(dir string, maybeNew bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("%w: the current generation: %w", engine.ErrCorrupt, err)
	}
	tables := false
	for _, d := range entries {
		if d.Name() == "MANIFEST" {
			return nil
		}
		tables = tables || strings.HasSuffix(d.Name(), ".sst")
	}
	if tables || !maybeNew {
		return fmt.Errorf("%w: %s has no MANIFEST", engine.ErrCorrupt, dir)
	}
	return nil
}

func (e *Engine) openDB(gen string) (*badger.DB, error) {
	dir := filepath.Join(e.dir.Path, gen)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	opts := badger.DefaultOptions(dir).
		WithSyncWrites(e.opts.Durability == Power).
		WithValueThreshold(1 << 20).    // above Limits().ValueBytes: the value log stays empty
		WithValueLogFileSize(2 << 20).  // it is mapped at twice its size
		WithMemTableSize(memTableSize). // see above
		WithNumMemtables(2).            //
		WithBaseTableSize(8 << 20).     // tables of a rewrite: 16 MiB at the last of 3 levels
		WithMaxLevels(3).               //
		WithCompression(options.None).  // values are compressed already; a flipped bit damages one record
		WithBlockCacheSize(0).          // the page cache does it
		WithIndexCacheSize(0).          //
		WithNumCompactors(0).           // a compaction that cannot create a file loses its input
		WithNumLevelZeroTablesStall(1 << 20).
		WithChecksumVerificationMode(options.NoVerification). // with it on, damage reads as "not found"
		WithDetectConflicts(false).                           // there is one writer
		WithMetricsEnabled(false).
		WithLogger(redacted{e.opts.Logger})
	// A kill between creating and sizing a file leaves an empty one, on which
	// the first Open fails (Badger issue 2207); the second succeeds.
	removeEmpty(dir)
	db, err := badger.Open(opts)
	if err != nil {
		removeEmpty(dir)
		db, err = badger.Open(opts)
	}
	if err != nil {
		if room := e.dir.RoomFor(0); room != nil {
			return nil, room
		}
		return nil, fmt.Errorf("%w: badger cannot open %s: %w", engine.ErrCorrupt, dir, errText(err))
	}
	if err := localdir.Private(dir); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

func removeEmpty(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, d := range entries {
		if ext := filepath.Ext(d.Name()); ext != ".mem" && ext != ".vlog" {
			continue
		}
		if info, err := d.Info(); err == nil && info.Size() == 0 {
			os.Remove(filepath.Join(dir, d.Name()))
		}
	}
}

func readTs(db *badger.DB) uint64 {
	txn := db.NewTransaction(false)
	defer txn.Discard()
	return txn.ReadTs()
}

// fail makes e refuse everything from now on.
func (e *Engine) fail(err error) {
	err = fmt.Errorf("%w until it is reopened: %v", engine.ErrClosed, err) // not wrapped: later calls have no unknown outcome
	e.failed.CompareAndSwap(nil, &err)
	e.announce()
}

func (e *Engine) announce() {
	e.setMu.Lock()
	close(e.change)
	e.change = make(chan struct{})
	e.setMu.Unlock()
}

func (e *Engine) usable() error {
	if err := e.failed.Load(); err != nil {
		return *err
	}
	return nil
}

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

func (e *Engine) read(f func(*badger.Txn) error) (*badger.DB, uint64, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.db.IsClosed() {
		return nil, 0, engine.ErrClosed
	}
	txn := e.db.NewTransaction(false)
	defer txn.Discard()
	return e.db, txn.ReadTs(), f(txn)
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
		e.announce()
		e.mu.Lock()
		defer e.mu.Unlock()
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
