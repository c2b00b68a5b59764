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
// engine. Each call of an actor (a Get, a page of a Scan, an Apply) is one atomic
// step, and one step is taken at a time. An actor should take the same steps
// whenever the schedule is the same: it should start no goroutines that use the
// engine, and decide nothing by a clock or by chance. Explore counts the schedules
// that could not be repeated.
type Scenario struct {
	Engine engine.Engine // as the actors find it; a new one for every schedule
	Actors []Actor
	// Step is called after every Apply, while no actor runs. An error fails the
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
	Left      int // schedules that were found and not run; others may branch off them
	Diverged  int // schedules that were given up because the actors took other steps than before
}

// A ScheduleError is a schedule that failed, with a trace of its steps.
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

// Explore runs the scenario under every schedule with at most the given number of
// preemptions. A preemption is a switch away from an actor that could go on. Most faults of
// concurrent programs need two or fewer (Musuvathi and Qadeer, "Iterative Context
// Bounding for Systematic Testing of Multithreaded Programs", PLDI 2007).
// Explore returns the first schedule that fails as a *ScheduleError. If limit is not 0,
// it runs at most limit schedules, in a random order.
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

// A prefix is the beginning of a schedule. After the prefix the same actor goes on.
// When it is done, the first actor that is not done goes on.
type prefix struct {
	choices []int
	spent   int // preemptions
}

type explorer struct {
	build func() (Scenario, error)
	bound int
	limit int // greatest number of schedules; 0 means no limit

	mu     sync.Mutex // guards the fields below
	stack  []prefix   // schedules to run
	busy   int        // schedules that are being run
	done   Explored
	failed error
}

// work runs schedules until none is left, the limit is reached, or one has failed.
func (x *explorer) work() {
	for {
		p, found, end := x.take()
		switch {
		case end:
			return
		case !found: // another worker may find more
			runtime.Gosched()
			continue
		}
		steps, err := execute(p.choices, x.build, false)
		if err != nil && !errors.Is(err, errDiverged) { // once more, with a trace
			if again := Replay(choices(steps), x.build); again != nil {
				err = again
			}
		}
		x.record(p, steps, err)
	}
}

// take takes the next schedule to run, if one is known. It reports an end if no
// schedule will follow.
func (x *explorer) take() (p prefix, found, end bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := len(x.stack)
	if x.failed != nil || n == 0 && x.busy == 0 || x.limit > 0 && x.done.Schedules+x.busy >= x.limit {
		return prefix{}, false, true
	}
	if n == 0 {
		return prefix{}, false, false
	}
	if x.limit > 0 {
		i := rand.IntN(n)
		x.stack[i], x.stack[n-1] = x.stack[n-1], x.stack[i]
	}
	p, x.stack = x.stack[n-1], x.stack[:n-1]
	x.busy++
	return p, true, false
}

// record counts a schedule that was run and adds the schedules that branch off it.
func (x *explorer) record(p prefix, steps []decision, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.busy--
	if errors.Is(err, errDiverged) {
		x.done.Diverged++
		return
	}
	x.done.Schedules++
	x.done.Steps += len(steps)
	x.done.Longest = max(x.done.Longest, len(steps))
	if x.failed == nil {
		x.failed = err
	}
	x.branch(p, steps)
}

// branch adds the schedules that differ from steps in one choice after the prefix p,
// and spend no more preemptions than the bound.
func (x *explorer) branch(p prefix, steps []decision) {
	chosen := choices(steps)
	for i := len(steps) - 1; i >= len(p.choices); i-- {
		for _, alt := range steps[i].enabled {
			spent := p.spent
			if steps[i].running >= 0 && alt != steps[i].running {
				spent++
			}
			if alt == steps[i].chosen || spent > x.bound {
				continue
			}
			x.push(prefix{append(slices.Clone(chosen[:i]), alt), spent})
		}
	}
}

// push adds a schedule. If there is a limit, the stack stays short: the new schedule
// takes the place of a random one then.
func (x *explorer) push(p prefix) {
	if x.limit == 0 || len(x.stack) < 2*x.limit {
		x.stack = append(x.stack, p)
		return
	}
	x.stack[rand.IntN(len(x.stack))] = p
	x.done.Left++
}

// A decision is a step of a schedule.
type decision struct {
	chosen  int
	running int   // the actor that took the step before, if it could go on, or -1
	enabled []int // actors that are not done
}

// choices returns the actor of each step.
func choices(steps []decision) []int {
	chosen := make([]int, len(steps))
	for i, d := range steps {
		chosen[i] = d.chosen
	}
	return chosen
}

// An execution is one run of a scenario.
type execution struct {
	Scenario
	schedule
	first   []int // the actors of the first steps; the default decides about the others
	actors  []*actor
	steps   []decision
	running int // the actor that took the last step; -1 before the first
}

// execute runs the scenario with the given first steps. An error other than that of
// build is a *ScheduleError.
func execute(first []int, build func() (Scenario, error), tracing bool) ([]decision, error) {
	sc, err := build()
	if err != nil {
		return nil, err
	}
	x := &execution{Scenario: sc, schedule: schedule{tracing: tracing}, first: first, running: -1}
	x.start()
	if err := x.run(); err != nil {
		failed := &ScheduleError{Schedule: choices(x.steps), Trace: slices.Clone(x.trace), Err: err}
		x.stop()
		return x.steps, failed
	}
	return x.steps, nil
}

// start starts every actor and waits until it asks for its first step.
func (x *execution) start() {
	for _, a := range x.Actors {
		next := &actor{
			schedule: &x.schedule, name: a.Name, base: x.Engine,
			arrived: make(chan struct{}), granted: make(chan struct{}), stop: make(chan struct{}),
		}
		x.actors = append(x.actors, next)
		go next.run(a.Run)
		<-next.arrived
	}
}

// stop ends the actors that are not done.
func (x *execution) stop() {
	for _, a := range x.actors {
		if !a.done {
			close(a.stop)
		}
	}
}

// run takes steps until all actors are done.
func (x *execution) run() error {
	for {
		enabled := x.enabled()
		if len(enabled) == 0 {
			break
		}
		d, err := x.decide(enabled)
		if err != nil {
			return err
		}
		if err := x.step(d); err != nil {
			return err
		}
	}
	if x.End != nil {
		return x.End()
	}
	return nil
}

// enabled returns the actors that are not done.
func (x *execution) enabled() []int {
	var out []int
	for i, a := range x.actors {
		if !a.done {
			out = append(out, i)
		}
	}
	return out
}

// decide chooses the actor of the next step.
func (x *execution) decide(enabled []int) (decision, error) {
	d := decision{chosen: enabled[0], running: -1, enabled: enabled}
	if slices.Contains(enabled, x.running) {
		d.chosen, d.running = x.running, x.running
	}
	n := len(x.steps)
	if n < len(x.first) {
		if d.chosen = x.first[n]; !slices.Contains(enabled, d.chosen) {
			return d, fmt.Errorf("%w: actor %d is done at step %d", errDiverged, d.chosen, n)
		}
	}
	if n == maxSteps {
		return d, fmt.Errorf("enginetest: no end after %d steps", maxSteps)
	}
	return d, nil
}

// step lets the chosen actor take a step. After an Apply, step calls the check of the
// scenario, unless an earlier run that began with the same steps has done so.
func (x *execution) step(d decision) error {
	a := x.actors[d.chosen]
	a.applied = false
	a.granted <- struct{}{}
	<-a.arrived
	x.steps, x.running = append(x.steps, d), d.chosen
	if a.err != nil {
		return fmt.Errorf("%s: %w", a.name, a.err)
	}
	if a.applied && x.Step != nil && (x.tracing || len(x.steps) >= len(x.first)) {
		return x.Step()
	}
	return nil
}

// maxSteps is how many steps a schedule may take before it fails.
const maxSteps = 20_000

// errDiverged means that the actors took other steps than when the schedule was found.
var errDiverged = errors.New("enginetest: the schedule can't be taken")

// A schedule is what the actors of an execution share.
type schedule struct {
	tracing bool
	trace   []string // only the actor that takes a step writes it
}

// An actor is an engine whose calls wait for their turn.
type actor struct {
	*schedule
	name    string
	base    engine.Engine
	arrived chan struct{} // the actor sends when it waits for its next step, and when it is done
	granted chan struct{} // lets the actor take a step
	stop    chan struct{} // closed when the schedule has failed

	done    bool
	applied bool // the last step was an Apply that succeeded
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

// turn waits until the actor may take a step, and traces the step as what returns it.
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

// pageSize is the number of pairs that one step of Scan reads.
const pageSize = 64

// Scan implements engine.Engine. Each page is a step.
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

// Close implements engine.Engine. It does nothing, because the scenario owns the engine.
func (a *actor) Close() error { return nil }

// brief writes keys without the prefix of four bytes that all keys of a store share.
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

// describe writes the keys of a batch.
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
