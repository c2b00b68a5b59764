package turnstone_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/pack"
)

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
	if !errors.Is(err, turnstone.ErrRejected) || calls != 1 {
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

// The limits of requests are those of the records that hold them.
func TestLimitsOfRequestsAreThoseOfRecords(t *testing.T) {
	for name, l := range map[string][2]int{
		"nodes":       {turnstone.MaxNodes, pack.MaxNodes},
		"attachments": {turnstone.MaxAttachments, pack.MaxAttachments},
		"blob":        {turnstone.MaxBlob, blobs.MaxBytes},
		"parts":       {turnstone.MaxParts, heads.MaxParts},
		"models":      {turnstone.MaxSessionModels, heads.MaxModels},
		"labels":      {turnstone.MaxLabels, heads.MaxLabels},
		"ancestors":   {turnstone.MaxAncestors, heads.MaxAncestors},
	} {
		if l[0] != l[1] {
			t.Errorf("%s: %d of a request, %d of a record", name, l[0], l[1])
		}
	}
}

// A store's Factory gives the sessions of the store, and no session with an error.
func TestAFactoryGivesTheSessionsOfItsStore(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	f := st.Factory()
	p, created, err := f.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil || !created {
		t.Fatal(created, err)
	}
	if _, err := p.Commit(ctx, turnstone.Commit{}); err != nil {
		t.Fatal(err)
	}
	q, err := f.Session(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := q.Info(ctx); err != nil || info.Revision != head.Revision(1) {
		t.Errorf("%+v, %v", info, err)
	}
	if q, err := f.Session(ctx, "t"); q != nil || !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Errorf("%v, %v", q, err)
	}
	if p, _, err := f.Create(ctx, turnstone.Request{}); p != nil || !errors.Is(err, turnstone.ErrInvalid) {
		t.Errorf("%v, %v", p, err)
	}
	if _, err := new(turnstone.Store).Factory().Session(ctx, "s"); !errors.Is(err, turnstone.ErrInvalid) {
		t.Errorf("a store that was not opened: %v", err)
	}
}
