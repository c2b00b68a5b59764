package badger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/disk"
)

var ctx = context.Background()

func open(t *testing.T, dir string, o *Options) *Engine {
	t.Helper()
	e, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func set(t *testing.T, e *Engine, key, value string) {
	t.Helper()
	var b engine.Batch
	b.Set([]byte(key), []byte(value))
	if err := e.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
}

func value(t *testing.T, e *Engine, key string) string {
	t.Helper()
	vs, err := e.Get(ctx, []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return string(vs[0])
}

func TestAnEmptyStoreIsSmall(t *testing.T) {
	dir := t.TempDir() + "/store"
	open(t, dir, nil)
	if n, err := disk.Allocated(dir); err != nil || n > 2<<20 {
		t.Errorf("%d bytes allocated (%v), want under 2 MiB", n, err)
	}
	if os.Getenv("TURNSTONE_FOOTPRINT") != "" {
		return
	}
	// Resident memory is measured in a process that does nothing else.
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("no /proc")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFootprintChild$")
	cmd.Env = append(os.Environ(), "TURNSTONE_FOOTPRINT="+t.TempDir()+"/store")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, after, ok := strings.Cut(string(out), "resident kB ")
	if !ok {
		t.Fatalf("%s", out)
	}
	kB, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	if kB > 60_000 && !raceEnabled {
		t.Errorf("%d kB resident, want under 60 MB", kB)
	}
}

func TestFootprintChild(t *testing.T) {
	dir := os.Getenv("TURNSTONE_FOOTPRINT")
	if dir == "" {
		t.Skip("run by TestAnEmptyStoreIsSmall")
	}
	open(t, dir, nil)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rss, _ := strings.Cut(string(status), "VmRSS:")
	fmt.Println("resident kB", strings.Fields(rss)[0])
}

func BenchmarkOpenEmpty(b *testing.B) {
	dir := b.TempDir() + "/store"
	for b.Loop() {
		e, err := Open(dir, nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := e.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func TestTheValueLogStaysEmpty(t *testing.T) {
	dir := t.TempDir() + "/store"
	e := open(t, dir, nil)
	for i := range 30 {
		set(t, e, fmt.Sprint(i), strings.Repeat("v", e.Limits().ValueBytes))
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(dir + "/gen-*/*.vlog")
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	for _, l := range logs {
		if data, err := os.ReadFile(l); err != nil || len(bytes.TrimRight(data, "\x00")) > 20 {
			t.Errorf("%s holds %d bytes, %v", l, len(data), err)
		}
	}
}

func TestAfterAnUnknownOutcomeEverythingIsRefused(t *testing.T) {
	dir := t.TempDir() + "/store"
	e := open(t, dir, nil)
	set(t, e, "a", "1")
	e.fail(fmt.Errorf("%w: sync failed", engine.ErrUnknown))
	var b engine.Batch
	b.Set([]byte("b"), []byte("1"))
	_, gerr := e.Get(ctx, []byte("a"))
	for what, err := range map[string]error{"Apply": e.Apply(ctx, &b), "Get": gerr, "Vacuum": e.Vacuum(ctx)} {
		if !errors.Is(err, engine.ErrClosed) || errors.Is(err, engine.ErrUnknown) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if got := value(t, open(t, dir, nil), "a"); got != "1" {
		t.Errorf("after reopening: %q", got)
	}
}

func TestShortageIsRefusedBeforeAnyEffect(t *testing.T) {
	dir := t.TempDir() + "/store"
	e := open(t, dir, nil)
	set(t, e, "a", "1")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, &Options{MinFreeBytes: 1 << 60}); !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("Open: %v", err)
	}
	e = open(t, dir, nil)
	var lim, low syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	low = lim
	low.Cur = 40
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	err := e.dir.RoomFor(0)
	if rerr := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim); rerr != nil {
		t.Fatal(rerr)
	}
	if !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("few descriptors: %v", err)
	}
	set(t, e, "b", "1")
}

func TestForeignAndOpenDirectoriesAreRefused(t *testing.T) {
	dir := t.TempDir() + "/store"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, nil); err == nil {
		t.Error("a directory that others can read was opened")
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	e := open(t, dir, nil)
	set(t, e, "a", "1")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What a crash at any point of a switch leaves, and damage that looks like it.
func TestGenerationsAreNeverLost(t *testing.T) {
	prepare := func(t *testing.T) string {
		dir := t.TempDir() + "/[ab]"
		e := open(t, dir, nil)
		set(t, e, "a", "1")
		if err := e.Vacuum(ctx); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for name, c := range map[string]struct {
		damage func(dir string) error
		ok     bool
	}{
		"an unfinished rewrite beside the store": {func(dir string) error { return os.MkdirAll(dir+"/gen-000003/x", 0o700) }, true},
		"CURRENT is missing":                     {func(dir string) error { return os.Remove(dir + "/CURRENT") }, false},
		"CURRENT names nothing":                  {func(dir string) error { return os.WriteFile(dir+"/CURRENT", []byte("gen-000009"), 0o600) }, false},
		"CURRENT names a path":                   {func(dir string) error { return os.WriteFile(dir+"/CURRENT", []byte("gen-/../x"), 0o600) }, false},
		"MANIFEST is missing":                    {func(dir string) error { return os.Remove(dir + "/gen-000002/MANIFEST") }, false},
		"an empty memtable file":                 {func(dir string) error { return os.WriteFile(dir+"/gen-000002/00009.mem", nil, 0o600) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := prepare(t)
			tables, _ := os.ReadDir(dir + "/gen-000002")
			if err := c.damage(dir); err != nil {
				t.Fatal(err)
			}
			e, err := Open(dir, nil)
			if c.ok {
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				if got := value(t, e, "a"); got != "1" {
					t.Errorf("value %q", got)
				}
				gens, err := e.generations()
				if err != nil || len(gens) != 1 {
					t.Errorf("generations %v, %v", gens, err)
				}
				return
			}
			if err == nil {
				e.Close()
			}
			if !errors.Is(err, engine.ErrCorrupt) {
				t.Errorf("Open: %v, want ErrCorrupt", err)
			}
			for _, d := range tables {
				if _, err := os.Stat(dir + "/gen-000002/" + d.Name()); strings.HasSuffix(d.Name(), ".sst") && err != nil {
					t.Errorf("%s is gone", d.Name())
				}
			}
		})
	}
}

// Any byte string is a key, in whatever company; a group that is full to the
// brim is no error of anybody's.
func TestGroups(t *testing.T) {
	e := open(t, t.TempDir()+"/store", &Options{Durability: Process})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 3 {
				var b engine.Batch
				b.Set(fmt.Appendf(nil, "!badger!%d", w), []byte{byte(i + 1)})
				for j := range 9_000 {
					b.Set(fmt.Appendf(nil, "%d/%05d", w, j), bytes.Repeat([]byte{byte(i + 1)}, 100))
				}
				if err := e.Apply(ctx, &b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := value(t, e, "!badger!3"); got != "\x03" {
		t.Errorf("%q", got)
	}
}

// Level 0 is copied away when it grows, in the background and on Close, with
// writers going on; nothing is lost.
func TestItIsRewrittenByItself(t *testing.T) {
	dir := t.TempDir() + "/store"
	e := open(t, dir, &Options{Durability: Process, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	v := bytes.Repeat([]byte("0123456789"), 2000)
	n := 0
	for e.current() == firstGen && n < 18_000 {
		var b engine.Batch
		for range 50 {
			b.Set(fmt.Appendf(nil, "%08d", n), v)
			n++
		}
		if err := e.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
	}
	for wait := 0; e.current() == firstGen; wait++ {
		if wait == 6000 {
			t.Fatal("never rewritten")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir, nil)
	got := 0
	for _, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		got++
	}
	if got != n {
		t.Fatalf("%d of %d keys", got, n)
	}
}

func (e *Engine) current() string {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.gen
}

func TestManyShortLivesLeaveFewTables(t *testing.T) {
	dir := t.TempDir() + "/store"
	for i := range maxTables + 5 {
		e, err := Open(dir, &Options{Durability: Process})
		if err != nil {
			t.Fatal(err)
		}
		set(t, e, fmt.Sprint(i), "v")
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	e := open(t, dir, nil)
	if m := measure(e.db); m.tables > maxTables {
		t.Errorf("%d tables in level 0", m.tables)
	}
	for i := range maxTables + 5 {
		if got := value(t, e, fmt.Sprint(i)); got != "v" {
			t.Fatalf("key %d is %q", i, got)
		}
	}
}

// A process is killed again and again while it commits; what it said was
// acknowledged is there, whole.
func TestKill(t *testing.T) {
	if os.Getenv("TURNSTONE_KILL") != "" {
		return
	}
	rounds := 15
	if testing.Short() {
		rounds = 3
	}
	dir := t.TempDir() + "/store"
	next := 0
	for round := range rounds {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKillChild$")
		cmd.Env = append(os.Environ(), "TURNSTONE_KILL="+dir, fmt.Sprint("TURNSTONE_FROM=", next))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		acked, n := next-1, 0
		for buf := make([]byte, 64); n < 20+round*37%200; n++ {
			if _, err := fmt.Fscanln(out, &acked); err != nil {
				t.Fatal(err, string(buf))
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := fmt.Fscanln(out, &acked); err != nil {
				break
			}
		}
		cmd.Wait()
		e, err := Open(dir, nil)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for next = 0; ; next++ {
			a, b := value(t, e, fmt.Sprintf("a%06d", next)), value(t, e, fmt.Sprintf("z%06d", next))
			if a != b {
				t.Fatalf("batch %d is there by half: %q, %q", next, a, b)
			}
			if a == "" {
				break
			}
		}
		if next <= acked {
			t.Fatalf("round %d: %d was acknowledged, %d are there", round, acked, next)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKillChild(t *testing.T) {
	dir := os.Getenv("TURNSTONE_KILL")
	if dir == "" {
		t.Skip("run by TestKill")
	}
	from, _ := strconv.Atoi(os.Getenv("TURNSTONE_FROM"))
	e := open(t, dir, nil)
	go func() { // a rewrite goes on all the time
		for e.Vacuum(ctx) == nil {
		}
	}()
	for i := from; ; i++ {
		var b engine.Batch
		for _, p := range []string{"a", "z"} {
			b.Set(fmt.Appendf(nil, "%s%06d", p, i), fmt.Appendf(nil, "%d %s", i, strings.Repeat("x", 3000)))
		}
		if err := e.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
		fmt.Println(i)
	}
}
