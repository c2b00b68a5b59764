package gc_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
)

// A collection of one session does not delete what another one freed.
func TestACollectionOfOneSessionLeavesOthers(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	var all []*turnstone.Session
	for i := range 2 {
		s := create(t, st, turnstone.Request{ID: fmt.Sprint(i)})
		for j := range 5 {
			commit(t, s, saves(noise(6000, uint64(10*i+j))))
		}
		all = append(all, s)
	}
	collected(t, st, gc.Options{})
	prune(t, all[0])
	prune(t, all[1])
	r, err := all[0].GC(ctx, gc.Options{})
	if err != nil || r.Deleted != 4 {
		t.Errorf("deleted %d of the session's 4: %v", r.Deleted, err)
	}
}

// A node is erased in forks of forks, one after the other.
func TestANodeIsErasedInManyForks(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "0"})
	all := []string{"0", "1", "2", "3", "4", "5"}
	r := commit(t, s, turnstone.Commit{Nodes: says(noise(6000, 1)).Nodes, Checkpoint: map[string][]byte{"p": version(0)}})
	for i := range 5 {
		s = create(t, st, turnstone.Request{ID: fmt.Sprint(i + 1), Parent: fmt.Sprint(i)})
		commit(t, s, saves(version(i+1)))
	}
	for i := 5; i >= 0; i-- {
		x, err := st.Session(ctx, fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		rc, err := x.Erase(ctx, turnstone.EraseOptions{}, r.Nodes[0])
		if err != nil {
			t.Fatal(i, err)
		}
		if gone := i == 0; !slices.Equal(rc.HeldBy, all[:i]) || (rc.Gone == 1) != gone || len(rc.SharedBy) > 0 {
			t.Errorf("node erased in %d: gone %d, held by %v, shared by %v", i, rc.Gone, rc.HeldBy, rc.SharedBy)
		}
	}
	if holds(e, noise(6000, 1)[:64]) {
		t.Error("left")
	}
	for i := range 5 {
		rc, err := st.Erase(ctx, fmt.Sprint(i), turnstone.KeepChildren, turnstone.EraseOptions{})
		if err != nil {
			t.Fatal(i, err)
		}
		if !slices.Equal(rc.HeldBy, all[i+1:]) || len(rc.SharedBy) > 0 {
			t.Errorf("session %d erased: held by %v, shared by %v", i, rc.HeldBy, rc.SharedBy)
		}
	}
	parts, err := s.Checkpoint(ctx, 0)
	if err != nil || !bytes.Equal(parts["p"], version(5)) {
		t.Error(err)
	}
	healthy(t, st)
	rc, err := st.Erase(ctx, "5", turnstone.KeepChildren, turnstone.EraseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(rc.HeldBy) > 0 || rc.Gone == 0 || rc.Gone != rc.Vacuum.Deleted {
		t.Errorf("the last one erased: %+v, vacuum has deleted %d", *rc, rc.Vacuum.Deleted)
	}
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
}
