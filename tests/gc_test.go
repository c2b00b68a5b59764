package tests

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine/enginetest"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// What only a deleted session had is deleted, as a dry run has said, and what another session has
// stays.
func TestG1_GCReclaimsWhatNothingReaches(t *testing.T) {
	e := memory.New()
	now := time.Unix(1_700_000_000, 0)
	st := openStore(t, e, &turnstone.Options{Now: func() time.Time { return now }})
	a, b := create(t, st, turnstone.Request{ID: "a"}), create(t, st, turnstone.Request{ID: "b"})
	both, alone, part := random(20_000, 1), random(20_000, 2), random(30_000, 3)
	big := random(3<<20, 4)
	commitTo(t, a, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Payload: both}, {Kind: "u", Payload: alone}}, Checkpoint: map[string][]byte{"p": part, "big": big}})
	commitTo(t, b, turnstone.Commit{Nodes: saying(both)})
	for i := range 10 {
		part[i*100]++
		commitTo(t, a, turnstone.Commit{Checkpoint: map[string][]byte{"p": part}})
	}
	if r := collect(t, st, gc.Options{}); r.Deleted != 0 || r.Roots != 2 || r.Commits != 12 {
		t.Errorf("all is live: %+v", r)
	}
	verify(t, st)
	remove(t, st, "a")
	plan := collect(t, st, gc.Options{DryRun: true})
	if !holds(t, e, alone[:64]) {
		t.Fatal("a dry run deleted something")
	}
	r := collect(t, st, gc.Options{})
	if plan.Deleted != r.Deleted || plan.Bytes != r.Bytes || plan.Retained != r.Retained || r.Deleted < 13 || r.Retained != 1 {
		t.Errorf("planned %+v, did %+v", plan, r)
	}
	if holds(t, e, alone[:64]) || holds(t, e, big[:64]) || !holds(t, e, both[:64]) {
		t.Error("the wrong blobs are there")
	}
	if r := collect(t, st, gc.Options{}); r.Deleted != 0 || r.Candidates != 0 {
		t.Errorf("again: %+v", r)
	}
	if n := letters(t, e); n[keys.Mark] != 1 || n[keys.Edge] != 1 || n[keys.Count] != 1 || n[keys.Candidate] != 0 || n[keys.Upload] != 0 {
		t.Errorf("records left: %v", n)
	}
	if r := collect(t, st, gc.Options{Full: true}); r.Deleted != 0 || r.Repaired || r.Retained != 1 {
		t.Errorf("full: %+v", r)
	}
	verify(t, st)
	// What was deleted can be stored again.
	commitTo(t, b, turnstone.Commit{Nodes: saying(alone)})
	verify(t, st)
}

// A full collection of one session is refused, and so is a kept revision without a name, or beyond
// the limit.
func TestMaintenanceRefusesInvalidRequests(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	var invalid *turnstone.InvalidError
	if _, err := s.GC(ctx, gc.Options{Full: true}); !errors.As(err, &invalid) {
		t.Errorf("a full collection of one session: %v", err)
	}
	if err := s.Keep(ctx, "", 0); !errors.As(err, &invalid) {
		t.Errorf("a kept revision without a name: %v", err)
	}
	commitAt(t, s, turnstone.Commit{})
	for i := range turnstone.MaxKept {
		if err := s.Keep(ctx, fmt.Sprint(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	var limit *turnstone.LimitError
	if err := s.Keep(ctx, "one more", 1); !errors.As(err, &limit) {
		t.Errorf("kept revision %d: %v", turnstone.MaxKept+1, err)
	}
}

// Maintain collects and vacuums until it is stopped, by its function or because the store is
// closed.
func TestMaintainOfAClosedStoreIsRefused(t *testing.T) {
	_, st := onMemory(t, nil)
	must(t, st.Close())
	if stop, err := st.Maintain(turnstone.MaintainOptions{}); !errors.Is(err, engine.ErrClosed) || stop != nil {
		t.Errorf("%v", err)
	}
}

func TestMaintainCollectsAndVacuumsUntilItIsStopped(t *testing.T) {
	e, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	reports := make(chan error, 100)
	stop, err := st.Maintain(turnstone.MaintainOptions{Every: time.Millisecond, VacuumEvery: 3 * time.Millisecond, Prune: gc.PruneOptions{Revisions: 1}, Report: func(m turnstone.Maintained) {
		err := m.Err
		select {
		case reports <- err:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		commitAt(t, s, turnstone.Commit{Expected: head.Revision(i), Checkpoint: map[string][]byte{"p": random(6000, uint64(i))}})
		if err := <-reports; err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		<-reports
	}
	stop()
	stop()
	if n := letters(t, e)[keys.Mark]; n != 1 {
		t.Errorf("%d blobs", n)
	}
	verify(t, st)
	if _, err := st.Maintain(turnstone.MaintainOptions{Every: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

// A part takes a value that it had before its session was pruned: a full collection finds the
// index that the collections before have made of it.
func TestAFullCollectionRepairsNothingWhenAPartCameBack(t *testing.T) {
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
