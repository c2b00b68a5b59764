package shared

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
	"github.com/turnstonedb/turnstone/engine/memory"
)

var ctx = context.Background()

// A disk is a store in memory that drivers open, one at a time.
type disk struct {
	*memory.Engine
	opened atomic.Int32 // how often
	// The disk calls before at the start of each call of the nth driver that was opened. An error fails the call.
	before func(n int32, op string) error
	// The disk calls after at the end of each Apply, and returns what it returns.
	after func(n int32, err error) error
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
	e, err := Open(ctx, dir, Driver{Name: "disk", Open: driver})
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

// prepared returns dir, which is open until the test ends.
func prepared(t *testing.T, dir string) *localdir.Dir {
	t.Helper()
	d, err := localdir.Prepare(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// hold makes this process the owner of dir as other processes see it: it has the lock and listens. It has no store:
// serve answers each connection.
func hold(t *testing.T, dir string, serve func(net.Conn)) {
	t.Helper()
	lock, err := prepared(t, dir).Lock(ownerLock)
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

// quick is a patience for tests of what takes long. A greeting may be late on a busy machine.
var quick = patience{open: time.Second, takeOver: 100 * time.Millisecond, driver: 10 * time.Millisecond, close: 50 * time.Millisecond, idle: 20 * time.Millisecond}

// private returns a directory that does not exist yet.
func private(t *testing.T) string { return filepath.Join(t.TempDir(), "store") }

// quickly opens dir with the patience quick.
func quickly(t *testing.T, dir string, driver func(string) (engine.Engine, error)) *Engine {
	t.Helper()
	e, err := open(ctx, dir, Driver{Name: "disk", Open: driver}, quick)
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

func sideOf(e *Engine) *owner { return e.side.(*owner) }
