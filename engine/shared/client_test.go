package shared

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

func TestAnApplyThatOutlivesItsContextIsAwaitedForAMoment(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	_, other := join(t, dir, d.driver), join(t, dir, d.driver)
	ending, cancel := context.WithCancel(ctx)
	d.after = func(_ int32, err error) error {
		cancel()
		time.Sleep(10 * time.Millisecond)
		return err
	}
	var b engine.Batch
	b.Set([]byte("a"), []byte("1"))
	if err := other.Apply(ending, &b); err != nil {
		t.Errorf("it took 10 ms more: %v", err)
	}
	ending, cancel = context.WithCancel(ctx)
	end := make(chan struct{})
	d.after = func(_ int32, err error) error {
		cancel()
		<-end
		return err
	}
	if err := other.Apply(ending, &b); !errors.Is(err, engine.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("it took too long: %v", err)
	}
	close(end)
	d.after = func(_ int32, err error) error { return err }
	if err := set(other, "a", "2"); err != nil || d.opened.Load() != 1 {
		t.Errorf("%v; opened %d times", err, d.opened.Load())
	}
}

func TestACallThatIsCancelledEndsAtTheOwner(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	owner, other := join(t, dir, d.driver), join(t, dir, d.driver)
	ending, cancel := context.WithCancel(ctx)
	d.before = func(_ int32, op string) error {
		if op == "vacuum" {
			cancel()
		}
		return nil
	}
	if err := other.Vacuum(ending); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// The vacuum of this driver ends when its context does. The owner waits for it.
	begun := time.Now()
	if err := owner.Close(); err != nil || time.Since(begun) >= usual.close {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
}

func TestMoreCallsThanConnectionsAreServed(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	_, other := join(t, dir, d.driver), join(t, dir, d.driver)
	var running, most atomic.Int32
	d.before = func(int32, string) error {
		n := running.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(time.Millisecond)
		running.Add(-1)
		return nil
	}
	failed := make(chan error)
	for i := range 4 * connections {
		go func() { failed <- set(other, fmt.Sprint(i), "x") }()
	}
	for range 4 * connections {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if n := most.Load(); n > connections || n < 2 {
		t.Errorf("%d calls at a time", n)
	}
}

func TestNoCallOutlivesClose(t *testing.T) {
	for range 20 {
		dir, d := private(t), newDisk()
		owner, other := join(t, dir, d.driver), join(t, dir, d.driver)
		var calls sync.WaitGroup
		for i := range 3 * connections {
			calls.Go(func() {
				for {
					if err := set(other, fmt.Sprint(i), "x"); err != nil {
						if !errors.Is(err, engine.ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		time.Sleep(2 * time.Millisecond)
		within(t, 10*time.Second, func() {
			var closes sync.WaitGroup
			for range 2 { // Whichever comes second waits for the first.
				closes.Go(func() {
					if err := other.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			closes.Wait()
			calls.Wait()
		})
		owner.Close()
	}
}

func TestCloseCutsOffACallThatTakesLong(t *testing.T) {
	dir, d := private(t), newDisk()
	_, other := quickly(t, dir, d.driver), quickly(t, dir, d.driver)
	begun, end := make(chan struct{}), make(chan struct{})
	d.after = func(_ int32, err error) error {
		close(begun)
		<-end
		return err
	}
	defer close(end)
	failed := make(chan error, 1)
	go func() { failed <- set(other, "a", "1") }()
	<-begun
	c := other.side.(*client)
	within(t, 10*time.Second, func() {
		other.Close()
		c.mu.Lock()
		if len(c.busy) > 0 {
			t.Error("the call outlives Close")
		}
		c.mu.Unlock()
		if err := <-failed; !errors.Is(err, engine.ErrUnknown) {
			t.Error(err)
		}
	})
}

func TestIdleConnectionsAreGivenUp(t *testing.T) {
	dir, d := private(t), newDisk()
	owner, other := quickly(t, dir, d.driver), quickly(t, dir, d.driver)
	count := func() int {
		o := sideOf(owner)
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.conns)
	}
	d.before = func(int32, string) error { time.Sleep(5 * time.Millisecond); return nil }
	var calls sync.WaitGroup
	for i := range 4 * connections {
		calls.Go(func() {
			if err := set(other, fmt.Sprint(i), "x"); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if n := count(); n < 2 || n > connections {
		t.Errorf("%d connections of a burst", n)
	}
	testkit.Until(t, "unused connections are closed", func() bool { return count() == 0 })
	if err := set(other, "a", "x"); err != nil {
		t.Error(err)
	}
}

// A process that is becoming the owner when it closes the engine leaves no store open.
func TestCloseWaitsForAStoreThatIsBeingOpened(t *testing.T) {
	dir, d := private(t), newDisk()
	owner := join(t, dir, d.driver)
	opening, open := make(chan struct{}), make(chan struct{})
	other := join(t, dir, func(dir string) (engine.Engine, error) {
		close(opening)
		<-open
		return d.driver(dir)
	})
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() { failed <- set(other, "a", "1") }()
	<-opening
	closed := make(chan error, 1)
	go func() { closed <- other.Close() }()
	select {
	case <-closed:
		t.Error("Close has not waited")
	case <-time.After(20 * time.Millisecond):
	}
	close(open)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := <-failed; !errors.Is(err, engine.ErrClosed) {
		t.Error(err)
	}
	if _, err := d.driver(dir); err != nil {
		t.Errorf("the store is open still: %v", err)
	}
}

// A connection that the owner is late to greet is no reason to give up those that work.
func TestALateGreetingLeavesOtherConnections(t *testing.T) {
	dir := private(t)
	id := prepared(t, dir).ID()
	var greeted atomic.Int32
	hold(t, dir, func(c net.Conn) {
		if greeted.Add(1) > 1 {
			return // never
		}
		hello, _ := endFrame(fmt.Appendf(make([]byte, 4), greeting, protocolVersion, "disk", id, 1000, 1000, 1000, 1000), maxFrame)
		c.Write(hello)
		for {
			if _, err := readFrame(c, maxRequest); err != nil {
				return
			}
			time.Sleep(2 * time.Millisecond)
			c.Write(frame(statusOK))
		}
	})
	wait := quick
	wait.idle = time.Minute
	e, err := open(ctx, dir, Driver{Name: "disk", Open: newDisk().driver}, wait)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var calls sync.WaitGroup
	var worked atomic.Int32
	for range 4 {
		calls.Go(func() {
			if err := set(e, "a", "1"); err == nil {
				worked.Add(1)
			} else if !errors.Is(err, engine.ErrUnavailable) {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if err := set(e, "a", "1"); err != nil || worked.Load() == 0 {
		t.Errorf("%v; %d worked before", err, worked.Load())
	}
}

// A connection that is used again has no deadline of a call before.
func TestACallLeavesNoDeadlineBehind(t *testing.T) {
	dir, d := private(t), newDisk()
	_, other := join(t, dir, d.driver), join(t, dir, d.driver)
	first := other.side
	for i := range 2000 {
		limited, cancel := context.WithCancel(ctx)
		go func() {
			for range i % 50 {
				_ = limited.Err()
			}
			cancel()
		}()
		_, _ = other.Get(limited, []byte("a"))
		if _, err := other.Get(ctx, []byte("a")); err != nil {
			t.Fatal(err)
		}
		if other.side != first {
			t.Fatal("the owner was left")
		}
	}
}

func TestCloseEndsADial(t *testing.T) {
	dir := private(t)
	id := prepared(t, dir).ID()
	var greeted atomic.Int32
	hold(t, dir, func(c net.Conn) {
		if greeted.Add(1) == 1 {
			hello, _ := endFrame(fmt.Appendf(make([]byte, 4), greeting, protocolVersion, "disk", id, 1000, 1000, 1000, 1000), maxFrame)
			c.Write(hello)
		}
	})
	wait := quick
	wait.takeOver, wait.idle = time.Minute, time.Millisecond
	e, err := open(ctx, dir, Driver{Name: "disk", Open: newDisk().driver}, wait)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // The first connection is closed.
	failed := make(chan error, 1)
	go func() { failed <- set(e, "a", "1") }()
	time.Sleep(20 * time.Millisecond)
	within(t, 10*time.Second, func() { e.Close() })
	if err := <-failed; !errors.Is(err, engine.ErrClosed) {
		t.Error(err)
	}
}
