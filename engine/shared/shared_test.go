package shared

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
	"github.com/turnstonedb/turnstone/engine/memory"
)

var ctx = context.Background()

// A disk is a store in memory that drivers open, one at a time.
type disk struct {
	*memory.Engine
	opened atomic.Int32 // how often
	// Called before each call of the driver that was opened as the nth, and may fail it; and after each Apply.
	before func(n int32, op string) error
	after  func(n int32, err error) error
}

func newDisk() *disk {
	return &disk{Engine: memory.New(), before: func(int32, string) error { return nil }, after: func(_ int32, err error) error { return err }}
}

// driver opens the disk.
func (d *disk) driver(dir string) (engine.Engine, error) {
	lock, err := localdir.Open(dir)
	if err != nil {
		return nil, err
	}
	return &driver{disk: d, lock: lock, n: d.opened.Add(1)}, nil
}

type driver struct {
	*disk
	lock *localdir.Dir
	n    int32
}

func (d *driver) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	if err := d.before(d.n, "get"); err != nil {
		return nil, err
	}
	return d.Engine.Get(ctx, keys...)
}

func (d *driver) Apply(ctx context.Context, b *engine.Batch) error {
	if err := d.before(d.n, "apply"); err != nil {
		return err
	}
	return d.after(d.n, d.Engine.Apply(ctx, b))
}

func (d *driver) Vacuum(ctx context.Context) error {
	if err := d.before(d.n, "vacuum"); err != nil {
		return err
	}
	<-ctx.Done() // the only vacuum of these tests is cancelled
	return ctx.Err()
}

func (d *driver) Close() error { return d.lock.Close() }

// join opens dir with the driver.
func join(t *testing.T, dir string, driver func(string) (engine.Engine, error)) *Engine {
	t.Helper()
	e, err := Open(ctx, dir, Driver{"disk", driver})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func set(e engine.Engine, key, value string) error {
	var b engine.Batch
	b.Set([]byte(key), []byte(value))
	return e.Apply(ctx, &b)
}

func get(t *testing.T, e engine.Engine, key string) string {
	t.Helper()
	values, err := e.Get(ctx, []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return string(values[0])
}

func TestOneEngineOwnsTheStoreAndTheOthersUseIt(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	var all []*Engine
	for i := range 5 {
		all = append(all, join(t, dir, d.driver))
		if err := set(all[i], fmt.Sprint(i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range all {
		for i := range all {
			if get(t, e, fmt.Sprint(i)) != "x" {
				t.Errorf("key %d is not there", i)
			}
		}
	}
	if n := d.opened.Load(); n != 1 {
		t.Errorf("opened %d times", n)
	}
	for _, e := range all { // Each one but the last closes as the owner.
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if last := all[len(all)-1]; e != last && get(t, last, "0") != "x" {
			t.Error("lost")
		}
	}
	if _, err := os.Stat(filepath.Join(dir, socketName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestAStoreThatIsNotSharedIsRefusedAtOnce(t *testing.T) {
	dir := t.TempDir()
	alone, err := badger.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	begun := time.Now()
	_, err = Open(ctx, dir, Driver{"badger", func(dir string) (engine.Engine, error) { return badger.Open(dir, nil) }})
	var held *engine.LockedError
	if !errors.As(err, &held) || !strings.Contains(held.Holder, fmt.Sprintf("pid %d ", os.Getpid())) {
		t.Error(err)
	}
	if time.Since(begun) > usual.open {
		t.Error("it waited for an answer")
	}
}

func TestASocketOfAKilledOwnerIsReplaced(t *testing.T) {
	dir, d := filepath.Join(t.TempDir(), "store"), newDisk()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, socketName), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := set(join(t, dir, d.driver), "a", "1"); err != nil {
		t.Fatal(err)
	}
	if get(t, join(t, dir, d.driver), "a") != "1" || d.opened.Load() != 1 {
		t.Error("the second engine did not reach the first one")
	}
}

// hold makes this process the owner of dir, with a listener in place of a store. serve is called with each connection.
func hold(t *testing.T, dir string, serve func(net.Conn)) {
	t.Helper()
	if _, err := localdir.Prepare(dir); err != nil {
		t.Fatal(err)
	}
	lock, err := localdir.Lock(dir, ownerLock)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); lock.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
}

func frame(first byte, rest ...byte) []byte {
	f, _ := endFrame(append(newFrame(first), rest...), maxFrame)
	return f
}

func TestAnOwnerThatDoesNotAnswerIsNamed(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"silent": func(c net.Conn) { io.Copy(io.Discard, c) },
		"closes": func(c net.Conn) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			hold(t, dir, serve)
			_, err := open(ctx, dir, Driver{"disk", newDisk().driver}, patience{open: 50 * time.Millisecond})
			var held *engine.LockedError
			if !errors.As(err, &held) || !strings.Contains(held.Holder, fmt.Sprintf("pid %d ", os.Getpid())) || !errors.Is(err, engine.ErrUnavailable) {
				t.Error(err)
			}
			ended, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			if _, err := Open(ended, dir, Driver{"disk", newDisk().driver}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("with a context that ends: %v", err)
			}
		})
	}
}

func TestVersionsThatDifferRefuseEachOther(t *testing.T) {
	dir := t.TempDir()
	hold(t, dir, func(c net.Conn) {
		hello, _ := endFrame(append(make([]byte, 4), "turnstone-shared 77 and something new"...), maxFrame)
		c.Write(hello)
	})
	if _, err := Open(ctx, dir, Driver{"disk", newDisk().driver}); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "version 77") {
		t.Error(err)
	}
}

func TestAPeerOfAnotherUserIsRefused(t *testing.T) {
	dir := t.TempDir()
	hold(t, dir, func(c net.Conn) { io.Copy(io.Discard, c) })
	c, err := net.Dial("unix", filepath.Join(dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := sameUser(c.(*net.UnixConn)); err != nil {
		t.Error(err)
	}
	other := func(int) (int, error) { return os.Geteuid() + 1, nil }
	if err := peer(c.(*net.UnixConn), other); err == nil {
		t.Error("not refused")
	}
	unknown := errors.New("unknown")
	if err := peer(c.(*net.UnixConn), func(int) (int, error) { return os.Geteuid(), unknown }); !errors.Is(err, unknown) {
		t.Error(err)
	}
}

func TestALongPathIsNoHindrance(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("on this system a socket needs a short path")
	}
	dir, d := filepath.Join(t.TempDir(), strings.Repeat("x", 120)), newDisk()
	if err := set(join(t, dir, d.driver), "a", "1"); err != nil {
		t.Fatal(err)
	}
	if get(t, join(t, dir, d.driver), "a") != "1" || d.opened.Load() != 1 {
		t.Error("the second engine did not reach the first one")
	}
}

func TestAnOwnerWhoseDriverFailedGivesTheStoreUp(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	owner, other := join(t, dir, d.driver), join(t, dir, d.driver)
	if err := set(other, "a", "1"); err != nil {
		t.Fatal(err)
	}
	d.before = func(n int32, _ string) error {
		if n == 1 {
			return fmt.Errorf("%w until it is reopened", engine.ErrClosed)
		}
		return nil
	}
	if err := set(other, "b", "2"); err != nil {
		t.Errorf("the engine that was attached: %v", err)
	}
	if err := set(owner, "c", "3"); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("the engine that failed: %v", err)
	}
	if d.opened.Load() != 2 || get(t, other, "a")+get(t, other, "b")+get(t, other, "c") != "12" {
		t.Error("the store was not taken over")
	}
}

func TestABatchWhoseReplyIsLostHasAnUnknownOutcome(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	owner, other := join(t, dir, d.driver), join(t, dir, d.driver)
	begun, end := make(chan struct{}), make(chan struct{})
	d.after = func(n int32, err error) error {
		if n == 1 {
			close(begun)
			<-end
		}
		return err
	}
	defer close(end)
	failed := make(chan error)
	go func() { failed <- set(other, "a", "1") }()
	<-begun
	go owner.Close() // cuts off what takes longer than closeWait
	if err := <-failed; !errors.Is(err, engine.ErrUnknown) {
		t.Error(err)
	}
	if get(t, other, "a") != "1" {
		t.Error("it had an effect, and is not there")
	}
}

func TestAReadWhoseReplyIsLostIsRepeated(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	owner, other := join(t, dir, d.driver), join(t, dir, d.driver)
	if err := set(owner, "a", "1"); err != nil {
		t.Fatal(err)
	}
	begun, end := make(chan struct{}), make(chan struct{})
	d.before = func(n int32, _ string) error {
		if n == 1 {
			close(begun)
			<-end
		}
		return nil
	}
	defer close(end)
	go func() {
		<-begun
		owner.Close()
	}()
	if get(t, other, "a") != "1" {
		t.Error("not found")
	}
}

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

func TestACallGivesUpWhenOwnersKeepFailing(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	e := join(t, dir, d.driver)
	other := join(t, dir, func(string) (engine.Engine, error) { return nil, engine.ErrCorrupt })
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := set(other, "a", "1"); !errors.Is(err, engine.ErrUnavailable) || !errors.Is(err, engine.ErrCorrupt) {
		t.Error(err)
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

func TestErrorsCrossTheSocket(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	_, other := join(t, dir, d.driver), join(t, dir, d.driver)
	for _, want := range wireErrors {
		if want == engine.ErrClosed {
			continue // is never shown: the store is opened again
		}
		d.before = func(int32, string) error { return fmt.Errorf("more: %w", want) }
		err := set(other, "a", "1")
		for _, e := range wireErrors {
			if errors.Is(err, e) != (e == want) {
				t.Errorf("%v became %v", want, err)
			}
		}
		if !strings.Contains(err.Error(), "more: ") {
			t.Errorf("%v: the text is lost", err)
		}
	}
	d.before = func(int32, string) error { return nil }
	var b engine.Batch
	b.Guard([]byte("k"), []byte("v"))
	var conflict *engine.ConflictError
	if err := other.Apply(ctx, &b); !errors.As(err, &conflict) || string(conflict.Key) != "k" || !errors.Is(err, engine.ErrConflict) {
		t.Error(err)
	}
}

func TestMalformedMessagesEndTheConnectionAlone(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	owner := join(t, dir, d.driver)
	for name, message := range map[string][]byte{
		"no such operation": frame('x'),
		"half a request":    frame(opApply, 0, 200),
		"more than it":      frame(opVacuum, 1),
		"too many keys":     frame(opGet, 0xff, 0xff, 0xff, 0xff, 0x0f),
		"an empty frame":    {0, 0, 0, 0},
		"a huge frame":      {0xff, 0xff, 0xff, 0xff},
	} {
		c, err := net.Dial("unix", filepath.Join(dir, socketName))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readFrame(c, maxFrame); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(message); err != nil {
			t.Fatal(err)
		}
		if reply, err := readFrame(c, maxFrame); err == nil && (reply[0] != statusError || !bytes.Contains(reply, []byte(errProtocol.Error()))) {
			t.Errorf("%s: %q", name, reply)
		}
		c.Close()
	}
	if err := set(owner, "a", "1"); err != nil {
		t.Error(err)
	}
}

func TestAReplyThatIsMalformedIsAnError(t *testing.T) {
	for name, reply := range map[string][]byte{
		"no such status":  frame('x'),
		"too few values":  frame(statusOK, 0),
		"more than asked": frame(statusOK, 1, 0, 9),
		"half an error":   frame(statusError, 1),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			id, err := localdir.Prepare(dir)
			if err != nil {
				t.Fatal(err)
			}
			hold(t, dir, func(c net.Conn) {
				hello, _ := endFrame(fmt.Appendf(make([]byte, 4), greeting, protocolVersion, "disk", id, 1, 2, 3, 4), maxFrame)
				c.Write(hello)
				for {
					if _, err := readFrame(c, maxFrame); err != nil {
						return
					}
					c.Write(reply)
				}
			})
			e, err := Open(ctx, dir, Driver{"disk", newDisk().driver})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			if e.Limits() != (engine.Limits{KeyBytes: 1, ValueBytes: 2, BatchBytes: 3, BatchOps: 4}) {
				t.Error(e.Limits())
			}
			if v, err := e.Get(ctx, []byte("a")); !errors.Is(err, errProtocol) {
				t.Errorf("%q, %v", v, err)
			}
			if reply[4] != statusOK { // which is right for a batch
				if err := e.Apply(ctx, &engine.Batch{}); !errors.Is(err, errProtocol) || !errors.Is(err, engine.ErrUnknown) {
					t.Errorf("a batch: %v", err)
				}
			}
		})
	}
}

// FuzzRequests checks that the owner answers any request, and that what it understands reads back the same.
func FuzzRequests(f *testing.F) {
	var b engine.Batch
	b.Guard([]byte("g"), nil)
	b.Set([]byte("s"), []byte("v"))
	b.Delete([]byte("d"))
	f.Add(appendBatch([]byte{opApply}, &b))
	f.Add(appendList([]byte{opGet}, [][]byte{[]byte("a"), nil}))
	f.Add(appendRange([]byte{opScan}, engine.Range{Start: []byte("a"), End: []byte("b"), Limit: 3}))
	f.Fuzz(func(t *testing.T, request []byte) {
		if len(request) == 0 || request[0] == opVacuum {
			return
		}
		d := newDisk()
		o := &owner{of: &Engine{}, driver: &driver{disk: d}}
		reply := o.answer(ctx, request)
		if n := binary.LittleEndian.Uint32(reply); int(n) != len(reply)-4 || reply[4] != statusOK && reply[4] != statusError {
			t.Errorf("%q", reply)
		}
		if of := (&decoder{b: request[1:]}); request[0] == opApply {
			if b := of.batch(); of.end() == nil {
				again := &decoder{b: appendBatch(nil, b)}
				if c := again.batch(); again.end() != nil || fmt.Sprint(b) != fmt.Sprint(c) {
					t.Errorf("%v is not %v", c, b)
				}
			}
		}
	})
}
