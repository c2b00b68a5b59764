package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
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
		st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
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
				if err := rename(ctx, st, "a", "b"); err != nil {
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

// A turn is committed again whose checkpoint part the session has dropped since, and which, as a
// new turn, would exceed the number of parts: it is replayed.
func TestC5_ATurnIsReplayedAlthoughItWouldExceedALimitNow(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	c := turnstone.Commit{Expected: turnstone.AnyRevision, Turn: "T", Nodes: saying([]byte("x")), Checkpoint: map[string][]byte{"tmp": []byte("1")}}
	commitAt(t, s, c)
	full := map[string][]byte{}
	for i := range 64 {
		full[fmt.Sprint("p", i)] = []byte("v")
	}
	commitTo(t, s, turnstone.Commit{Drop: []string{"tmp"}, Checkpoint: full})
	r, err := s.Commit(ctx, c)
	if err != nil || !r.Replayed {
		t.Fatal(r, err)
	}
}

// A commit after a seal by the same handle reads nothing: the seal has seen the head.
func TestACommitAfterASealReadsNothing(t *testing.T) {
	reads := 0
	e := &enginetest.Faulty{Engine: memory.New(), Plan: func(c enginetest.Call) enginetest.Fault {
		if c.Op != "Apply" {
			reads++
		}
		return enginetest.Fault{}
	}}
	s := create(t, openStore(t, e, &turnstone.Options{NoAutoSeal: true}), turnstone.Request{ID: "s"})
	for range 3 {
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("x"))})
	}
	if err := s.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	reads = 0
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("y"))})
	if reads > 0 {
		t.Errorf("%d reads", reads)
	}
}

// A store knows the size of what it uploaded: the commit that refers to it reads no more
// than one that refers to it again.
func TestACommitDoesNotReadTheSizeOfWhatWasJustUploaded(t *testing.T) {
	read := 0
	e := &enginetest.Faulty{Engine: memory.New(), Done: func(c enginetest.Call, _ error) { read += c.Read }}
	s := create(t, openStore(t, e, nil), turnstone.Request{ID: "s"})
	for name, size := range map[string]int{"one blob": 3000, "chunks": 3 << 20} {
		a := upload(t, s, random(size, uint64(size)))
		var reads [2]int
		for i := range reads {
			read = 0
			commitTo(t, s, turnstone.Commit{Nodes: attaching(a)})
			reads[i] = read
		}
		if reads[0] > reads[1] {
			t.Errorf("%s: the first commit reads %d keys, the second %d", name, reads[0], reads[1])
		}
	}
}

// A session does not go back to a node that was pruned, nor to one behind it, tombstoned or not.
func TestARewindBehindAPrunedNodeIsRefused(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("root"), []byte("a"), []byte("b"))
	var leaves []graph.ID
	for r := head.Revision(1); r <= 3; r++ {
		l, err := s.Load(ctx, turnstone.Scope{At: r})
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, l.Leaf)
	}
	if err := s.Tombstone(ctx, leaves[2]); err != nil {
		t.Fatal(err)
	}
	vacuum(t, st)
	commitTo(t, s, turnstone.Commit{Nodes: sayingAfter(leaves[0], []byte("main"))})
	prune(t, s, 1)
	vacuum(t, st)
	for _, leaf := range leaves[1:] {
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Leaf: turnstone.RefTo(leaf)}); !errors.Is(err, turnstone.ErrRevisionPruned) {
			t.Errorf("rewind to %v: %v", slices.Index(leaves, leaf), err)
		}
	}
	verify(t, st)
}

// C13: Update makes and commits a turn anew until no other commit comes between.
func TestC13_UpdatesLoseNothingToEachOther(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	const writers, each = 8, 25
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			own, err := st.Session(ctx, "s")
			for range each {
				if err != nil {
					break
				}
				_, err = turnstone.Update(ctx, own, turnstone.Scope{Last: 1}, func(state *turnstone.State) (turnstone.Commit, error) {
					n := 0
					if len(state.Nodes) > 0 {
						n, _ = strconv.Atoi(string(state.Nodes[0].Payload))
					}
					return turnstone.Commit{
						Expected: 12345, // Update says what is expected
						Nodes:    []turnstone.NewNode{{Kind: "count", Payload: []byte(strconv.Itoa(n + 1))}},
					}, nil
				})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	state, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	if len(state.Nodes) != writers*each || state.Revision != writers*each {
		t.Fatalf("%d nodes at revision %d", len(state.Nodes), state.Revision)
	}
	for i, n := range state.Nodes {
		if string(n.Payload) != strconv.Itoa(i+1) {
			t.Fatalf("node %d is %s: an update did not see the one before", i, n.Payload)
		}
	}
}

// C13: what Update does not try again.
func TestC13_UpdateReturnsAllOtherErrors(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	grow := func() {
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision}); err != nil {
			t.Fatal(err)
		}
	}
	grow()
	own := errors.New("no")
	calls := 0
	_, err := turnstone.Update(ctx, s, turnstone.Scope{}, func(*turnstone.State) (turnstone.Commit, error) {
		calls++
		return turnstone.Commit{}, own
	})
	if !errors.Is(err, own) || calls != 1 {
		t.Errorf("an error of the function: %v, %d calls", err, calls)
	}
	_, err = turnstone.Update(ctx, s, turnstone.Scope{}, func(*turnstone.State) (turnstone.Commit, error) {
		return turnstone.Commit{Nodes: []turnstone.NewNode{{}}}, nil
	})
	if !errors.Is(err, turnstone.ErrInvalid) {
		t.Errorf("an invalid commit: %v", err)
	}
	empty := func(*turnstone.State) (turnstone.Commit, error) { return turnstone.Commit{}, nil }
	if _, err := turnstone.Update(ctx, s, turnstone.Scope{At: 1}, empty); !errors.Is(err, turnstone.ErrInvalid) {
		t.Errorf("a scope of an earlier revision: %v", err)
	}
	if _, err := turnstone.Update(ctx, s, turnstone.Scope{Leaf: graph.ID{1}}, empty); !errors.Is(err, turnstone.ErrInvalid) {
		t.Errorf("a scope of another leaf: %v", err)
	}
	if _, err := turnstone.Update(ctx, s, turnstone.Scope{}, nil); !errors.Is(err, turnstone.ErrInvalid) {
		t.Errorf("no function: %v", err)
	}
	if _, err := turnstone.Update(ctx, nil, turnstone.Scope{}, empty); !errors.Is(err, turnstone.ErrInvalid) {
		t.Errorf("no session: %v", err)
	}

	refusing := openStore(t, memory.New(), &turnstone.Options{Validator: func(context.Context, string, *turnstone.Commit) error {
		return fmt.Errorf("of another session: %w", turnstone.ErrConflict)
	}})
	calls = 0
	_, err = turnstone.Update(ctx, create(t, refusing, turnstone.Request{ID: "s"}), turnstone.Scope{}, func(*turnstone.State) (turnstone.Commit, error) {
		calls++
		return turnstone.Commit{}, nil
	})
	if !errors.Is(err, turnstone.ErrRejected) || errors.Is(err, turnstone.ErrConflict) || calls != 1 || !strings.Contains(fmt.Sprint(err), "of another session") {
		t.Errorf("a validator that refuses because of a conflict elsewhere: %v, %d calls", err, calls)
	}

	stop, cancel := context.WithCancel(ctx)
	calls = 0
	_, err = turnstone.Update(stop, s, turnstone.Scope{}, func(*turnstone.State) (turnstone.Commit, error) {
		grow() // somebody is always faster
		if calls++; calls == 3 {
			cancel()
		}
		return turnstone.Commit{}, nil
	})
	if !errors.Is(err, context.Canceled) || calls != 3 {
		t.Errorf("cancelled: %v, %d calls", err, calls)
	}
	info, err := s.Info(ctx)
	if err != nil || info.Revision != 4 || info.Nodes != 0 {
		t.Errorf("revision %d, %d nodes, %v: something was committed", info.Revision, info.Nodes, err)
	}
}
