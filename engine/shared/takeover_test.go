package shared

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

// quick is a patience for tests of what takes long.
var quick = patience{open: 50 * time.Millisecond, takeOver: 100 * time.Millisecond, driver: 10 * time.Millisecond, close: 50 * time.Millisecond, idle: 20 * time.Millisecond}

// private returns a directory that does not exist yet.
func private(t *testing.T) string { return filepath.Join(t.TempDir(), "store") }

// quickly opens dir with the patience quick.
func quickly(t *testing.T, dir string, driver func(string) (engine.Engine, error)) *Engine {
	t.Helper()
	e, err := open(ctx, dir, Driver{"disk", driver}, quick)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// within fails the test if f takes longer.
func within(t *testing.T, limit time.Duration, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("it takes longer than %v", limit)
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
	within(t, 10*time.Second, func() { other.Close() })
	select {
	case err := <-failed:
		if !errors.Is(err, engine.ErrUnknown) {
			t.Error(err)
		}
	default:
		t.Error("the call outlives Close")
	}
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
	within(t, 10*time.Second, func() {
		for count() > 0 {
			time.Sleep(time.Millisecond)
		}
	})
	if err := set(other, "a", "x"); err != nil {
		t.Error(err)
	}
}

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
	if _, err := Open(ctx, dir, Driver{"tape", d.driver}); err == nil || !strings.Contains(err.Error(), "of disk, and not of tape") {
		t.Error(err)
	}
}

// A directory without room for the lock or the socket is that of one process.
func TestAStoreThatCannotBeServedIsOpenedAllTheSame(t *testing.T) {
	dir, d := private(t), newDisk()
	if err := os.MkdirAll(filepath.Join(dir, socketName, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	e := quickly(t, dir, d.driver)
	if err := set(e, "a", "1"); err != nil || get(t, e, "a") != "1" {
		t.Error(err)
	}
	if _, err := open(ctx, dir, Driver{"disk", d.driver}, quick); !errors.Is(err, engine.ErrLocked) {
		t.Errorf("a second process: %v", err)
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
	id, err := localdir.Prepare(dir)
	if err != nil {
		t.Fatal(err)
	}
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

// A directory that was moved away is not made anew, and the store in its place is another one.
func TestAStoreThatWasMovedAwayIsNotReplaced(t *testing.T) {
	dir, d := private(t), newDisk()
	owner, other := quickly(t, dir, d.driver), quickly(t, dir, d.driver)
	if err := os.Rename(dir, dir+" moved"); err != nil {
		t.Fatal(err)
	}
	replaced := newDisk()
	third := quickly(t, dir, replaced.driver)
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	if err := set(other, "a", "1"); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("a batch for the store that was moved: %v", err)
	}
	fourth := quickly(t, dir, replaced.driver) // The first owner has not removed the socket of the third.
	if err := set(fourth, "b", "2"); err != nil || get(t, third, "a")+get(t, third, "b") != "2" || replaced.opened.Load() != 1 {
		t.Error(err, replaced.opened.Load())
	}
	if err := errors.Join(fourth.Close(), third.Close()); err != nil {
		t.Fatal(err)
	}
	opened := d.opened.Load()
	if err := set(other, "a", "1"); !errors.Is(err, engine.ErrUnavailable) || d.opened.Load() != opened {
		t.Errorf("a batch for the store that was moved, where another one is: %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := set(other, "a", "1"); !errors.Is(err, engine.ErrUnavailable) {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("a directory was made")
	}
}

func TestASocketThatLeadsElsewhereIsNotUsed(t *testing.T) {
	dir, d := private(t), newDisk()
	join(t, dir, d.driver)
	theirs, other := private(t), newDisk()
	if _, err := localdir.Prepare(theirs); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, socketName), filepath.Join(theirs, socketName)); err != nil {
		t.Fatal(err)
	}
	e := join(t, theirs, other.driver)
	if err := set(e, "a", "1"); err != nil || other.opened.Load() != 1 {
		t.Errorf("%v, opened %d times", err, other.opened.Load())
	}
	if err := os.Chmod(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(ctx, theirs, Driver{"disk", other.driver}); err == nil || !strings.Contains(err.Error(), "other users") {
		t.Errorf("a directory that others can enter: %v", err)
	}
}

// Who has the store open through others has it open: nobody takes it for one that is only to be read.
func TestAStoreInUseIsNotOpenedForReadingOnly(t *testing.T) {
	dir, d := private(t), newDisk()
	owner, other := join(t, dir, d.driver), join(t, dir, d.driver)
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := localdir.OpenReadOnly(dir); !errors.Is(err, engine.ErrLocked) || !strings.Contains(err.Error(), "share") {
		t.Error(err)
	}
	if err := set(other, "a", "1"); err != nil {
		t.Error(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "turnstone.lock")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		reader, err := localdir.OpenReadOnly(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		if _, err := open(ctx, dir, Driver{"disk", d.driver}, quick); !errors.Is(err, engine.ErrLocked) || !strings.Contains(err.Error(), "reads it") {
			t.Errorf("beside a reader: %v", err)
		}
	}
}

// A connection that the owner is late to greet is no reason to give up those that work.
func TestALateGreetingLeavesOtherConnections(t *testing.T) {
	dir := private(t)
	id, err := localdir.Prepare(dir)
	if err != nil {
		t.Fatal(err)
	}
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
	e, err := open(ctx, dir, Driver{"disk", newDisk().driver}, wait)
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

func TestAMessageTakesNoMoreMemoryThanItHas(t *testing.T) {
	request := append(newFrame(opApply), 0, 0xff, 0xff, 0xff, 0x7f) // a quarter of a billion guards
	request = append(request, make([]byte, 1<<20)...)
	d := &decoder{b: request[5:]}
	if n := testing.AllocsPerRun(1, func() { d.b, d.bad = request[5:], false; d.batch() }); n > 100 || d.end() == nil {
		t.Errorf("%v allocations, %v", n, d.end())
	}
	in, out := net.Pipe()
	defer out.Close()
	go func() {
		out.Write([]byte{0xff, 0xff, 0xff, 0x3f})
		out.Close()
	}()
	if b, err := readFrame(in, maxFrame); err == nil || cap(b) > 2<<20 {
		t.Errorf("%d bytes, %v", cap(b), err)
	}
}

func sideOf(e *Engine) *owner { return e.side.(*owner) }

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

func TestCloseEndsADial(t *testing.T) {
	dir := private(t)
	id, err := localdir.Prepare(dir)
	if err != nil {
		t.Fatal(err)
	}
	var greeted atomic.Int32
	hold(t, dir, func(c net.Conn) {
		if greeted.Add(1) == 1 {
			hello, _ := endFrame(fmt.Appendf(make([]byte, 4), greeting, protocolVersion, "disk", id, 1000, 1000, 1000, 1000), maxFrame)
			c.Write(hello)
		}
	})
	wait := quick
	wait.takeOver, wait.idle = time.Minute, time.Millisecond
	e, err := open(ctx, dir, Driver{"disk", newDisk().driver}, wait)
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

// The patience for a driver's lock begins when it is first found to be held, however long the owner was waited for.
func TestTheDriversLockIsAwaitedFromWhenItIsMet(t *testing.T) {
	dir, d := private(t), newDisk()
	lock := make(chan *localdir.Dir, 1)
	if _, err := localdir.Prepare(dir); err != nil {
		t.Fatal(err)
	}
	l, err := localdir.Lock(dir, ownerLock)
	if err != nil {
		t.Fatal(err)
	}
	lock <- l
	var tried atomic.Int32
	time.AfterFunc(50*time.Millisecond, func() { (<-lock).Close() })
	wait := quick
	wait.open, wait.driver = 10*time.Second, 40*time.Millisecond
	e, err := open(ctx, dir, Driver{"disk", func(dir string) (engine.Engine, error) {
		if tried.Add(1) < 3 {
			return nil, &engine.LockedError{Path: dir, Holder: "a process that is ending"}
		}
		return d.driver(dir)
	}}, wait)
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
}

func TestARequestThatIsTooLargeIsRefused(t *testing.T) {
	dir, d := private(t), newDisk()
	_, other := join(t, dir, d.driver), join(t, dir, d.driver)
	first := other.side
	var b engine.Batch
	for i := range 70 {
		b.Guard(fmt.Append(nil, i), make([]byte, 1<<20))
	}
	if err := other.Apply(ctx, &b); !errors.Is(err, engine.ErrTooLarge) || other.side != first {
		t.Error(err)
	}
}

func TestNamesOfDriversAreOneWord(t *testing.T) {
	for _, name := range []string{"", "my engine", "a\nb", "é"} {
		if _, err := Open(ctx, private(t), Driver{name, newDisk().driver}); err == nil || !strings.Contains(err.Error(), "no name") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// A directory that is replaced while the driver opens it is not taken for the one before.
func TestADirectoryThatIsReplacedWhileItIsOpenedIsRefused(t *testing.T) {
	dir, d := private(t), newDisk()
	_, err := Open(ctx, dir, Driver{"disk", func(dir string) (engine.Engine, error) {
		if err := os.Rename(dir, dir+" moved"); err != nil {
			return nil, err
		}
		return d.driver(dir)
	}})
	if !errors.Is(err, engine.ErrUnavailable) {
		t.Error(err)
	}
}

// Of several processes that begin to use a directory of mode 0755 at once, none takes the files of another one for somebody else's.
func TestADirectoryIsMadePrivateByOneOfSeveral(t *testing.T) {
	for range 200 {
		dir := private(t)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		var uses sync.WaitGroup
		for range 3 {
			uses.Go(func() {
				if _, err := localdir.Prepare(dir); err != nil {
					t.Error(err)
					return
				}
				u, err := localdir.Use(dir)
				if err != nil {
					t.Error(err)
					return
				}
				u.Close()
			})
		}
		uses.Wait()
	}
}
