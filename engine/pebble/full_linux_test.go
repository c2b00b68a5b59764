package pebble

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// smallDisk mounts a file system of a few megabytes.
func smallDisk(t *testing.T, megabytes int) string {
	if os.Getuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=0700", megabytes)); err != nil {
		t.Skip("mount:", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// fill leaves so many bytes free on the file system of dir.
func fill(t *testing.T, dir string, leave uint64) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	for {
		var st syscall.Statfs_t
		if err := syscall.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		left := uint64(st.Bavail) * uint64(st.Bsize)
		if left <= leave {
			break
		}
		if _, err := f.Write(buf[:min(uint64(len(buf)), left-leave)]); err != nil {
			break
		}
	}
	time.Sleep(150 * time.Millisecond) // a look at the space holds so long
	return func() { os.Remove(name) }
}

func checkSet(t *testing.T, e engine.Engine, n int) {
	t.Helper()
	for i := range n {
		v, err := e.Get(context.Background(), fmt.Appendf(nil, "k%06d", i))
		if err != nil || v[0] == nil {
			t.Fatalf("k%06d: %d values, %v", i, len(v), err)
		}
	}
}

func TestAFullDiskRefusesWritesAndServesReads(t *testing.T) {
	testkit.Slow(t)
	disk := smallDisk(t, 64)
	dir := filepath.Join(disk, "store")
	o := &Options{MinFreeBytes: 24 << 20}
	e, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; n < 60; n++ {
		if err := set(e, n, 100_000, false); err != nil {
			t.Fatal(err)
		}
	}
	free := fill(t, disk, 12<<20)
	if err := set(e, n, 1000, false); !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("Apply below MinFreeBytes: %v", err)
	}
	if err := set(e, n, 1000, true); err != nil {
		t.Errorf("Apply that reclaims below MinFreeBytes: %v", err)
	}
	n++
	if err := within(t, "Vacuum", time.Second, e.Vacuum); !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("Vacuum without room for a copy: %v", err)
	}
	free()
	free = fill(t, disk, 0)
	if err := set(e, n, 1000, true); !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("Apply that reclaims on a full disk: %v", err)
	}
	if err := within(t, "Vacuum", time.Second, e.Vacuum); !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("Vacuum on a full disk: %v", err)
	}
	checkSet(t, e, n)
	if err := within(t, "Close", 4*time.Second, func(context.Context) error { return e.Close() }); err != nil {
		t.Error(err)
	}
	if e, err = Open(dir, o); err != nil {
		t.Fatal("a full disk can't be opened for reading: ", err)
	}
	checkSet(t, e, n)
	if err := set(e, n, 1000, true); !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("Apply to a store that was opened on a full disk: %v", err)
	}
	if err := e.Vacuum(context.Background()); !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("Vacuum of a store that was opened on a full disk: %v", err)
	}
	free()
	if err := set(e, n, 1000, true); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("Apply once there is space: %v", err)
	}
	if err := e.Vacuum(context.Background()); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("Vacuum once there is space: %v", err)
	}
	checkSet(t, e, n)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if e, err = Open(dir, o); err != nil {
		t.Fatal(err)
	}
	checkSet(t, e, n)
	if err := errors.Join(set(e, n, 1000, false), e.Vacuum(context.Background()), e.Close()); err != nil {
		t.Error(err)
	}
}

// The disk fills up within the time that a look at its space holds.
func TestADiskThatFillsUpUnnoticedLosesNothing(t *testing.T) {
	testkit.Slow(t)
	disk := smallDisk(t, 48)
	dir := filepath.Join(disk, "store")
	e, err := Open(dir, &Options{MinFreeBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; n < 1000; n++ {
		if err = set(e, n, 100_000, false); err != nil {
			break
		}
	}
	if !typed(err) {
		t.Errorf("Apply on a full disk: %v", err)
	}
	// A batch that may be visible and not durable is shown to nobody.
	if v, err := e.Get(context.Background(), []byte("k000001")); !errors.Is(err, engine.ErrClosed) && (err != nil || v[0] == nil) {
		t.Errorf("Get after the log found no space: %v", err)
	}
	if err := within(t, "Close", 4*time.Second, func(context.Context) error { return e.Close() }); err != nil {
		t.Error(err)
	}
	if e, err = Open(dir, &Options{MinFreeBytes: 1}); err != nil {
		t.Fatal(err)
	}
	checkSet(t, e, n)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
