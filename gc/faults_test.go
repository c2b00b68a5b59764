package gc_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// allFaults makes TestEveryFaultAtEveryCall try every fault instead of a sample.
var allFaults = flag.Bool("faults", false, "try every fault at every call of every scenario")

// A blow says how one call of the engine fails.
type blow struct {
	name  string
	fault enginetest.Fault
	// cancels is set if the party's context ends with the call.
	cancels bool
	// lands says when a batch takes effect of which the party does not know.
	lands landing
	// errs are what the party's error may match; it may also return none.
	errs []error
}

// A landing says when a batch whose outcome the party does not know takes effect.
type landing int

const (
	never  landing = iota
	soon           // just before the next call that anybody makes
	after          // when the party has ended
	atLast         // when all parties have ended
)

var (
	errTimeout = fmt.Errorf("the database does not answer: %w", context.DeadlineExceeded)
	unknown    = []error{engine.ErrUnknown, context.Canceled}
	died       = []error{engine.ErrClosed}
)

// blows are the failures that any call may meet. The call has no effect.
var blows = []blow{
	{name: "unavailable", fault: enginetest.Fault{Err: engine.ErrUnavailable}, errs: []error{engine.ErrUnavailable}},
	{name: "timed out", fault: enginetest.Fault{Err: errTimeout}, errs: []error{context.DeadlineExceeded}},
	{name: "cancelled", fault: enginetest.Fault{Err: context.Canceled}, cancels: true, errs: []error{context.Canceled}},
	{name: "dies", fault: enginetest.Fault{Crash: true}, errs: died},
}

// applyBlows are the failures that only Apply may meet.
var applyBlows = []blow{
	{name: "no space", fault: enginetest.Fault{Err: engine.ErrNoSpace}, errs: []error{engine.ErrNoSpace}},
	{name: "dies, applied", fault: enginetest.Fault{Crash: true, Applied: true}, errs: died},
	{name: "dies, applied soon", fault: enginetest.Fault{Crash: true}, lands: soon, errs: died},
	{name: "dies, applied at last", fault: enginetest.Fault{Crash: true}, lands: atLast, errs: died},
	{name: "unknown, not applied", fault: enginetest.Fault{Err: engine.ErrUnknown}},
	{name: "unknown, applied", fault: enginetest.Fault{Err: engine.ErrUnknown, Applied: true}},
	{name: "unknown, applied soon", fault: enginetest.Fault{Err: engine.ErrUnknown}, lands: soon},
	{name: "unknown, applied after", fault: enginetest.Fault{Err: engine.ErrUnknown}, lands: after},
	{name: "unknown, applied at last", fault: enginetest.Fault{Err: engine.ErrUnknown}, lands: atLast},
	{name: "unknown and cancelled, not applied", fault: enginetest.Fault{Err: engine.ErrUnknown}, cancels: true, errs: unknown},
	{name: "unknown and cancelled, applied", fault: enginetest.Fault{Err: engine.ErrUnknown, Applied: true}, cancels: true, errs: unknown},
	{name: "unknown and cancelled, applied soon", fault: enginetest.Fault{Err: engine.ErrUnknown}, cancels: true, lands: soon, errs: unknown},
	{name: "unknown and cancelled, applied at last", fault: enginetest.Fault{Err: engine.ErrUnknown}, cancels: true, lands: atLast, errs: unknown},
}

// others says when the other parties, whose calls do not fail, do their part.
type others int

const (
	behind others = iota // when the one whose call fails has ended
	before               // before it begins
	beside               // when it makes the call that fails
)

func (o others) String() string { return [...]string{"behind", "before", "beside"}[o] }

// A trial is one run of a scenario in which one call fails.
type trial struct {
	*scenario
	party  int    // whose call it is
	call   int    // its number, from 1; 0: none fails
	op     string // what it is: see enginetest.Call
	pairs  int    // of a Scan, which the party sees before
	others others
	blow   *blow
}

func (tr *trial) String() string {
	return fmt.Sprintf("%s: call %d, %s, after %d pairs: %s; the others %v", tr.actors[tr.party].name, tr.call, tr.op, tr.pairs, tr.blow.name, tr.others)
}

// run plays the trial, and returns the calls of the party.
func (tr *trial) run(start *engine.Batch) ([]enginetest.Call, error) {
	e := memory.New()
	if err := e.Apply(ctx, start); err != nil {
		return nil, err
	}
	seats, err := tr.seats(e)
	if err != nil {
		return nil, err
	}
	var late []*engine.Batch
	land := func(when landing) {
		if tr.blow.lands == when {
			for _, b := range late {
				_ = e.Apply(ctx, b) // its guards may not hold any more; nobody learns of it
			}
			late = nil
		}
	}
	var errs []error
	rest := func() {
		for i, s := range seats {
			if i != tr.party {
				if err := s.play(ctx, &enginetest.Faulty{Engine: e, Plan: func(enginetest.Call) enginetest.Fault { land(soon); return enginetest.Fault{} }}); err != nil {
					errs = append(errs, fmt.Errorf("another party, %s: %w", s.name, err))
				}
			}
		}
	}
	if tr.others == before {
		rest()
	}
	its, cancel := context.WithCancel(ctx)
	defer cancel()
	var calls []enginetest.Call
	failed := 0
	err = seats[tr.party].play(its, &enginetest.Faulty{
		Engine: e,
		Plan: func(c enginetest.Call) enginetest.Fault {
			land(soon)
			// The order of some calls follows that of a map: the next one of its kind will do.
			if tr.call == 0 || c.N < tr.call || c.Op != tr.op || failed > 0 {
				return enginetest.Fault{}
			}
			failed = c.N
			if tr.others == beside {
				rest()
			}
			if tr.blow.lands != never {
				late = append(late, c.Batch)
			}
			fault := tr.blow.fault
			fault.Pairs = tr.pairs
			return fault
		},
		Done: func(c enginetest.Call, _ error) {
			calls = append(calls, c)
			if c.N == failed && tr.blow.cancels {
				cancel()
			}
		},
	})
	if err != nil && (isCorrupt(err) || !slices.ContainsFunc(tr.blow.errs, func(want error) bool { return errors.Is(err, want) })) {
		errs = append(errs, fmt.Errorf("the party returned: %w", err))
	}
	land(after)
	if tr.others == behind {
		rest()
	}
	land(soon)
	land(atLast)
	return calls, both(append(errs, reachable(e, false), tr.end(e))...)
}

// trials calls f with every trial of the scenario: each call of each party, each pair of
// its scans, each blow, and each moment for the others.
func (sc *scenario) trials(t testing.TB, f func(start *engine.Batch, tr *trial)) {
	start := sc.begin(t)
	for party := range sc.actors {
		for _, when := range []others{behind, before, beside} {
			if when != behind && len(sc.actors) == 1 {
				continue
			}
			calls, err := (&trial{scenario: sc, party: party, others: when, blow: &blow{}}).run(start)
			if err != nil {
				t.Fatalf("%s, the others %v, without a fault: %v", sc.actors[party].name, when, err)
			}
			for _, c := range calls {
				pairs := 0
				if c.Op == "Scan" {
					pairs = c.Read
				}
				of := blows
				if c.Op == "Apply" {
					of = slices.Concat(blows, applyBlows)
				}
				for n := range pairs + 1 {
					for i := range of {
						f(start, &trial{scenario: sc, party: party, call: c.N, op: c.Op, pairs: n, others: when, blow: &of[i]})
					}
				}
			}
		}
	}
}

// Obligation 3: whatever call of the engine fails, however, in whatever party of a
// scenario: the party returns the error or goes on, the others go on, and afterwards all
// is well and nothing is left behind.
//
// All of them: go test ./gc -run EveryFaultAtEveryCall -faults -v -timeout 60m
func TestEveryFaultAtEveryCall(t *testing.T) {
	every := testkit.Pick(13, 211, 1009) // a stride that no number of blows divides
	if *allFaults {
		every = 1
	}
	var all, tried atomic.Int64
	t.Run("of", func(t *testing.T) {
		for i := range scenarios {
			sc := &scenarios[i]
			t.Run(sc.name, func(t *testing.T) {
				t.Parallel()
				n := i
				sc.trials(t, func(start *engine.Batch, tr *trial) {
					all.Add(1)
					if n++; n%every != 0 {
						return
					}
					tried.Add(1)
					if _, err := tr.run(start); err != nil {
						t.Errorf("%v: %v", tr, err)
					}
				})
			})
		}
	})
	t.Logf("%d of %d faults", tried.Load(), all.Load())
}
