package shared

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// What may have had an effect is not tried again, whatever else its error says.
func TestAnUnknownOutcomeIsNotRepeated(t *testing.T) {
	dir, d := private(t), newDisk()
	_, other := join(t, dir, d.driver), join(t, dir, d.driver)
	var applied atomic.Int32
	d.after = func(int32, error) error {
		applied.Add(1)
		return errors.Join(engine.ErrUnknown, engine.ErrClosed)
	}
	if err := set(other, "a", "1"); !errors.Is(err, engine.ErrUnknown) || applied.Load() != 1 {
		t.Errorf("%v, after %d", err, applied.Load())
	}
}

func TestProcessesOfDifferentDriversRefuseEachOther(t *testing.T) {
	dir, d := private(t), newDisk()
	join(t, dir, d.driver)
	if _, err := Open(ctx, dir, Driver{Name: "tape", Open: d.driver}); err == nil || !strings.Contains(err.Error(), "of disk, and not of tape") {
		t.Error(err)
	}
}

func TestCallsEndWithTheirContextsWhileTheStoreIsTakenOver(t *testing.T) {
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
	limited, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	within(t, 10*time.Second, func() {
		if _, err := other.Get(limited, []byte("a")); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	<-opening
	close(open)
	if err := set(other, "a", "1"); err != nil || d.opened.Load() != 2 {
		t.Error(err, d.opened.Load())
	}
}

// Those who wait for the same owner fail together, and Close waits for none of them.
func TestAnOwnerThatHangsFailsAllCallsAtOnce(t *testing.T) {
	dir, d := private(t), newDisk()
	owner, other := quickly(t, dir, d.driver), quickly(t, dir, d.driver)
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	hold(t, dir, func(net.Conn) {})
	begun := time.Now()
	var calls sync.WaitGroup
	for range 30 {
		calls.Go(func() {
			if err := set(other, "a", "1"); !errors.Is(err, engine.ErrUnavailable) || strings.Count(err.Error(), engine.ErrUnavailable.Error()) != 1 {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if took := time.Since(begun); took > 10*quick.takeOver {
		t.Errorf("%v, where each one waits %v", took, quick.takeOver)
	}
	other.wait.takeOver = time.Minute
	calls.Go(func() {
		if err := set(other, "a", "1"); !errors.Is(err, engine.ErrClosed) {
			t.Error(err)
		}
	})
	time.Sleep(20 * time.Millisecond)
	within(t, 10*time.Second, func() { other.Close() })
	calls.Wait()
}

// Calls that have found the same owner gone get one new side.
func TestOneSideIsLookedForAtATime(t *testing.T) {
	dir, d := private(t), newDisk()
	owner, other := join(t, dir, d.driver), join(t, dir, d.driver)
	old := other.side
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	if err := set(other, "a", "1"); err != nil {
		t.Fatal(err)
	}
	now := other.side
	<-other.join(old).done // as a call does that is late
	if other.side != now {
		t.Error("the owner looks for another one")
	}
}

// When an owner is killed, its driver's lock may be held a moment longer than that of the owner.
func TestALockThatIsAboutToBeFreeIsAwaited(t *testing.T) {
	dir, d := private(t), newDisk()
	owner := join(t, dir, d.driver)
	var tried atomic.Int32
	other := join(t, dir, func(dir string) (engine.Engine, error) {
		if tried.Add(1) < 4 {
			return nil, &engine.LockedError{Path: dir, Holder: "a process that is ending"}
		}
		return d.driver(dir)
	})
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	if err := set(other, "a", "1"); err != nil || tried.Load() != 4 {
		t.Error(err, tried.Load())
	}
}

// A call that every owner sends back ends.
func TestACallGivesUpAfterManyOwners(t *testing.T) {
	dir := private(t)
	id := prepared(t, dir).ID()
	hold(t, dir, func(c net.Conn) {
		hello, _ := endFrame(fmt.Appendf(make([]byte, 4), greeting, protocolVersion, "disk", id, 1000, 1000, 1000, 1000), maxFrame)
		c.Write(hello)
		if _, err := readFrame(c, maxRequest); err == nil {
			c.Write(frame(statusBye))
		}
	})
	e := quickly(t, dir, newDisk().driver)
	within(t, 20*time.Second, func() {
		if err := set(e, "a", "1"); !errors.Is(err, engine.ErrUnavailable) {
			t.Error(err)
		}
	})
}

// A fickle context ends when it is looked at for the next time after it was armed, and does not say so then.
type fickle struct {
	context.Context
	end   context.CancelFunc
	armed atomic.Bool
}

func (f *fickle) Err() error {
	err := f.Context.Err()
	if f.armed.Load() {
		f.end()
	}
	return err
}

// A batch whose connection was cut has an unknown outcome, at whatever moment its context ends.
func TestAContextThatEndsBesideACutHidesNothing(t *testing.T) {
	dir, d := private(t), newDisk()
	owner, other := join(t, dir, d.driver), join(t, dir, d.driver)
	c := &fickle{}
	c.Context, c.end = context.WithCancel(ctx)
	d.after = func(_ int32, err error) error {
		c.armed.Store(true)
		o := sideOf(owner)
		o.mu.Lock()
		defer o.mu.Unlock()
		for s := range o.conns {
			s.Close()
		}
		return err
	}
	var b engine.Batch
	b.Set([]byte("a"), []byte("1"))
	if err := other.Apply(c, &b); !errors.Is(err, engine.ErrUnknown) {
		t.Error(err)
	}
}

// The patience for a driver's lock begins when it is first found to be held, however long the owner was waited for.
func TestTheDriversLockIsAwaitedFromWhenItIsMet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, d := private(t), newDisk()
		lock := make(chan io.Closer, 1)
		l, err := prepared(t, dir).Lock(ownerLock)
		if err != nil {
			t.Fatal(err)
		}
		lock <- l
		var tried atomic.Int32
		time.AfterFunc(50*time.Millisecond, func() { (<-lock).Close() })
		wait := quick
		wait.open, wait.driver = 10*time.Second, 40*time.Millisecond
		e, err := open(ctx, dir, Driver{Name: "disk", Open: func(dir string) (engine.Engine, error) {
			if tried.Add(1) < 3 {
				return nil, &engine.LockedError{Path: dir, Holder: "a process that is ending"}
			}
			return d.driver(dir)
		}}, wait)
		if err != nil {
			t.Fatal(err)
		}
		e.Close()
	})
}
