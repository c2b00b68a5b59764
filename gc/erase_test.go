package gc_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// Erase of a fork that was forked before its first commit is complete.
func TestEraseOfAForkThatWasForkedAtItsBeginning(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	commit(t, create(t, st, turnstone.Request{ID: "a"}), says([]byte("x")))
	f := create(t, st, turnstone.Request{ID: "b", Parent: "a"})
	create(t, st, turnstone.Request{ID: "c", Parent: "b"})
	commit(t, f, says([]byte("secret")))
	for range 3 {
		r, err := st.Erase(ctx, "b", turnstone.KeepChildren, turnstone.EraseOptions{})
		if err != nil || len(r.HeldBy) > 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if holds(e, []byte("secret")) {
		t.Error("it is there")
	}
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
}

// The receipt of a fork counts the checkpoint that it began with.
func TestTheReceiptKnowsWhatAForkBeganWith(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := withVersions(t, st, "a", 3)
	create(t, st, turnstone.Request{ID: "f", Parent: "a"})
	collected(t, st, gc.Options{})
	r, err := st.Erase(ctx, "f", turnstone.KeepChildren, turnstone.EraseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The parent stores its version as a delta, so the fork's whole one was its alone.
	if r.Gone != 1 || r.Vacuum.Deleted != 1 || r.Shared != 0 {
		t.Errorf("gone %d, shared %d by %v; vacuum has deleted %d", r.Gone, r.Shared, r.SharedBy, r.Vacuum.Deleted)
	}
	// What the parent stores whole as well is shared with it.
	commit(t, s, saves(noise(7000, 5)))
	create(t, st, turnstone.Request{ID: "g", Parent: "a"})
	if r, err = st.Erase(ctx, "g", turnstone.KeepChildren, turnstone.EraseOptions{}); err != nil {
		t.Fatal(err)
	}
	if r.Gone != 0 || r.Vacuum.Deleted != 0 || r.Shared != 1 || !slices.Equal(r.SharedBy, []string{"a"}) {
		t.Errorf("gone %d, shared %d by %v; vacuum has deleted %d", r.Gone, r.Shared, r.SharedBy, r.Vacuum.Deleted)
	}
}

// Large versions go through forks, copies and Verify.
func TestLargeVersionsAreForkedAndCopied(t *testing.T) {
	testkit.Slow(t)
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	big := noise(3<<20, 9)
	part := func(i int) []byte { return append(bytes.Clone(big), noise(100, uint64(i))...) }
	for i := range 6 {
		commit(t, s, turnstone.Commit{Nodes: says([]byte{byte(i)}).Nodes, Checkpoint: map[string][]byte{"p": part(i), "q": append(part(i), 1)}})
	}
	keep(t, s, "k", 3)
	f := create(t, st, turnstone.Request{ID: "f", Parent: "s"})
	if _, err := s.Prune(ctx, 2); err != nil {
		t.Fatal(err)
	}
	vacuumed(t, st)
	vacuumed(t, st)
	healthy(t, st)
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
	look := func(s *turnstone.Session, r head.Revision, i int) {
		t.Helper()
		parts, err := s.Checkpoint(ctx, r)
		if err != nil || !bytes.Equal(parts["p"], part(i)) || !bytes.Equal(parts["q"], append(part(i), 1)) {
			t.Error(r, err)
		}
	}
	look(s, 3, 2)
	look(s, 5, 4)
	look(s, 6, 5)
	look(f, 0, 5)
	commit(t, f, turnstone.Commit{Checkpoint: map[string][]byte{"p": part(7)}})
	if err := st.Delete(ctx, "s", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	prune(t, f)
	vacuumed(t, st)
	vacuumed(t, st)
	healthy(t, st)
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
	parts, err := f.Checkpoint(ctx, 0)
	if err != nil || !bytes.Equal(parts["p"], part(7)) || !bytes.Equal(parts["q"], append(part(5), 1)) {
		t.Error(err)
	}
	to := memory.New()
	if _, err := turnstone.Copy(ctx, e, to, turnstone.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	healthy(t, openAt(t, to, fixed))
}
