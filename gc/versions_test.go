package gc_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A full collection finds the index right after vacuum has cut a chain behind a kept revision.
func TestARightIndexIsNotRepaired(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := withVersions(t, st, "s", 8)
	keep(t, s, "a", 1)
	keep(t, s, "b", 2)
	prune(t, s)
	vacuumed(t, st)
	vacuumed(t, st)
	healthy(t, st)
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
	if r := collected(t, st, gc.Options{Full: true}); r.Repaired {
		t.Error("repaired")
	}
	healthy(t, st)
}

// A version that a kept revision has is missed, also when no other version depends on it.
func TestVerifyNamesALostVersionOfAKeptRevision(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := withVersions(t, st, "s", 8)
	keep(t, s, "a", 3)
	prune(t, s)
	vacuumed(t, st)
	healthy(t, st)
	space, _ := spaceOf(e)
	removed := 0
	for p := range e.Scan(ctx, space.All(keys.Version)) {
		_, f, _ := space.Fields(p.Key)
		if f[39] != 3 {
			continue
		}
		removed++
		if err := e.Apply(ctx, &engine.Batch{Deletes: [][]byte{p.Key}}); err != nil {
			t.Fatal(err)
		}
	}
	if removed != 1 {
		t.Fatalf("%d records are of version 3", removed)
	}
	again := openAt(t, e, fixed)
	s, err := again.Session(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Checkpoint(ctx, 3); !isCorrupt(err) {
		t.Errorf("the checkpoint of revision 3: %v", err)
	}
	v, err := again.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(v.Problems, func(err error) bool {
		return strings.Contains(err.Error(), `"s"`) && strings.Contains(err.Error(), "3")
	}) {
		t.Errorf("revision 3 can't be read, and verify finds: %v", v.Problems)
	}
}

// A full collection of a long session, whose chains were cut, meets a change of the session.
func TestAFullCollectionBesideAKeepKnowsCutChains(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := withVersions(t, st, "s", 320)
	if _, err := s.Prune(ctx, 21); err != nil { // floor 300
		t.Fatal(err)
	}
	vacuumed(t, st)
	vacuumed(t, st)
	healthy(t, st)
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
	kept := false
	other := openAt(t, &enginetest.Faulty{Engine: e, Done: func(c enginetest.Call, err error) {
		if err == nil && c.Op == "Apply" && writes(c.Batch, keys.Bookmark) && !kept {
			kept = true
			keep(t, s, "x", 310)
		}
	}}, fixed)
	if _, err := other.GC(ctx, gc.Options{Full: true}); err != nil || !kept {
		t.Errorf("full: %v, kept meanwhile: %v", err, kept)
	}
	healthy(t, st)
	commit(t, s, saves([]byte("another")))
	if _, err := st.GC(ctx, gc.Options{}); err != nil {
		t.Error("gc:", err)
	}
	if _, err := st.GC(ctx, gc.Options{}); err != nil {
		t.Error("gc:", err)
	}
	healthy(t, st)
	for i := range 130 {
		commit(t, s, saves(version(1000+i)))
	}
	prune(t, s)
	if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
		t.Error("vacuum:", err)
	}
	if _, err := st.GC(ctx, gc.Options{Full: true}); err != nil {
		t.Error("gc full:", err)
	}
}

// More versions of one part are to go than one batch takes.
func TestMoreVersionsGoThanABatchTakes(t *testing.T) {
	testkit.Seldom(t)
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	chains := testkit.Pick(95, 12, 6)
	small := func(i int) []byte { return append(bytes.Repeat([]byte("0123456789abcdef"), 64), fmt.Sprint(i)...) }
	for i := range chains*121 + 5 {
		commit(t, s, saves(small(i)))
		if i%121 == 120 {
			keep(t, s, fmt.Sprint(i), 0)
		}
	}
	prune(t, s)
	for range 2 {
		if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
			t.Error("vacuum:", err)
		}
	}
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
	healthy(t, st)
}

// Two parts of equal content that are stored as deltas are inherited.
func TestAForkInheritsTwoEqualParts(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 3 {
		commit(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"p": version(i), "q": version(i)}})
	}
	f := create(t, openAt(t, e, fixed), turnstone.Request{ID: "f", Parent: "s"})
	parts, err := f.Checkpoint(ctx, 0)
	if err != nil || !bytes.Equal(parts["p"], version(2)) || !bytes.Equal(parts["q"], version(2)) {
		t.Error(err)
	}
	healthy(t, st)
	collected(t, st, gc.Options{})
	healthy(t, st)
	if err := st.Delete(ctx, "s", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	vacuumed(t, st)
	vacuumed(t, st)
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
}

// A part that a commit both drops and sets is refused, whether or not it changes.
func TestAPartIsNotDroppedAndSetAtOnce(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := withVersions(t, st, "s", 3)
	for _, i := range []int{2, 9} {
		r, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Drop: []string{"p"}, Checkpoint: map[string][]byte{"p": version(i)}})
		if !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("version %d: %+v, %v", i, r, err)
		}
	}
	state, err := s.Load(ctx, turnstone.Scope{})
	if err != nil || state.Revision != 3 {
		t.Error("something was committed:", state.Revision, err)
	}
	if parts, err := s.Checkpoint(ctx, 0); err != nil || !bytes.Equal(parts["p"], version(2)) {
		t.Error("the checkpoint is another:", err)
	}
}

// A part has one value at the revisions 1 and 3, another one at 2, which is kept, and a third one at
// the head. What is stored is what these two refer to.
func TestARevisionThatIsKeptInAGapHoldsItsOwnValueOnly(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	for _, i := range []uint64{1, 2, 1, 3} {
		commit(t, s, saves(noise(6000, i)))
	}
	if err := s.Keep(ctx, "x", 2); err != nil {
		t.Fatal(err)
	}
	prune(t, s)
	vacuumed(t, st)
	vacuumed(t, st)
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
}

// A fork has pruned the checkpoint that it began with, and its parent has, too, or is deleted: no
// fork of it begins at the node where it began itself.
func TestF8_AForkWhereItsParentBeganIsRefusedOnceThatIsPruned(t *testing.T) {
	for _, del := range []bool{false, true} {
		e := memory.New()
		st := openAt(t, e, fixed)
		s := create(t, st, turnstone.Request{ID: "s"})
		c := says([]byte("hello"))
		c.Checkpoint = map[string][]byte{"p": noise(6000, 1)}
		n := commit(t, s, c).Nodes[0]
		f := create(t, st, turnstone.Request{ID: "f", Parent: "s"})
		for i := range 3 {
			c := says([]byte(fmt.Sprint("f", i)))
			c.Checkpoint = map[string][]byte{"p": noise(6000, uint64(i)+2)}
			commit(t, f, c)
		}
		if del {
			if err := st.Delete(ctx, "s", turnstone.KeepChildren); err != nil {
				t.Fatal(err)
			}
		} else {
			commit(t, s, saves(noise(6000, 50)))
			prune(t, s)
		}
		prune(t, f)
		collected(t, st, gc.Options{})
		g, _, err := st.Create(ctx, turnstone.Request{ID: "g", Parent: "f", ForkNode: n})
		if !errors.Is(err, turnstone.ErrRevisionPruned) {
			t.Error("what f and s had at the node is pruned:", g, err)
		}
		if _, err := st.GC(ctx, gc.Options{}); err != nil {
			t.Error("gc:", err)
		}
		healthy(t, st)
	}
}

// A session has a version whole, and another session a chain of 120 deltas that ends at the same
// content: what the first one stores next still reads back.
func TestAChainOfDeltasStaysShortWhenAnotherSessionHasOne(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	a := create(t, st, turnstone.Request{ID: "a"})
	v := func(i int) []byte {
		b := noise(20000, 77)
		for j := range i {
			b[j*100]++
		}
		return b
	}
	commit(t, a, saves(v(120))) // whole: its base is kept at depth 0
	commit(t, a, turnstone.Commit{Drop: []string{"p"}})
	prune(t, a)
	collected(t, st, gc.Options{})
	b := create(t, st, turnstone.Request{ID: "b"})
	for i := range 121 {
		commit(t, b, saves(v(i)))
	}
	healthy(t, st)
	commit(t, a, saves(v(121)))
	if _, err := a.Checkpoint(ctx, 0); err != nil {
		t.Error("checkpoint of a:", err)
	}
	healthy(t, st)
}
