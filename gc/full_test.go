package gc_test

import (
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// A vacuum that removes a deleted session is cut off at any call; then the index is
// derived anew, and the next vacuum does the rest.
func TestAFullCollectionAfterACutVacuumOfADeletedSession(t *testing.T) {
	for n, cut := 2, true; cut; n++ { // the first call is that of opening
		e := memory.New()
		st := openAt(t, e, fixed)
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range 3 {
			commit(t, s, saves(version(i)))
		}
		collected(t, st, turnstone.GCOptions{})
		if err := st.Delete(ctx, "s", turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
		cut = false
		at := openAt(t, &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
			if c.N != n {
				return enginetest.Fault{}
			}
			cut = true
			return enginetest.Fault{Err: engine.ErrUnavailable}
		}}, fixed)
		_, verr := at.Vacuum(ctx, turnstone.VacuumOptions{})
		if _, err := st.GC(ctx, turnstone.GCOptions{Full: true}); err != nil {
			t.Errorf("cut at call %d (%v): %v", n, verr, err)
		}
		for range 2 {
			if _, err := st.Vacuum(ctx, turnstone.VacuumOptions{}); err != nil {
				t.Errorf("cut at call %d (%v), then vacuumed: %v", n, verr, err)
			}
		}
		if err := reachable(e, true); err != nil {
			t.Errorf("cut at call %d: %v", n, err)
		}
	}
}
