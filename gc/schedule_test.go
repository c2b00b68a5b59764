package gc_test

import (
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// preemptions is how far TestEverySchedule goes; .ci/run asks for 2.
var preemptions = flag.Int("preemptions", 1, "explore schedules with at most so many preemptions")

// A lazy engine is what a store is opened on before its party takes part: opening
// is no part of the game.
type lazy struct{ engine.Engine }

// build returns the scenario on a fresh engine; change may replace the engine of
// an actor by one that does something wrong.
func (sc *scenario) build(t testing.TB, change func(party string, e engine.Engine) engine.Engine) func() (enginetest.Scenario, error) {
	e := memory.New()
	w, err := open(e, 0, 0, 0)
	if err == nil {
		err = sc.before(w)
	}
	if err != nil {
		t.Fatalf("%s: %v", sc.name, err)
	}
	var start engine.Batch
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		start.Sets = append(start.Sets, p)
	}
	return func() (enginetest.Scenario, error) {
		e := memory.New()
		out := enginetest.Scenario{Engine: e, Step: func() error { return reachable(e, false) }, End: func() error { return sc.end(e) }}
		if err := e.Apply(ctx, &start); err != nil {
			return out, err
		}
		for i, p := range sc.actors {
			at := &lazy{e}
			w, err := open(at, byte(1+i), sc.later, sc.keep)
			if err != nil {
				return out, err
			}
			out.Actors = append(out.Actors, enginetest.Actor{Name: p.name, Run: func(e engine.Engine) error {
				if change != nil {
					e = change(p.name, e)
				}
				at.Engine = e
				defer w.Close()
				return p.run(w)
			}})
		}
		return out, nil
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
	var all enginetest.Explored
	for i := range scenarios {
		if i%testscale.Pick(1, 1, 4) != 0 {
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

// Obligation 3: the parties of every scenario, one after the other, cut off at
// every call of the engine: afterwards all is well, and nothing is left behind.
func TestCutAtEveryStep(t *testing.T) {
	cuts := 0
	for i := range scenarios {
		if i%testscale.Pick(1, 1, 4) != 0 {
			continue
		}
		sc := &scenarios[i]
		t.Run(sc.name, func(t *testing.T) {
			build := sc.build(t, nil)
			for n, crashed := 1, true; crashed; n++ {
				for _, applied := range []bool{false, true} {
					run, err := build()
					if err != nil {
						t.Fatal(err)
					}
					crashed = false
					f := &enginetest.Faulty{Engine: run.Engine, Plan: func(c enginetest.Call) enginetest.Fault {
						crashed = crashed || c.N == n
						return enginetest.Fault{Crash: c.N == n, Applied: applied}
					}}
					for _, a := range run.Actors {
						if err := a.Run(f); err != nil && !errors.Is(err, engine.ErrClosed) {
							t.Fatalf("cut at call %d: %s: %v", n, a.Name, err)
						}
					}
					cuts++
					if err := both(reachable(run.Engine, false), run.End()); err != nil {
						t.Fatalf("cut at call %d, applied %v: %v", n, applied, err)
					}
				}
			}
		})
	}
	t.Logf("%d cuts", cuts)
}

// The outcome of an Apply is not known, whether it took effect at once, later or
// not at all.
func TestUnknownOutcomes(t *testing.T) {
	for i := range scenarios {
		if i%testscale.Pick(1, 1, 4) != 0 {
			continue
		}
		sc := &scenarios[i]
		t.Run(sc.name, func(t *testing.T) {
			build := sc.build(t, nil)
			for n, hit := 1, true; hit; n++ {
				for _, fault := range []enginetest.Fault{{Err: engine.ErrUnknown}, {Err: engine.ErrUnknown, Applied: true}, {Err: engine.ErrUnknown, Late: true}} {
					run, err := build()
					if err != nil {
						t.Fatal(err)
					}
					hit = false
					f := &enginetest.Faulty{Engine: run.Engine, Plan: func(c enginetest.Call) enginetest.Fault {
						if hit = hit || c.Apply == n; c.Apply == n {
							return fault
						}
						return enginetest.Fault{}
					}}
					for _, a := range run.Actors {
						if err := a.Run(f); err != nil {
							t.Fatalf("%+v at apply %d: %s: %v", fault, n, a.Name, err)
						}
					}
					if err := both(reachable(run.Engine, false), run.End()); err != nil {
						t.Fatalf("%+v at apply %d: %v", fault, n, err)
					}
				}
			}
		})
	}
}
