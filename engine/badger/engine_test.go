package badger

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	usage "github.com/turnstonedb/turnstone/internal/disk"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

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
	e := open(t, dir, nil)
	if n, err := usage.Allocated(dir); err != nil || n > 512<<10 {
		t.Errorf("%d bytes allocated (%v) while it is open, want at most 512 KiB", n, err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := usage.Allocated(dir); err != nil || n > 256<<10 {
		t.Errorf("%d bytes allocated (%v) after Close, want at most 256 KiB", n, err)
	}
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("no /proc")
	}
	// Resident memory is measured in a process that does nothing else.
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
	if kB > 40_000 && !raceEnabled {
		t.Errorf("%d kB resident, want under 40 MB", kB)
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

// Below MinFreeBytes new data is refused. Opening, reading and reclaiming still work.
func TestMinFreeBytesIsForNewData(t *testing.T) {
	dir := t.TempDir() + "/store"
	e := open(t, dir, nil)
	set(t, e, "a", "1")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir, &Options{MinFreeBytes: 1 << 60})
	var b engine.Batch
	b.Set([]byte("b"), []byte("1"))
	if err := e.Apply(ctx, &b); !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("new data: %v", err)
	}
	if got := value(t, e, "a"); got != "1" {
		t.Errorf("read %q", got)
	}
	var guard engine.Batch
	guard.Guard([]byte("a"), []byte("1"))
	if err := e.Apply(ctx, &guard); err != nil {
		t.Errorf("guards alone: %v", err)
	}
	r := engine.Batch{Reclaim: true}
	r.Delete([]byte("a"))
	if err := e.Apply(ctx, &r); err != nil {
		t.Errorf("a batch that reclaims: %v", err)
	}
	if err := e.Vacuum(ctx); !errors.Is(err, engine.ErrNoSpace) && err != nil {
		t.Errorf("Vacuum: %v", err)
	}
}

func TestAnEmptyDirectoryIsTakenAndMadePrivate(t *testing.T) {
	dir := t.TempDir() + "/store"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	e := open(t, dir, nil)
	set(t, e, "a", "1")
	if err := errors.Join(e.Vacuum(ctx), e.Close()); err != nil {
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
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, nil); err == nil {
		t.Error("a store that others can read was opened")
	}
}

func TestGroups(t *testing.T) {
	testscale.Slow(t)
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

// Too many runs are merged while commits go on. Nothing is lost.
func TestItIsRewrittenByItself(t *testing.T) {
	testscale.Slow(t)
	dir := t.TempDir() + "/store"
	e, err := openFiles(mustDirectory(t, dir), smallLog, &Options{Durability: Process, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	e.start()
	v := bytes.Repeat([]byte("0123456789"), 2000)
	n, most := 0, 0
	for rewritten := false; !rewritten; {
		if n > 60_000 {
			t.Fatal("never rewritten")
		}
		for range 10 {
			set(t, e, fmt.Sprintf("%08d", n), string(v))
			n++
		}
		e.mu.RLock()
		runs := len(e.content.runs)
		e.mu.RUnlock()
		rewritten = runs < most
		most = max(most, runs)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if most > maxRuns+4 {
		t.Errorf("there were %d runs", most)
	}
	e = open(t, dir, nil)
	got := 0
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		if string(p.Key) != fmt.Sprintf("%08d", got) {
			t.Fatalf("%s instead of %08d", p.Key, got)
		}
		got++
	}
	if got != n {
		t.Fatalf("%d of %d keys", got, n)
	}
}

func mustDirectory(t *testing.T, dir string) directory {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := openDirectory(dir, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A store that is opened for a moment again and again keeps one log.
func TestManyShortLivesLeaveOneLog(t *testing.T) {
	dir := t.TempDir() + "/store"
	for i := range 40 {
		e, err := Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		set(t, e, fmt.Sprint(i), "v")
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	names, err := mustDirectory(t, dir).list()
	if err != nil || len(names) != 3 { // MANIFEST, a log, the lock
		t.Errorf("%q, %v", names, err)
	}
	e := open(t, dir, nil)
	for i := range 40 {
		if got := value(t, e, fmt.Sprint(i)); got != "v" {
			t.Fatalf("key %d is %q", i, got)
		}
	}
}

// Close flushes a large log to a table, so that the next Open has little to replay.
func TestCloseLeavesLittleToReplay(t *testing.T) {
	dir := t.TempDir() + "/store"
	e := open(t, dir, nil)
	for i := range 30 {
		set(t, e, fmt.Sprint(i), strings.Repeat("v", 100_000))
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir, nil)
	if m := e.content.active(); !m.empty() || len(e.content.runs) != 1 {
		t.Errorf("%d bytes to replay, %d runs", m.log.pos, len(e.content.runs))
	}
	if got := value(t, e, "7"); len(got) != 100_000 {
		t.Errorf("%d bytes", len(got))
	}
}

// After Vacuum the files hold only what can be read.
func TestVacuumLeavesNoRemovedValue(t *testing.T) {
	dir := t.TempDir() + "/store"
	e := open(t, dir, nil)
	set(t, e, "a", "first canary")
	set(t, e, "a", "second")
	set(t, e, "b", "another canary")
	var b engine.Batch
	b.Delete([]byte("b"))
	if err := errors.Join(e.Apply(ctx, &b), e.Vacuum(ctx)); err != nil {
		t.Fatal(err)
	}
	names, err := mustDirectory(t, dir).list()
	if err != nil {
		t.Fatal(err)
	}
	seen := false
	for _, n := range names {
		data, err := os.ReadFile(filepath.Join(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		seen = seen || bytes.Contains(data, []byte("second"))
		if bytes.Contains(data, []byte("canary")) {
			t.Errorf("%s has a removed value", n)
		}
	}
	if !seen {
		t.Error("the value that is there was not found in the files: this test sees nothing")
	}
}

// A process is killed again and again while it commits. Every batch that was acknowledged
// is there as a whole.
func TestKill(t *testing.T) {
	rounds := testscale.Pick(15, 6, 2)
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
		acked := next - 1
		for range 20 + round*37%200 {
			if _, err := fmt.Fscanln(out, &acked); err != nil {
				t.Fatal(err)
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

// After the store has failed, a disk that does not answer delays Close by a few seconds
// only.
func TestCloseEndsOnADiskThatHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it waits as long as Close does for a disk")
	}
	t.Parallel()
	g := newGate(newDisk("posix"))
	e, err := openFiles(g, smallLog, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.start()
	g.on.Store(true)
	done := write(e, "a", "1", "")
	<-g.began
	e.fail(errors.New("the disk is gone"))
	began := time.Now()
	if err := e.Close(); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("Close: %v", err)
	}
	if took := time.Since(began); took > slowWait/2 {
		t.Errorf("Close took %v", took)
	}
	g.end <- errors.New("gone")
	<-done
}
