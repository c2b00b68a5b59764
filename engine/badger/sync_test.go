package badger

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// A gate lets the test decide when the sync of a log ends, and how.
type gate struct {
	files
	on    atomic.Bool
	began chan struct{}
	end   chan error
}

func newGate(d files) *gate {
	return &gate{files: d, began: make(chan struct{}, 100), end: make(chan error)}
}

type gatedFile struct {
	file
	g *gate
}

func (g *gate) gated(name string, f file, err error) (file, error) {
	if err == nil && strings.HasSuffix(name, logSuffix) {
		f = gatedFile{f, g}
	}
	return f, err
}

func (g *gate) create(name string) (file, error) {
	f, err := g.files.create(name)
	return g.gated(name, f, err)
}

func (g *gate) open(name string) (file, error) {
	f, err := g.files.open(name)
	return g.gated(name, f, err)
}

func (f gatedFile) SyncData() error {
	if f.g.on.Load() {
		f.g.began <- struct{}{}
		if err := <-f.g.end; err != nil {
			return err
		}
	}
	return f.file.SyncData()
}

// gated opens a store in which the syncs of the log wait for the test.
func gated(t *testing.T) (*Engine, *gate) {
	t.Helper()
	g := newGate(newDisk("posix"))
	e, err := openFiles(g, memTableSize+logExtra, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.start()
	g.on.Store(true)
	t.Cleanup(func() {
		g.on.Store(false)
		close(g.end) // in case the test failed
		e.Close()
	})
	return e, g
}

func write(e *Engine, key, value, guard string) chan error {
	done := make(chan error, 1)
	go func() {
		var b engine.Batch
		if guard != "" {
			b.Guard([]byte(key), []byte(guard))
		}
		b.Set([]byte(key), []byte(value))
		done <- e.Apply(ctx, &b)
	}()
	return done
}

func waiting(t *testing.T, what string, done chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("%s was answered (%v) before it was synced", what, err)
	case <-time.After(20 * time.Millisecond):
	}
}

func TestNothingIsAnsweredOrReadBeforeItIsSynced(t *testing.T) {
	e, g := gated(t)
	first := write(e, "a", "1", "")
	<-g.began
	second, conflict := write(e, "b", "1", ""), write(e, "a", "2", "0")
	waiting(t, "a write", first)
	if got := value(t, e, "a"); got != "" {
		t.Errorf("read %q before it was synced", got)
	}
	for p, err := range e.Scan(ctx, engine.Range{}) {
		t.Errorf("scanned %q, %v before it was synced", p.Key, err)
	}
	g.end <- nil
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if got := value(t, e, "a"); got != "1" {
		t.Errorf("read %q after it was acknowledged", got)
	}
	<-g.began // the sync of the second group began
	waiting(t, "the second write", second)
	// The conflict is answered after that sync, whether it is in the second group or in a
	// later one.
	for open := true; open; {
		select {
		case g.end <- nil:
		case <-g.began:
		case err := <-conflict:
			if !errors.Is(err, engine.ErrConflict) {
				t.Errorf("guard on a value that is another one: %v", err)
			}
			open = false
		}
	}
	for {
		select {
		case g.end <- nil:
			continue
		case <-g.began:
			continue
		case err := <-second:
			if err != nil {
				t.Fatal(err)
			}
		}
		break
	}
}

// large is a batch that fills a group.
func large(e *Engine, key, guard string) chan error {
	done := make(chan error, 1)
	go func() {
		var b engine.Batch
		if guard != "" {
			b.Guard([]byte(guard), []byte("1"))
		}
		b.Set([]byte(key), []byte("1"))
		for i := range 4 {
			b.Set(fmt.Append(nil, key, i), bytes.Repeat([]byte{1}, 400_000))
		}
		done <- e.Apply(ctx, &b)
	}()
	return done
}

// A group is written while the group before it is synced. Its guards see writes that are
// not durable. So it is answered after these are synced, and fails if their sync does.
func TestGroupsFollowWithoutWaiting(t *testing.T) {
	for name, c := range map[string]struct {
		guard string
		want  error
	}{
		"a write that builds on it": {"a0", engine.ErrUnknown},
		"a conflict":                {"absent", engine.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			e, g := gated(t)
			queued := func(n int) {
				for len(e.queue) < n {
					time.Sleep(time.Millisecond)
				}
			}
			e.busy.Store(true)              // so that the committer has them all
			first := write(e, "x", "1", "") // synced by the committer itself
			<-g.began
			a0 := large(e, "a0", "")
			queued(1)
			a1 := large(e, "a1", c.guard)
			queued(2)
			g.end <- nil
			if err := <-first; err != nil {
				t.Fatal(err)
			}
			<-g.began // the sync of a0 began; a1 follows
			waiting(t, "a0", a0)
			waiting(t, "a1", a1)
			g.end <- errors.New("disk gone")
			if err := <-a0; !errors.Is(err, engine.ErrUnknown) {
				t.Errorf("a0 after a failed sync: %v", err)
			}
			if err := <-a1; !errors.Is(err, c.want) {
				t.Errorf("a1 after a failed sync: %v", err)
			}
			if _, err := e.Get(ctx, []byte("a0")); !errors.Is(err, engine.ErrClosed) {
				t.Errorf("Get after a failed sync: %v", err)
			}
		})
	}
}

// A writer who is alone commits in its own goroutine. Close waits for that commit. No commit begins after Close has begun.
func TestCloseWaitsForAWriterWhoIsAlone(t *testing.T) {
	e, g := gated(t)
	first := write(e, "a", "1", "")
	<-g.began
	if e.committing.TryLock() {
		t.Fatal("nobody holds committing")
	}
	e.rewriting <- struct{}{} // Close waits for this after it has waited for writers
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	<-e.stop
	select {
	case <-e.done:
		t.Fatal("the committer has ended beside a writer")
	case <-time.After(20 * time.Millisecond):
	}
	waiting(t, "Close", closed)
	g.on.Store(false)
	g.end <- nil
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	<-e.done
	if err := <-write(e, "b", "1", ""); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("a write after Close has begun: %v", err)
	}
	<-e.rewriting
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	again, err := openFiles(g.files, memTableSize+logExtra, nil)
	if err != nil {
		t.Fatal(err)
	}
	again.start()
	defer again.Close()
	if a, b := value(t, again, "a"), value(t, again, "b"); a != "1" || b != "" {
		t.Errorf("a is %q and b %q after Close", a, b)
	}
}

// A writer who is alone needs no committer.
func TestAWriterWhoIsAloneCommitsByItself(t *testing.T) {
	e, err := openFiles(newDisk("posix"), memTableSize+logExtra, nil)
	if err != nil {
		t.Fatal(err)
	}
	select { // the engine is not started
	case err := <-write(e, "a", "1", ""):
		if err != nil || value(t, e, "a") != "1" {
			t.Errorf("a write without a committer: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a write waits for the committer")
	}
	e.start()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// A caller may recover from a panic of its commit, of which nobody knows how far it came: then the engine refuses everything.
func TestAfterAPanicOfACommitEverythingIsRefused(t *testing.T) {
	e, g := gated(t)
	close(g.began) // so that the next sync panics
	var b engine.Batch
	b.Set([]byte("a"), []byte("1"))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the sync did not panic")
			}
		}()
		_ = e.Apply(ctx, &b)
	}()
	_, gerr := e.Get(ctx, []byte("a"))
	for what, err := range map[string]error{"Apply": e.Apply(ctx, &b), "Get": gerr} {
		if !errors.Is(err, engine.ErrClosed) {
			t.Errorf("%s after a panic: %v", what, err)
		}
	}
}

// While the committer has a request, nobody is alone: so no writer overtakes it again and again.
func TestNobodyIsAloneWhileTheCommitterHasARequest(t *testing.T) {
	e, g := gated(t)
	g.on.Store(false)
	e.committing.Lock() // as a writer does who is alone
	other := write(e, "a", "1", "")
	for begun := time.Now(); !e.busy.Load(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatal("the committer does not say that it has a request")
		}
	}
	e.committing.Unlock()
	if err := <-other; err != nil {
		t.Fatal(err)
	}
	if e.committing.Lock(); e.busy.Load() {
		t.Error("after a request that was alone, nobody is alone")
	}
	e.committing.Unlock()
	if err := e.Vacuum(ctx); err != nil || e.busy.Load() {
		t.Errorf("after a vacuum, nobody is alone: %v", err)
	}
}

// Those who come while a writer who is alone commits are committed after it, together.
func TestThoseWhoComeMeanwhileAreOneGroup(t *testing.T) {
	e, g := gated(t)
	first := write(e, "a", "1", "")
	<-g.began
	others := []chan error{write(e, "b", "1", ""), write(e, "c", "1", ""), write(e, "d", "1", "")}
	for len(e.queue) < len(others)-1 || !e.busy.Load() { // the committer has one of them, and waits
		time.Sleep(time.Millisecond)
	}
	g.on.Store(false)
	g.end <- nil
	for _, done := range append(others, first) {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if e.written != 2 || !e.busy.Load() {
		t.Errorf("%d groups, the last of several requests: %v; want 2, and true", e.written, e.busy.Load())
	}
}

// Time stands still in a bubble of testing/synctest while a goroutine runs. So the committer can't rely on time alone when
// it waits for writers, of whom fewer come than before.
func TestFewerWritersThanBeforeAreServedWhileTimeStandsStill(t *testing.T) {
	dir := t.TempDir() + "/store"
	synctest.Test(t, func(t *testing.T) {
		e, err := Open(dir, &Options{MinFreeBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			var writers sync.WaitGroup
			for w := range 4 - i%4 {
				writers.Go(func() {
					if err := <-write(e, fmt.Sprint(w), "x", ""); err != nil {
						t.Error(err)
					}
				})
			}
			writers.Wait()
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}
