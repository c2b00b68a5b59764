package tests

import (
	"context"
	"iter"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
)

// before returns a plan that calls f once, before the n-th call from now on.
func before(n int, f func()) func(enginetest.Call) enginetest.Fault {
	return func(enginetest.Call) enginetest.Fault {
		if n--; n == 0 {
			f()
		}
		return enginetest.Fault{}
	}
}

// beforeEachApply returns a plan that calls f before each Apply, with the batch.
func beforeEachApply(f func(b *engine.Batch)) func(enginetest.Call) enginetest.Fault {
	return func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" {
			f(c.Batch)
		}
		return enginetest.Fault{}
	}
}

// loseOutcome makes the next Apply of f take effect, and fail with engine.ErrUnknown. It
// calls then between the two.
func loseOutcome(f *enginetest.Faulty, then func()) { leaveOpen(f, true, then) }

// leaveOpen makes the next Apply on f end with an unknown outcome, whether it takes effect or not, and calls then.
func leaveOpen(f *enginetest.Faulty, applied bool, then func()) {
	f.Plan = func(c enginetest.Call) enginetest.Fault {
		if c.Op != "Apply" {
			return enginetest.Fault{}
		}
		f.Plan = nil
		return enginetest.Fault{Err: engine.ErrUnknown, Applied: applied}
	}
	f.Done = func(c enginetest.Call, _ error) {
		if c.Op == "Apply" {
			f.Done = nil
			then()
		}
	}
}

// besideEachCall runs call on a store beside other, which works on the same store, for each
// moment at which other can come: before the n-th call of the engine, and after it, for every
// n. For each of them there is a new store, which prepare fills; check looks at what is left
// of it, and at the error of call.
func besideEachCall(t *testing.T, prepare func(*turnstone.Store), call func(*turnstone.Store) error, other func(*turnstone.Store), check func(st *turnstone.Store, e engine.Engine, err error) error) {
	t.Helper()
	for n, came := 1, true; came; n++ {
		e, st := onMemory(t, nil)
		prepare(st)
		watched := &enginetest.Faulty{Engine: e}
		caller := openStore(t, watched, nil)
		came = false
		var mu sync.Mutex // guards moments
		moments := 0
		moment := func() {
			mu.Lock()
			defer mu.Unlock()
			if moments++; moments == n {
				came = true
				other(openStore(t, e, nil))
			}
		}
		watched.Plan = func(enginetest.Call) enginetest.Fault { moment(); return enginetest.Fault{} }
		watched.Done = func(enginetest.Call, error) { moment() }
		err := call(caller)
		watched.Plan, watched.Done = nil, nil
		if problem := check(st, e, err); problem != nil {
			t.Errorf("at moment %d: %v: %v", n, err, problem)
		}
		if !came && n == 1 {
			t.Error("there was no call of the engine")
		}
	}
}

// The engines below do what no plan of an enginetest.Faulty can do.

// An interceptor calls functions for the keys that reads come to. The plan of a Faulty does
// not see the keys of a Get, and is not asked in the middle of a Scan.
type interceptor struct {
	engine.Engine
	// get is called before a Get, and may be nil. Its error is returned instead of values.
	get func(keys [][]byte) error
	// scan is called when a Scan begins, and may be nil. It returns a function that is
	// called before each pair is yielded, or nil. An error of that ends the Scan.
	scan func(r engine.Range) func(engine.Pair) error
}

func (i *interceptor) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	if i.get != nil {
		if err := i.get(keys); err != nil {
			return nil, err
		}
	}
	return i.Engine.Get(ctx, keys...)
}

func (i *interceptor) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		var pair func(engine.Pair) error
		if i.scan != nil {
			pair = i.scan(r)
		}
		for p, err := range i.Engine.Scan(ctx, r) {
			if err == nil && pair != nil {
				err = pair(p)
			}
			if err != nil {
				yield(engine.Pair{}, err)
				return
			}
			if !yield(p, nil) {
				return
			}
		}
	}
}

// A pager scans in pages of one pair, as Badger and Pebble do where values have 480 KiB. The
// plan of a Faulty is not asked between the pages of a Scan.
type pager struct {
	engine.Engine
	between func(key []byte) // called when a page was read, with its key; may be nil
}

func (p *pager) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return engine.Paged(r, func(r engine.Range) ([]engine.Pair, bool, error) {
		limit := r.Limit
		r.Limit = 1
		var page []engine.Pair
		for pair, err := range p.Engine.Scan(ctx, r) {
			if err != nil {
				return nil, false, err
			}
			page = append(page, pair)
		}
		if len(page) > 0 && p.between != nil {
			p.between(page[0].Key)
		}
		return page, len(page) > 0 && limit != 1, nil
	})
}

// A blindEngine has scans that come back empty, as those of a damaged engine may. A Faulty
// ends a Scan early only with an error.
type blindEngine struct{ engine.Engine }

func (blindEngine) Scan(context.Context, engine.Range) iter.Seq2[engine.Pair, error] {
	return func(func(engine.Pair, error) bool) {}
}
