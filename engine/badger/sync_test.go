package badger

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// gate lets the test decide when a sync ends, and how.
func gate(t *testing.T, e *Engine) (began chan struct{}, end chan error) {
	began, end = make(chan struct{}, 100), make(chan error)
	e.syncData = func(*os.File) error {
		began <- struct{}{}
		return <-end
	}
	t.Cleanup(func() { close(end) }) // for what Close syncs, and for a test that fails
	return began, end
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
	e := open(t, t.TempDir()+"/store", nil)
	began, end := gate(t, e)
	first := write(e, "a", "1", "")
	<-began
	second, conflict := write(e, "b", "1", ""), write(e, "a", "2", "0")
	waiting(t, "a write", first)
	if got := value(t, e, "a"); got != "" {
		t.Errorf("read %q before it was synced", got)
	}
	end <- nil
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if got := value(t, e, "a"); got != "1" {
		t.Errorf("read %q after it was acknowledged", got)
	}
	<-began // of the second
	waiting(t, "the second write", second)
	// Whether the conflict is in the group of the second or after it, it is not
	// answered before that.
	for open := true; open; {
		select {
		case end <- nil:
		case <-began:
		case err := <-conflict:
			if !errors.Is(err, engine.ErrConflict) {
				t.Errorf("guard on a value that is another one: %v", err)
			}
			open = false
		}
	}
	for {
		select {
		case end <- nil:
			continue
		case <-began:
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

// A group is written while the one before it is synced; its guards see what is
// not durable yet, so it is not answered before that, and fails with it.
func TestGroupsFollowWithoutWaiting(t *testing.T) {
	for name, c := range map[string]struct {
		guard string
		want  error
	}{
		"a write that builds on it": {"a0", engine.ErrUnknown},
		"a conflict":                {"absent", engine.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			e := open(t, t.TempDir()+"/store", nil)
			began, end := gate(t, e)
			queued := func(n int) {
				for len(e.queue) < n {
					time.Sleep(time.Millisecond)
				}
			}
			first := write(e, "x", "1", "") // synced by the committer itself
			<-began
			a0 := large(e, "a0", "")
			queued(1)
			a1 := large(e, "a1", c.guard)
			queued(2)
			end <- nil
			if err := <-first; err != nil {
				t.Fatal(err)
			}
			<-began // of a0; a1 follows
			waiting(t, "a0", a0)
			waiting(t, "a1", a1)
			end <- errors.New("disk gone")
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

// After a failed sync nothing is written any more, above all not to another log,
// where it could survive without what it builds on.
func TestNothingIsWrittenAfterAFailedSync(t *testing.T) {
	e := open(t, t.TempDir()+"/store", nil)
	began, end := gate(t, e)
	first := write(e, "x", "1", "")
	<-began
	a := large(e, "a", "")
	for len(e.queue) < 1 {
		time.Sleep(time.Millisecond)
	}
	b := large(e, "b", "a")
	for len(e.queue) < 2 {
		time.Sleep(time.Millisecond)
	}
	e.logged = memTableSize // the committer is in the sync: Badger may begin another log
	end <- nil
	<-first
	<-began
	waiting(t, "a", a)
	written := e.written
	end <- errors.New("disk gone")
	<-a
	if err := <-b; !errors.Is(err, engine.ErrClosed) {
		t.Errorf("b: %v", err)
	}
	if e.written != written {
		t.Error("b was written after the sync of a had failed")
	}
}

// Badger begins another log only when the driver expects it, whatever is written:
// so the log before is synced by then.
func TestABoundOfTheLogIsKnown(t *testing.T) {
	for size, want := range map[int]int{1: 1, 600: 2, 3000: 3, 400_000: 3} {
		if raceEnabled && size == 1 {
			continue // there is no concurrency in it, and it takes long
		}
		t.Run(fmt.Sprint(size, " bytes"), func(t *testing.T) {
			e := open(t, t.TempDir()+"/store", nil)
			e.syncData = func(*os.File) error { return nil }
			logs, groups, apart := 0, 0, 0
			for i := 0; logs < want; i++ {
				var b engine.Batch
				for j := 0; b.Bytes() < 300_000 && j < 4000; j++ {
					b.Set(fmt.Appendf(nil, "%08d/%06d", i, j), bytes.Repeat([]byte{1}, size))
				}
				number, bound := e.number, e.logged
				if err := e.Apply(ctx, &b); err != nil {
					t.Fatal(err)
				}
				if groups++; bound >= memTableSize {
					apart++
				}
				if e.number == number {
					continue
				}
				if logs++; bound < memTableSize || e.number != number+1 {
					t.Errorf("log %d begins after log %d, which has at most %d of %d bytes", e.number, number, bound, memTableSize)
				}
			}
			t.Logf("%d of %d groups were written apart", apart, groups)
		})
	}
}

// A loss of power leaves of each log what was synced. Everything that was
// acknowledged is there, and nothing without what it builds on.
func TestPowerLoss(t *testing.T) {
	dir := t.TempDir() + "/store"
	e := open(t, dir, nil)
	var mu sync.Mutex // guards durable
	durable := map[string][]byte{}
	e.syncData = func(f *os.File) error {
		content, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<20))
		mu.Lock()
		durable[f.Name()] = content
		mu.Unlock()
		return err
	}
	const writers = 8
	acked := make([]int, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range 40 {
				var b engine.Batch
				key := fmt.Appendf(nil, "head-%d", w)
				if i > 0 {
					b.Guard(key, fmt.Append(nil, i))
				}
				b.Set(key, fmt.Append(nil, i+1))
				b.Set(fmt.Appendf(nil, "%d/%d", w, i), bytes.Repeat([]byte("x"), 500))
				if err := e.Apply(ctx, &b); err != nil {
					t.Error(err)
					return
				}
				acked[w] = i + 1
			}
		})
	}
	wg.Wait()
	after := t.TempDir() + "/store"
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		rel, rerr := filepath.Rel(dir, path)
		to := filepath.Join(after, rel)
		if err = errors.Join(err, rerr); err != nil || d.IsDir() {
			return errors.Join(err, os.MkdirAll(to, 0o700))
		}
		content := durable[path]
		if !strings.HasSuffix(path, logSuffix) {
			content, err = os.ReadFile(path)
		}
		return errors.Join(err, os.WriteFile(to, content, 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
	e = open(t, after, nil)
	for w := range writers {
		if got := value(t, e, fmt.Sprint("head-", w)); got != fmt.Sprint(acked[w]) {
			t.Errorf("writer %d: %s of %d acknowledged batches are there", w, got, acked[w])
		}
		for i := range acked[w] {
			if value(t, e, fmt.Sprintf("%d/%d", w, i)) == "" {
				t.Fatalf("batch %d of writer %d is gone", i, w)
			}
		}
	}
}
