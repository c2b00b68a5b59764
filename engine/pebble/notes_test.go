package pebble

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/turnstonedb/turnstone/engine"
)

// killed returns what a killed process leaves: all that was written.
func killed(t *testing.T, fs *vfs.MemFS, dir string) (*vfs.MemFS, string) {
	after := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	return after, dirClone(t, after, dir)
}

// The last bytes of a log are damage if the process was killed, and perhaps a torn end if the machine was.
func TestTheEndOfALogOfAKilledProcessIsKnown(t *testing.T) {
	for name, durability := range map[string]Durability{"power": Power, "process": Process} {
		t.Run(name, func(t *testing.T) {
			fs, dir := memStore(t)
			const boot = 7
			open := func(fs vfs.FS, dir string, boot uint64) (*Engine, error) {
				return Open(dir, &Options{MinFreeBytes: 1, Durability: durability, fs: fs, memTable: testMemTable, boot: boot})
			}
			e, err := open(fs, dir, boot)
			if err != nil {
				t.Fatal(err)
			}
			for range 20 {
				if err := put(e, "k", "v"); err != nil {
					t.Fatal(err)
				}
			}
			for back := range 60 {
				after, dir := killed(t, fs, dir)
				log, err := after.UnsafeGetFileDataBuffer(after.PathJoin(dir, logName(e.files.newest.Load())))
				if err != nil {
					t.Fatal(err)
				}
				used := len(strings.TrimRight(string(log), "\x00"))
				clear(log[used-1-back:]) // which ends within the last batch or the one before
				if e, err := open(after, dir, boot); !errors.Is(err, engine.ErrCorrupt) {
					t.Errorf("the last %d bytes are zero: %v", 1+back, err)
					_ = e.Close()
				}
				if durability == Process { // after the machine has started again they may never have been on the disk
					e, err := open(after, dir, boot+1)
					if err != nil {
						t.Fatal(err)
					}
					_ = e.Close()
				}
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWhatIsLeftOfAStoreIsNoNewStore(t *testing.T) {
	fs, dir := memStore(t)
	e, err := openOn(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := put(e, "k", "v"); err != nil {
		t.Fatal(err)
	}
	running, at := killed(t, fs, dir)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]struct {
		fs  *vfs.MemFS
		dir string
	}{"closed": {fs, dir}, "killed": {running, at}} {
		names, err := s.fs.List(s.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, kept := range names {
			if kept == "LOCK" || strings.HasPrefix(kept, "MANIFEST-") { // a creation that was interrupted leaves no more
				continue
			}
			only, at := killed(t, s.fs, s.dir)
			for _, n := range names {
				if n == kept {
					continue
				}
				if err := only.Remove(only.PathJoin(at, n)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := openOn(only, at); !errors.Is(err, engine.ErrCorrupt) {
				t.Errorf("%s, and only %s is left: %v", name, kept, err)
			}
		}
	}
}

// A closed store has no log, and what an Open without a write leaves is what it found.
func TestAClosedStoreHasNoLog(t *testing.T) {
	fs, dir := memStore(t)
	for round := range 3 {
		e, err := openOn(fs, dir)
		if err != nil {
			t.Fatal(err)
		}
		l := newLedger()
		for range 200 * (round % 2) {
			if err := l.write(context.Background(), e); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		names, err := fs.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if strings.HasSuffix(n, ".log") || n == spareName || isOptions(n) {
				t.Errorf("a closed store has %s", n)
			}
		}
	}
}

func TestACallAfterAFailureEnds(t *testing.T) {
	fs, dir := memStore(t)
	var broken atomic.Bool
	e, err := openOn(errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".log") {
			return syscall.EIO
		}
		return nil
	})), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := put(e, "k", "v"); err != nil {
		t.Fatal(err)
	}
	broken.Store(true)
	calls := func(when string) {
		for range 2 {
			if err := within(t, "Vacuum", time.Second, e.Vacuum); !errors.Is(err, engine.ErrClosed) {
				t.Errorf("Vacuum %s: %v", when, err)
			}
			if err := within(t, "Apply", time.Second, func(context.Context) error { return put(e, "k", "w") }); !errors.Is(err, engine.ErrClosed) {
				t.Errorf("Apply %s: %v", when, err)
			}
		}
	}
	calls("after a log could not be made")
	if got := reads(t, e, "k"); got != "v" {
		t.Errorf("k is %q", got)
	}
	for range 2 {
		if err := within(t, "Close", 4*time.Second, func(context.Context) error { return e.Close() }); err != nil {
			t.Error(err)
		}
	}
	calls("after Close")
}

// A disk that hangs ends no call, but contexts do.
func TestContextsEndCallsOnADiskThatHangs(t *testing.T) {
	fs, dir := memStore(t)
	var hangs atomic.Bool
	goes := make(chan struct{})
	e, err := openOn(errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if hangs.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			<-goes
		}
		return nil
	})), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := put(e, "k", "v"); err != nil {
		t.Fatal(err)
	}
	hangs.Store(true)
	for n := range 3 {
		if err := within(t, "Apply", 50*time.Millisecond, func(ctx context.Context) error {
			return e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: []byte("k"), Value: []byte("w")}}})
		}); !errors.Is(err, engine.ErrUnknown) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Apply %d: %v", n, err)
		}
		if err := within(t, "Vacuum", 50*time.Millisecond, e.Vacuum); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Vacuum %d: %v", n, err)
		}
		if got := reads(t, e, "k"); got != "v" {
			t.Errorf("k is %q", got)
		}
	}
	close(goes)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	e, err = openOn(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := reads(t, e, "k"); got != "w" { // which was handed over
		t.Errorf("k is %q", got)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// Pebble gives the number of a log that was removed to another one: what is known of the first says nothing of the
// second.
func TestALogWithAnOldNumberIsAnotherLog(t *testing.T) {
	fs, dir := memStore(t)
	var logs []uint64
	for range 4 {
		e, err := openOn(fs, dir)
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, e.files.newest.Load())
		after, at := killed(t, fs, dir)
		again, err := openOn(after, at)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(again.Close(), e.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if len(slices.Compact(logs)) == len(logs) {
		t.Errorf("no number was used twice: the test shows nothing (%v)", logs)
	}
}

// A process can end between the statement about a new MANIFEST and the marker that makes it count, more than once.
func TestAManifestThatNeverCountedIsForgotten(t *testing.T) {
	fs, dir := memStore(t)
	e, err := openOn(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := put(e, "k", "v"); err != nil {
		t.Fatal(err)
	}
	left, at := killed(t, fs, dir)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if e, err := openOn(errorfs.Wrap(left, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpCreate && strings.Contains(op.Path, "marker.manifest") {
				return syscall.EIO
			}
			return nil
		})), at); !errors.Is(err, syscall.EIO) {
			t.Fatalf("Open without a marker: %v, %v", e, err)
		}
	}
	if e, err = openOn(left, at); err != nil {
		t.Fatal(err)
	}
	if got := reads(t, e, "k"); got != "v" {
		t.Errorf("k is %q", got)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// Logs can be begun between the two.
func TestLogsBegunBesideANewManifestDoNotHideTheOneThatCounts(t *testing.T) {
	fs, dir := memStore(t)
	e, err := openOn(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(put(e, "k", "v"), e.Close()); err != nil {
		t.Fatal(err)
	}
	release, reached := make(chan struct{}), make(chan struct{}, 10)
	if e, err = openOn(errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.Contains(op.Path, "marker.manifest") {
			reached <- struct{}{}
			<-release
		}
		return nil
	})), dir); err != nil {
		t.Fatal(err)
	}
	fill := func(n int) {
		for range n {
			if err := put(e, "other", string(make([]byte, 20_000))); err != nil {
				t.Error(err)
			}
		}
	}
	fill(6) // more than a memtable takes
	<-reached
	before := e.files.newest.Load()
	fill(5)
	if e.files.newest.Load() == before {
		t.Error("no log was begun: the test shows nothing")
	}
	after, at := killed(t, fs, dir)
	again, err := openOn(after, at)
	if err != nil {
		t.Fatal(err)
	}
	if got := reads(t, again, "k"); got != "v" {
		t.Errorf("k is %q", got)
	}
	close(release)
	if err := errors.Join(again.Close(), e.Close()); err != nil {
		t.Error(err)
	}
}

// A new store is made in a directory without other files.
func TestANewStoreNeedsADirectoryOfItsOwn(t *testing.T) {
	dir := t.TempDir() + "/store"
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(dir+"/notes.txt", []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, nil); !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "notes.txt") {
		t.Errorf("a directory with another file: %v", err)
	}
	if _, err := Open("", nil); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("no directory: %v", err)
	}
	if err := os.Rename(dir+"/notes.txt", dir+"/.notes.txt"); err != nil {
		t.Fatal(err)
	}
	e, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
