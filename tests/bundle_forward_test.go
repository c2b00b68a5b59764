package tests

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A session that goes on gets what it does not have, and stays the same session.
func TestBU2_AThinBundleBringsASessionForward(t *testing.T) {
	for seed := range randomHistories() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			_, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
			_, to := onMemory(t, nil)
			p := newPast(t, st, seed)
			for range 6 {
				for range 5 + p.r.IntN(20) {
					p.step()
				}
				var of []turnstone.Bundled
				for _, id := range p.ids {
					b := turnstone.Bundled{ID: id}
					if s, err := to.Session(ctx, id); err == nil && p.r.IntN(4) > 0 {
						info, err := s.Info(ctx)
						if err != nil {
							t.Fatal(err)
						}
						b.Since = info.Revision
					}
					of = append(of, b)
				}
				var b bytes.Buffer
				if _, err := st.Bundle(ctx, &b, of...); err != nil {
					t.Fatal(err)
				}
				// A fork may need nodes that its parent hides by now, and then it comes alone. A session can't go on from
				// a node that only the other side has pruned.
				if _, err := to.Unbundle(ctx, &b, turnstone.UnbundleOptions{}); err != nil {
					if !errors.Is(err, turnstone.ErrConflict) && !errors.Is(err, turnstone.ErrRevisionPruned) {
						t.Fatal(err)
					}
					for _, id := range p.ids {
						alone := bundleOf(t, st, turnstone.Bundled{ID: id})
						_, err := to.Unbundle(ctx, bytes.NewReader(alone), turnstone.UnbundleOptions{})
						if errors.Is(err, turnstone.ErrRevisionPruned) {
							remove(t, to, id)
							_, err = to.Unbundle(ctx, bytes.NewReader(alone), turnstone.UnbundleOptions{})
						}
						if err != nil {
							t.Fatal(err)
						}
					}
				}
				for _, id := range p.ids {
					here, err := session(t, to, id).Info(ctx)
					there, err2 := session(t, st, id).Info(ctx)
					if err != nil || err2 != nil || here.Commit != there.Commit {
						t.Fatal(err, err2, here.Commit, there.Commit)
					}
				}
				if p.r.IntN(2) == 0 {
					vacuum(t, to)
				}
				verify(t, to)
			}
		})
	}
}

// partOf returns a commit of a checkpoint part that is stored whole.
func partOf(r int) turnstone.Commit {
	return turnstone.Commit{Nodes: saying(fmt.Append(nil, "turn ", r)), Checkpoint: map[string][]byte{"p": random(6000, uint64(r))}}
}

// What the other side has pruned is pruned here in the batch that brings it, so a call that is cut off leaves nothing that
// can't be read.
func TestBU2_TheFloorComesWithTheCommits(t *testing.T) {
	testkit.OneGoroutine(t)
	_, from := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "a"})
	for r := range 3 {
		commitTo(t, s, partOf(r))
	}
	start := bundleOf(t, from, turnstone.Bundled{ID: "a"})
	for r := range 40 {
		c := partOf(3 + r)
		for range 9 { // so that there are several batches
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "u", Payload: random(4500, uint64(r))})
		}
		if r == 10 {
			c.Keep = "kept"
		}
		commitTo(t, s, c)
	}
	prune(t, s, 35) // of 43, of which the other store has 3
	vacuum(t, from)
	more := bundleOf(t, from, turnstone.Bundled{ID: "a", Since: 3})
	for n := 1; ; n++ {
		m := memory.New()
		unbundle(t, openStore(t, m, nil), start)
		st := openStore(t, &enginetest.Faulty{Engine: m, Plan: enginetest.CrashAfter(n)}, &turnstone.Options{NoAutoSeal: true, MustExist: true})
		_, err := st.Unbundle(ctx, bytes.NewReader(more), turnstone.UnbundleOptions{})
		again := openStore(t, m, nil)
		verify(t, again)
		if _, err := session(t, again, "a").Checkpoint(ctx, 0); err != nil {
			t.Error(err)
		}
		collect(t, again, gc.Options{Full: true})
		vacuum(t, again)
		verify(t, again)
		unbundle(t, again, more)
		sameThere(t, from, again, true, "a")
		verify(t, again)
		if err == nil {
			break
		}
	}
}

// A name for a revision that is pruned here does not come, and what is pruned there of what is here is shown here.
func TestBU2_WhatIsHereIsPrunedHereOnly(t *testing.T) {
	_, there := onMemory(t, nil)
	_, here := onMemory(t, nil)
	s := create(t, there, turnstone.Request{ID: "a"})
	root := commitTo(t, s, partOf(0)).Nodes[0]
	side := commitTo(t, s, partOf(1)).Nodes[0]
	c := partOf(2)
	c.Nodes[0].Parent = turnstone.RefTo(root)
	commitTo(t, s, c)
	for r := range 3 {
		commitTo(t, s, partOf(3+r))
	}
	b := bundleOf(t, there, turnstone.Bundled{ID: "a"})
	unbundle(t, here, b)
	mine := session(t, here, "a")
	prune(t, mine, 1)
	vacuum(t, here)
	must(t, s.Keep(ctx, "pruned here", 2))
	commitTo(t, s, partOf(6))
	unbundle(t, here, bundleOf(t, there, turnstone.Bundled{ID: "a", Since: 6}))
	if kept, err := mine.Kept(ctx); err != nil || len(kept) > 0 {
		t.Error(kept, err)
	}
	verify(t, here)

	_, other := onMemory(t, nil)
	unbundle(t, other, b)
	theirs := session(t, other, "a")
	commitTo(t, theirs, turnstone.Commit{Nodes: sayingAfter(side, []byte("goes on"))})
	must(t, s.Release(ctx, "pruned here"))
	_, third := onMemory(t, nil)
	unbundle(t, third, b)
	prune(t, session(t, third, "a"), 1)
	vacuum(t, third) // It prunes the side branch.
	unbundle(t, other, bundleOf(t, third, turnstone.Bundled{ID: "a"}))
	state, err := theirs.Load(ctx, turnstone.Scope{})
	must(t, err)
	if len(state.Nodes) != 3 {
		t.Errorf("%d nodes on the path, want 3", len(state.Nodes))
	}
	verify(t, other)
}

// What is pruned there of the new revisions comes in one batch, or not at all. A name that this side has, or gets, keeps
// what is pruned here with it.
func TestBU2_APrunedRunComesInOneBatch(t *testing.T) {
	_, from := onMemory(t, nil)
	_, to := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "a"})
	for r := range 3 {
		commitTo(t, s, partOf(r))
	}
	unbundle(t, to, bundleOf(t, from, turnstone.Bundled{ID: "a"}))
	must(t, s.Keep(ctx, "theirs", 2))
	for r := range 10 {
		commitTo(t, s, partOf(3+r))
	}
	prune(t, s, 1)
	unbundle(t, to, bundleOf(t, from, turnstone.Bundled{ID: "a", Since: 3}))
	sameThere(t, from, to, true, "a")
	verify(t, to)
	for r := range 60 {
		c := partOf(20 + r)
		for i := range 20 {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "u", Payload: random(4500, uint64(100*r+i))})
		}
		commitTo(t, s, c)
	}
	prune(t, s, 1)
	before := everythingOf(t, to, "a", true)
	more := bundleOf(t, from, turnstone.Bundled{ID: "a", Since: 13})
	if _, err := to.Unbundle(ctx, bytes.NewReader(more), turnstone.UnbundleOptions{}); !errors.Is(err, turnstone.ErrRevisionPruned) || errors.Is(err, turnstone.ErrIncomplete) {
		t.Error(err)
	}
	if everythingOf(t, to, "a", true) != before {
		t.Error("the session was changed")
	}
	verify(t, to)
}

// Of metadata and records the later ones stay, whenever they come.
func TestBU2_TheLaterRecordStays(t *testing.T) {
	_, from := onMemory(t, nil)
	_, to := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "a"})
	var bundles [][]byte
	for i := range 3 {
		change(t, s, turnstone.RecordChange{Key: "r", Value: []byte{byte(i)}})
		must(t, s.SaveMetadata(ctx, head.Metadata{Name: fmt.Sprint("name ", i)}))
		bundles = append(bundles, bundleOf(t, from, turnstone.Bundled{ID: "a"}))
	}
	for _, i := range []int{0, 2, 1} {
		unbundle(t, to, bundles[i])
	}
	sameThere(t, from, to, true, "a")
	verify(t, to)
}

// A session can't go on from a node that was pruned here, its last one included.
func TestBU2_ItDoesNotGoOnFromWhatIsPrunedHere(t *testing.T) {
	_, from := onMemory(t, nil)
	_, to := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "a"})
	root := commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("root"))}).Nodes[0]
	side := commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("side"))}).Nodes[0]
	commitTo(t, s, turnstone.Commit{Leaf: turnstone.RefTo(root)})
	unbundle(t, to, bundleOf(t, from, turnstone.Bundled{ID: "a"}))
	prune(t, session(t, to, "a"), 1)
	vacuum(t, to)
	commitTo(t, s, turnstone.Commit{Nodes: sayingAfter(side, []byte("goes on"))})
	if _, err := to.Unbundle(ctx, bytes.NewReader(bundleOf(t, from, turnstone.Bundled{ID: "a", Since: 3})), turnstone.UnbundleOptions{}); !errors.Is(err, turnstone.ErrRevisionPruned) {
		t.Error(err)
	}
	verify(t, to)
}

// Parts and records are brought in batches that have room for them.
func TestBU2_ManyLargePartsAndRecordsComeForward(t *testing.T) {
	_, from := onMemory(t, nil)
	_, to := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "a"})
	unbundle(t, to, bundleOf(t, from, turnstone.Bundled{ID: "a"}))
	parts := map[string][]byte{}
	for i := range 60 {
		parts[fmt.Sprint("p", i)] = random(50_000, uint64(i))
		if len(parts)%20 == 0 {
			commitTo(t, s, turnstone.Commit{Checkpoint: parts})
		}
	}
	next := map[string][]byte{}
	for name, content := range parts {
		next[name] = append(slices.Clone(content), 'x')
	}
	commitTo(t, s, turnstone.Commit{Checkpoint: next})
	prune(t, s, 1) // Their versions come whole.
	for i := range 60 {
		change(t, s, turnstone.RecordChange{Key: fmt.Sprint("r", i), Value: random(60_000, uint64(i))})
	}
	vacuum(t, from)
	unbundle(t, to, bundleOf(t, from, turnstone.Bundled{ID: "a"}))
	verify(t, to)
	got, err := session(t, to, "a").Checkpoint(ctx, 0)
	if err != nil || len(got) != len(next) {
		t.Fatal(len(got), err)
	}
	for name, content := range next {
		if !bytes.Equal(got[name], content) {
			t.Error(name)
		}
	}
	for i := range 60 {
		if r, err := session(t, to, "a").Record(ctx, fmt.Sprint("r", i)); err != nil || len(r.Value) != 60_000 {
			t.Error(err)
		}
	}
}
