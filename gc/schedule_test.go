package gc_test

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// limit is how many schedules TestEverySchedule runs of each scenario. It logs how many it
// left out.
var limit = flag.Int("schedules", 0, "run at most so many schedules of each scenario, in a random order; 0 is all")

// preemptions is the largest number of preemptions that TestEverySchedule explores. .ci/run with
// TURNSTONE_LONG=1 asks for 2. With more than 1 the test takes all scenarios, whatever its size.
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

// A seat is a party of a scenario whose store is open and that has not begun. Opening the
// store takes no steps of the schedule.
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
	step, end := &examined{}, &examined{}
	return func() (enginetest.Scenario, error) {
		e := memory.New()
		out := enginetest.Scenario{
			Engine: e,
			Step:   func() error { return step.once(e, func() error { return reachable(e, false) }) },
			End:    func() error { return end.once(e, func() error { return sc.end(e) }) },
		}
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

// examined has the states of a store that a check has passed. Most schedules differ only in the
// order of calls that do not touch each other, and lead to the same states.
type examined struct {
	mu     sync.Mutex
	states map[[codec.HashSize]byte]bool
}

// once calls check, unless it has passed for the same records before.
func (x *examined) once(e engine.Engine, check func() error) error {
	state, err := stateOf(e)
	if err != nil {
		return err
	}
	x.mu.Lock()
	seen := x.states[state]
	x.mu.Unlock()
	if seen {
		return nil
	}
	if err := check(); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.states == nil {
		x.states = map[[codec.HashSize]byte]bool{}
	}
	x.states[state] = true
	return nil
}

// stateOf returns a hash of all records, but for what is random in them: the values of
// marks and dirty records that say nothing, and who wrote the cycle record.
func stateOf(e engine.Engine) ([codec.HashSize]byte, error) {
	var all []byte
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			return [codec.HashSize]byte{}, err
		}
		value := p.Value
		switch letter(p.Key) {
		case keys.Mark:
			value = value[:len(value)-12]
		case keys.Dirty:
			value = nil
		case keys.Cycle:
			body, err := codec.Decode(p.Key, value, keys.Cycle)
			if err != nil {
				return [codec.HashSize]byte{}, err
			}
			d := codec.Decoder{B: body}
			var nonce [16]byte
			d.Shape(7)
			d.Fixed(nonce[:])
			d.Uint()
			value = d.B
		}
		all = binary.AppendUvarint(append(binary.AppendUvarint(all, uint64(len(p.Key))), p.Key...), uint64(len(value)))
		all = append(all, value...)
	}
	return codec.ContentHash.Sum(all), nil
}

// end vacuums twice and checks that nothing unreachable is left and that Verify finds no problem.
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
	v, err := w.Verify(ctx, turnstone.VerifyOptions{})
	if err == nil && !v.OK() {
		err = fmt.Errorf("verify: %v", v.Problems)
	}
	return err
}

// Obligation 1 of the protocol: every schedule up to a number of preemptions
// keeps what is reachable and leaves nothing that is not.
func TestEverySchedule(t *testing.T) {
	every := testkit.Pick(5, 5, 16) // .ci/run with TURNSTONE_LONG=1 tries all, with 2 preemptions
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
			x, err := enginetest.Explore(bound, *limit, sc.build(t, nil))
			if err != nil {
				t.Fatal(err)
			}
			all.Schedules, all.Steps = all.Schedules+x.Schedules, all.Steps+x.Steps
			if x.Diverged > 0 && bound < 3 { // with 3, the random id of an upload shows
				t.Errorf("%d schedules could not be taken: the scenario is not deterministic", x.Diverged)
			}
			all.Left, all.Diverged = all.Left+x.Left, all.Diverged+x.Diverged
			t.Logf("%d schedules with at most %d preemptions, %d steps at most, %d more found, %d could not be taken, in %v", x.Schedules, bound, x.Longest, x.Left, x.Diverged, time.Since(start).Round(time.Millisecond))
		})
	}
	t.Logf("%d schedules, %d steps, %d more found, %d could not be taken", all.Schedules, all.Steps, all.Left, all.Diverged)
}
