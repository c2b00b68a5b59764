package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/turnstonedb/turnstone/engine"
)

const testMemTable = 64 << 10 // many logs and tables from little data

// memStore returns an empty simulated disk and the name of a store on it.
func memStore(t testing.TB) (*vfs.MemFS, string) {
	fs := vfs.NewCrashableMem()
	dir := filepath.Join(t.TempDir(), "store")
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for d := dir; ; d = fs.PathDir(d) {
		f, err := fs.OpenDir(d)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
		if d == "/" {
			return fs, dir
		}
	}
}

func openOn(fs vfs.FS, dir string) (*Engine, error) {
	return Open(dir, &Options{MinFreeBytes: 1, fs: fs, memTable: testMemTable})
}

// A ledger remembers what was written, so that a later state can be checked
// against it. Batch n sets a/n and b/n; every fifth batch deletes those of n-3, if
// they were acknowledged.
type ledger struct {
	mu        sync.Mutex
	next      int
	acked     map[int]bool
	deletedBy map[int]int // the batch that deletes another one
}

func newLedger() *ledger { return &ledger{acked: map[int]bool{}, deletedBy: map[int]int{}} }

func ledgerKey(side string, n int) []byte { return fmt.Appendf(nil, "%s/%06d", side, n) }

func ledgerValue(side string, n int) []byte {
	r := rand.New(rand.NewPCG(uint64(n), uint64(side[0])))
	size := 50 + r.IntN(2000)
	if n%17 == 0 {
		size = 20_000
	}
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// write applies the next batch.
func (l *ledger) write(ctx context.Context, e engine.Engine) error {
	l.mu.Lock()
	n := l.next
	l.next++
	deletes := n%5 == 0 && l.acked[n-3]
	if deletes {
		l.deletedBy[n-3] = n
	}
	l.mu.Unlock()
	var b engine.Batch
	for _, side := range []string{"a", "b"} {
		b.Set(ledgerKey(side, n), ledgerValue(side, n))
		if deletes {
			b.Delete(ledgerKey(side, n-3))
		}
	}
	b.Guard(ledgerKey("a", n), nil)
	err := e.Apply(ctx, &b)
	if err == nil {
		l.mu.Lock()
		l.acked[n] = true
		l.mu.Unlock()
	}
	return err
}

func (l *ledger) ackedNow() map[int]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	acked := map[int]bool{}
	for n := range l.acked {
		acked[n] = true
	}
	return acked
}

// check compares the whole content of e with the ledger, of which acked must be
// there. It returns a reported error, or wrong, what is missing without one.
func (l *ledger) check(ctx context.Context, e engine.Engine, acked map[int]bool) (wrong string, reported error) {
	found := map[string][]byte{}
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			return "", err
		}
		found[string(p.Key)] = p.Value
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := range l.next {
		by, deleted := l.deletedBy[n]
		var there [2]bool
		for i, side := range []string{"a", "b"} {
			k := ledgerKey(side, n)
			v, ok := found[string(k)]
			there[i] = ok
			delete(found, string(k))
			if ok && !bytes.Equal(v, ledgerValue(side, n)) {
				return fmt.Sprintf("%s has another value", k), nil
			}
			one, err := e.Get(ctx, k)
			if err != nil {
				return "", err
			}
			if !bytes.Equal(one[0], v) {
				return fmt.Sprintf("a Get of %s differs from a Scan", k), nil
			}
		}
		switch {
		case there[0] != there[1]:
			return fmt.Sprintf("half of batch %d is there", n), nil
		case !there[0] && acked[n] && !deleted:
			return fmt.Sprintf("acknowledged batch %d is gone", n), nil
		case there[0] && deleted && acked[by]:
			return fmt.Sprintf("batch %d was deleted and is there", n), nil
		}
	}
	for k := range found {
		return fmt.Sprintf("%q was never written", k), nil
	}
	return "", nil
}

// typed reports whether err is one that callers can act on: an error of package
// engine, a context's, or the system's own.
func typed(err error) bool {
	for _, want := range []error{
		engine.ErrNoSpace, engine.ErrUnknown, engine.ErrClosed, engine.ErrCorrupt,
		context.DeadlineExceeded, context.Canceled, syscall.EIO,
	} {
		if errors.Is(err, want) {
			return true
		}
	}
	return false
}

// within runs call and fails t when it takes longer than its deadline and a second.
func within(t testing.TB, what string, deadline time.Duration, call func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	begun := time.Now()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(deadline + time.Second + raceSlack):
		t.Errorf("%s has taken %v, with a deadline of %v", what, time.Since(begun), deadline)
		return context.DeadlineExceeded
	}
}

// together calls run with 0 to n-1, some at a time: most of a run is waiting.
func together(n int, run func(int)) {
	var wg sync.WaitGroup
	places := make(chan struct{}, 12)
	for i := range n {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			run(i)
		})
	}
	wg.Wait()
}

// raceSlack allows for machines that do something else beside the tests.
const raceSlack = 2 * time.Second
