package gc_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// G7: vacuum and erasure end beside maintenance that begins again and again, in the same
// store and in another one, and beside writers, on a slow engine.
func TestG7_VacuumAndEraseEndBesideMaintenanceAndWriters(t *testing.T) {
	for _, separate := range []bool{false, true} {
		t.Run(fmt.Sprintf("separate=%v", separate), func(t *testing.T) {
			t.Parallel()
			var wait atomic.Int64 // how long each call takes
			e := &enginetest.Faulty{Engine: memory.New(), Plan: func(enginetest.Call) enginetest.Fault {
				return enginetest.Fault{Latency: time.Duration(wait.Load())}
			}}
			open := func() *turnstone.Store {
				st, err := turnstone.Open(ctx, e, &turnstone.Options{InlineBytes: 1})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { st.Close() })
				return st
			}
			st, other := open(), open()
			writers := testkit.Pick(8, 2, 2)
			secrets := make([][]byte, testkit.Pick(3, 1, 1))
			for i := range secrets {
				secrets[i] = noise(6000, uint64(100+i))
				commit(t, create(t, st, turnstone.Request{ID: fmt.Sprint("gone", i)}), says(secrets[i]))
			}
			for i := range writers {
				create(t, st, turnstone.Request{ID: fmt.Sprint("busy", i)})
			}
			wait.Store(int64(testkit.Pick(5*time.Millisecond, 200*time.Microsecond, 200*time.Microsecond)))
			maintained := st
			if separate {
				maintained = other
			}
			var runs atomic.Int64
			stop, err := maintained.Maintain(turnstone.MaintainOptions{Every: 40 * time.Millisecond, Pace: 1, Report: func(m turnstone.Maintained) {
				err := m.Err
				if runs.Add(1); err != nil {
					t.Error("maintenance:", err)
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			c, cancel := context.WithCancel(ctx)
			var wg sync.WaitGroup
			for i := range writers {
				wg.Go(func() {
					s, err := st.Session(ctx, fmt.Sprint("busy", i))
					for n := 0; err == nil && c.Err() == nil; n++ {
						_, err = s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "u", Payload: fmt.Append(nil, n)}}})
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			for runs.Load() == 0 { // maintenance and writers are at work
				time.Sleep(time.Millisecond)
			}
			for i, secret := range secrets {
				receipt, err := st.Erase(ctx, fmt.Sprint("gone", i), turnstone.KeepChildren, turnstone.EraseOptions{})
				if err != nil {
					t.Error("erase:", err)
				} else if len(receipt.HeldBy) > 0 || receipt.Gone != 1 || receipt.Shared > 0 || len(receipt.Vacuum.Unfinished) > 0 || holds(e.Engine, secret[:100]) {
					t.Errorf("receipt %+v, %+v", receipt, receipt.Vacuum)
				}
			}
			if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
				t.Error("vacuum:", err)
			}
			cancel()
			wg.Wait()
			stop()
			healthy(t, st)
		})
	}
}

// G7: one that begins leaves a cycle that makes progress alone, and takes over one that does
// not.
func TestG7_ARunThatMakesNoProgressIsTakenOver(t *testing.T) {
	testkit.Slow(t)
	e := memory.New()
	openAs := func(e engine.Engine, patience time.Duration) *turnstone.Store {
		st, err := turnstone.Open(ctx, e, &turnstone.Options{InlineBytes: 1, NoAutoSeal: true, TakeOverAfter: patience})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { st.Close() })
		return st
	}
	st := openAs(e, time.Hour)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 30 {
		commit(t, s, saves(noise(6000, uint64(i))))
		prune(t, s)
	}

	// One that has died in the middle.
	died := &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault { return enginetest.Fault{Crash: c.Apply == 3} }}
	if _, err := openAs(died, time.Hour).GC(ctx, gc.Options{}); !errors.Is(err, engine.ErrClosed) {
		t.Fatal(err)
	}
	brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := openAs(e, time.Hour).GC(brief, gc.Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a patient one did not wait: %v", err)
	}
	if _, err := openAs(e, time.Millisecond).GC(ctx, gc.Options{}); err != nil {
		t.Errorf("after its patience: %v", err)
	}
	if _, err := st.GC(ctx, gc.Options{}); err != nil { // nothing is at work any more
		t.Error(err)
	}

	// One that lasts longer than the patience of another, and makes progress.
	for i := range 30 {
		commit(t, s, saves(noise(6000, uint64(100+i))))
		prune(t, s)
	}
	working := make(chan struct{})
	var once sync.Once
	crawling := &enginetest.Faulty{Engine: e, Plan: func(enginetest.Call) enginetest.Fault {
		once.Do(func() { close(working) })
		return enginetest.Fault{Latency: 5 * time.Millisecond}
	}}
	result := make(chan error)
	go func() {
		st, err := turnstone.Open(ctx, crawling, &turnstone.Options{InlineBytes: 1, NoAutoSeal: true, TakeOverAfter: 60 * time.Millisecond})
		if err == nil {
			_, err = st.GC(ctx, gc.Options{Full: true})
			st.Close()
		}
		result <- err
	}()
	<-working
	if _, err := openAs(e, 60*time.Millisecond).GC(ctx, gc.Options{}); err != nil {
		t.Error(err)
	}
	if err := <-result; err != nil {
		t.Errorf("the cycle that made progress: %v (superseded: %v)", err, errors.Is(err, gc.ErrSuperseded))
	}
	healthy(t, st)
}
