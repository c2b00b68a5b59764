package tests

import (
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// The copy of a fork that was cut off is in no read, and Verify reports no damage. The next vacuum
// removes it.
func TestF9_ACopyThatWasCutOffIsRemoved(t *testing.T) {
	f := newFamily(t)
	vacuum(t, openStore(t, f.Engine, nil))
	vacuum(t, openStore(t, f.Engine, nil))
	want := letters(t, f.Engine)
	for n := 1; ; n++ {
		e := cloned(t, f.Engine)
		st := openStore(t, &enginetest.Faulty{Engine: e, Plan: enginetest.CrashAfter(n)}, nil)
		flattenFrom(st, deepest)
		_, _, err := st.Create(ctx, turnstone.Request{ID: "fork", Parent: fmt.Sprint("s", deepest)})
		if err == nil {
			if n < 4 {
				t.Fatalf("the fork took %d batches", n)
			}
			return
		}
		after := openStore(t, e, nil)
		flattenFrom(after, deepest)
		verify(t, after)
		if _, err := after.Session(ctx, "fork"); err == nil {
			verify(t, after)
			continue // The last batch took effect.
		}
		if n%2 == 0 {
			collect(t, after, gc.Options{})
			verify(t, after)
		}
		vacuum(t, after)
		vacuum(t, after)
		verify(t, after)
		if got := letters(t, e); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("cut off after %d batches: %v, and not %v", n, got, want)
		}
		create(t, after, turnstone.Request{ID: "fork", Parent: fmt.Sprint("s", deepest)})
		f.shows(t, after, "fork")
		verify(t, after)
	}
}

// While a fork is flattened, another party acts before one of the calls of the engine, each in turn.
// The fork shows the same all the same.
func TestF9_ACopyIsMadeBesideWhateverComes(t *testing.T) {
	f := newFamily(t)
	last := fmt.Sprint("s", deepest)
	// A vacuum of one session leaves the unfinished copy as it is, and a collection removes the blobs.
	erase := func(t *testing.T, st *turnstone.Store, id string) {
		if _, err := session(t, st, id).Vacuum(ctx, gc.VacuumOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, other := range map[string]func(*testing.T, *turnstone.Store){
		"collection": func(t *testing.T, st *turnstone.Store) { collect(t, st, gc.Options{}) },
		"vacuum":     func(t *testing.T, st *turnstone.Store) { vacuum(t, st) },
		"tombstone and vacuum": func(t *testing.T, st *turnstone.Store) {
			for _, id := range []string{"s1", "s2", last} {
				if err := session(t, st, id).Tombstone(ctx, f.nodes[1]); err != nil {
					t.Fatal(err)
				}
			}
			erase(t, st, "s0")
		},
		// The last session has tombstoned this node before.
		"vacuum of what the fork does not show": func(t *testing.T, st *turnstone.Store) {
			for i := range deepest {
				if err := session(t, st, fmt.Sprint("s", i)).Tombstone(ctx, f.nodes[large]); err != nil && !errors.Is(err, turnstone.ErrNodeNotFound) {
					t.Fatal(err)
				}
			}
			erase(t, st, "s1")
		},
		"fork": func(t *testing.T, st *turnstone.Store) { create(t, st, turnstone.Request{ID: "other", Parent: last}) },
		"seal": func(t *testing.T, st *turnstone.Store) {
			commitTo(t, session(t, st, last), turnstone.Commit{Nodes: saying([]byte("more"))})
			if err := sealFast(ctx, session(t, st, last)); err != nil {
				t.Fatal(err)
			}
		},
		"deletion": func(t *testing.T, st *turnstone.Store) {
			for _, id := range []string{"s0", "s2"} {
				remove(t, st, id)
			}
			vacuum(t, st)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for n, came := 1, true; came; n += testkit.Pick(1, 6, 8) {
				came = false
				e, st := f.open(t, true)
				_, deep := f.open(t, false)
				faulty := &enginetest.Faulty{Engine: e, Plan: before(n, func() { came = true; other(t, st) })}
				forking := openStore(t, faulty, &turnstone.Options{NoAutoSeal: true})
				flattenFrom(forking, deepest)
				faulty.Plan = before(n, func() { came = true; other(t, st) })
				create(t, forking, turnstone.Request{ID: "fork", Parent: last, ForkNode: f.places[len(f.places)-2]})
				if name != "deletion" || !came {
					other(t, deep)
				}
				if !came {
					break
				}
				create(t, deep, turnstone.Request{ID: "fork", Parent: last, ForkNode: f.places[len(f.places)-2]})
				if name != "tombstone and vacuum" { // which may come before the fork or after it
					f.same(t, fmt.Sprint(name, " before call ", n), "fork", st, deep)
				}
				verify(t, st)
				vacuum(t, st)
				for i := range deepest + 1 {
					if err := st.Delete(ctx, fmt.Sprint("s", i), turnstone.KeepChildren); err != nil {
						t.Fatal(err)
					}
				}
				vacuum(t, st)
				vacuum(t, st)
				f.shows(t, st, "fork")
				verify(t, st)
				if _, err := session(t, st, "fork").Load(ctx, turnstone.Scope{Full: true}); err != nil {
					t.Fatal(err)
				}
				if r := collect(t, st, gc.Options{Full: true}); r.Repaired {
					t.Fatal("the index was wrong")
				}
			}
		})
	}
}

// The batch that creates a flattened fork is applied before each call of a vacuum in turn. The vacuum
// has seen the copy without a fork. Either the copy stays, or the batch fails.
func TestF9_AForkMayComeAnywhereInAVacuum(t *testing.T) {
	f := newFamily(t)
	r := turnstone.Request{ID: "fork", Parent: fmt.Sprint("s", deepest)}
	var last *engine.Batch
	counting := beforeEachApply(func(b *engine.Batch) { last = b })
	applies := 0
	whole := &enginetest.Faulty{Engine: cloned(t, f.Engine), Plan: func(c enginetest.Call) enginetest.Fault {
		applies = max(applies, c.Apply)
		return enginetest.Fault{}
	}}
	st := openStore(t, whole, nil)
	flattenFrom(st, deepest)
	create(t, st, r)
	made := 0
	for _, collected := range []bool{false, true} {
		for n, came := 1, true; came; n++ {
			e := cloned(t, f.Engine)
			cut := openStore(t, &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
				counting(c)
				return enginetest.Fault{Crash: c.Apply == applies}
			}}, &turnstone.Options{NoAutoSeal: true})
			flattenFrom(cut, deepest)
			if _, _, err := cut.Create(ctx, r); err == nil {
				t.Fatal("the last batch was applied")
			}
			st := openStore(t, e, nil)
			if collected {
				collect(t, st, gc.Options{})
			}
			came = false
			faulty := &enginetest.Faulty{Engine: e}
			vacuuming := openStore(t, faulty, nil)
			faulty.Plan = before(n, func() {
				came = true
				if err := e.Apply(ctx, last); err == nil {
					made++
				} else if !errors.Is(err, engine.ErrConflict) {
					t.Fatal(err)
				}
			})
			vacuum(t, vacuuming)
			verify(t, st)
			for i := range deepest + 1 {
				remove(t, st, fmt.Sprint("s", i))
			}
			vacuum(t, st)
			vacuum(t, st)
			verify(t, st)
			if fork, err := st.Session(ctx, "fork"); err == nil {
				if _, err := fork.Load(ctx, turnstone.Scope{Full: true}); err != nil {
					t.Fatal(err)
				}
			}
			if t.Failed() {
				t.Fatalf("the fork came before call %d of a vacuum", n)
			}
		}
	}
	if made < 10 {
		t.Errorf("the fork was made %d times", made)
	}
}
