package turnstone_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/gc"
)

// Where the engine has only the room left that it keeps for batches that reclaim, what removes
// goes on, and everything else fails without effect.
func TestE3_WithoutRoomAStoreIsReadAndReclaimed(t *testing.T) {
	reclaim := []string{"tombstone", "prune", "prune all", "keep", "release", "delete", "cascade", "erase", "erase node", "seal"}
	collect := []effect{
		{name: "gc", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
			_, err := st.GC(ctx, gc.Options{Full: true})
			return "", err
		}},
		{name: "vacuum", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
			_, err := st.Vacuum(ctx, gc.VacuumOptions{})
			return "", err
		}},
	}
	for _, c := range append(collect, effects...) {
		e := outcomeStore(t)
		before := visible(t, e)
		full := &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
			if c.Op == "Apply" && c.Batch.Ops() > 0 && !c.Batch.Reclaim {
				return enginetest.Fault{Err: engine.ErrNoSpace}
			}
			return enginetest.Fault{}
		}}
		st := openStore(t, full, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1, MustExist: true})
		s, err := st.Session(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.call(st, s)
		if slices.Contains(reclaim, c.name) || c.name == "gc" || c.name == "vacuum" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if _, err := st.GC(ctx, gc.Options{}); err != nil {
				t.Errorf("gc after %s: %v", c.name, err)
			}
			if v, err := st.Verify(ctx, turnstone.VerifyOptions{}); err != nil || !v.OK() {
				t.Errorf("%s: %v, %v", c.name, v, err)
			}
			continue
		}
		if !errors.Is(err, engine.ErrNoSpace) {
			t.Errorf("%s: %v, want no space", c.name, err)
		}
		if visible(t, e) != before {
			t.Errorf("%s has had an effect", c.name)
		}
	}
}
