package badger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

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
	e.written = db.MaxVersion()
	e.acked.Store(e.written)
	if err := e.followLog(true); err != nil {
		db.Close()
		return err
	}
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
		WithSyncWrites(false).          // the driver does it, see sync.go
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
	db, err := badger.OpenManaged(opts)
	if err != nil {
		removeEmpty(dir)
		db, err = badger.OpenManaged(opts)
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
