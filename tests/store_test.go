package tests

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A crash after any Apply of a history leaves a store that verifies and holds
// what was acknowledged.
func TestACrashAnywhereLeavesAWholeStore(t *testing.T) {
	testkit.OneGoroutine(t)
	for n := 1; ; n += testkit.Pick(1, 4, 23) {
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

// Equal bytes of several sessions are stored once in a namespace, and apart in another one.
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
		commitAt(t, s, c)
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
	commitAt(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "system", Payload: random(20_000, 1)}}})
	if got := blobs(other); got != 1 {
		t.Errorf("%d blobs: shared across namespaces", got)
	}
}

// A payload in the middle of many sessions is stored twice: with the nodes of the first session, and
// for all others.
func TestG3_WhatSessionsHaveInCommonIsStoredTwiceAtMost(t *testing.T) {
	const sessions, size = 20, 60_000
	e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	for i := range sessions {
		s := create(t, st, turnstone.Request{ID: fmt.Sprint(i)})
		nodes := slices.Concat(saying([]byte("prompt")), saying(fmt.Append(nil, "question ", i)), saying(random(size, 1)), saying([]byte("answer")))
		commitAt(t, s, turnstone.Commit{Nodes: nodes})
		l, err := s.Load(ctx, turnstone.Scope{})
		if err != nil || !bytes.Equal(l.Nodes[2].Payload, nodes[2].Payload) {
			t.Fatal(err)
		}
	}
	if taken := stored(t, e); taken > 2*size+sessions*1500 {
		t.Errorf("%d bytes in %d sessions take %d", size, sessions, taken)
	}
	vacuum(t, st)
	verify(t, st)
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

// The clock of a store may say the year 2150.
func TestASessionCanBeCreatedInTheYear2150(t *testing.T) {
	st := openStore(t, memory.New(), &turnstone.Options{Now: func() time.Time { return time.Date(2150, 1, 1, 0, 0, 0, 0, time.UTC) }})
	_, _, err := st.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Error(err)
	}
}
