package pebble

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

func TestALossOfPowerLosesNothingAcknowledged(t *testing.T) {
	stores, cuts := testkit.Pick(12, 6, 3), testkit.Pick(20, 12, 8)
	for s := range stores {
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(uint64(s), 1))
			fs, dir := memStore(t)
			e, err := openOn(fs, dir)
			if err != nil {
				t.Fatal(err)
			}
			l := newLedger()
			ctx, stop := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					for ctx.Err() == nil {
						if err := l.write(context.Background(), e); err != nil {
							t.Error(err)
							return
						}
						time.Sleep(time.Duration(1+s%4) * time.Millisecond)
					}
				})
			}
			if s%2 == 0 {
				wg.Go(func() {
					for ctx.Err() == nil {
						if err := e.Vacuum(ctx); err != nil && ctx.Err() == nil {
							t.Error(err)
							return
						}
						time.Sleep(3 * time.Millisecond)
					}
				})
			}
			for range cuts {
				time.Sleep(time.Duration(r.IntN(8)) * time.Millisecond)
				acked := l.ackedNow()
				kept := []int{0, 0, 30, 50, 70, 100}[r.IntN(6)]
				after := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: r})
				checkReopened(t, after, dirClone(t, after, dir), l, acked, fmt.Sprintf("%d %% of what was not synced is kept", kept))
			}
			stop()
			wg.Wait()
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// dirClone gives the store at dir of fs a name whose lock nobody holds.
func dirClone(t *testing.T, fs *vfs.MemFS, dir string) string {
	t.Helper()
	other := t.TempDir() + "/store"
	if err := errors.Join(fs.MkdirAll(fs.PathDir(other), 0o700), fs.Rename(dir, other)); err != nil {
		t.Fatal(err)
	}
	return other
}

// A sync that fails leaves pages in memory that the system takes for durable. What
// a later process builds on them must not be lost with the power.
func TestNothingRestsOnPagesWhoseSyncFailed(t *testing.T) {
	testkit.Slow(t)
	syncs := func(op errorfs.Op) bool {
		return op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData
	}
	fs, dir := memStore(t)
	count := &fault{pick: syncs}
	runFaulty(t, fs, dir, newLedger(), count)
	stride := testkit.Pick[int64](1, 5, 20)
	together(int(count.seen.Load()/stride), func(i int) {
		fs, dir := memStore(t)
		l := newLedger()
		f := &fault{n: 1 + int64(i)*stride, err: syscall.EIO, pick: syncs}
		runFaulty(t, fs, dir, l, f) // ends without closing Pebble
		e, err := openOn(fs, dir)
		if err != nil {
			t.Errorf("reopen: %v (%v)", err, f.what.Load())
			return
		}
		for range 3 {
			if err := l.write(context.Background(), e); err != nil {
				t.Error(err)
			}
		}
		after := fs.CrashClone(vfs.CrashCloneCfg{})
		checkReopened(t, after, dirClone(t, after, dir), l, l.ackedNow(), fmt.Sprint(f.what.Load()))
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestABatchIsNotAcknowledgedAfterASyncOfTheLogFailed(t *testing.T) {
	fs, dir := memStore(t)
	var broken atomic.Bool
	e, err := openOn(errorfs.Wrap(fs, errorfs.InjectorFunc(func(errorfs.Op) error {
		if broken.Load() {
			return syscall.EIO
		}
		return nil
	})), dir)
	if err != nil {
		t.Fatal(err)
	}
	l := newLedger()
	if err := l.write(context.Background(), e); err != nil {
		t.Fatal(err)
	}
	broken.Store(true)
	if err := within(t, "Vacuum", time.Second, e.Vacuum); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("Vacuum that can't make a log: %v", err)
	}
	for range 3 {
		if err := within(t, "Apply", time.Second, func(ctx context.Context) error { return l.write(ctx, e) }); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("Apply after the failure: %v", err)
		}
	}
	broken.Store(false)
	if wrong, err := l.check(context.Background(), e, l.acked); wrong != "" || err != nil {
		t.Errorf("reading after the failure: %s %v", wrong, err)
	}
	if err := within(t, "Close", 4*time.Second, func(context.Context) error { return e.Close() }); err != nil {
		t.Error(err)
	}
	checkReopened(t, fs, dir, l, l.acked, "after a failure")
}

func TestWithoutSyncsAKillLosesNothing(t *testing.T) {
	fs, dir := memStore(t)
	e, err := Open(dir, &Options{MinFreeBytes: 1, Durability: Process, fs: fs, memTable: testMemTable})
	if err != nil {
		t.Fatal(err)
	}
	l := newLedger()
	for n := range 100 {
		if err := l.write(context.Background(), e); err != nil {
			t.Fatal(err)
		}
		if n%10 == 9 { // everything written is kept, whether synced or not
			after := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
			checkReopened(t, after, dirClone(t, after, dir), l, l.ackedNow(), "killed")
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
