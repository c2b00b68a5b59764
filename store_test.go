package turnstone_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// Outcomes are unknown again and again, applied or not, sometimes late: every
// turn is there once, in order.
func TestUnknownOutcomesAreResolved(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var mu sync.Mutex
		e := &enginetest.Faulty{Engine: memory.New(), Plan: func(c enginetest.Call) enginetest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if c.Op != "Apply" || rng.IntN(3) > 0 {
				return enginetest.Fault{}
			}
			f := enginetest.Fault{Err: engine.ErrUnknown}
			switch rng.IntN(3) {
			case 0:
				f.Applied = true
			case 1:
				f.Late = true
			}
			return f
		}}
		st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
		s := create(t, st, turnstone.Request{ID: "a"})
		for i := range 30 {
			c := turnstone.Commit{Expected: head.Revision(i), Nodes: []turnstone.NewNode{{Kind: "k", Payload: fmt.Append(nil, i)}}}
			switch i % 3 {
			case 0:
				c.Turn = fmt.Sprint(i)
			case 1:
				c.Expected = turnstone.AnyRevision
			}
			if i%4 == 0 {
				c.Checkpoint = map[string][]byte{"p": random(500, uint64(i))}
			}
			r, err := s.Commit(ctx, c)
			if err != nil || r.Revision != head.Revision(i+1) {
				t.Fatalf("seed %d, commit %d: %+v, %v", seed, i, r, err)
			}
			if i == 10 {
				if err := s.Tombstone(ctx, r.Nodes[0]); err != nil {
					t.Fatal(err)
				}
			}
			if i == 20 {
				if err := st.Rename(ctx, "a", "b"); err != nil {
					t.Fatal(err)
				}
				if s, err = st.Session(ctx, "b"); err != nil {
					t.Fatal(err)
				}
			}
		}
		state, err := s.Load(ctx, turnstone.Scope{Full: true})
		if err != nil || len(state.Nodes) != 29 {
			t.Fatalf("seed %d: %d nodes, %v", seed, len(state.Nodes), err)
		}
		verify(t, st)
	}
}

// A crash after any Apply of a history leaves a store that verifies and holds
// what was acknowledged.
func TestACrashAnywhereLeavesAWholeStore(t *testing.T) {
	if race {
		t.Skip("one goroutine, a hundred stores: there is nothing for the race detector")
	}
	for n := 1; ; n += testscale.Pick(1, 4, 23) {
		m := memory.New()
		e := &enginetest.Faulty{Engine: m, Plan: enginetest.CrashAfter(n)}
		acked := -1
		st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
		if err == nil {
			var s *turnstone.Session
			if s, _, err = st.Create(ctx, turnstone.Request{ID: "a"}); err == nil {
				acked = 0
				for i := range 6 {
					_, err = s.Commit(ctx, turnstone.Commit{
						Expected: head.Revision(i), Nodes: []turnstone.NewNode{{Kind: "k", Payload: random(6000, uint64(i))}},
						Checkpoint: map[string][]byte{"p": random(800<<10, uint64(i))},
					})
					if err != nil {
						break
					}
					acked = i + 1
				}
				if err == nil {
					err = s.Seal(ctx)
				}
			}
			st.Close()
		}
		again := openStore(t, m, nil)
		verify(t, again)
		if s, serr := again.Session(ctx, "a"); serr == nil {
			info, ierr := s.Info(ctx)
			if ierr != nil || int(info.Revision) < acked || int(info.Revision) > acked+1 {
				t.Fatalf("crash after Apply %d: at revision %d, %d was acknowledged: %v", n, info.Revision, acked, ierr)
			}
		} else if acked >= 0 {
			t.Fatalf("crash after Apply %d: %v", n, serr)
		}
		if err == nil {
			if n < 10 {
				t.Fatalf("the history has only %d applies", n)
			}
			return
		}
		if !errors.Is(err, engine.ErrClosed) {
			t.Fatal(err)
		}
	}
}

// G3, as far as storing goes: identical bytes in two sessions are stored once.
func TestG3_EqualBytesAreStoredOncePerNamespace(t *testing.T) {
	e := memory.New()
	blobs := func(st *turnstone.Store) int {
		s, err := st.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s.Blobs
	}
	st, other := openStore(t, e, nil), openStore(t, e, &turnstone.Options{Namespace: "other"})
	for i := range 3 {
		s := create(t, st, turnstone.Request{ID: fmt.Sprint(i)})
		c := turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "system", Payload: random(20_000, 1)}}, Checkpoint: map[string][]byte{"tools": random(9000, 2)}}
		if _, err := s.Commit(ctx, c); err != nil {
			t.Fatal(err)
		}
		if got := blobs(st); got != 2 {
			t.Errorf("%d blobs after session %d", got, i)
		}
	}
	if got := blobs(other); got != 0 {
		t.Errorf("%d blobs in another namespace", got)
	}
	if _, err := other.Session(ctx, "0"); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Errorf("a session of another namespace: %v", err)
	}
	s := create(t, other, turnstone.Request{ID: "0"})
	if _, err := s.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "system", Payload: random(20_000, 1)}}}); err != nil {
		t.Fatal(err)
	}
	if got := blobs(other); got != 1 {
		t.Errorf("%d blobs: shared across namespaces", got)
	}
}

func TestF1_AForkOfALongSessionIsSmall(t *testing.T) {
	var last atomic.Int64 // the bytes of the last batch
	e := &enginetest.Faulty{Engine: memory.New(), Plan: beforeEachApply(func(b *engine.Batch) { last.Store(int64(b.Bytes())) })}
	st := openStore(t, e, nil)
	s := create(t, st, turnstone.Request{ID: "long"})
	for i := range 2500 {
		nodes := make([]turnstone.NewNode, 4)
		for j := range nodes {
			nodes[j] = turnstone.NewNode{Kind: "text", Payload: fmt.Append(nil, i, j)}
		}
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Nodes: nodes}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	f := create(t, st, turnstone.Request{ID: "fork", Parent: "long"})
	t.Logf("a fork of 10,000 nodes writes %d bytes", last.Load())
	if last.Load() >= 2000 {
		t.Errorf("a fork writes %d bytes", last.Load())
	}
	state, err := f.Load(ctx, turnstone.Scope{})
	if err != nil || len(state.Nodes) != 10_000 {
		t.Errorf("%d nodes, %v", len(state.Nodes), err)
	}
}

func TestSealingRunsByItself(t *testing.T) {
	st := openStore(t, memory.New(), &turnstone.Options{SealBytes: 10_000})
	s := create(t, st, turnstone.Request{ID: "a"})
	for i := range 200 {
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Nodes: []turnstone.NewNode{{Kind: "k", Payload: random(1000, uint64(i))}}}); err != nil {
			t.Fatal(err)
		}
	}
	for wait := 0; ; wait++ {
		stats, err := st.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if stats.Sealed >= 5 && stats.Loose < 100 {
			break
		}
		if wait == 2000 {
			t.Fatalf("%d sealed, %d loose", stats.Sealed, stats.Loose)
		}
		time.Sleep(5 * time.Millisecond)
	}
	verify(t, st)
}
