package badger

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// nextLog begins another log and waits until the one before is flushed.
func nextLog(t *testing.T, e *Engine) error {
	t.Helper()
	var failed error
	err := e.submit(&request{ctx: ctx, err: make(chan error, 1), pause: func() { failed = e.rotate() }})
	if err = errors.Join(err, failed, e.awaitFlush(ctx, 0)); err != nil {
		return err
	}
	for kept := false; !kept && e.usable() == nil; time.Sleep(time.Millisecond) {
		e.used.mu.Lock()
		kept = e.used.log != nil
		e.used.mu.Unlock()
	}
	return e.usable()
}

// The next log takes the file of one that was flushed, and nothing that the file had before
// comes back after a kill or a loss of power.
func TestTheNextLogTakesTheFileOfAFlushedOne(t *testing.T) {
	d := newDisk("posix")
	e := mustOpen(t, d)
	defer e.Close()
	created := 0
	d.set(func(_ int, op, name string) error {
		if op == "create" && strings.HasSuffix(name, logSuffix) {
			created++
		}
		return nil
	})
	r := rand.New(rand.NewPCG(5, 5))
	// The logs have groups of the same sizes, fewer in each log, so that a group of the log
	// before always begins where the last one ends.
	for n := 12; n > 0; n-- {
		for i := range n {
			put(t, e, "k", fmt.Sprintf("%02d/%02d", n, i))
			for how, after := range map[string]*disk{"a kill": d.copied(), "a loss of power": d.cut(r)} {
				again, err := openFiles(after, smallLog, nil)
				if err != nil {
					t.Fatalf("log %d group %d, after %s: %v", n, i, how, err)
				}
				again.start()
				if got, want := value(t, again, "k"), fmt.Sprintf("%02d/%02d", n, i); got != want {
					t.Errorf("after %s: %s instead of %s", how, got, want)
				}
				if err := again.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		if err := nextLog(t, e); err != nil {
			t.Fatal(err)
		}
	}
	if created != 1 {
		t.Errorf("%d files were created for 12 logs after the first one", created)
	}
}

// The process ends, or the power fails, at every call with which a log takes the file of
// another.
func TestEveryCallFailsWhenALogTakesTheFileOfAnother(t *testing.T) {
	done := false
	for n := 1; !done; n++ {
		for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
			d := newDisk("posix")
			e := mustOpen(t, d)
			put(t, e, "a", "1")
			if err := nextLog(t, e); err != nil {
				t.Fatal(err)
			}
			put(t, e, "b", "2")
			d.set(func(call int, op, name string) error {
				if call >= n {
					return errno
				}
				return nil
			})
			var failed error
			err := e.submit(&request{ctx: ctx, err: make(chan error, 1), pause: func() { failed = e.rotate() }})
			done = errors.Join(err, failed) == nil
			e.fail(errors.New("the process ends"))
			e.Close()
			d.set(nil)
			for what, after := range map[string]*disk{"kill": d.copied(), "cut": d.cut(rand.New(rand.NewPCG(uint64(n), 2)))} {
				again, err := openFiles(after, smallLog, nil)
				if err != nil {
					t.Fatalf("call %d, %v, %s: %v", n, errno, what, err)
				}
				again.start()
				if a, b := value(t, again, "a"), value(t, again, "b"); a != "1" || b != "2" {
					t.Errorf("call %d, %v, %s: %q, %q", n, errno, what, a, b)
				}
				if err := again.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		if n > 100 {
			t.Fatal("it never succeeds")
		}
	}
}

// Nor do the files of logs hold removed values after Vacuum, although the next log takes
// them as they are: neither the one in use, with groups or without, or as a kill has left it, nor the
// one that waits.
func TestVacuumLeavesNoRemovedValueInAFileThatWasTaken(t *testing.T) {
	for _, empty := range []string{"", "empty", "empty, after a kill"} {
		d := newDisk("posix")
		e := mustOpen(t, d)
		put(t, e, "a", "first canary")
		if err := nextLog(t, e); err != nil {
			t.Fatal(err)
		}
		put(t, e, "b", "second canary")
		put(t, e, "c", strings.Repeat("kept", 50))
		var b engine.Batch
		b.Delete([]byte("a"))
		b.Delete([]byte("b"))
		err := e.Apply(ctx, &b)
		if empty != "" {
			err = errors.Join(err, nextLog(t, e))
		}
		if strings.Contains(empty, "kill") {
			d = d.copied()
			e.Close()
			e = mustOpen(t, d)
		}
		if err = errors.Join(err, e.Vacuum(ctx)); err != nil {
			t.Fatal(err)
		}
		for name, n := range d.names {
			if bytes.Contains(n.data, []byte("canary")) {
				t.Errorf("%s has a removed value; the log in use was %q", name, empty)
			}
		}
		put(t, e, "d", "new")
		if err := errors.Join(nextLog(t, e), e.Close()); err != nil {
			t.Error(err)
		}
		for name := range d.names {
			if number, ok := numbered(name, logSuffix); ok && number != e.active().log.number {
				t.Errorf("%s is left after Close", name)
			}
		}
	}
}

// In a store that holds nothing any more, Vacuum removes the files of logs, durably, and fails as long
// as one can't be removed.
func TestVacuumOfNothingRemovesTheFilesOfLogs(t *testing.T) {
	for _, failing := range []bool{false, true} {
		d := newDisk("posix")
		e := mustOpen(t, d)
		put(t, e, "a", "first canary")
		var b engine.Batch
		b.Delete([]byte("a"))
		err := errors.Join(nextLog(t, e), e.Apply(ctx, &b), nextLog(t, e))
		e.rewriting <- struct{}{}
		err = errors.Join(err, e.rewrite(ctx))
		<-e.rewriting
		if err != nil {
			t.Fatal(err)
		}
		if failing {
			d.set(func(_ int, op, name string) error {
				if op == "remove" && strings.HasSuffix(name, logSuffix) {
					return syscall.ENOSPC
				}
				return nil
			})
			for range 2 {
				if err := e.Vacuum(ctx); !errors.Is(err, engine.ErrNoSpace) {
					t.Errorf("Vacuum that can't remove a log: %v", err)
				}
			}
			d.set(nil)
		}
		if err := e.Vacuum(ctx); err != nil {
			t.Fatal(err)
		}
		d.mu.Lock()
		for name, n := range d.kept {
			if bytes.Contains(n.data, []byte("canary")) || bytes.Contains(n.kept, []byte("canary")) {
				t.Errorf("%s has a removed value after a loss of power; failing: %v", name, failing)
			}
		}
		d.mu.Unlock()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Vacuum waits for a flush that has to remove its log yet.
func TestVacuumWaitsForTheFlushThatRuns(t *testing.T) {
	e := mustOpen(t, newDisk("posix"))
	defer e.Close()
	e.flushing.Lock()
	done := make(chan error)
	go func() { done <- e.Vacuum(ctx) }()
	select {
	case err := <-done:
		t.Errorf("Vacuum has returned: %v", err)
		e.flushing.Unlock()
		return
	case <-time.After(50 * time.Millisecond):
	}
	e.flushing.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
