package gc_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// G1: a session that changes while a collection reads it is read again, and counted once.
func TestG1_WhatIsReadAgainIsCountedOnce(t *testing.T) {
	e := memory.New()
	s := create(t, openAt(t, e, fixed), turnstone.Request{ID: "s"})
	const commits = 600 // more than the collector reads before it writes a bookmark
	for range commits {
		commit(t, s, says(make([]byte, 6000)))
	}
	sealed := 0
	f := &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
		bookmark := c.Batch != nil && slices.ContainsFunc(c.Batch.Sets, func(p engine.Pair) bool { return p.Key[4] == keys.Bookmark })
		if bookmark && sealed < 3 {
			sealed++ // the first bookmark, and two more
			if err := s.Seal(ctx); err != nil {
				t.Error(err)
			}
			if _, err := s.Prune(ctx, head.Retention(commits-sealed)); err != nil {
				t.Error(err)
			}
		}
		return enginetest.Fault{}
	}}
	r, err := openAt(t, f, fixed).GC(ctx, gc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if sealed != 3 || r.Sessions != 1 || r.Commits != commits {
		t.Errorf("after %d changes: %d sessions and %d commits were read", sealed, r.Sessions, r.Commits)
	}
}

// G7: a cycle shows that it makes progress, however many forks it reads of: between two of
// its batches there are few other calls of the engine.
func TestG7_ARunOfManyForksShowsProgress(t *testing.T) {
	e := memory.New()
	writer := openAt(t, e, fixed)
	s := create(t, writer, turnstone.Request{ID: "s"})
	r := commit(t, s, says(make([]byte, 6000)))
	const forks = 100
	for i := range forks {
		commit(t, create(t, writer, turnstone.Request{ID: fmt.Sprint("f", i), Parent: "s"}), says(make([]byte, 6000)))
	}
	if err := s.Tombstone(ctx, r.Nodes...); err != nil {
		t.Fatal(err)
	}
	since, most := 0, 0
	f := &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
		if since++; c.Op == "Apply" {
			since = 0
		}
		most = max(most, since)
		return enginetest.Fault{}
	}}
	// With so little patience a cycle shows progress whenever it thinks of it.
	collector, err := turnstone.Open(ctx, f, &turnstone.Options{InlineBytes: 1, NoAutoSeal: true, TakeOverAfter: 1})
	if err != nil {
		t.Fatal(err)
	}
	most = 0
	if _, err := collector.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
		t.Fatal(err)
	}
	if most >= forks/4 {
		t.Errorf("%d calls of the engine without a batch", most)
	}
}
