package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// damagedStores returns stores at rest: closed, killed while its log is full of
// batches, killed after a vacuum, and new.
func damagedStores(t *testing.T) map[string]func() (*vfs.MemFS, string, *ledger) {
	store := func(batches, vacuum int, closed bool) func() (*vfs.MemFS, string, *ledger) {
		fs, dir := memStore(t)
		l := newLedger()
		e, err := openOn(fs, dir)
		if err != nil {
			t.Fatal(err)
		}
		for n := range batches {
			if err := l.write(context.Background(), e); err != nil {
				t.Fatal(err)
			}
			if n == vacuum {
				if err := e.Vacuum(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
		}
		killed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if closed {
			killed = fs
		}
		r := rand.New(rand.NewPCG(2, 2))
		return func() (*vfs.MemFS, string, *ledger) {
			copied := killed.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: r})
			return copied, dirClone(t, copied, dir), l
		}
	}
	return map[string]func() (*vfs.MemFS, string, *ledger){
		"closed":   store(150, -1, true),
		"killed":   store(150, -1, false),
		"vacuumed": store(120, 100, false),
		"small":    store(12, -1, false),
		"new":      store(0, -1, false),
	}
}

// judge opens a damaged store and reads all of it. It returns "harmless",
// "reported", or what is wrong.
func judge(t *testing.T, fs *vfs.MemFS, dir string, l *ledger, acked map[int]bool) string {
	var e *Engine
	err := within(t, "Open", 4*time.Second, func(context.Context) (err error) { e, err = openOn(fs, dir); return err })
	if err != nil {
		return verdict(err)
	}
	var wrong string
	err = within(t, "Scan and Get", 5*time.Second, func(ctx context.Context) (err error) {
		wrong, err = l.check(ctx, e, acked)
		return err
	})
	if err == nil && wrong == "" {
		err = within(t, "Vacuum", 4*time.Second, e.Vacuum)
	}
	closing := within(t, "Close", 4*time.Second, func(context.Context) error { return e.Close() })
	switch {
	case wrong != "":
		return "SILENT " + wrong
	case err != nil:
		return verdict(err)
	case closing != nil:
		return verdict(closing)
	}
	return "harmless"
}

func verdict(err error) string {
	text := err.Error()
	switch {
	case !errors.Is(err, engine.ErrCorrupt):
		return "not called damage: " + text
	case strings.Contains(text, "a/0") || strings.Contains(text, "b/0"):
		return "shows a key: " + text
	}
	return "reported"
}

func TestDamageIsReportedOrHarmless(t *testing.T) {
	testkit.OneGoroutine(t)
	testkit.Slow(t)
	flips, cuts := testkit.Pick(14, 6, 3), testkit.Pick(6, 4, 2)
	for name, store := range damagedStores(t) {
		t.Run(name, func(t *testing.T) {
			fs, dir, _ := store()
			names, err := fs.List(dir)
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(7, 7))
			results := map[string]int{}
			try := func(file, what string, damage func(fs *vfs.MemFS, path string) error) {
				fs, dir, l := store()
				if err := damage(fs, fs.PathJoin(dir, file)); err != nil {
					t.Fatal(err)
				}
				res := judge(t, fs, dir, l, l.acked)
				results[res]++
				if res != "harmless" && res != "reported" {
					t.Errorf("%s %s: %s", file, what, res)
				}
			}
			for _, file := range names {
				content, err := fs.UnsafeGetFileDataBuffer(fs.PathJoin(dir, file))
				if err != nil {
					t.Fatal(err)
				}
				used := len(bytes.TrimRight(content, "\x00"))
				if used == 0 && len(content) > 0 {
					used = 1
				}
				for range min(flips, used*8) {
					bit := r.IntN(used * 8)
					try(file, fmt.Sprintf("bit %d of byte %d of %d", bit%8, bit/8, used), func(fs *vfs.MemFS, path string) error {
						b, err := fs.UnsafeGetFileDataBuffer(path)
						if err == nil {
							b[bit/8] ^= 1 << (bit % 8)
						}
						return err
					})
				}
				for i := range min(cuts, len(content)) {
					to := []int{0, 1, used - 1, len(content) - 1}[i%4]
					if i > 3 {
						to = r.IntN(used)
					}
					if to < 0 || to > len(content) {
						continue
					}
					try(file, fmt.Sprintf("truncated to %d of %d", to, len(content)), func(fs *vfs.MemFS, path string) error {
						f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
						if err == nil {
							_, err = f.Write(content[:to])
						}
						return err
					})
				}
				try(file, "removed", func(fs *vfs.MemFS, path string) error { return fs.Remove(path) })
			}
			if results["reported"] == 0 || len(names) < 3 {
				t.Errorf("%d files: %v", len(names), results)
			}
			t.Log(len(names), "files:", results)
		})
	}
}

// Every batch of a log is found missing, wherever the bit is.
func TestAFlippedBitInALogIsNoTornEnd(t *testing.T) {
	testkit.Slow(t)
	store := damagedStores(t)["small"]
	fs, dir, l := store()
	names, _ := fs.List(dir)
	log := ""
	for _, n := range names {
		if strings.HasSuffix(n, ".log") {
			log = n
		}
	}
	content, err := fs.UnsafeGetFileDataBuffer(fs.PathJoin(dir, log))
	if err != nil {
		t.Fatal(err)
	}
	used := len(bytes.TrimRight(content, "\x00"))
	step := testkit.Pick(101, 499, 1999)
	for off := 0; off < used; off += step {
		fs, dir, _ := store()
		b, err := fs.UnsafeGetFileDataBuffer(fs.PathJoin(dir, log))
		if err != nil {
			t.Fatal(err)
		}
		b[off] ^= 1 << (off % 8)
		if res := judge(t, fs, dir, l, l.acked); res != "reported" && res != "harmless" {
			t.Errorf("bit %d of byte %d of %d: %s", off%8, off, used, res)
		}
	}
}

// Pebble looks for the bit for many seconds; the driver does not let it.
func TestADamagedBlockOfALargeValueIsReportedAtOnce(t *testing.T) {
	fs, dir := memStore(t)
	e, err := openOn(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	value := make([]byte, e.Limits().ValueBytes)
	for i := range value {
		value[i] = byte(rand.Uint32())
	}
	var b engine.Batch
	b.Set([]byte("large"), value)
	b.Set([]byte("small"), []byte("x"))
	if err := errors.Join(e.Apply(context.Background(), &b), e.Close()); err != nil {
		t.Fatal(err)
	}
	names, _ := fs.List(dir)
	for _, n := range names {
		if strings.HasSuffix(n, ".sst") {
			b, _ := fs.UnsafeGetFileDataBuffer(fs.PathJoin(dir, n))
			b[len(b)/2] ^= 1
		}
	}
	if e, err = openOn(fs, dir); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		err := within(t, "Get", time.Millisecond, func(context.Context) error {
			_, err := e.Get(context.Background(), []byte("large"))
			return err
		})
		if !errors.Is(err, engine.ErrCorrupt) || !strings.Contains(err.Error(), ".sst") {
			t.Errorf("Get of a damaged value: %v", err)
		}
	}
	var more engine.Batch // makes a compaction read the damaged table
	more.Set([]byte("large"), []byte("y"))
	if err := e.Apply(context.Background(), &more); err != nil {
		t.Fatal(err)
	}
	if err := within(t, "Vacuum", time.Second, e.Vacuum); !errors.Is(err, engine.ErrCorrupt) {
		t.Errorf("Vacuum of a damaged store: %v", err)
	}
	if err := e.Apply(context.Background(), &more); !errors.Is(err, engine.ErrCorrupt) || !errors.Is(err, engine.ErrClosed) {
		t.Errorf("Apply after a compaction failed: %v", err)
	}
	if err := within(t, "Close", 4*time.Second, func(context.Context) error { return e.Close() }); err != nil {
		t.Error(err)
	}
}

func TestADirectoryWithTablesAndNoMarkerIsNoNewStore(t *testing.T) {
	fs, dir := memStore(t)
	l := newLedger()
	e, err := openOn(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.write(context.Background(), e), e.Close()); err != nil {
		t.Fatal(err)
	}
	names, _ := fs.List(dir)
	for _, n := range names {
		if strings.HasPrefix(n, "marker.") {
			if err := fs.Remove(fs.PathJoin(dir, n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := openOn(fs, dir); !errors.Is(err, engine.ErrCorrupt) {
		t.Errorf("Open without markers: %v", err)
	}
}

// A file of another store, or an older one of the same store, in the place of one of the same name is reported, or
// does not matter.
func TestAFileFromElsewhereIsReportedOrHarmless(t *testing.T) {
	testkit.OneGoroutine(t)
	type stage struct {
		files func() (*vfs.MemFS, string)
		acked map[int]bool
	}
	// build returns a store, killed, as it was after each tenth of its batches, and closed.
	build := func(first int) (stages []stage, l *ledger) {
		fs, dir := memStore(t)
		l = newLedger()
		l.next = first
		e, err := openOn(fs, dir)
		if err != nil {
			t.Fatal(err)
		}
		add := func() {
			fs, dir := killed(t, fs, dir)
			stages = append(stages, stage{func() (*vfs.MemFS, string) { return killed(t, fs, dir) }, l.ackedNow()})
		}
		for n := range 60 {
			if err := l.write(context.Background(), e); err != nil {
				t.Fatal(err)
			}
			if n%6 == 5 {
				add()
			}
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		add()
		return stages, l
	}
	mine, l := build(0)
	others, _ := build(1000)
	count := map[string]int{}
	for of := range mine {
		for where, from := range map[string][]stage{"another store": others, "an older store": mine[:of]} {
			for n, from := range from {
				source, sourceDir := from.files()
				fs, dir := mine[of].files()
				names, err := fs.List(dir)
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range names {
					there, err := fs.Open(fs.PathJoin(dir, name))
					if err != nil {
						t.Fatal(err)
					}
					here, err := io.ReadAll(there)
					if err != nil {
						t.Fatal(err)
					}
					f, err := source.Open(source.PathJoin(sourceDir, name))
					if err != nil {
						continue // it has none of that name
					}
					foreign, err := io.ReadAll(f)
					if err != nil {
						t.Fatal(err)
					}
					if bytes.Equal(here, foreign) {
						continue
					}
					fs, dir := mine[of].files()
					put, err := fs.Create(fs.PathJoin(dir, name), vfs.WriteCategoryUnspecified)
					if err == nil {
						_, err = put.Write(foreign)
					}
					if err != nil {
						t.Fatal(err)
					}
					how := judge(t, fs, dir, l, mine[of].acked)
					if count[how]++; how != "reported" && how != "harmless" {
						t.Errorf("%s of %s, as it was at %d, in the store as it was at %d: %s", name, where, n, of, how)
					}
				}
			}
		}
	}
	if count["reported"] < 10 {
		t.Error("few files were found")
	}
	t.Log(count)
}
