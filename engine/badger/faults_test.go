package badger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

var ctx = context.Background()

// smallLog makes memtables of a MiB, so that a test flushes and rewrites often.
const smallLog = 1<<20 + logExtra

func openDisk(d *disk) (*Engine, error) {
	e, err := openFiles(d, smallLog, nil)
	if err != nil {
		return nil, err
	}
	e.start()
	return e, nil
}

// A workload writes to a store and knows what was acknowledged. Each of its writers writes
// ascending counts and keeps the values of the last window counts in the store.
type workload struct {
	acked [3]int // the last count of each writer that was acknowledged
	tried [3]int // the last count that may be in the store
}

const window = 20

func key(w, i int) []byte { return fmt.Appendf(nil, "w%d/%06d", w, i) }

func counter(w int) []byte { return fmt.Appendf(nil, "w%d", w) }

// content returns the value of a count. Some values are large, so that logs fill.
func text(w, i int) []byte {
	size := 1 + (w*7919+i*104729)%3000
	if i%7 == 0 {
		size += 60_000
	}
	return bytes.Repeat(fmt.Appendf(nil, "%d/%d ", w, i), size/6+1)
}

// count applies the next count of a writer.
func (l *workload) count(e *Engine, w int) error {
	n := l.acked[w] + 1
	var b engine.Batch
	var old []byte
	if n > 1 {
		old = fmt.Append(nil, n-1)
	}
	b.Guard(counter(w), old)
	b.Set(counter(w), fmt.Append(nil, n))
	b.Set(key(w, n), text(w, n))
	if n > window {
		b.Delete(key(w, n-window))
	}
	before := l.tried[w]
	l.tried[w] = n
	err := e.Apply(ctx, &b)
	if err == nil {
		l.acked[w] = n
	} else if !errors.Is(err, engine.ErrUnknown) {
		l.tried[w] = before
	}
	return err
}

// check compares the store with what was acknowledged. It accepts the effects of attempts
// with an unknown outcome. It returns a typed error of the engine, and fails the test if
// the store has wrong data.
func (l *workload) check(t *testing.T, e *Engine, what string) error {
	t.Helper()
	var want []engine.Pair
	for w := range l.acked {
		vs, err := e.Get(ctx, counter(w))
		if err != nil {
			return err
		}
		n := 0
		if vs[0] != nil {
			fmt.Sscan(string(vs[0]), &n)
		}
		if n < l.acked[w] || n > max(l.acked[w], l.tried[w]) {
			t.Fatalf("%s: writer %d counts %d, acknowledged %d, tried %d", what, w, n, l.acked[w], l.tried[w])
		}
		l.acked[w], l.tried[w] = n, n
		if n > 0 {
			want = append(want, engine.Pair{Key: counter(w), Value: fmt.Append(nil, n)})
		}
		for i := max(1, n-window+1); i <= n; i++ {
			want = append(want, engine.Pair{Key: key(w, i), Value: text(w, i)})
		}
	}
	i := 0
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			return err
		}
		if i >= len(want) || !bytes.Equal(p.Key, want[i].Key) || !bytes.Equal(p.Value, want[i].Value) {
			t.Fatalf("%s: pair %d is %s, want another of %d", what, i, p.Key, len(want))
		}
		got, err := e.Get(ctx, p.Key, []byte("nobody"))
		if err != nil {
			return err
		}
		if !bytes.Equal(got[0], p.Value) || got[1] != nil {
			t.Fatalf("%s: Get(%s) differs from Scan", what, p.Key)
		}
		i++
	}
	if i != len(want) {
		t.Fatalf("%s: %d pairs, want %d", what, i, len(want))
	}
	return nil
}

// typed reports whether an error matches one of the engine's errors.
func typed(err error) bool {
	for _, kind := range []error{engine.ErrNoSpace, engine.ErrUnknown, engine.ErrClosed, engine.ErrCorrupt, syscall.EIO, syscall.EMFILE} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// An acknowledged batch survives losses of power, kills and failed syncs, in any
// order, on file systems that make names durable together, each with its file, or
// only with their directory.
func TestAcknowledgedBatchesSurvivePowerCutsKillsAndFailedSyncs(t *testing.T) {
	stores, rounds := testscale.Pick(12, 6, 3), testscale.Pick(16, 12, 8)
	cuts, kills, failures, flushes := 0, 0, 0, 0
	for _, mode := range []string{"journal", "btrfs", "posix"} {
		for s := range stores {
			r := rand.New(rand.NewPCG(uint64(s), uint64(len(mode))))
			d, l := newDisk(mode), new(workload)
			for round := range rounds {
				what := fmt.Sprintf("%s store %d round %d", mode, s, round)
				d.set(nil)
				e, err := openDisk(d)
				if err != nil {
					t.Fatal(what, err)
				}
				if err := l.check(t, e, what); err != nil {
					t.Fatal(what, err)
				}
				e.mu.RLock()
				flushes += len(e.content.runs)
				e.mu.RUnlock()
				// The device goes away at some call, or one sync fails.
				at, failSync := 1+r.IntN(150), r.IntN(3) == 0
				gone := false
				d.set(func(call int, op, name string) error {
					if gone = gone || call >= at && (!failSync || op == "datasync" || op == "sync"); gone {
						if failSync {
							gone, at = false, 1<<30
						}
						return syscall.EIO
					}
					return nil
				})
				end := r.IntN(4)
				work(e, l, r.IntN(3) == 0)
				switch end {
				case 0:
					d.set(nil)
					e.Close()
				default:
					d.set(func(int, string, string) error { return syscall.EIO })
					e.Close() // like a kill: nothing more reaches the disk
					kills++
				}
				if failSync {
					failures++
				}
				if r.IntN(2) == 0 {
					d, cuts = d.cut(r), cuts+1
				}
			}
		}
	}
	t.Logf("%d cuts of power, %d kills, %d failed syncs, %d runs of tables found on opening", cuts, kills, failures, flushes)
	if flushes == 0 {
		t.Error("nothing was ever flushed")
	}
}

// work lets each writer count 60 times, or until the store refuses.
func work(e *Engine, l *workload, vacuums bool) {
	var writers sync.WaitGroup
	for w := range l.acked {
		writers.Go(func() {
			for range 60 {
				if l.count(e, w) != nil {
					return
				}
			}
		})
	}
	if vacuums {
		writers.Go(func() {
			for range 3 {
				if e.Vacuum(ctx) != nil {
					return
				}
			}
		})
	}
	writers.Wait()
}

// Every call of opening, committing, flushing, rewriting and closing fails, once or from
// then on. The failure is a typed error. If it is not a shortage, the store refuses
// everything from then on. The next Open has everything that was acknowledged.
func TestEveryCallToTheDiskFails(t *testing.T) {
	testscale.Slow(t)
	script := func(d *disk, l *workload) (errs []error) {
		e, err := openDisk(d)
		if err != nil {
			return []error{err}
		}
		for i := range 45 {
			if err := l.count(e, i%3); err != nil {
				errs = append(errs, err)
				if again := l.count(e, i%3); again == nil && errors.Is(err, engine.ErrUnknown) {
					errs = append(errs, errors.New("a store of unknown state goes on"))
				}
			}
			if i == 30 {
				if err := e.Vacuum(ctx); err != nil {
					errs = append(errs, err)
				}
			}
		}
		began := time.Now()
		if err := e.Close(); err != nil {
			errs = append(errs, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			errs = append(errs, fmt.Errorf("Close took %v", took))
		}
		return errs
	}
	prepared := newDisk("posix")
	before := new(workload)
	if errs := script(prepared, before); errs != nil {
		t.Fatal(errs)
	}
	d := prepared.copied()
	d.set(func(int, string, string) error { return nil })
	if errs := script(d, &workload{acked: before.acked}); errs != nil {
		t.Fatal(errs)
	}
	calls := d.calls
	if calls < 50 {
		t.Fatalf("only %d calls", calls)
	}
	step := testscale.Pick(1, 11, 37)
	for n := 1; n <= calls; n += step {
		for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EMFILE} {
			for _, forever := range []bool{false, true} {
				var op string
				d, l := prepared.copied(), &workload{acked: before.acked, tried: before.acked}
				d.set(func(call int, o, name string) error {
					if call == n || forever && call > n {
						if call == n {
							op = o + " of " + name
						}
						return errno
					}
					return nil
				})
				errs := script(d, l)
				what := fmt.Sprintf("call %d (%s), %v, for ever %v", n, op, errno, forever)
				for _, err := range errs {
					if !typed(err) {
						t.Fatalf("%s: %v", what, err)
					}
				}
				d.set(nil)
				for _, d := range []*disk{d, d.cut(rand.New(rand.NewPCG(uint64(n), 1)))} {
					e, err := openDisk(d)
					if err != nil {
						t.Fatalf("%s: the next Open: %v", what, err)
					}
					m := *l
					if err := m.check(t, e, what); err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					if err := errors.Join(m.count(e, 0), e.Close()); err != nil {
						t.Fatalf("%s: afterwards: %v", what, err)
					}
				}
			}
		}
	}
	t.Logf("%d calls", calls)
}
