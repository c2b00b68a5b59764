package gc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/keys"
)

func keep(t testing.TB, s *turnstone.Session, name string, r turnstone.Revision) {
	t.Helper()
	if err := s.Keep(ctx, name, r); err != nil {
		t.Fatal(err)
	}
}

// A full collection finds the index right after vacuum has cut a chain behind a kept revision.
func TestARightIndexIsNotRepaired(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 8 {
		commit(t, s, saves(version(i)))
	}
	keep(t, s, "a", 1)
	keep(t, s, "b", 2)
	prune(t, s)
	vacuumed(t, st)
	vacuumed(t, st)
	healthy(t, st)
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
	if r := collected(t, st, turnstone.GCOptions{Full: true}); r.Repaired {
		t.Error("repaired")
	}
	healthy(t, st)
}

// A version that a kept revision has is missed, also when no other version depends on it.
func TestVerifyNamesALostVersionOfAKeptRevision(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 8 {
		commit(t, s, saves(version(i)))
	}
	keep(t, s, "a", 3)
	prune(t, s)
	vacuumed(t, st)
	healthy(t, st)
	space, _ := spaceOf(e)
	n := 0
	for p := range e.Scan(ctx, space.All(keys.Version)) {
		_, f, _ := space.Fields(p.Key)
		if f[39] != 3 {
			continue
		}
		n++
		if err := e.Apply(ctx, &engine.Batch{Deletes: [][]byte{p.Key}}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := openAt(t, e, fixed).Session(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	_, cerr := s.Checkpoint(ctx, 3)
	v, err := st.Verify(ctx, nil)
	t.Logf("removed %d; checkpoint 3: %v; verify: %v, problems %v", n, cerr, err, v.Problems)
	if v.OK() {
		t.Error("verify finds nothing although revision 3 can't be read")
	}
}

// cutting fails every Apply from the n-th on.
type cutting struct {
	engine.Engine
	n int
}

var errCut = errors.New("cut off")

func (c *cutting) Apply(ctx context.Context, b *engine.Batch) error {
	if c.n == 0 {
		return errCut
	}
	c.n--
	return c.Engine.Apply(ctx, b)
}

// Vacuum is cut off at any batch; then a collection runs; then the store is verified.
func TestACutVacuumAndACollectionLeaveNoDamage(t *testing.T) {
	for n := 0; ; n++ {
		e := memory.New()
		st := openAt(t, e, fixed)
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range 8 {
			commit(t, s, saves(version(i)))
		}
		prune(t, s)
		c := &cutting{e, 1000}
		cut := openAt(t, c, fixed)
		c.n = n
		_, err := cut.Vacuum(ctx, turnstone.VacuumOptions{})
		collected(t, st, turnstone.GCOptions{})
		v, verr := st.Verify(ctx, nil)
		if verr != nil || !v.OK() {
			t.Errorf("cut at %d: %v %v", n, verr, v.Problems)
		}
		if _, err := s.Checkpoint(ctx, 8); err != nil {
			t.Error(n, err)
		}
		vacuumed(t, st)
		vacuumed(t, st)
		if err := reachable(e, true); err != nil {
			t.Error(n, err)
		}
		healthy(t, st)
		if err == nil {
			t.Log(n, "batches")
			return
		}
	}
}

// Vacuum is cut off between the values of a version that it stores whole.
func TestValuesOfAVersionThatWasNotFinishedGo(t *testing.T) {
	big := noise(700<<10, 9) // 2 values
	part := func(i int) []byte { return append(bytes.Clone(big), noise(100, uint64(i))...) }
	for n := 0; n < 60; n++ {
		e := memory.New()
		st := openAt(t, e, fixed)
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range 4 {
			commit(t, s, saves(part(i)))
		}
		prune(t, s)
		c := &cutting{e, 1000}
		cut := openAt(t, c, fixed)
		c.n = n
		_, err := cut.Vacuum(ctx, turnstone.VacuumOptions{})
		commit(t, s, saves(part(5)))
		commit(t, s, saves(part(6)))
		prune(t, s)
		vacuumed(t, st)
		vacuumed(t, st)
		if err := reachable(e, true); err != nil {
			t.Error("cut at", n, err)
		}
		commit(t, s, saves([]byte("small")))
		prune(t, s)
		vacuumed(t, st)
		vacuumed(t, st)
		if err := reachable(e, true); err != nil {
			t.Error("after, cut at", n, err)
		}
		if holds(e, big[500<<10:500<<10+64]) {
			t.Error("cut at", n, ": bytes of pruned versions are in the store")
		}
		healthy(t, st)
		if err == nil {
			t.Log(n, "batches")
			return
		}
	}
}

// applied calls on after every successful Apply.
type applied struct {
	engine.Engine
	on func(*engine.Batch)
}

func (c *applied) Apply(ctx context.Context, b *engine.Batch) error {
	err := c.Engine.Apply(ctx, b)
	if err == nil && c.on != nil {
		c.on(b)
	}
	return err
}

// A full collection of a long session, whose chains were cut, meets a change of the session.
func TestAFullCollectionBesideAKeepKnowsCutChains(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 320 {
		commit(t, s, saves(version(i)))
	}
	if _, err := s.Prune(ctx, 21); err != nil { // floor 300
		t.Fatal(err)
	}
	vacuumed(t, st)
	vacuumed(t, st)
	healthy(t, st)
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
	space, _ := spaceOf(e)
	h := &applied{Engine: e}
	other := openAt(t, h, fixed)
	done := false
	h.on = func(b *engine.Batch) {
		for _, p := range b.Sets {
			if space.Letter(p.Key) == keys.Bookmark && !done {
				done = true
				keep(t, s, "x", 310)
			}
		}
	}
	r, err := other.GC(ctx, turnstone.GCOptions{Full: true})
	t.Log("full:", r, err, "kept meanwhile:", done)
	h.on = nil
	v, verr := st.Verify(ctx, nil)
	t.Log("verify:", verr, v.Problems)
	if !v.OK() {
		t.Error("verify")
	}
	commit(t, s, saves([]byte("another")))
	if _, err := st.GC(ctx, turnstone.GCOptions{}); err != nil {
		t.Error("gc:", err)
	}
	if _, err := st.GC(ctx, turnstone.GCOptions{}); err != nil {
		t.Error("gc:", err)
	}
	healthy(t, st)
	for i := range 130 {
		commit(t, s, saves(version(1000+i)))
	}
	prune(t, s)
	if _, err := st.Vacuum(ctx, turnstone.VacuumOptions{}); err != nil {
		t.Error("vacuum:", err)
	}
	if _, err := st.GC(ctx, turnstone.GCOptions{Full: true}); err != nil {
		t.Error("gc full:", err)
	}
}

// More versions of one part are to go than one batch takes.
func TestMoreVersionsGoThanABatchTakes(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	const chains = 95
	small := func(i int) []byte { return append(bytes.Repeat([]byte("0123456789abcdef"), 64), fmt.Sprint(i)...) }
	for i := range chains*121 + 5 {
		commit(t, s, saves(small(i)))
		if i%121 == 120 {
			keep(t, s, fmt.Sprint(i), 0)
		}
	}
	prune(t, s)
	for range 2 {
		if _, err := st.Vacuum(ctx, turnstone.VacuumOptions{}); err != nil {
			t.Error("vacuum:", err)
		}
	}
}

// Two parts of equal content that are stored as deltas are inherited.
func TestAForkInheritsTwoEqualParts(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 3 {
		commit(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"p": version(i), "q": version(i)}})
	}
	var sets map[string]int
	h := &applied{Engine: e}
	h.on = func(b *engine.Batch) {
		sets = map[string]int{}
		for _, p := range b.Sets {
			sets[string(p.Key)]++
		}
		for k, n := range sets {
			if n > 1 {
				t.Errorf("key %x is set %d times in one batch", k, n)
			}
		}
	}
	other := openAt(t, h, fixed)
	f := create(t, other, turnstone.Request{ID: "f", Parent: "s"})
	parts, err := f.Checkpoint(ctx, 0)
	if err != nil || !bytes.Equal(parts["p"], version(2)) || !bytes.Equal(parts["q"], version(2)) {
		t.Error(err)
	}
	healthy(t, st)
	collected(t, st, turnstone.GCOptions{})
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

// A part that a commit both drops and sets is refused.
func TestAPartIsNotDroppedAndSetAtOnce(t *testing.T) {
	for _, same := range []bool{true, false} {
		e := memory.New()
		st := openAt(t, e, fixed)
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range 3 {
			commit(t, s, saves(version(i)))
		}
		want := version(9)
		if same {
			want = version(2)
		}
		_, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Drop: []string{"p"}, Checkpoint: map[string][]byte{"p": want}})
		if err != nil {
			t.Log(err)
			continue
		}
		parts, err := s.Checkpoint(ctx, 0)
		if err != nil || !bytes.Equal(parts["p"], want) {
			t.Error(same, err)
		}
		collected(t, st, turnstone.GCOptions{})
		healthy(t, st)
	}
}
