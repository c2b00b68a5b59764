package enginetest

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// A Fault says what becomes of one call.
type Fault struct {
	// Err is returned in place of the call's own result.
	Err error
	// Applied makes an Apply with Err take effect all the same. With engine.ErrUnknown
	// as Err, this is an Apply whose reply was lost.
	Applied bool
	// Late makes an Apply with Err take effect just before the next call of the
	// engine, like an attempt that was delayed on the network.
	Late bool
	// Pairs is how many pairs a Scan with Err yields before it fails. A Scan with fewer
	// pairs fails at its end.
	Pairs int
	// Latency delays the call.
	Latency time.Duration
	// Crash makes this call and all later ones fail with engine.ErrClosed. An Apply
	// takes effect if Applied is set.
	Crash bool
}

// A Call is a call of the engine that a plan decides about.
type Call struct {
	N     int    // number of the call, from 1, in the order of arrival
	Apply int    // number of the Apply, from 1; 0 for other calls
	Op    string // "Get", "Scan", "Apply" or "Vacuum"
	Batch *engine.Batch
	Range engine.Range // for a Scan
	// Read is the number of keys of a Get. When Done is called for a Scan, it is the number
	// of pairs that the Scan has yielded.
	Read int
}

// Faulty is an engine that fails as its plan says. It can embed any engine.
type Faulty struct {
	engine.Engine
	// Plan decides about each call before the call is made. It is called for one call
	// at a time. It may use the embedded engine, but not the Faulty itself.
	Plan func(Call) Fault
	// Done, if set, is called when a call has ended, with the error that the caller
	// gets. A Scan ends when the caller has seen the last pair or breaks out of the loop.
	// Done is called concurrently for concurrent calls.
	Done func(Call, error)

	mu      sync.Mutex // guards the fields below
	calls   int
	applies int
	late    []*engine.Batch // take effect before the next call
	crashed bool
}

// CrashAfter returns a plan that crashes after the n-th Apply took effect.
func CrashAfter(n int) func(Call) Fault {
	return func(c Call) Fault {
		if c.Apply == n {
			return Fault{Crash: true, Applied: true}
		}
		return Fault{}
	}
}

// decide numbers the call and returns it with the fault that is planned for it.
func (f *Faulty) decide(ctx context.Context, c Call) (Call, Fault) {
	fault := f.planned(ctx, &c)
	time.Sleep(fault.Latency)
	return c, fault
}

// planned first applies the batches that are late. Then it numbers the call and returns the
// fault that the plan has for it, or the error of a crash.
func (f *Faulty) planned(ctx context.Context, c *Call) Fault {
	f.mu.Lock()
	defer f.mu.Unlock() // also if the plan ends the test
	for _, late := range f.late {
		// The batch may be refused because its guards are false by now. No caller waits
		// for the outcome.
		_ = f.Engine.Apply(context.WithoutCancel(ctx), late)
	}
	f.late = nil
	crashed := fmt.Errorf("%w: crashed", engine.ErrClosed)
	if f.crashed {
		return Fault{Err: crashed}
	}
	f.calls++
	c.N = f.calls
	if c.Op == "Apply" {
		f.applies++
		c.Apply = f.applies
	}
	var fault Fault
	if f.Plan != nil {
		fault = f.Plan(*c)
	}
	if fault.Crash {
		fault.Err = crashed
		f.crashed = c.Op != "Scan" || fault.Pairs == 0
	}
	if fault.Late && c.Batch != nil {
		f.late = append(f.late, c.Batch)
	}
	return fault
}

// done calls Done for a call that has ended, and returns its error.
func (f *Faulty) done(c Call, err error) error {
	if f.Done != nil {
		f.Done(c, err)
	}
	return err
}

// Get implements engine.Engine.
func (f *Faulty) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	c, fault := f.decide(ctx, Call{Op: "Get", Read: len(keys)})
	if fault.Err != nil {
		return nil, f.done(c, fault.Err)
	}
	values, err := f.Engine.Get(ctx, keys...)
	return values, f.done(c, err)
}

// Scan implements engine.Engine. The whole Scan is one call.
func (f *Faulty) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		c, fault := f.decide(ctx, Call{Op: "Scan", Range: r})
		err := f.pairs(ctx, &c, fault, yield)
		if f.done(c, err) != nil {
			yield(engine.Pair{}, err)
		}
	}
}

// pairs yields the pairs of a Scan and counts them. It returns the error that Scan
// yields at the end.
func (f *Faulty) pairs(ctx context.Context, c *Call, fault Fault, yield func(engine.Pair, error) bool) error {
	if fault.Err != nil && fault.Pairs == 0 {
		return fault.Err
	}
	for p, err := range f.Engine.Scan(ctx, c.Range) {
		if err != nil {
			return err
		}
		c.Read++
		if !yield(p, nil) {
			return nil
		}
		if fault.Err != nil && c.Read == fault.Pairs {
			break
		}
	}
	if fault.Crash {
		f.mu.Lock()
		f.crashed = true
		f.mu.Unlock()
	}
	return fault.Err
}

// Apply implements engine.Engine.
func (f *Faulty) Apply(ctx context.Context, b *engine.Batch) error {
	c, fault := f.decide(ctx, Call{Op: "Apply", Batch: b})
	if fault.Err == nil {
		return f.done(c, f.Engine.Apply(ctx, b))
	}
	if fault.Applied {
		if err := f.Engine.Apply(ctx, b); err != nil {
			return f.done(c, err)
		}
	}
	return f.done(c, fault.Err)
}

// Vacuum implements engine.Engine.
func (f *Faulty) Vacuum(ctx context.Context) error {
	c, fault := f.decide(ctx, Call{Op: "Vacuum"})
	if fault.Err != nil {
		return f.done(c, fault.Err)
	}
	return f.done(c, f.Engine.Vacuum(ctx))
}

var _ engine.Engine = (*Faulty)(nil)
