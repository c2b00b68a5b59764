package tests

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/enginetest"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// What was tombstoned or deleted is in no file after a vacuum.
func TestT4_VacuumLeavesNoByteBehind(t *testing.T) {
	testkit.Slow(t)
	for name, open := range storetest.Embedded {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir() + "/store"
			e, err := open(dir)
			if err != nil {
				t.Fatal(err)
			}
			st := openStore(t, e, nil)
			var gone, stay [][]byte
			fill := func(id string, base uint64) (*turnstone.Session, []graph.ID) {
				s := create(t, st, turnstone.Request{ID: id})
				var ids []graph.ID
				for i := range 4 {
					small, large := random(300, base+uint64(2*i)), random(9000, base+uint64(2*i+1))
					r, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Turn: fmt.Sprint("t", i), Nodes: []turnstone.NewNode{
						{Kind: "u", Payload: small}, {Kind: "a", Payload: large},
					}, Checkpoint: map[string][]byte{"p": append(random(40_000, base+50), random(200, base+100+uint64(i))...)}})
					if err != nil {
						t.Fatal(err)
					}
					ids = append(ids, r.Nodes...)
				}
				return s, ids
			}
			a, ids := fill("a", 1000)
			b, _ := fill("b", 2000)
			// Records of a deleted session, a record that was deleted, and a value that was replaced.
			change(t, b, turnstone.RecordChange{Key: "deleted with its session", Value: random(300, 3000)})
			change(t, a, turnstone.RecordChange{Key: "removed by itself", Value: random(300, 3001)}, turnstone.RecordChange{Key: "still there", Value: random(300, 3002)})
			change(t, a, turnstone.RecordChange{Key: "removed by itself", Action: turnstone.DeleteRecord}, turnstone.RecordChange{Key: "still there", Value: random(300, 3003)})
			gone = append(gone, []byte("deleted with its session"), random(300, 3000), []byte("removed by itself"), random(300, 3001), random(300, 3002))
			stay = append(stay, random(300, 3003))
			if err := a.Seal(ctx); err != nil {
				t.Fatal(err)
			}
			if err := a.Tombstone(ctx, ids[2], ids[3]); err != nil {
				t.Fatal(err)
			}
			gone = append(gone, random(300, 1002), random(9000, 1003)) // tombstoned
			for i := range uint64(8) {
				gone = append(gone, random(300, 2000+2*i)[:64], random(9000, 2001+2*i)[:64]) // deleted
				if i != 1 && i < 4 {
					stay = append(stay, random(300, 1000+2*i), random(9000, 1001+2*i))
				}
			}
			for i := range uint64(4) {
				gone = append(gone, random(200, 2100+i))
				if i < 2 {
					gone = append(gone, random(200, 1100+i)) // pruned checkpoints
				} else {
					stay = append(stay, random(200, 1100+i))
				}
			}
			remove(t, st, b.ID())
			if r, err := st.Prune(ctx, gc.PruneOptions{Revisions: 2}); err != nil || r.Sessions != 1 {
				t.Fatal(r, err)
			}
			r := vacuum(t, st)
			if r.Nodes != 2+8 || r.Removed != 1 || r.Rewritten == 0 {
				t.Errorf("%+v", r)
			}
			if r := vacuum(t, st); r.Nodes != 0 || r.Records != 0 || r.Removed != 0 || r.Deleted != 0 || r.Rewritten != 0 {
				t.Errorf("again: %+v", r)
			}
			verify(t, st)
			files := contents(t, dir)
			for i, g := range gone {
				if inFiles(files, g) {
					t.Errorf("marker %d is there", i)
				}
			}
			for i, g := range stay {
				if !holds(t, e, g) {
					t.Errorf("marker %d is gone", i)
				}
			}
			state, err := a.Load(ctx, turnstone.Scope{})
			if err != nil || len(state.Nodes) != 6 {
				t.Error(err)
			}
			if err := a.Tombstone(ctx, ids[2]); err != nil {
				t.Error("tombstone twice:", err)
			}
			if _, err := a.Node(ctx, ids[2]); !errors.Is(err, turnstone.ErrNodeNotFound) {
				t.Error(err)
			}
			// The retry of an erased turn finds its result, whatever it brings.
			again, err := a.Commit(ctx, turnstone.Commit{Turn: "t1", Expected: 1, Nodes: saying([]byte("other"))})
			if err != nil || !again.Replayed || again.Revision != 2 || !slices.Equal(again.Nodes, ids[2:4]) {
				t.Error(again, err)
			}
			if r := collect(t, st, gc.Options{Full: true}); r.Deleted != 0 || r.Repaired {
				t.Errorf("full: %+v", r)
			}
			if err := errors.Join(st.Close(), e.Close()); err != nil {
				t.Fatal(err)
			}
			if e, err = open(dir); err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			verify(t, openStore(t, e, nil))
		})
	}
}

// A vacuum is cut off after any batch, for example between the segments that it wrote anew and
// the entries of their attachments: the next one removes the rest.
func TestAVacuumThatWasCutOffIsFinishedByTheNext(t *testing.T) {
	for n := 1; n < 60; n++ {
		mem := memory.New()
		armed, applies, done := false, 0, false
		f := &enginetest.Faulty{Engine: mem, Plan: func(c enginetest.Call) enginetest.Fault {
			if armed && c.Op == "Apply" {
				if applies++; applies == n {
					done = true
					return enginetest.Fault{Crash: true, Applied: true}
				}
			}
			return enginetest.Fault{}
		}}
		st := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
		s := create(t, st, turnstone.Request{ID: "s"})
		a := upload(t, s, random(9000, 1))
		r := commitTo(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Payload: []byte("x"), Attachments: []blob.Attachment{a}}}})
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("y"))})
		if err := s.Tombstone(ctx, r.Nodes...); err != nil {
			t.Fatal(err)
		}
		armed = true
		_, _ = st.Vacuum(ctx, gc.VacuumOptions{}) // it is cut
		if !done {
			break
		}
		st2 := openStore(t, mem, &turnstone.Options{NoAutoSeal: true})
		vacuum(t, st2)
		vacuum(t, st2)
		s2 := session(t, st2, "s")
		var w bytes.Buffer
		if _, err := s2.ReadAttachment(ctx, &w, a.ID); !errors.Is(err, turnstone.ErrBlobNotFound) {
			t.Errorf("crash after apply %d: %v", n, err)
		}
		verify(t, st2)
	}
}

// A session and two forks have tombstoned all 4,096 nodes of one segment. That is more than one
// batch has room for.
func TestVacuumRemovesMoreNodesThanABatchHolds(t *testing.T) {
	_, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	var ns []turnstone.NewNode
	for i := range 4096 {
		ns = append(ns, turnstone.NewNode{Kind: "u", Payload: fmt.Append(nil, i)})
	}
	ids := commitTo(t, p, turnstone.Commit{Nodes: ns}).Nodes
	all := []*turnstone.Session{p, create(t, st, turnstone.Request{ID: "f", Parent: "p"}), create(t, st, turnstone.Request{ID: "g", Parent: "p"})}
	for _, s := range all {
		if err := s.Tombstone(ctx, ids...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
		t.Error(err)
	}
}

// A session is committed to whenever a vacuum prunes it: the vacuum soon gives it up.
func TestG7_ABusySessionDoesNotHoldVacuumUp(t *testing.T) {
	mem := memory.New()
	e := &enginetest.Faulty{Engine: mem}
	st, other := openStore(t, e, nil), openStore(t, mem, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	root := commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("root"))}).Leaf
	commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("side"))})
	commitTo(t, p, turnstone.Commit{Nodes: sayingAfter(root, []byte("main"))})
	prune(t, p, 1)
	busy := session(t, other, "p")
	tries := 0
	e.Plan = beforeEachApply(func(b *engine.Batch) {
		if tries < 200 && slices.ContainsFunc(b.Guards, func(g engine.Pair) bool { return g.Key[4] == keys.Head }) {
			tries++
			commitTo(t, busy, turnstone.Commit{Nodes: saying([]byte("more"))})
		}
	})
	vacuum(t, st)
	if tries > 50 {
		t.Errorf("vacuum tried %d times and more", tries)
	}
}
