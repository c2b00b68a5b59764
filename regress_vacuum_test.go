package turnstone_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// Each test here is a bug that a review of vacuum found, and stays to show that it
// is gone.

// cut is skipped because cleaned of the live session happens to equal held+1.
func TestADeletedSessionIsCutThoughItsFloorFits(t *testing.T) {
	e, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	commitTo(t, p, turnstone.Commit{Nodes: saying(random(100, 1))})
	create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	commitTo(t, p, turnstone.Commit{Nodes: saying(random(100, 2))})
	if ok, err := p.Prune(ctx, 1); !ok || err != nil {
		t.Fatal(err)
	}
	vacuum(t, st)
	if err := st.Delete(ctx, "p", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	vacuum(t, st)
	vacuum(t, st)
	if holds(t, e, random(100, 2)[:64]) {
		t.Error("the payload of revision 2 of a deleted session is there")
	}
}

// held revision stays, but what is shared of it shrinks.
func TestWhatIsSharedOfATurnShrinks(t *testing.T) {
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

// a holder goes / a name is released: side branch is never pruned.
func TestBranchesGoWithWhatHeldThem(t *testing.T) {
	for _, how := range []string{"fork", "keep"} {
		t.Run(how, func(t *testing.T) {
			e, st := onMemory(t, nil)
			p := create(t, st, turnstone.Request{ID: "p"})
			root := commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("root"))}).Leaf
			commitTo(t, p, turnstone.Commit{Nodes: saying(random(100, 2))})
			if how == "fork" {
				create(t, st, turnstone.Request{ID: "f", Parent: "p"})
			} else if err := p.Keep(ctx, "x", 2); err != nil {
				t.Fatal(err)
			}
			commitTo(t, p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Parent: turnstone.RefTo(root), Payload: []byte("main")}}})
			prune(t, p, 1)
			vacuum(t, st)
			if !holds(t, e, random(100, 2)[:64]) {
				t.Fatal("held")
			}
			if how == "fork" {
				remove(t, st, "f")
			} else if err := p.Release(ctx, "x"); err != nil {
				t.Fatal(err)
			}
			vacuum(t, st)
			vacuum(t, st)
			if holds(t, e, random(100, 2)[:64]) {
				t.Error("a side branch that no retained revision leads to is there")
			}
		})
	}
}

// fork at a pruned node: silently shows less.
func TestNoForkAtAPrunedNode(t *testing.T) {
	_, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	root := commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("root"))}).Leaf
	side := commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("side"))}).Leaf
	commitTo(t, p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Parent: turnstone.RefTo(root), Payload: []byte("main")}}})
	prune(t, p, 1)
	vacuum(t, st)
	f, _, err := st.Create(ctx, turnstone.Request{ID: "f", Parent: "p", ForkNode: side})
	if !errors.Is(err, turnstone.ErrRevisionPruned) {
		s, lerr := f.Load(ctx, turnstone.Scope{})
		t.Errorf("fork at a pruned node: %v; load gives %d nodes, %v", err, len(s.Nodes), lerr)
	}
	// and: a fork made after the prune commits onto the parent's pruned node
	g := create(t, st, turnstone.Request{ID: "g", Parent: "p"})
	if _, err := g.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Parent: turnstone.RefTo(side), Payload: []byte("x")}}}); !errors.Is(err, turnstone.ErrRevisionPruned) {
		t.Errorf("commit of a fork onto the parent's pruned node: %v", err)
	}
}

// fork at the origin node after the floor passed revision 0.
func TestNoForkAtAPrunedCheckpoint(t *testing.T) {
	_, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	at := commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("root")), Checkpoint: map[string][]byte{"a": random(9000, 1)}}).Leaf
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	commitTo(t, f, turnstone.Commit{Nodes: saying([]byte("more")), Checkpoint: map[string][]byte{"a": random(9000, 2)}})
	prune(t, f, 1)
	remove(t, st, "p")
	collect(t, st, gc.Options{})
	g, _, err := st.Create(ctx, turnstone.Request{ID: "g", Parent: "f", ForkNode: at})
	if errors.Is(err, turnstone.ErrRevisionPruned) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Checkpoint(ctx, 0); err != nil {
		t.Error("checkpoint:", err)
	}
	if _, err := st.GC(ctx, gc.Options{}); err != nil {
		t.Error("gc:", err)
	}
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil || !v.OK() {
		t.Error(err, v.Problems)
	}
}

// full finds another index than incremental: a part that came back.
func TestAPartThatCameBackIsNoRepair(t *testing.T) {
	_, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	other := create(t, st, turnstone.Request{ID: "other"})
	x := random(9000, 1)
	commitTo(t, other, turnstone.Commit{Checkpoint: map[string][]byte{"a": x}})
	commitTo(t, p, turnstone.Commit{Checkpoint: map[string][]byte{"a": x}})
	commitTo(t, p, turnstone.Commit{Checkpoint: map[string][]byte{"a": random(9000, 2)}})
	prune(t, p, 1)
	collect(t, st, gc.Options{})
	commitTo(t, p, turnstone.Commit{Checkpoint: map[string][]byte{"a": x}})
	collect(t, st, gc.Options{})
	if r := collect(t, st, gc.Options{Full: true}); r.Repaired {
		t.Errorf("%+v", r)
	}
}

// interval over-approximation: x at 1 and 3, kept 2, head elsewhere.
func TestAKeptRevisionHoldsItsOwnCheckpointOnly(t *testing.T) {
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

// more than 600 dependents of saying base
func TestManyVersionsOfOneBase(t *testing.T) {
	testscale.Slow(t)
	e, st := onMemory(t, nil)
	base := random(3000, 1)
	for i := range 700 {
		s := create(t, st, turnstone.Request{ID: fmt.Sprint("s", i)})
		commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": base}})
		if _, err := s.Checkpoint(ctx, 0); err != nil { // the base of the next version
			t.Fatal(err)
		}
		commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": append(bytes.Clone(base[200:]), random(20, uint64(1000+i))...)}})
		prune(t, s, 1)
	}
	r := vacuum(t, st)
	t.Logf("%+v", r)
	if holds(t, e, base[:100]) {
		t.Error("base is there after a vacuum")
	}
	r = vacuum(t, st)
	if r.Rewritten != 0 || r.Deleted != 0 {
		t.Errorf("again: %+v", r)
	}
}

// crash between rewriting and settling of attachment entries.
func TestVacuumCutBeforeItSettles(t *testing.T) {
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
		st := openStore(t, f, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
		s := create(t, st, turnstone.Request{ID: "s"})
		a, err := s.PutAttachment(ctx, bytes.NewReader(random(9000, 1)), -1, "", "")
		if err != nil {
			t.Fatal(err)
		}
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
		st2 := openStore(t, mem, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
		vacuum(t, st2)
		vacuum(t, st2)
		s2, err := st2.Session(ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		var w bytes.Buffer
		if _, err := s2.ReadAttachment(ctx, &w, a.ID); !errors.Is(err, turnstone.ErrBlobNotFound) {
			t.Errorf("crash after apply %d: %v", n, err)
		}
		verify(t, st2)
	}
}

// More tombstones of one segment than a batch has room for
func TestMoreTombstonesThanABatchHolds(t *testing.T) {
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

// SharedBy
func TestWhoErasesSharesNothing(t *testing.T) {
	_, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	r := commitTo(t, p, turnstone.Commit{Nodes: saying(random(9000, 1))})
	create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	e, err := p.Erase(ctx, turnstone.EraseOptions{}, r.Nodes...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", e)
	if len(e.SharedBy) == 1 && e.SharedBy[0] == "p" {
		t.Errorf("the session that erases is named as another saying that has equal bytes: %+v", e)
	}
	e, err = st.Erase(ctx, "p", turnstone.KeepChildren, turnstone.EraseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if e.Shared == 1 && len(e.SharedBy) == 0 {
		t.Errorf("shared with nobody: %+v", e)
	}
}

// Forks are made while a vacuum, or a collection, counts the forks of a session.
func TestG2_ForksThatAreMadeMeanwhileStayWhole(t *testing.T) {
	for _, what := range []string{"vacuum", "gc"} {
		mem := memory.New()
		e := &enginetest.Faulty{Engine: mem}
		st, other := openStore(t, e, nil), openStore(t, mem, nil)
		p := create(t, st, turnstone.Request{ID: "p"})
		r := commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("x"))})
		create(t, st, turnstone.Request{ID: "f", Parent: "p"})
		if err := p.Tombstone(ctx, r.Nodes...); err != nil {
			t.Fatal(err)
		}
		parent := "p"
		if what == "gc" {
			parent = "f"
			remove(t, st, "p")
		}
		made := 0
		e.Plan = func(c enginetest.Call) enginetest.Fault {
			if c.Op == "Scan" && len(c.Range.Start) > 4 && c.Range.Start[4] == keys.Fork && made < 4 {
				made++
				create(t, other, turnstone.Request{ID: fmt.Sprint("fork", made), Parent: parent})
			}
			return enginetest.Fault{}
		}
		var err error
		if what == "gc" {
			_, err = st.GC(ctx, gc.Options{})
		} else {
			_, err = st.Vacuum(ctx, gc.VacuumOptions{})
		}
		if err != nil || made == 0 {
			t.Errorf("%s: %v, with %d forks meanwhile", what, err, made)
		}
		verify(t, other)
	}
}

// A fork is made when Erase is about to write for the first time: the receipt has it, or the
// bytes are gone.
func TestG8_TheReceiptHasAForkThatIsMadeMeanwhile(t *testing.T) {
	mem := memory.New()
	e := &enginetest.Faulty{Engine: mem}
	st, other := openStore(t, e, nil), openStore(t, mem, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	r := commitTo(t, p, turnstone.Commit{Nodes: saying(random(100, 1))})
	e.Plan = beforeEachApply(func(*engine.Batch) {
		e.Plan = nil
		create(t, other, turnstone.Request{ID: "f", Parent: "p"})
	})
	receipt, err := p.Erase(ctx, turnstone.EraseOptions{}, r.Nodes...)
	if err != nil {
		t.Fatal(err)
	}
	if holds(t, mem, random(100, 1)[:64]) && len(receipt.HeldBy) == 0 {
		t.Errorf("%+v, and the payload is there", receipt)
	}
	if e.Plan != nil {
		t.Error("no fork was made")
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
	commitTo(t, p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Parent: turnstone.RefTo(root), Payload: []byte("main")}}})
	prune(t, p, 1)
	busy := session(t, other, "p")
	tries := 0
	e.Plan = beforeEachApply(func(b *engine.Batch) {
		if tries < 200 && slices.ContainsFunc(b.Guards, func(g engine.Pair) bool { return g.Key[4] == keys.Head }) {
			tries++
			commitTo(t, busy, turnstone.Commit{Nodes: saying([]byte("more"))})
		}
	})
	if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
		t.Fatal(err)
	}
	if tries > 50 {
		t.Errorf("vacuum tried %d times and more", tries)
	}
}
