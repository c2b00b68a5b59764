package badger_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// strace returns a command that makes system calls of a child fail, and skips the test where there is none.
func strace(t *testing.T, call, inject string) []string {
	t.Helper()
	path, err := exec.LookPath("strace")
	if err != nil {
		if os.Getenv("TURNSTONE_TEST_REQUIRE") != "" {
			t.Fatal(err)
		}
		t.Skip("strace is not installed")
	}
	return []string{path, "-f", "-qq", "-o", "/dev/null", "-e", "trace=" + call, "-e", "inject=" + call + ":" + inject}
}

func TestASyncOfTheLogThatFails(t *testing.T) {
	testkit.Slow(t)
	dir := t.TempDir() + "/store"
	before, _ := run(t, dir, 200*time.Millisecond)
	acked, stderr := run(t, dir, itself, strace(t, "msync", "error=EIO:when=100+")...)
	if !strings.Contains(stderr, engine.ErrUnknown.Error()) && !strings.Contains(stderr, engine.ErrClosed.Error()) {
		t.Fatalf("an Apply whose sync failed: %q", stderr)
	}
	e, err := badger.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lost(e, append(before, acked...)), e.Close()); err != nil {
		t.Error(err)
	}
}

// Badger does not survive this fault (docs/engines.md). The test fails when a new version of Badger does.
func TestASyncOfTheManifestThatFails(t *testing.T) {
	testkit.Seldom(t)
	dir := t.TempDir() + "/store"
	e, err := badger.Open(dir, nil)
	if err == nil {
		err = e.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(child+"_BATCHES", "9000") // more than a memtable takes
	acked, stderr := run(t, dir, itself, append(strace(t, "fsync", "error=EIO:when=1"), "-P", dir+"/MANIFEST")...)
	e, err = badger.Open(dir, nil)
	if err == nil {
		err = errors.Join(lost(e, acked), e.Close())
	}
	t.Logf("%d acknowledged; the process: %.100q; then: %v", len(acked), stderr, err)
	if err == nil {
		t.Error("Badger survives a sync of MANIFEST that fails")
	}
}

// Badger does not survive this fault (docs/engines.md), and the driver tells. The test fails when a new version of
// Badger does.
func TestATableThatCanNotBeMadeInACompaction(t *testing.T) {
	testkit.Slow(t)
	dir := t.TempDir() + "/store"
	t.Setenv(child+"_BATCHES", "400")
	t.Setenv(child+"_VACUUM", "1")
	fault := strace(t, "openat", "error=EMFILE")
	for fd := range 20 { // The driver reaches its files by the descriptor of the directory.
		fault = append(fault, "-P", fmt.Sprintf("/proc/self/fd/%d/000002.sst", fd))
	}
	acked, stderr := run(t, dir, itself, fault...)
	if len(acked) != 400 || !strings.Contains(stderr, engine.ErrCorrupt.Error()) {
		t.Errorf("%d acknowledged, and the vacuum says %q", len(acked), stderr)
	}
	if _, err := badger.Open(dir, nil); !errors.Is(err, engine.ErrCorrupt) {
		t.Errorf("the next Open: %v; the vacuum said %q", err, stderr)
	}
}

// disk mounts a file system in memory, as tmpfs(5) says.
func disk(t *testing.T, options string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, options+",mode=0700"); err != nil {
		t.Skip("mount:", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir + "/store"
}

func TestAFullDiskIsNoticedBeforeAnyEffect(t *testing.T) {
	testkit.Slow(t)
	dir := disk(t, "size=200m")
	e, err := badger.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	var acked []uint64
	for n := uint64(1); ; n++ {
		if err = e.Apply(context.Background(), batch(n)); err != nil {
			break
		}
		acked = append(acked, n)
	}
	if !errors.Is(err, engine.ErrNoSpace) {
		t.Fatal(err)
	}
	reclaim := batch(uint64(len(acked)) + 1)
	reclaim.Reclaim = true
	if err := e.Apply(context.Background(), reclaim); err != nil {
		t.Errorf("a batch that reclaims: %v", err)
	}
	if err := errors.Join(lost(e, acked), e.Close()); err != nil {
		t.Error(err)
	}
}

// Badger does not survive this fault (docs/engines.md). The test fails when a new version of Badger does.
func TestAFullDiskEndsTheProcess(t *testing.T) {
	testkit.Slow(t)
	dir := disk(t, "size=100m")
	t.Setenv(child+"_FULL", "1") // as if others had taken the space since the driver looked
	acked, stderr := run(t, dir, itself)
	if !strings.Contains(stderr, "SIGBUS") && !strings.Contains(stderr, "unexpected fault address") { // Whose goroutine it hits varies.
		t.Errorf("Badger survives a full disk: %.200q", stderr)
	}
	if len(acked) == 0 {
		t.Error("nothing was acknowledged before")
	}
}

func TestADiskThatIsFullWhenTheStoreIsOpened(t *testing.T) {
	for _, options := range []string{"size=40m", "size=400m,nr_inodes=500"} {
		dir := disk(t, options)
		if _, err := badger.Open(dir, nil); !errors.Is(err, engine.ErrNoSpace) {
			t.Errorf("%s: %v", options, err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "turnstone.") {
				t.Errorf("%s: %s was made", options, e.Name())
			}
		}
	}
}

func TestADiskThatHangsLosesNothing(t *testing.T) {
	testkit.Slow(t)
	dir := t.TempDir() + "/store"
	acked, stderr := run(t, dir, 4*time.Second, strace(t, "msync", "delay_enter=60000000:when=100+")...)
	if stderr != "" || len(acked) == 0 {
		t.Fatalf("%d acknowledged, %q", len(acked), stderr)
	}
	e, err := badger.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lost(e, acked), e.Close()); err != nil {
		t.Error(err)
	}
}

// Badger does not notice this (docs/engines.md). The test fails when a new version of Badger does.
func TestATableOfAnotherStoreIsNotNoticed(t *testing.T) {
	testkit.Seldom(t)
	t.Setenv(child+"_BATCHES", "9000") // more than a memtable takes
	mine, theirs := t.TempDir()+"/store", t.TempDir()+"/store"
	acked, _ := run(t, mine, itself)
	run(t, theirs, itself)
	table, err := os.ReadFile(theirs + "/000001.sst")
	if err == nil {
		err = os.WriteFile(mine+"/000001.sst", table, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	e, err := badger.Open(mine, nil)
	if err != nil {
		t.Fatalf("Badger notices a table of another store: %v", err)
	}
	if lost(e, acked) == nil {
		t.Error("nothing is missing")
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
