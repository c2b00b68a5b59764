package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/push"
)

// A peer is a store whose calls do something else before, or fail.
type peer struct {
	push.Peer
	list     func(*turnstone.ListOptions, *turnstone.Page)
	standing func()
	bundle   func() error
	unbundle func() error
}

func (p *peer) List(ctx context.Context, o turnstone.ListOptions) (turnstone.Page, error) {
	if p.list != nil {
		o.Limit = 2
	}
	page, err := p.Peer.List(ctx, o)
	if p.list != nil {
		p.list(&o, &page)
	}
	return page, err
}

func (p *peer) Standings(ctx context.Context, of ...turnstone.StandingQuery) ([]turnstone.Standing, error) {
	if p.standing != nil {
		p.standing()
	}
	return p.Peer.Standings(ctx, of...)
}

func (p *peer) Bundle(ctx context.Context, w io.Writer, of ...turnstone.Bundled) (*turnstone.BundleReport, error) {
	if p.bundle != nil {
		if err := p.bundle(); err != nil {
			return nil, err
		}
	}
	return p.Peer.Bundle(ctx, w, of...)
}

func (p *peer) Unbundle(ctx context.Context, r io.Reader, o turnstone.UnbundleOptions) (*turnstone.UnbundleReport, error) {
	if p.unbundle != nil {
		if err := p.unbundle(); err != nil {
			return nil, err
		}
	}
	return p.Peer.Unbundle(ctx, r, o)
}

// five returns a store with the sessions s0 to s4, and an empty one.
func five(t *testing.T) (from, to *turnstone.Store) {
	t.Helper()
	_, from = onMemory(t, nil)
	_, to = onMemory(t, nil)
	for i := range 5 {
		create(t, from, turnstone.Request{ID: fmt.Sprint("s", i)}, []byte("first"))
	}
	return from, to
}

func TestPU1_SessionsThatAreDeletedOrRenamedMeanwhileEndNoPush(t *testing.T) {
	for name, gone := range map[string]func(*turnstone.Store){
		"deleted": func(st *turnstone.Store) { remove(t, st, "s1") },
		"renamed": func(st *turnstone.Store) { must(t, rename(ctx, st, "s1", "other")) },
	} {
		from, to := five(t)
		once := true
		source := &peer{Peer: from, bundle: func() error {
			if once {
				once = false
				gone(from)
			}
			return nil
		}}
		r := pushed(t, source, to, push.Options{All: true})
		if len(r.Sessions) != 4 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestPU1_ASessionThatIsUpdatedWhileTheyAreListedIsPushed(t *testing.T) {
	from, to := five(t)
	pages := 0
	source := &peer{Peer: from, list: func(_ *turnstone.ListOptions, page *turnstone.Page) {
		if pages++; pages == 1 {
			commitTo(t, session(t, from, "s0"), turnstone.Commit{Expected: 1, Nodes: saying([]byte("it moves to the front"))})
		}
	}}
	pushed(t, source, to, push.Options{All: true})
	sameHeads(t, from, to)
}

func TestPU1_ASessionThatIsCommittedToWhileItIsComparedHasNotDiverged(t *testing.T) {
	for calls := range 4 {
		from, to := five(t)
		pushed(t, from, to, push.Options{All: true})
		ahead := session(t, to, "s1")
		commitTo(t, ahead, turnstone.Commit{Expected: 1, Nodes: saying([]byte("ahead"))})
		n := 0
		commits := func(s *turnstone.Session) func() {
			return func() {
				if n++; n == calls {
					commitTo(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("meanwhile"))})
				}
			}
		}
		pushed(t, &peer{Peer: from, standing: commits(session(t, from, "s2"))}, to, push.Options{All: true})
		pushed(t, from, &peer{Peer: to, standing: commits(ahead)}, push.Options{All: true})
		n = 0
		pushed(t, from, &peer{Peer: to, standing: commits(ahead)}, push.Options{All: true})
	}
}

func TestPU1_WhatOnlyTheOtherStoreHasIsNoChange(t *testing.T) {
	from, to := five(t)
	pushed(t, from, to, push.Options{All: true})
	_, err := session(t, to, "s1").ChangeRecords(ctx, turnstone.RecordChange{Key: "own", Value: []byte("v")})
	must(t, err)
	commitTo(t, session(t, to, "s2"), turnstone.Commit{Expected: 1, Nodes: saying([]byte("more")), Keep: "k"})
	for range 2 {
		if r := pushed(t, from, to, push.Options{All: true}); len(r.Sessions) > 0 || r.Same != 5 {
			t.Errorf("%+v", r)
		}
	}
}

func TestPU1_ANewForkSharesTheHistoryOfAParentThatIsThere(t *testing.T) {
	from, to := five(t)
	pushed(t, from, to, push.Options{All: true})
	create(t, from, turnstone.Request{ID: "f", Parent: "s1"})
	create(t, from, turnstone.Request{ID: "g", Parent: "s2"})
	pushed(t, from, to, push.Options{All: true, Progress: func(turnstone.Unbundled) {}})
	remove(t, to, "g")
	commitTo(t, session(t, from, "s2"), turnstone.Commit{Expected: 1, Nodes: saying([]byte("more"))})
	pushed(t, from, to, push.Options{Sessions: []string{"g"}}) // with its parent
	for fork, parent := range map[string]string{"f": "s1", "g": "s2"} {
		if info, err := session(t, to, fork).Info(ctx); err != nil || info.Parent != parent {
			t.Errorf("%s: parent %q, %v", fork, info.Parent, err)
		}
	}
	sameHeads(t, from, to)
}

// An error in the middle takes nothing away from what is told of the sessions before.
func TestPU3_WhatIsRefusedIsToldWithALaterError(t *testing.T) {
	from, to := five(t)
	pushed(t, from, to, push.Options{Sessions: []string{"s0"}})
	for _, st := range []*turnstone.Store{from, to} {
		commitTo(t, session(t, st, "s0"), turnstone.Commit{Expected: 1, Nodes: saying([]byte("more"))})
	}
	no := errors.New("no")
	_, err := push.Sessions(ctx, from, &peer{Peer: to, unbundle: func() error { return no }}, push.Options{All: true})
	if !errors.Is(err, no) || !errors.Is(err, turnstone.ErrDiverged) {
		t.Error(err)
	}
	r, err := push.Sessions(ctx, from, to, push.Options{Sessions: []string{"nobody", "s0", "s1"}})
	if !errors.Is(err, turnstone.ErrSessionNotFound) || !errors.Is(err, turnstone.ErrDiverged) || len(r.Sessions) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Large checkpoint parts come with a branch, however often both sides have taken each other's.
func TestPU3_BranchesGoToAndFroWithLargeParts(t *testing.T) {
	_, a := onMemory(t, nil)
	_, b := onMemory(t, nil)
	part := random(600_000, 1)
	commitTo(t, create(t, a, turnstone.Request{ID: "s"}), turnstone.Commit{Nodes: saying([]byte("first")), Checkpoint: map[string][]byte{"p": part}})
	pushed(t, a, b, push.Options{All: true})
	for i := range 4 {
		for j, st := range []*turnstone.Store{a, b} {
			part = append([]byte{byte(i), byte(j)}, part[2:]...)
			commitTo(t, session(t, st, "s"), turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("more")), Checkpoint: map[string][]byte{"p": part}})
		}
		pushed(t, a, b, push.Options{All: true, Branch: "of a"})
		pushed(t, b, a, push.Options{All: true, Branch: "of b"})
		if x, y := nodesOf(t, session(t, a, "s")), nodesOf(t, session(t, b, "s")); len(x) != len(y) || len(x) != 3+2*i {
			t.Fatalf("%d nodes, and %d", len(x), len(y))
		}
		verify(t, a)
		verify(t, b)
	}
}

// A branch comes also when the checkpoint that its own is relative to is pruned here.
func TestPU3_ABranchComesFromWhatIsPrunedHere(t *testing.T) {
	_, from := onMemory(t, nil)
	_, to := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "s"})
	for i := range 3 {
		commitTo(t, s, partOf(i))
	}
	pushed(t, from, to, push.Options{All: true})
	ours := session(t, to, "s")
	for i := range 4 {
		commitTo(t, ours, turnstone.Commit{Expected: head.Revision(3 + i), Nodes: saying([]byte("ours")), Checkpoint: map[string][]byte{"p": random(5000, uint64(i))}})
	}
	_, err := ours.Prune(ctx, 1)
	must(t, err)
	vacuum(t, to)
	commitTo(t, s, partOf(3))
	want := endOf(t, s, 0)
	r := pushed(t, from, to, push.Options{All: true, Branch: "theirs"})
	if got := endOf(t, ours, r.Sessions[0].Branch); got.Leaf != want.Leaf || string(got.Parts["p"]) != string(want.Parts["p"]) {
		t.Error("the branch ends elsewhere")
	}
	verify(t, to)
}
