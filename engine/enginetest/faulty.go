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
	// Err is returned instead of the call's own result.
	Err error
	// Applied makes an Apply take effect all the same: with engine.ErrUnknown
	// as Err, the outcome that the caller can't see.
	Applied bool
	// Late makes an Apply with Err take effect just before the next call of the
	// engine, as an attempt that was still on its way does.
	Late bool
	// Latency delays the call.
	Latency time.Duration
	// Crash makes this call, and all after it, fail with engine.ErrClosed. An
	// Apply has taken effect if Applied is set.
	Crash bool
}

// Call is a call that a plan decides about.
type Call struct {
	N     int    // of this engine, from 1, in the order of arrival
	Apply int    // number of the Apply, from 1; 0 for other calls
	Op    string // "Get", "Scan" or "Apply"
	Batch *engine.Batch
}

// Faulty is an engine that fails as its plan says. Embed any engine; the plan
// is called for one call at a time.
type Faulty struct {
	engine.Engine
	Plan func(Call) Fault

	mu      sync.Mutex // guards what follows
	calls   int
	applies int
	late    []*engine.Batch
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

func (f *Faulty) decide(ctx context.Context, op string, b *engine.Batch) (Fault, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, late := range f.late {
		// Its guards may not hold any more; nobody learns of it.
		_ = f.Engine.Apply(context.WithoutCancel(ctx), late)
	}
	f.late = nil
	if f.crashed {
		return Fault{}, fmt.Errorf("%w: crashed", engine.ErrClosed)
	}
	c := Call{Op: op, Batch: b}
	f.calls++
	c.N = f.calls
	if op == "Apply" {
		f.applies++
		c.Apply = f.applies
	}
	fault := f.Plan(c)
	f.crashed = fault.Crash
	if fault.Crash {
		fault.Err = fmt.Errorf("%w: crashed", engine.ErrClosed)
	}
	if fault.Late {
		f.late = append(f.late, b)
	}
	return fault, nil
}

// Get implements engine.Engine.
func (f *Faulty) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	fault, err := f.decide(ctx, "Get", nil)
	if err != nil {
		return nil, err
	}
	time.Sleep(fault.Latency)
	if fault.Err != nil {
		return nil, fault.Err
	}
	return f.Engine.Get(ctx, keys...)
}

// Scan implements engine.Engine; the fault is of the first page.
func (f *Faulty) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		fault, err := f.decide(ctx, "Scan", nil)
		time.Sleep(fault.Latency)
		if err == nil {
			err = fault.Err
		}
		if err != nil {
			yield(engine.Pair{}, err)
			return
		}
		for p, err := range f.Engine.Scan(ctx, r) {
			if !yield(p, err) {
				return
			}
		}
	}
}

// Apply implements engine.Engine.
func (f *Faulty) Apply(ctx context.Context, b *engine.Batch) error {
	fault, err := f.decide(ctx, "Apply", b)
	if err != nil {
		return err
	}
	time.Sleep(fault.Latency)
	if fault.Err == nil {
		return f.Engine.Apply(ctx, b)
	}
	if fault.Applied {
		if err := f.Engine.Apply(ctx, b); err != nil {
			return err
		}
	}
	return fault.Err
}

var _ engine.Engine = (*Faulty)(nil)
