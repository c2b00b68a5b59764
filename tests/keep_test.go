package tests

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// A name keeps the revision that it was given first, also when the outcome of that was unknown
// and the head has moved before the second attempt.
func TestK1_ANameKeepsOneRevision(t *testing.T) {
	plan := func(enginetest.Call) enginetest.Fault { return enginetest.Fault{} }
	mem := memory.New()
	st := openStore(t, &enginetest.Faulty{Engine: mem, Plan: func(c enginetest.Call) enginetest.Fault { return plan(c) }}, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	grow := func() {
		t.Helper()
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("x"))})
	}
	keeps := func(want ...head.Kept) {
		t.Helper()
		got, err := s.Kept(ctx)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("kept %v, %v, want %v", got, err, want)
		}
	}
	if err := s.Keep(ctx, "none", 0); !errors.Is(err, turnstone.ErrRevisionNotFound) {
		t.Errorf("the head of an empty session: %v", err)
	}
	grow()
	for range 2 { // the same again is no error
		if err := s.Keep(ctx, "x", 0); err != nil {
			t.Fatal(err)
		}
	}
	grow()
	for _, r := range []head.Revision{0, 2} {
		if err := s.Keep(ctx, "x", r); !errors.Is(err, turnstone.ErrExists) {
			t.Errorf("Keep of revision %d under a name that keeps revision 1: %v", r, err)
		}
	}
	keeps(head.Kept{Name: "x", Revision: 1})
	if err := s.Keep(ctx, "x", 1); err != nil {
		t.Error(err)
	}
	// The first attempt stands, nobody knows, and the head moves before the second.
	other, err := openStore(t, mem, nil).Session(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	applies := 0
	plan = func(c enginetest.Call) enginetest.Fault {
		if c.Op != "Apply" {
			return enginetest.Fault{}
		}
		switch applies++; applies {
		case 1:
			return enginetest.Fault{Err: engine.ErrUnknown, Applied: true}
		case 2:
			if _, err := other.Commit(ctx, turnstone.Commit{Expected: 2}); err != nil {
				t.Error(err)
			}
		}
		return enginetest.Fault{}
	}
	if err := s.Keep(ctx, "y", 0); err != nil {
		t.Errorf("Keep whose own first attempt stands: %v", err)
	}
	keeps(head.Kept{Name: "x", Revision: 1}, head.Kept{Name: "y", Revision: 2})
}

// What reads give of a kept revision they give after pruning, gc and vacuum, and no
// longer after its release.
func TestK2_AKeptRevisionReadsAsItDid(t *testing.T) {
	st := openStore(t, memory.New(), &turnstone.Options{SealBytes: 2000})
	base := create(t, st, turnstone.Request{ID: "base"})
	commitTo(t, base, turnstone.Commit{Nodes: append(saying([]byte("shared")), saying([]byte("side of the parent"))...), Leaf: turnstone.RefNew(0)})
	s := create(t, st, turnstone.Request{ID: "s", Parent: "base"})
	var leaves []graph.ID
	secret := random(9000, 1)
	attachment := upload(t, s, random(3000, 9))
	for i := range 4 { // each turn leaves a side branch, of its own or of the turn before
		r := commitTo(t, s, turnstone.Commit{
			Nodes: []turnstone.NewNode{
				{Kind: "k", Payload: fmt.Append(nil, "main ", i)},
				{Kind: "k", Payload: append(fmt.Append(nil, i), secret...), Attachments: []blob.Attachment{attachment}},
			},
			Leaf: turnstone.RefNew(0), Checkpoint: map[string][]byte{"p": random(2000, uint64(i))},
		})
		leaves = append(leaves, r.Nodes...)
	}
	commitTo(t, s, turnstone.Commit{Leaf: turnstone.RefTo(leaves[0])})
	if err := s.Keep(ctx, "kept", 3); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		commitTo(t, s, turnstone.Commit{Nodes: append(saying([]byte("later")), saying([]byte("later side"))...), Leaf: turnstone.RefNew(0)})
	}
	reads := func() string {
		var out []string
		add := func(what any, err error) { out = append(out, fmt.Sprintf("%x %v", fmt.Sprint(what), err)) }
		for _, scope := range []turnstone.Scope{{}, {Full: true}, {Last: 2}, {After: 1}, {Leaf: leaves[1]}, {Leaf: leaves[5]}} {
			scope.At = 3
			state, err := s.Load(ctx, scope)
			if err == nil {
				add(*state, err)
			} else {
				add(nil, err)
			}
		}
		parts, err := s.Checkpoint(ctx, 3)
		add(parts, err)
		var b bytes.Buffer
		_, err = s.ReadAttachment(ctx, &b, attachment.ID)
		add(b.Bytes(), err)
		return fmt.Sprint(out)
	}
	maintain := func() {
		t.Helper()
		for range 2 {
			collect(t, st, gc.Options{})
			vacuum(t, st)
		}
	}
	before := reads()
	prune(t, s, 1)
	maintain()
	if after := reads(); after != before {
		t.Errorf("a kept revision reads\n%.2000s\nand did read\n%.2000s", after, before)
	}
	if _, err := s.Node(ctx, leaves[7]); !errors.Is(err, turnstone.ErrNodeNotFound) {
		t.Errorf("a side branch behind the kept revision, which nothing leads to: %v", err)
	}
	if err := s.Release(ctx, "kept"); err != nil {
		t.Fatal(err)
	}
	maintain()
	for i, id := range leaves {
		_, err := s.Node(ctx, id)
		if live := i == 0; live != (err == nil) || !live && !errors.Is(err, turnstone.ErrNodeNotFound) {
			t.Errorf("node %d after the release: %v", i, err)
		}
	}
	verify(t, st)
}

// A part has the same value at the revisions 1 and 3, another one at 2, which is kept, and at the
// head. The value of 1 and 3 goes, although 2 is between them.
func TestK2_AKeptRevisionHoldsItsOwnCheckpointOnly(t *testing.T) {
	e, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	for _, i := range []uint64{1, 2, 1, 3} {
		commitTo(t, p, turnstone.Commit{Checkpoint: map[string][]byte{"a": random(9000, i)}})
	}
	if err := p.Keep(ctx, "k", 2); err != nil {
		t.Fatal(err)
	}
	prune(t, p, 1)
	vacuum(t, st)
	vacuum(t, st)
	if holds(t, e, random(9000, 1)[:64]) {
		t.Error("a checkpoint that no retained revision has is there")
	}
}
