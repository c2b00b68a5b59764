package gc_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// preemptions is how far TestEverySchedule goes; .ci/run asks for 2. With more than 1 it
// takes all scenarios, whatever its size.
var preemptions = flag.Int("preemptions", 1, "explore schedules with at most so many preemptions")

// begin returns the records that the parties of the scenario find.
func (sc *scenario) begin(t testing.TB) *engine.Batch {
	e := memory.New()
	w, err := open(e, 0, 0, 0)
	if err == nil {
		err = sc.before(w)
	}
	if err != nil {
		t.Fatalf("%s: %v", sc.name, err)
	}
	return &engine.Batch{Sets: snapshot(t, e)}
}

// A seat is a party of a scenario that has opened its store, which is no part of the
// game, and has yet to do its part.
type seat struct {
	party
	world  *world
	engine *struct{ engine.Engine } // of the store
}

// seats opens a store for each party.
func (sc *scenario) seats(e engine.Engine) ([]*seat, error) {
	var out []*seat
	for i, p := range sc.actors {
		at := &struct{ engine.Engine }{e}
		w, err := open(at, byte(1+i), sc.later, sc.keep)
		if err != nil {
			return nil, err
		}
		out = append(out, &seat{p, w, at})
	}
	return out, nil
}

// play does the party's part on e.
func (s *seat) play(ctx context.Context, e engine.Engine) error {
	s.engine.Engine, s.world.ctx = e, ctx
	defer s.world.Close()
	return s.run(s.world)
}

// build returns the scenario on a fresh engine; change may replace the engine of
// a party by one that does something wrong.
func (sc *scenario) build(t testing.TB, change func(e engine.Engine) engine.Engine) func() (enginetest.Scenario, error) {
	start := sc.begin(t)
	return func() (enginetest.Scenario, error) {
		e := memory.New()
		out := enginetest.Scenario{Engine: e, Step: func() error { return reachable(e, false) }, End: func() error { return sc.end(e) }}
		if err := e.Apply(ctx, start); err != nil {
			return out, err
		}
		seats, err := sc.seats(e)
		for _, s := range seats {
			out.Actors = append(out.Actors, enginetest.Actor{Name: s.name, Run: func(e engine.Engine) error {
				if change != nil {
					e = change(e)
				}
				return s.play(ctx, e)
			}})
		}
		return out, err
	}
}

// end collects twice, after which nothing unreachable is left and all is well.
func (sc *scenario) end(e engine.Engine) error {
	w, err := open(e, 100, sc.later+24*time.Hour, 0)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := both(vacuum(w), vacuum(w)); err != nil {
		return err
	}
	if err := reachable(e, true); err != nil {
		return err
	}
	v, err := w.Verify(ctx, nil)
	if err == nil && !v.OK() {
		err = fmt.Errorf("verify: %v", v.Problems)
	}
	return err
}

// Obligation 1 of the protocol: every schedule up to a number of preemptions
// keeps what is reachable and leaves nothing that is not.
func TestEverySchedule(t *testing.T) {
	every := testscale.Pick(1, 5, 16)
	if *preemptions > 1 {
		every = 1
	}
	var all enginetest.Explored
	for i := range scenarios {
		if i%every != 0 {
			continue
		}
		sc := &scenarios[i]
		t.Run(sc.name, func(t *testing.T) {
			bound := *preemptions
			start := time.Now()
			x, err := enginetest.Explore(bound, sc.build(t, nil))
			if err != nil {
				t.Fatal(err)
			}
			all.Schedules, all.Steps = all.Schedules+x.Schedules, all.Steps+x.Steps
			t.Logf("%d schedules with at most %d preemptions, %d steps at most, in %v", x.Schedules, bound, x.Longest, time.Since(start).Round(time.Millisecond))
		})
	}
	t.Logf("%d schedules, %d steps", all.Schedules, all.Steps)
}
