package turnstone_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// Prune and a collection remove the checkpoints before the last three, but for those of revisions
// that are kept by name, until they are released.
func TestRetentionPrunesWhatIsOlderAndNotKept(t *testing.T) {
	e, st := onMemory(t, &turnstone.Options{Retention: 3})
	s := create(t, st, turnstone.Request{ID: "s"})
	var parts [][]byte
	for i := range 10 {
		parts = append(parts, random(9000, uint64(i)))
		commitAt(t, s, turnstone.Commit{Expected: head.Revision(i), Nodes: saying(fmt.Append(nil, i)), Checkpoint: map[string][]byte{"p": parts[i]}})
	}
	if err := errors.Join(s.Keep(ctx, "good", 4), s.Keep(ctx, "good", 4), s.Keep(ctx, "head", 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.Keep(ctx, "good", 5); !errors.Is(err, turnstone.ErrExists) {
		t.Error(err)
	}
	collect(t, st, gc.Options{})
	if n, err := st.Prune(ctx); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := st.Prune(ctx); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	check := func(want ...int) {
		t.Helper()
		for r := 1; r <= 10; r++ {
			got, err := s.Checkpoint(ctx, head.Revision(r))
			kept := false
			for _, w := range want {
				kept = kept || w == r
			}
			if kept && (err != nil || !bytes.Equal(got["p"], parts[r-1])) || !kept && !errors.Is(err, turnstone.ErrRevisionPruned) {
				t.Errorf("revision %d: %v", r, err)
			}
			if holds(t, e, parts[r-1][:64]) != kept {
				t.Errorf("bytes of revision %d: %v", r, !kept)
			}
		}
		if st, err := s.Load(ctx, turnstone.Scope{}); err != nil || len(st.Nodes) != 10 {
			t.Error(err)
		}
		verify(t, st)
	}
	if r := collect(t, st, gc.Options{}); r.Deleted != 6 {
		t.Errorf("%+v", r)
	}
	check(4, 8, 9, 10)
	if err := s.Keep(ctx, "lost", 5); !errors.Is(err, turnstone.ErrRevisionPruned) {
		t.Error(err)
	}
	if err := errors.Join(s.Release(ctx, "good"), s.Release(ctx, "good")); err != nil {
		t.Fatal(err)
	}
	if r := collect(t, st, gc.Options{}); r.Deleted != 1 {
		t.Errorf("%+v", r)
	}
	check(8, 9, 10)
	if r := collect(t, st, gc.Options{Full: true}); r.Deleted != 0 || r.Repaired {
		t.Errorf("%+v", r)
	}
}

// A session that has a retention of its own is pruned by that.
func TestASessionsRetentionComesBeforeTheStores(t *testing.T) {
	st := openStore(t, memory.New(), &turnstone.Options{Retention: 2})
	for id, own := range map[string]turnstone.Retention{"default": 0, "all": turnstone.KeepAll, "four": 4} {
		s := create(t, st, turnstone.Request{ID: id, Metadata: turnstone.Metadata{Retention: own}})
		for i := range 6 {
			commitAt(t, s, turnstone.Commit{Expected: head.Revision(i), Checkpoint: map[string][]byte{"p": {byte(i)}}})
		}
	}
	if n, err := st.Prune(ctx); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	for id, oldest := range map[string]head.Revision{"default": 5, "all": 1, "four": 3} {
		s := session(t, st, id)
		for r := head.Revision(1); r <= 6; r++ {
			_, err := s.Checkpoint(ctx, r)
			if r >= oldest && err != nil || r < oldest && !errors.Is(err, turnstone.ErrRevisionPruned) {
				t.Errorf("%s, revision %d: %v", id, r, err)
			}
		}
	}
}

// A side branch goes when no retained revision leads to it and no fork holds it, with its
// attachments.
func TestSideBranchesArePruned(t *testing.T) {
	e, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	commit := func(i uint64, leaf turnstone.Ref, parent turnstone.Ref) graph.ID {
		t.Helper()
		a := upload(t, s, random(500, 100+i))
		return commitTo(t, s, turnstone.Commit{Leaf: leaf, Nodes: []turnstone.NewNode{
			{Kind: "u", Parent: parent, Payload: random(9000, i), Attachments: []blob.Attachment{a}},
		}}).Nodes[0]
	}
	root := commit(0, turnstone.Ref{}, turnstone.Ref{})
	commit(1, turnstone.Ref{}, turnstone.Ref{})
	held := commit(2, turnstone.Ref{}, turnstone.RefTo(root))
	create(t, st, turnstone.Request{ID: "f", Parent: "s", ForkNode: held})
	main := commit(3, turnstone.Ref{}, turnstone.RefTo(root))
	commit(4, turnstone.RefTo(main), turnstone.RefTo(main))
	commit(5, turnstone.Ref{}, turnstone.RefTo(main))
	if err := s.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	prune(t, s, 1)
	// The fork holds all of the first three turns, its own side branch included.
	if r := vacuum(t, st); r.Nodes != 1 {
		t.Errorf("%+v", r)
	}
	remove(t, st, "f")
	commitTo(t, s, turnstone.Commit{})
	prune(t, s, 1)
	if r := vacuum(t, st); r.Nodes != 2 {
		t.Errorf("%+v", r)
	}
	state, err := s.Load(ctx, turnstone.Scope{Full: true})
	if err != nil || len(state.Nodes) != 3 {
		t.Error(err, len(state.Nodes))
	}
	for i := range uint64(6) {
		want := i == 0 || i == 3 || i == 5
		if holds(t, e, random(9000, i)[:64]) != want || holds(t, e, random(500, 100+i)[:64]) != want {
			t.Errorf("payload %d is there: %v", i, !want)
		}
		var w bytes.Buffer
		_, err := s.Load(ctx, turnstone.Scope{})
		if _, rerr := s.ReadAttachment(ctx, &w, blob.Sum(random(500, 100+i))); err != nil || (rerr == nil) != want || rerr != nil && !errors.Is(rerr, turnstone.ErrBlobNotFound) {
			t.Errorf("attachment %d: %v", i, rerr)
		}
	}
	verify(t, st)
	if r := collect(t, st, gc.Options{Full: true}); r.Deleted != 0 || r.Repaired {
		t.Errorf("full: %+v", r)
	}
}

// A side branch that no retained revision leads to stays while a fork, or a kept revision, holds
// it, and no longer.
func TestG10_ASideBranchGoesWithWhatHeldIt(t *testing.T) {
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
			commitTo(t, p, turnstone.Commit{Nodes: sayingAfter(root, []byte("main"))})
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
