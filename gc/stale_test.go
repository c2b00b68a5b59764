package gc_test

import (
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// records counts the records of a type.
func records(t *testing.T, e engine.Engine, letter byte) (n int) {
	space, err := spaceOf(e)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range e.Scan(ctx, space.All(letter)) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// segments counts the segments of all sessions: their first values.
func segments(t *testing.T, e engine.Engine) (n int) {
	space, err := spaceOf(e)
	if err != nil {
		t.Fatal(err)
	}
	for p, err := range e.Scan(ctx, space.All(keys.Segment)) {
		if err != nil {
			t.Fatal(err)
		}
		if p.Key[len(p.Key)-1] == 0 {
			n++
		}
	}
	return n
}

// G10: whatever lets content go makes the next vacuum come to the session that has it,
// and only the next one.
func TestG10_VacuumComesToWhatChanged(t *testing.T) {
	type world struct {
		*turnstone.Store
		s     *turnstone.Session // three commits, of a node each; the last goes on from the first
		nodes []graph.ID
	}
	fork := func(w *world, id string, node int) *turnstone.Session {
		return create(t, w.Store, turnstone.Request{ID: id, Parent: "s", ForkNode: w.nodes[node]})
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name          string
		before, after func(*world)
		nodes         int // that the vacuum after removes
	}{
		{"a tombstone", func(*world) {}, func(w *world) { do(w.s.Tombstone(ctx, w.nodes[0])) }, 1},
		{"a deletion", func(*world) {}, func(w *world) { do(w.Delete(ctx, "s", turnstone.KeepChildren)) }, 3},
		{"a floor that moves", func(*world) {}, func(w *world) { prune(t, w.s) }, 1},
		{"a kept revision that is released", func(w *world) {
			do(w.s.Keep(ctx, "k", 2))
			prune(t, w.s)
		}, func(w *world) { do(w.s.Release(ctx, "k")) }, 1},
		{"a fork's tombstone", func(w *world) {
			fork(w, "f", 0)
			do(w.s.Tombstone(ctx, w.nodes[0]))
		}, func(w *world) {
			f, err := w.Session(ctx, "f")
			do(err)
			do(f.Tombstone(ctx, w.nodes[0]))
		}, 1},
		{"a fork's deletion", func(w *world) {
			fork(w, "f", 0)
			do(w.s.Tombstone(ctx, w.nodes[0]))
		}, func(w *world) { do(w.Delete(ctx, "f", turnstone.KeepChildren)) }, 1},
		{"the deletion of a fork that a deleted session is cut for", func(w *world) {
			fork(w, "f", 0)
			fork(w, "g", 1)
			do(w.Delete(ctx, "s", turnstone.KeepChildren))
		}, func(w *world) { do(w.Delete(ctx, "g", turnstone.KeepChildren)) }, 1},
		{"the deletion of one of two forks, of which the other one has a tombstone", func(w *world) {
			do(fork(w, "f", 0).Tombstone(ctx, w.nodes[0]))
			fork(w, "g", 0)
			do(w.Delete(ctx, "s", turnstone.KeepChildren))
		}, func(w *world) { do(w.Delete(ctx, "g", turnstone.KeepChildren)) }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := memory.New()
			w := &world{Store: openAt(t, e, fixed)}
			w.s = create(t, w.Store, turnstone.Request{ID: "s"})
			for i := range 3 {
				next := says(fmt.Append(nil, i))
				if i == 2 {
					next.Nodes[0].Parent = turnstone.RefTo(w.nodes[0])
				}
				w.nodes = append(w.nodes, commit(t, w.s, next).Nodes...)
			}
			c.before(w)
			vacuumed(t, w.Store)
			if r := vacuumed(t, w.Store); r.Nodes != 0 || records(t, e, keys.Stale) != 0 {
				t.Fatalf("before: %+v, and %d stale sessions", r, records(t, e, keys.Stale))
			}
			c.after(w)
			if r := vacuumed(t, w.Store); r.Nodes != c.nodes {
				t.Errorf("it removed %d nodes, not %d", r.Nodes, c.nodes)
			}
			if n := records(t, e, keys.Stale); n != 0 {
				t.Errorf("%d sessions are still stale", n)
			}
			if err := reachable(e, true); err != nil {
				t.Error(err)
			}
			healthy(t, w.Store)
		})
	}
}

// G10: vacuum seals what was committed since the last one.
func TestG10_VacuumSealsWhatWasCommitted(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s, other := create(t, st, turnstone.Request{ID: "s"}), create(t, st, turnstone.Request{ID: "other"})
	for range 2 {
		for range 5 {
			commit(t, s, says([]byte("1")))
		}
		commit(t, other, says([]byte("2")))
		if packs := segments(t, e); packs < 6 {
			t.Fatalf("%d packs", packs)
		}
		vacuumed(t, st)
		if packs := segments(t, e); packs != 2 {
			t.Errorf("%d packs after a vacuum of two sessions", packs)
		}
	}
	commit(t, s, says([]byte("1")))
	commit(t, other, says([]byte("2")))
	if _, err := s.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
		t.Fatal(err)
	}
	if packs := segments(t, e); packs != 3 {
		t.Errorf("%d packs after a vacuum of one session of two", packs)
	}
}

// VF1: a collection is cut off after it has seen that a fork was deleted, and the record
// by which the next one comes to the fork's deleted parent is lost: Verify misses it.
func TestVF1_VerifyMissesTheRecordThatBringsACollectionToADeletedParent(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	commit(t, create(t, st, turnstone.Request{ID: "s"}), says(big))
	create(t, st, turnstone.Request{ID: "f", Parent: "s"})
	for _, id := range []string{"s", "f"} {
		if err := st.Delete(ctx, id, turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
		if id == "s" {
			collected(t, st, gc.Options{})
			healthy(t, st)
		}
	}
	healthy(t, st)
	f := &enginetest.Faulty{Engine: e}
	f.Plan = func(c enginetest.Call) enginetest.Fault {
		cut := c.Batch != nil && byCollector(c.Batch) && writes(c.Batch, keys.Dirty)
		return enginetest.Fault{Crash: cut, Applied: true}
	}
	if _, err := openAt(t, f, fixed).GC(ctx, gc.Options{}); err == nil {
		t.Fatal("the collection was not cut off")
	}
	healthy(t, st)
	space, err := spaceOf(e)
	if err != nil {
		t.Fatal(err)
	}
	var b engine.Batch
	for p, err := range e.Scan(ctx, space.All(keys.Dirty)) {
		if err != nil {
			t.Fatal(err)
		}
		b.Delete(p.Key)
	}
	if err := e.Apply(ctx, &b); err != nil || b.Ops() == 0 {
		t.Fatal(b.Ops(), err)
	}
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil || v.OK() {
		t.Fatal("Verify finds nothing:", err)
	}
}

// G10: a session that is renamed while a vacuum comes to it is sealed all the same.
func TestG10_ARenamedSessionIsSealed(t *testing.T) {
	for at, did := 2, true; did; at++ {
		e := memory.New()
		st := openAt(t, e, fixed)
		s := create(t, st, turnstone.Request{ID: "s"})
		for range 5 {
			commit(t, s, says([]byte("x")))
		}
		did = false
		vacuumed(t, openAt(t, hooked(e, func(c enginetest.Call) {
			if c.N == at {
				did = true
				if err := s.Rename(ctx, "r"); err != nil {
					t.Fatal(err)
				}
			}
		}), fixed))
		vacuumed(t, st)
		if packs := segments(t, e); packs != 1 {
			t.Errorf("renamed at call %d: %d packs", at, packs)
		}
	}
}

// G7: a session that changes whenever vacuum seals it is left to the next vacuum.
func TestG7_SealingABusySessionEnds(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	for range 5 {
		commit(t, s, says([]byte("x")))
	}
	attempts := 0
	r := vacuumed(t, openAt(t, hooked(e, func(c enginetest.Call) {
		if c.Batch == nil || !writes(c.Batch, keys.Segment) {
			return
		}
		if attempts++; attempts > 1000 {
			t.Fatal("it tries for ever")
		}
		if err := both(s.Keep(ctx, "k", 1), s.Release(ctx, "k")); err != nil {
			t.Fatal(err)
		}
	}), fixed))
	if len(r.Unfinished) != 1 || r.Unfinished[0] != "s" {
		t.Errorf("unfinished: %q", r.Unfinished)
	}
	vacuumed(t, st)
	if packs := segments(t, e); packs != 1 {
		t.Errorf("%d packs after the next vacuum", packs)
	}
}

// G7: a collection of a session that changes all the time ends. It deletes what nothing refers to
// elsewhere and nothing that the session has, and the next vacuum does what the session was due.
func TestG7_ACollectionOfABusySessionEnds(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s, gone := create(t, st, turnstone.Request{ID: "s"}), create(t, st, turnstone.Request{ID: "gone"})
	kept, freed := noise(6000, 1), noise(6000, 2)
	commit(t, s, says(kept))
	commit(t, s, saves(noise(6000, 3)))
	commit(t, gone, says(freed))
	collected(t, st, gc.Options{})
	if err := st.Delete(ctx, "gone", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	commits, attempts := 0, 0
	busy := openAt(t, hooked(e, func(c enginetest.Call) {
		if c.Batch == nil || !byCollector(c.Batch) || !guards(c.Batch, keys.Life) {
			return
		}
		if attempts++; attempts > 1000 {
			t.Fatal("it tries for ever")
		}
		commits++
		commit(t, s, says(noise(6000, uint64(1000+commits))))
		if err := both(s.Keep(ctx, "k", 1), s.Release(ctx, "k")); err != nil {
			t.Fatal(err)
		}
	}), fixed)
	r := collected(t, busy, gc.Options{})
	if r.Commits < 20 || r.Commits > 2*commits+10 {
		t.Errorf("%d commits were read while %d were made", r.Commits, commits)
	}
	if r := vacuumed(t, busy); len(r.Unfinished) != 1 || r.Unfinished[0] != "s" {
		t.Errorf("unfinished: %q", r.Unfinished)
	}
	if holds(e, freed[:100]) || !holds(e, kept[:100]) {
		t.Errorf("what nothing refers to is there: %v, what something refers to: %v", holds(e, freed[:100]), holds(e, kept[:100]))
	}
	healthy(t, st)
	vacuumed(t, st)
	if packs := segments(t, e); packs != 1 {
		t.Errorf("%d packs after a vacuum without others at work", packs)
	}
	collected(t, st, gc.Options{})
	if left := records(t, e, keys.Dirty) + records(t, e, keys.Stale); left != 0 {
		t.Errorf("%d dirty and stale records after all", left)
	}
	healthy(t, st)
}

// G10: a vacuum of one session does what forks of it let it do.
func TestG10_AVacuumOfASessionSeesItsForks(t *testing.T) {
	for name, letGo := range map[string]func(st *turnstone.Store, f *turnstone.Session, n graph.ID) error{
		"a tombstone": func(_ *turnstone.Store, f *turnstone.Session, n graph.ID) error { return f.Tombstone(ctx, n) },
		"a deletion": func(st *turnstone.Store, f *turnstone.Session, _ graph.ID) error {
			return st.Delete(ctx, f.ID(), turnstone.KeepChildren)
		},
	} {
		st := openAt(t, memory.New(), fixed)
		s := create(t, st, turnstone.Request{ID: "s"})
		n := commit(t, s, says([]byte("1"))).Nodes[0]
		f := create(t, st, turnstone.Request{ID: "f", Parent: "s"})
		if err := s.Tombstone(ctx, n); err != nil {
			t.Fatal(err)
		}
		for _, nodes := range []int{0, 1} {
			r, err := s.Vacuum(ctx, gc.VacuumOptions{})
			if err != nil || r.Nodes != nodes {
				t.Errorf("%s: %v, %d nodes, and not %d", name, err, r.Nodes, nodes)
			}
			if nodes == 0 {
				if err := letGo(st, f, n); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// G10, VF1: a bookmark that is rolled back, and says that nothing is due, does not keep
// vacuum from its work, and Verify names it.
func TestG10_ABookmarkThatIsRolledBackHidesNothing(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	n := commit(t, s, says([]byte("1"))).Nodes[0]
	f := create(t, st, turnstone.Request{ID: "f", Parent: "s"})
	if err := s.Tombstone(ctx, n); err != nil {
		t.Fatal(err)
	}
	vacuumed(t, st)
	space, err := spaceOf(e)
	if err != nil {
		t.Fatal(err)
	}
	var old engine.Batch
	for p, err := range e.Scan(ctx, space.All(keys.Bookmark)) {
		if err != nil {
			t.Fatal(err)
		}
		old.Sets = append(old.Sets, p)
	}
	if err := f.Tombstone(ctx, n); err != nil {
		t.Fatal(err)
	}
	collected(t, st, gc.Options{})
	if err := e.Apply(ctx, &old); err != nil {
		t.Fatal(err)
	}
	if v, err := st.Verify(ctx, turnstone.VerifyOptions{}); err != nil || v.OK() {
		t.Error("Verify finds nothing:", err)
	}
	if r := vacuumed(t, st); r.Nodes != 1 || records(t, e, keys.Stale) != 0 {
		t.Errorf("%d nodes, %d stale sessions", r.Nodes, records(t, e, keys.Stale))
	}
	healthy(t, st)
}

// VF4: a vacuum that was cut off has removed a deleted session, and not yet the deleted
// fork whose nodes go on from it.
func TestVF4_AForkOfARemovedSessionIsNoDamage(t *testing.T) {
	for n, cut := 1, true; cut; n++ {
		e := memory.New()
		st := openAt(t, e, fixed)
		s := create(t, st, turnstone.Request{ID: "s"})
		first := commit(t, s, says([]byte("1"))).Nodes[0]
		commit(t, s, says([]byte("2")))
		f := create(t, st, turnstone.Request{ID: "f", Parent: "s"})
		c := says([]byte("3"))
		c.Nodes[0].Parent = turnstone.RefTo(first)
		commit(t, f, c)
		for _, id := range []string{"s", "f"} {
			if err := st.Delete(ctx, id, turnstone.KeepChildren); err != nil {
				t.Fatal(err)
			}
		}
		_, err := openAt(t, &enginetest.Faulty{Engine: e, Plan: enginetest.CrashAfter(n)}, fixed).Vacuum(ctx, gc.VacuumOptions{})
		cut = err != nil
		healthy(t, st)
		if t.Failed() {
			t.Fatal("cut off after batch ", n)
		}
	}
}

// VF5: forks of a deleted session that are made and deleted all the time are no damage.
func TestVF5_ForksThatComeAndGoAreNoDamage(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	commit(t, create(t, st, turnstone.Request{ID: "s"}), says([]byte("1")))
	create(t, st, turnstone.Request{ID: "f0", Parent: "s"})
	if err := st.Delete(ctx, "s", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	collected(t, st, gc.Options{})
	i := 0
	healthy(t, openAt(t, &gets{e, func(ks [][]byte) {
		if len(ks) != 3 || letter(ks[1]) != keys.Origin || letter(ks[2]) != keys.Dirty || i == 50 {
			return // it does not look at a fork
		}
		create(t, st, turnstone.Request{ID: fmt.Sprint("f", i+1), Parent: fmt.Sprint("f", i)})
		if err := st.Delete(ctx, fmt.Sprint("f", i), turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
		i++
		collected(t, st, gc.Options{})
	}}, fixed))
	healthy(t, st)
}
