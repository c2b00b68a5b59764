package turnstone_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
)

// A fullEngine has only the space left that it keeps for batches that reclaim.
type fullEngine struct{ engine.Engine }

func (e fullEngine) Apply(ctx context.Context, b *engine.Batch) error {
	if b.Ops() > 0 && !b.Reclaim {
		return engine.ErrNoSpace
	}
	return e.Engine.Apply(ctx, b)
}

// TestE3WithoutRoomAStoreIsReadAndReclaimed: where the engine refuses new data,
// what removes goes on, and everything else fails without effect.
func TestE3WithoutRoomAStoreIsReadAndReclaimed(t *testing.T) {
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
		st := openStore(t, fullEngine{e}, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1, MustExist: true})
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
