package pebble

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A fault fails the operations of a file system that it picks from the n-th on.
type fault struct {
	n    int64
	err  error
	ever bool                  // all from the n-th on
	pick func(errorfs.Op) bool // which operations count; nil means all

	seen atomic.Int64
	hit  atomic.Int64
	what atomic.Value
}

func (f *fault) String() string { return "fault" }

func (f *fault) MaybeError(op errorfs.Op) error {
	if strings.Contains(op.Path, "LOCK") || f.pick != nil && !f.pick(op) {
		return nil
	}
	n := f.seen.Add(1)
	if f.n == 0 || n < f.n || n > f.n && !f.ever {
		return nil
	}
	if f.hit.Add(1) == 1 {
		f.what.Store(fmt.Sprintf("%v %s", op.Kind, op.Path))
	}
	return f.err
}

// runFaulty opens a store, writes, vacuums and closes it while f fails operations,
// and checks how each call ends. It returns what was acknowledged.
func runFaulty(t *testing.T, fs vfs.FS, dir string, l *ledger, f *fault) {
	var e *Engine
	step := func(what string, deadline time.Duration, call func(context.Context) error) error {
		err := within(t, fmt.Sprintf("%s (fault at %d, %v)", what, f.n, f.what.Load()), deadline, call)
		if err != nil && !typed(err) {
			t.Errorf("%s: not a typed error: %v (fault at %d, %v)", what, err, f.n, f.what.Load())
		}
		if errors.Is(err, engine.ErrCorrupt) {
			t.Errorf("%s: a failed operation is called damage: %v (fault at %d, %v)", what, err, f.n, f.what.Load())
		}
		return err
	}
	if step("Open", 4*time.Second, func(context.Context) (err error) {
		e, err = openOn(errorfs.Wrap(fs, f), dir)
		return err
	}) != nil {
		return
	}
	for i := range 60 {
		failed := e.failure() != nil
		err := step("Apply", time.Second, func(ctx context.Context) error { return l.write(ctx, e) })
		if err == nil && failed {
			t.Errorf("an Apply succeeds that began after the engine failed (fault at %d, %v)", f.n, f.what.Load())
		}
		if err != nil && i > 50 {
			break
		}
		if i == 30 {
			step("Vacuum", 2*time.Second, e.Vacuum)
		}
	}
	step("Get", time.Second, func(ctx context.Context) error { _, err := e.Get(ctx, ledgerKey("a", 1)); return err })
	step("Close", 4*time.Second, func(context.Context) error { return e.Close() })
}

func checkReopened(t *testing.T, fs vfs.FS, dir string, l *ledger, acked map[int]bool, why string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	e, err := openOn(fs, dir)
	if err != nil {
		t.Errorf("reopen: %v (%s)", err, why)
		return
	}
	if wrong, err := l.check(ctx, e, acked); err != nil || wrong != "" {
		t.Errorf("after reopening: %s %v (%s)", wrong, err, why)
	}
	if err := e.Close(); err != nil {
		t.Errorf("close: %v (%s)", err, why)
	}
}

func TestEveryOperationThatFailsIsReportedAndNothingIsLost(t *testing.T) {
	testkit.Slow(t)
	fs, dir := memStore(t)
	count := &fault{}
	runFaulty(t, fs, dir, newLedger(), count)
	total := count.seen.Load()
	stride := total/testkit.Pick[int64](40, 15, 4) + 1
	t.Logf("%d operations, every %d. fails", total, stride)
	type run struct {
		n    int64
		err  error
		ever bool
	}
	var runs []run
	for i, err := range []error{syscall.EIO, syscall.ENOSPC, syscall.EMFILE} {
		for j, ever := range []bool{false, true} {
			for n := 1 + int64(2*i+j)*stride/6; n <= total; n += stride {
				runs = append(runs, run{n, err, ever})
			}
		}
	}
	together(len(runs), func(i int) {
		fs, dir := memStore(t)
		l := newLedger()
		f := &fault{n: runs[i].n, err: runs[i].err, ever: runs[i].ever}
		runFaulty(t, fs, dir, l, f)
		checkReopened(t, fs, dir, l, l.acked, fmt.Sprintf("%v at %d, for ever %v: %v", f.err, f.n, f.ever, f.what.Load()))
	})
}
