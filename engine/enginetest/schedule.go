package enginetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/turnstonedb/turnstone/engine"
)

// A Scenario is what Explore runs under every schedule: actors that share an
// engine. Every call of theirs (a Get, a page of a Scan, an Apply) is one atomic
// step, and one step is taken at a time. Actors should do the same under the same
// schedule: no goroutines of their own that use the engine, no clock, nothing random
// that decides what they do next. Explore counts where they did not.
type Scenario struct {
	Engine engine.Engine // as the actors find it; a new one for every schedule
	Actors []Actor
	// Step is called after every Apply, with nobody at work; an error fails the
	// schedule.
	Step func() error
	// End is called when all actors are done.
	End func() error
}

// An Actor is one party of a Scenario. Its error fails the schedule.
type Actor struct {
	Name string
	Run  func(e engine.Engine) error
}

// Explored says how much was explored.
type Explored struct {
	Schedules int
	Steps     int
	Longest   int // steps of the longest schedule
	Left      int // schedules that were found and not run: more may differ from these
	Diverged  int // schedules that could not be taken, as the actors did something else before
}

// A ScheduleError is a schedule that fails, with all that was done.
type ScheduleError struct {
	Schedule []int // the actor of each step: see Replay
	Trace    []string
	Err      error
}

func (e *ScheduleError) Error() string {
	return fmt.Sprintf("%v\nschedule %v:\n  %s", e.Err, e.Schedule, strings.Join(e.Trace, "\n  "))
}

// Unwrap returns Err.
func (e *ScheduleError) Unwrap() error { return e.Err }

// Explore runs the scenario under every schedule with at most so many
// preemptions: switches away from an actor that could go on. Most faults of
// concurrent programs need two or fewer (Musuvathi and Qadeer, "Iterative Context
// Bounding for Systematic Testing of Multithreaded Programs", PLDI 2007). It
// returns the first schedule that fails as a *ScheduleError. If limit is not 0, it runs
// so many schedules at most, in a random order.
func Explore(preemptions, limit int, build func() (Scenario, error)) (Explored, error) {
	x := &explorer{build: build, bound: preemptions, limit: limit, stack: []prefix{{}}}
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(x.work)
	}
	wg.Wait()
	x.done.Left += len(x.stack)
	return x.done, x.failed
}

// Replay runs the scenario under one schedule.
func Replay(schedule []int, build func() (Scenario, error)) error {
	_, err := execute(schedule, build, true)
	return err
}

// A prefix is the beginning of a schedule; what follows is the default: go on
// with the same actor, and when it is done with the first one that is not.
type prefix struct {
	choices []int
	spent   int // preemptions
}

type explorer struct {
	build func() (Scenario, error)
	bound int
	limit int // of schedules; 0: none

	mu     sync.Mutex // guards what follows
	stack  []prefix
	busy   int
	done   Explored
	failed error
}

func (x *explorer) work() {
	for {
		x.mu.Lock()
		if x.failed != nil || len(x.stack) == 0 && x.busy == 0 || x.limit > 0 && x.done.Schedules+x.busy >= x.limit {
			x.mu.Unlock()
			return
		}
		if len(x.stack) == 0 {
			x.mu.Unlock()
			runtime.Gosched()
			continue
		}
		if x.limit > 0 {
			i := rand.IntN(len(x.stack))
			x.stack[i], x.stack[len(x.stack)-1] = x.stack[len(x.stack)-1], x.stack[i]
		}
		p := x.stack[len(x.stack)-1]
		x.stack = x.stack[:len(x.stack)-1]
		x.busy++
		x.mu.Unlock()
		steps, err := execute(p.choices, x.build, false)
		if errors.Is(err, errDiverged) {
			x.mu.Lock()
			x.busy--
			x.done.Diverged++
			x.mu.Unlock()
			continue
		}
		if err != nil { // once more, with all that was done
			chosen := make([]int, len(steps))
			for i, d := range steps {
				chosen[i] = d.chosen
			}
			if again := Replay(chosen, x.build); again != nil {
				err = again
			}
		}
		x.mu.Lock()
		x.busy--
		x.done.Schedules++
		x.done.Steps += len(steps)
		x.done.Longest = max(x.done.Longest, len(steps))
		if err != nil && x.failed == nil {
			x.failed = err
		}
		x.branch(p, steps)
		x.mu.Unlock()
	}
}

// branch adds the schedules that differ from one that was run after its prefix.
func (x *explorer) branch(p prefix, steps []decision) {
	chosen := make([]int, len(steps))
	for i, d := range steps {
		chosen[i] = d.chosen
	}
	for i := len(steps) - 1; i >= len(p.choices); i-- {
		for _, alt := range steps[i].enabled {
			spent := p.spent
			if steps[i].running >= 0 && alt != steps[i].running {
				spent++
			}
			if alt == steps[i].chosen || spent > x.bound {
				continue
			}
			next := prefix{append(slices.Clone(chosen[:i]), alt), spent}
			if x.limit > 0 && len(x.stack) >= 2*x.limit { // enough to choose from
				x.stack[rand.IntN(len(x.stack))] = next
				x.done.Left++
			} else {
				x.stack = append(x.stack, next)
			}
		}
	}
}

// A decision is a step of a schedule.
type decision struct {
	chosen  int
	running int   // the actor that took the step before and could go on; else -1
	enabled []int // actors that are not done
}

// execute runs the scenario with the given first steps.
func execute(first []int, build func() (Scenario, error), tracing bool) (steps []decision, err error) {
	sc, err := build()
	if err != nil {
		return nil, err
	}
	s := &schedule{tracing: tracing}
	actors := make([]*actor, len(sc.Actors))
	for i, a := range sc.Actors {
		actors[i] = &actor{schedule: s, name: a.Name, base: sc.Engine, arrived: make(chan struct{}), granted: make(chan struct{}), stop: make(chan struct{})}
		go actors[i].run(a.Run)
		<-actors[i].arrived
	}
	running := -1
	for err == nil {
		var enabled []int
		for i, a := range actors {
			if !a.done {
				enabled = append(enabled, i)
			}
		}
		if len(enabled) == 0 {
			break
		}
		if !slices.Contains(enabled, running) {
			running = -1
		}
		d := decision{chosen: enabled[0], running: running, enabled: enabled}
		if running >= 0 {
			d.chosen = running
		}
		if n := len(steps); n < len(first) {
			if d.chosen = first[n]; !slices.Contains(enabled, d.chosen) {
				err = fmt.Errorf("%w: actor %d is done at step %d", errDiverged, d.chosen, n)
				break
			}
		}
		if len(steps) == maxSteps {
			err = fmt.Errorf("enginetest: no end after %d steps", maxSteps)
			break
		}
		a := actors[d.chosen]
		a.granted <- struct{}{}
		<-a.arrived
		steps, running = append(steps, d), d.chosen
		if a.err != nil {
			err = fmt.Errorf("%s: %w", a.name, a.err)
		} else if a.applied && sc.Step != nil && (tracing || len(steps) >= len(first)) {
			err = sc.Step() // the steps before were checked when their schedule was found
		}
		a.applied = false
	}
	if err == nil && sc.End != nil {
		err = sc.End()
	}
	if err != nil {
		chosen := make([]int, len(steps))
		for i, d := range steps {
			chosen[i] = d.chosen
		}
		trace := slices.Clone(s.trace)
		for _, a := range actors {
			if !a.done {
				close(a.stop)
			}
		}
		return steps, &ScheduleError{Schedule: chosen, Trace: trace, Err: err}
	}
	return steps, nil
}

const maxSteps = 20_000

// errDiverged: the actors did something else than when the schedule was found.
var errDiverged = errors.New("enginetest: the schedule can't be taken")

type schedule struct {
	tracing bool
	trace   []string // written by the one actor at work
}

// An actor is an engine whose calls wait for their turn.
type actor struct {
	*schedule
	name    string
	base    engine.Engine
	arrived chan struct{} // it waits for its next step, or is done
	granted chan struct{}
	stop    chan struct{} // closed: the schedule has failed

	done    bool
	applied bool
	err     error
}

var errStopped = errors.New("enginetest: schedule has failed")

func (a *actor) run(f func(engine.Engine) error) {
	defer func() {
		if p := recover(); p != nil {
			a.err = fmt.Errorf("panic: %v", p)
		}
		a.done = true
		select {
		case a.arrived <- struct{}{}:
		case <-a.stop:
		}
	}()
	a.err = f(a)
}

// turn waits for the actor's turn.
func (a *actor) turn(what func() string) error {
	select {
	case a.arrived <- struct{}{}:
	case <-a.stop:
		return errStopped
	}
	select {
	case <-a.granted:
		if a.tracing {
			a.trace = append(a.trace, a.name+": "+what())
		}
		return nil
	case <-a.stop:
		return errStopped
	}
}

// Get implements engine.Engine.
func (a *actor) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	if err := a.turn(func() string { return "Get " + brief(keys) }); err != nil {
		return nil, err
	}
	return a.base.Get(ctx, keys...)
}

// pageSize is the number of pairs of a step of Scan.
const pageSize = 64

// Scan implements engine.Engine; every page is a step.
func (a *actor) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return engine.Paged(r, func(r engine.Range) ([]engine.Pair, bool, error) {
		if err := a.turn(func() string { return "Scan " + brief([][]byte{r.Start}) }); err != nil {
			return nil, false, err
		}
		if r.Limit == 0 || r.Limit > pageSize {
			r.Limit = pageSize
		}
		var page []engine.Pair
		for p, err := range a.base.Scan(ctx, r) {
			if err != nil {
				return nil, false, err
			}
			page = append(page, p)
		}
		return page, len(page) == pageSize, nil
	})
}

// Apply implements engine.Engine.
func (a *actor) Apply(ctx context.Context, b *engine.Batch) error {
	if err := a.turn(func() string { return "Apply " + describe(b) }); err != nil {
		return err
	}
	err := a.base.Apply(ctx, b)
	if a.applied = err == nil; err != nil && a.tracing {
		a.trace[len(a.trace)-1] += " -> " + err.Error()
	}
	return err
}

// Vacuum implements engine.Engine.
func (a *actor) Vacuum(ctx context.Context) error { return a.base.Vacuum(ctx) }

// Limits implements engine.Engine.
func (a *actor) Limits() engine.Limits { return a.base.Limits() }

// Close implements engine.Engine; the engine is the scenario's.
func (a *actor) Close() error { return nil }

// brief shows keys as the tests of their users know them: what follows a prefix
// of four bytes.
func brief(keys [][]byte) string {
	var out []string
	for _, k := range keys {
		if len(k) < 5 {
			out = append(out, fmt.Sprintf("%x", k))
			continue
		}
		out = append(out, fmt.Sprintf("%c%.4x", k[4], k[5:]))
	}
	return strings.Join(out, " ")
}

func describe(b *engine.Batch) string {
	part := func(name string, keys [][]byte) string {
		if len(keys) == 0 {
			return ""
		}
		return name + "(" + brief(keys) + ")"
	}
	var guards, sets [][]byte
	for _, p := range b.Guards {
		guards = append(guards, p.Key)
	}
	for _, p := range b.Sets {
		sets = append(sets, p.Key)
	}
	return part("guard", guards) + part("set", sets) + part("delete", b.Deletes)
}
