package tests

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Deleting a parent leaves attached forks whole, the rest is reclaimed, and
// what they hold goes with the last of them.
func TestF5_ForksHoldWhatTheyShare(t *testing.T) {
	e, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	var ids []graph.ID
	for i := range uint64(6) {
		r := commitAt(t, p, turnstone.Commit{Expected: head.Revision(i), Nodes: []turnstone.NewNode{
			{Kind: "u", Payload: random(100, i)}, {Kind: "a", Payload: random(9000, 50+i)},
		}, Checkpoint: map[string][]byte{"p": random(9000, 100+i)}})
		ids = append(ids, r.Nodes...)
	}
	fork := func(id, parent string, at graph.ID) *turnstone.Session {
		t.Helper()
		return create(t, st, turnstone.Request{ID: id, Parent: parent, ForkNode: at})
	}
	f := fork("f", "p", ids[7]) // four turns
	g := fork("g", "f", ids[2]) // half of the second turn
	commitAt(t, f, turnstone.Commit{Nodes: saying(random(9000, 200))})
	check := func(s *turnstone.Session, n int) {
		t.Helper()
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil || len(state.Nodes) != n {
			t.Fatal(s.ID(), err)
		}
		if _, err := s.Checkpoint(ctx, 0); err != nil {
			t.Fatal(err)
		}
		for _, n := range state.Nodes {
			if got, err := s.Node(ctx, n.ID); err != nil || !bytes.Equal(got.Payload, n.Payload) {
				t.Fatal(err)
			}
		}
		verify(t, st)
	}
	remove := func(id string) *gc.VacuumReport {
		t.Helper()
		remove(t, st, id)
		r := vacuum(t, st)
		if again := vacuum(t, st); again.Deleted != 0 || again.Nodes != 0 || again.Records != 0 {
			t.Errorf("again: %+v", again)
		}
		if full := collect(t, st, gc.Options{Full: true}); full.Deleted != 0 || full.Repaired {
			t.Errorf("full: %+v", full)
		}
		return r
	}
	present := func(want ...uint64) {
		t.Helper()
		for _, i := range []uint64{0, 1, 2, 3, 4, 5, 50, 51, 52, 53, 54, 55, 100, 101, 102, 103, 104, 105, 200} {
			n := 9000
			if i < 50 {
				n = 100
			}
			if holds(t, e, random(n, i)[:64]) != slices.Contains(want, i) {
				t.Errorf("payload %d is there: %v", i, !slices.Contains(want, i))
			}
		}
	}
	remove("p")
	check(f, 9)
	check(g, 3)
	present(0, 1, 2, 3, 50, 51, 52, 53, 103, 200, 100)
	// A fork at an inherited node whose checkpoint went with its session.
	if _, _, err := st.Create(ctx, turnstone.Request{ID: "late", Parent: "f", ForkNode: ids[3]}); !errors.Is(err, turnstone.ErrRevisionPruned) {
		t.Error(err)
	}
	fork("same", "f", ids[7])
	remove("f")
	check(g, 3)
	present(0, 1, 2, 3, 50, 51, 52, 53, 103, 100)
	remove("same")
	check(g, 3)
	present(0, 1, 50, 100)
	remove("g")
	present()
	for letter, n := range letters(t, e) {
		if letter != keys.Store && letter != keys.Predecessor && letter != keys.Cycle {
			t.Errorf("%d records %q are left", n, letter)
		}
	}
}

// A node that several sessions show goes when the last of them has tombstoned it.
func TestASharedNodeGoesWithTheLastSessionThatShowsIt(t *testing.T) {
	e, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	r := commitAt(t, p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Payload: random(100, 1)}, {Kind: "u", Payload: random(9000, 2)}, {Kind: "u", Payload: []byte("end")}}})
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	there := func(want bool) {
		t.Helper()
		if holds(t, e, random(100, 1)[:64]) != want || holds(t, e, random(9000, 2)[:64]) != want {
			t.Errorf("the payloads are there: %v", !want)
		}
		verify(t, st)
	}
	if err := p.Tombstone(ctx, r.Nodes[0], r.Nodes[1]); err != nil {
		t.Fatal(err)
	}
	if v := vacuum(t, st); v.Nodes != 0 {
		t.Errorf("%+v", v)
	}
	there(true)
	if s, err := f.Load(ctx, turnstone.Scope{}); err != nil || len(s.Nodes) != 3 {
		t.Error(err)
	}
	if err := f.Tombstone(ctx, r.Nodes[0], r.Nodes[1]); err != nil {
		t.Fatal(err)
	}
	if v := vacuum(t, st); v.Nodes != 2 {
		t.Errorf("%+v", v)
	}
	there(false)
	for _, s := range []*turnstone.Session{p, f} {
		if s, err := s.Load(ctx, turnstone.Scope{}); err != nil || len(s.Nodes) != 1 || s.Nodes[0].Parent != (graph.ID{}) {
			t.Error(err)
		}
	}
	late := create(t, st, turnstone.Request{ID: "late", Parent: "p"})
	if s, err := late.Load(ctx, turnstone.Scope{Full: true}); err != nil || len(s.Nodes) != 1 {
		t.Error(err)
	}
}

// Two forks share a turn of a deleted session, one of them only its first node. When the other one
// is erased, the rest of the turn goes.
func TestG10_WhatIsSharedOfATurnShrinksWithItsForks(t *testing.T) {
	e, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	r := commitTo(t, p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Payload: random(100, 1)}, {Kind: "u", Payload: random(100, 2)}, {Kind: "u", Payload: random(9000, 3)}}})
	create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	create(t, st, turnstone.Request{ID: "g", Parent: "p", ForkNode: r.Nodes[0]})
	remove(t, st, "p")
	vacuum(t, st)
	er, err := st.Erase(ctx, "f", turnstone.KeepChildren, turnstone.EraseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	vacuum(t, st)
	if holds(t, e, random(100, 2)[:64]) || holds(t, e, random(9000, 3)[:64]) {
		t.Errorf("payloads that nobody shows are there %+v", er)
	}
}

// A vacuum has pruned a session up to what its fork shares. When the session is deleted, the
// next one removes the rest, although the floor up to which it has worked is the same.
func TestG10_ADeletedSessionIsCutAlthoughItsFloorStays(t *testing.T) {
	e, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	commitTo(t, p, turnstone.Commit{Nodes: saying(random(100, 1))})
	create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	commitTo(t, p, turnstone.Commit{Nodes: saying(random(100, 2))})
	if ok, err := p.Prune(ctx, 1); !ok || err != nil {
		t.Fatal(err)
	}
	vacuum(t, st)
	remove(t, st, "p")
	vacuum(t, st)
	vacuum(t, st)
	if holds(t, e, random(100, 2)[:64]) {
		t.Error("the payload of revision 2 of a deleted session is there")
	}
}
