package shared

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// A place is an engine in memory that a store is moved to. Each Apply of it calls before, and returns what after
// returns.
type place struct {
	*memory.Engine
	before func() error
	after  func(error) error
	limits engine.Limits
	closed bool
}

func newPlace() *place {
	e := memory.New()
	return &place{Engine: e, before: func() error { return nil }, after: func(err error) error { return err }, limits: e.Limits()}
}

func (p *place) Apply(ctx context.Context, b *engine.Batch) error {
	if err := p.before(); err != nil {
		return err
	}
	return p.after(p.Engine.Apply(ctx, b))
}

func (p *place) Limits() engine.Limits { return p.limits }

// Close leaves the pairs to the test.
func (p *place) Close() error {
	p.closed = true
	return nil
}

// movable opens dir with a driver of d, from which stores are moved to p.
func movable(t *testing.T, dir string, d *disk, p *place) *Engine {
	t.Helper()
	e, err := Open(ctx, dir, Driver{Name: "disk", Open: d.driver, Other: func(context.Context, string) (engine.Engine, error) { return p, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func pairs(t *testing.T, e engine.Engine) map[string]string {
	t.Helper()
	all := map[string]string{}
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		all[string(p.Key)] = string(p.Value)
	}
	return all
}

// fill sets so many keys, of which each has a value of 1,000 bytes.
func fill(t *testing.T, e engine.Engine, n int) {
	t.Helper()
	for i := range n {
		if err := set(e, fmt.Sprintf("fill %05d", i), strings.Repeat("x", 1000)); err != nil {
			t.Fatal(err)
		}
	}
}

// Four callers in two processes increase counters, each step guarded, and set and delete keys of their own, while the
// store is moved by the one that is not the owner. Nothing that was acknowledged is lost, before the move and after
// it, and no counter goes back.
func TestAMoveLosesNothingWhileCallsGoOn(t *testing.T) {
	dir, d, p := private(t), newDisk(), newPlace()
	owner := movable(t, dir, d, p)
	other := movable(t, dir, d, p)
	fill(t, owner, 3000)
	var callers sync.WaitGroup
	stop, acked := make(chan struct{}), [4]map[string]string{}
	for n := range acked {
		acked[n] = map[string]string{}
		e := []*Engine{owner, other}[n%2]
		callers.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(n)))
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				counter, own := fmt.Sprint("counter ", r.IntN(3)), fmt.Sprint("own ", n, r.IntN(500))
				v, err := e.Get(ctx, []byte(counter))
				if err != nil {
					t.Error(err)
					return
				}
				old, _ := strconv.Atoi(string(v[0]))
				var b engine.Batch
				b.Guard([]byte(counter), v[0])
				b.Set([]byte(counter), fmt.Append(nil, old+1))
				if r.IntN(3) > 0 {
					b.Set([]byte(own), fmt.Append(nil, i))
				} else {
					b.Delete([]byte(own))
				}
				switch err := e.Apply(ctx, &b); {
				case errors.Is(err, engine.ErrConflict):
					continue
				case err != nil:
					t.Error(err)
					return
				}
				if acked[n][own] = fmt.Sprint(i); len(b.Deletes) > 0 {
					delete(acked[n], own)
				}
				acked[n]["sum"] += "x"
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	m, err := other.Move(ctx, "a place", "its name")
	if err != nil {
		t.Fatal(err)
	}
	left := pairs(t, d.Engine)
	time.Sleep(20 * time.Millisecond)
	close(stop)
	callers.Wait()
	if m.Pairs < 3000 || m.Bytes < 3_000_000 || m.Paused <= 0 {
		t.Errorf("%+v", m)
	}
	if now := pairs(t, d.Engine); fmt.Sprint(now) != fmt.Sprint(left) {
		t.Error("the old engine is written to after the move")
	}
	got := pairs(t, owner)
	steps, sum := 0, 0
	for n := range acked {
		steps += len(acked[n]["sum"])
		delete(acked[n], "sum")
		for i := range 500 {
			key := fmt.Sprint("own ", n, i)
			if got[key] != acked[n][key] {
				t.Errorf("%s is %q, acknowledged was %q", key, got[key], acked[n][key])
			}
		}
	}
	for i := range 3 {
		n, _ := strconv.Atoi(got[fmt.Sprint("counter ", i)])
		sum += n
	}
	if sum != steps {
		t.Errorf("%d steps were acknowledged, and the counters have %d", steps, sum)
	}
	if got["fill 02999"] == "" || got[string(engine.UnfinishedKey)] != "" {
		t.Error("a pair is missing, or the mark was left")
	}
	if fmt.Sprint(pairs(t, p)) != fmt.Sprint(got) || fmt.Sprint(pairs(t, other)) != fmt.Sprint(got) {
		t.Error("they do not use the new engine")
	}
	if _, err := owner.Move(ctx, "another place", "x"); !errors.Is(err, ErrNoMove) {
		t.Errorf("a second move: %v", err)
	}
	if err := owner.Close(); err != nil || !p.closed {
		t.Errorf("%v, the new engine is closed: %t", err, p.closed)
	}
	var moved *engine.MovedError
	if _, err := other.Get(ctx, []byte("a")); !errors.Is(err, engine.ErrUnavailable) || !errors.As(err, &moved) || moved.To != "its name" {
		t.Errorf("after the owner has closed: %v", err)
	}
	if _, err := Open(ctx, dir, Driver{Name: "disk", Open: d.driver}); !errors.Is(err, engine.ErrMoved) || !strings.Contains(err.Error(), "its name") {
		t.Errorf("opened again: %v", err)
	}
}

// The target fails at each of its batches in turn, or the caller gives up, or the owner closes. Then the store is
// where it was, takes every call, and a second move to the same engine succeeds.
func TestAMoveThatFailsLeavesTheStoreWhereItWas(t *testing.T) {
	broken := errors.New("it is broken")
	for n := 0; ; n++ {
		dir, d, p := private(t), newDisk(), newPlace()
		e := movable(t, dir, d, p)
		fill(t, e, 2500)
		caller, cancel := context.WithCancel(ctx)
		defer cancel()
		count := 0
		p.before = func() error {
			if count++; count != n+1 {
				return nil
			}
			if n%2 == 0 {
				cancel()
				return caller.Err()
			}
			return broken
		}
		m, err := e.Move(caller, "", "")
		if err == nil {
			if n < 4 || m.Pairs != 2500 {
				t.Errorf("%d batches, %+v", n, m)
			}
			return
		}
		if !errors.Is(err, broken) && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if !p.closed || errors.Is(err, engine.ErrUnknown) {
			t.Errorf("batch %d: %v, the target is closed: %t", n, err, p.closed)
		}
		if err := set(e, "after", "1"); err != nil || get(t, e, "fill 00000") == "" {
			t.Error(err)
		}
		p.before = func() error { return nil }
		if n%3 == 0 { // The store is opened again.
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			e = movable(t, dir, d, p)
		}
		if _, err := e.Move(ctx, "", ""); err != nil {
			t.Fatalf("batch %d: again: %v", n, err)
		}
		if got := pairs(t, p); len(got) != 2501 || got["after"] != "1" {
			t.Errorf("batch %d: %d pairs", n, len(got))
		}
	}
}

// The outcome of each batch of the target in turn is not known, and it was applied or not.
func TestAMoveGoesOnAfterAnUnknownOutcome(t *testing.T) {
	for n := 0; ; n++ {
		d, p := newDisk(), newPlace()
		e := movable(t, private(t), d, p)
		fill(t, e, 1500)
		count := 0
		hit := func() bool { count++; return count == n/2+1 }
		if n%2 == 0 {
			p.after = func(err error) error {
				if hit() {
					return engine.ErrUnknown
				}
				return err
			}
		} else {
			p.before = func() error {
				if hit() {
					return engine.ErrUnknown
				}
				return nil
			}
		}
		if _, err := e.Move(ctx, "", ""); err != nil {
			t.Fatalf("%d: %v", n, err)
		}
		if got := pairs(t, p); len(got) != 1500 {
			t.Errorf("%d: %d pairs", n, len(got))
		}
		if count < n/2+1 {
			return
		}
	}
}

func TestAnOwnerThatClosesEndsAMove(t *testing.T) {
	dir, d, p := private(t), newDisk(), newPlace()
	e := movable(t, dir, d, p)
	fill(t, e, 2500)
	begun, waited := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	p.before = func() error {
		once.Do(func() { close(begun) })
		time.Sleep(time.Millisecond)
		return nil
	}
	go func() {
		_, err := e.Move(ctx, "", "")
		waited <- err
	}()
	<-begun
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waited; err == nil {
		if _, err := Open(ctx, dir, Driver{Name: "disk", Open: d.driver}); !errors.Is(err, engine.ErrMoved) {
			t.Error(err)
		}
		return
	}
	if again := join(t, dir, d.driver); get(t, again, "fill 00000") == "" {
		t.Error("the store is gone")
	}
}

func TestAMoveRefusesWhatIsNoEmptyEngine(t *testing.T) {
	for name, change := range map[string]func(e *Engine, p *place) error{
		"has a pair":        func(_ *Engine, p *place) error { return set(p, "a", "1") },
		"takes less":        func(_ *Engine, p *place) error { p.limits.BatchBytes--; return nil },
		"the source is one": func(e *Engine, _ *place) error { return set(e, string(engine.UnfinishedKey), "1") },
		"no way to open it": func(e *Engine, _ *place) error { e.driver.Other = nil; return nil },
	} {
		d, p := newDisk(), newPlace()
		e := movable(t, private(t), d, p)
		if err := errors.Join(set(e, "b", "2"), change(e, p)); err != nil {
			t.Fatal(err)
		}
		before := fmt.Sprint(pairs(t, p))
		if _, err := e.Move(ctx, "", ""); !errors.Is(err, ErrNoMove) {
			t.Errorf("%s: %v", name, err)
		}
		if got := fmt.Sprint(pairs(t, p)); got != before {
			t.Errorf("%s: %s", name, got)
		}
		if err := set(e, "b", "3"); err != nil || get(t, e, "b") != "3" {
			t.Error(name, err)
		}
	}
}

func TestAMoveThatCantBeNotedDoesNotTakePlace(t *testing.T) {
	dir, d, p := private(t), newDisk(), newPlace()
	e := movable(t, dir, d, p)
	if err := errors.Join(set(e, "a", "1"), os.Mkdir(filepath.Join(dir, "turnstone.moved"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Move(ctx, "", ""); err == nil || errors.Is(err, engine.ErrUnknown) {
		t.Error(err)
	}
	if err := set(e, "a", "2"); err != nil || get(t, e, "a") != "2" || pairs(t, d.Engine)["a"] != "2" {
		t.Error(err)
	}
}
