package gc_test

import (
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// cutAnywhere does something that is cut off at any call of the engine, on a new store
// each time, and then what comes next, after which two vacuums leave nothing behind.
func cutAnywhere(t *testing.T, before func(*turnstone.Store), do, next func(*turnstone.Store) error) {
	t.Helper()
	for n, cut := 2, true; cut; n++ { // the first call is that of opening
		e := memory.New()
		st := openAt(t, e, fixed)
		before(st)
		cut = false
		its := openAt(t, &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
			if c.N == n {
				cut = true
			}
			return enginetest.Fault{Crash: c.N == n}
		}}, fixed)
		if err := do(its); (err != nil) != cut {
			t.Errorf("cut off at call %d: %v, %v", n, cut, err)
		}
		w := &world{st, ctx}
		if err := both(next(st), vacuum(w), vacuum(w), reachable(e, true)); err != nil {
			t.Errorf("after it was cut off at call %d: %v", n, err)
		}
		healthy(t, st)
	}
}

// A vacuum that removes a deleted session is cut off; then the index is derived anew.
func TestAFullCollectionAfterAVacuumWasCutOff(t *testing.T) {
	cutAnywhere(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range 3 {
			commit(t, s, saves(version(i)))
		}
		collected(t, st, turnstone.GCOptions{})
		if err := st.Delete(ctx, "s", turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
	}, func(st *turnstone.Store) error {
		_, err := st.Vacuum(ctx, turnstone.VacuumOptions{})
		return err
	}, func(st *turnstone.Store) error {
		_, err := st.GC(ctx, turnstone.GCOptions{Full: true})
		return err
	})
}

// An erasure of a session that was forked before its first commit is cut off between
// the packs that it removes, and repeated.
func TestAnErasureIsRepeatedWhereAForkHoldsNoCommit(t *testing.T) {
	erase := func(st *turnstone.Store) error {
		_, err := st.Erase(ctx, "s", turnstone.KeepChildren, nil)
		return err
	}
	cutAnywhere(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		create(t, st, turnstone.Request{ID: "f", Parent: "s"})
		for range 3 {
			commit(t, s, says(big, []byte("x")))
		}
		collected(t, st, turnstone.GCOptions{})
	}, erase, erase)
}
