package shared_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/shared"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

var ctx = context.Background()

type opener = func(dir string) (engine.Engine, error)

// drivers are those of the embedded engines.
var drivers = storetest.Embedded

func TestTheOwnerKeepsTheContract(t *testing.T) {
	for name, driver := range drivers {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, enginetest.Driver{
				Durable: true,
				Open: func(dir string) (engine.Engine, error) {
					return shared.Open(ctx, dir, shared.Driver{Name: "x", Open: driver})
				},
			})
		})
	}
}

func TestAnAttachedEngineKeepsTheContract(t *testing.T) {
	for name, driver := range drivers {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, enginetest.Driver{Durable: true, Open: func(dir string) (engine.Engine, error) {
				owner, err := shared.Open(ctx, dir, shared.Driver{Name: "x", Open: driver})
				if err != nil {
					return nil, err
				}
				e, err := shared.Open(ctx, dir, shared.Driver{Name: "x", Open: func(string) (engine.Engine, error) {
					return nil, errors.New("it became the owner")
				}})
				return &pair{e, owner}, err
			}})
		})
	}
}

// A pair is an attached engine that closes its owner as well.
type pair struct {
	engine.Engine
	owner engine.Engine
}

func (p *pair) Close() error { return errors.Join(p.Engine.Close(), p.owner.Close()) }

func TestTheContractHoldsWhileOwnersComeAndGo(t *testing.T) {
	enginetest.Run(t, enginetest.Driver{Durable: true, Open: func(dir string) (engine.Engine, error) {
		return newRelay(dir, drivers["pebble"])
	}})
}

// A relay sends calls to one of two engines on the same store: always to the one that is attached. Again and again it
// closes the owner, so that the other one has to become it in the midst of calls, and opens an engine that the calls
// go to from then on.
type relay struct {
	dir     string
	driver  opener
	stop    chan struct{}
	stopped sync.WaitGroup
	limits  engine.Limits

	mu     sync.RWMutex
	now    *turn // nil when it is closed
	failed error
}

// A turn is an engine, and the calls that it has.
type turn struct {
	*shared.Engine
	calls sync.WaitGroup
}

func newRelay(dir string, driver opener) (*relay, error) {
	r := &relay{dir: dir, driver: driver, stop: make(chan struct{})}
	owner, err := shared.Open(ctx, dir, shared.Driver{Name: "x", Open: driver})
	if err != nil {
		return nil, err
	}
	r.limits = owner.Limits()
	r.now = &turn{Engine: owner}
	r.stopped.Go(r.run)
	return r, nil
}

func (r *relay) run() {
	for {
		select {
		case <-r.stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		next, err := shared.Open(ctx, r.dir, shared.Driver{Name: "x", Open: r.driver})
		r.mu.Lock()
		if err != nil {
			r.failed = errors.Join(r.failed, err)
			r.mu.Unlock()
			return
		}
		old := r.now
		r.now = &turn{Engine: next}
		r.mu.Unlock()
		old.calls.Wait()
		if err := old.Close(); err != nil {
			r.mu.Lock()
			r.failed = errors.Join(r.failed, err)
			r.mu.Unlock()
		}
	}
}

// use calls f with the engine that calls go to.
func (r *relay) use(f func(engine.Engine) error) error {
	r.mu.RLock()
	t := r.now
	if t != nil {
		t.calls.Add(1)
	}
	r.mu.RUnlock()
	if t == nil {
		return engine.ErrClosed
	}
	defer t.calls.Done()
	return f(t)
}

func (r *relay) Get(ctx context.Context, keys ...[]byte) (values [][]byte, err error) {
	err = r.use(func(e engine.Engine) error {
		values, err = e.Get(ctx, keys...)
		return err
	})
	return values, err
}

func (r *relay) Scan(ctx context.Context, of engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		if err := r.use(func(e engine.Engine) error {
			for p, err := range e.Scan(ctx, of) {
				if err != nil {
					return err
				}
				if !yield(p, nil) {
					break
				}
			}
			return nil
		}); err != nil {
			yield(engine.Pair{}, err)
		}
	}
}

func (r *relay) Apply(ctx context.Context, b *engine.Batch) error {
	return r.use(func(e engine.Engine) error { return e.Apply(ctx, b) })
}

func (r *relay) Vacuum(ctx context.Context) error {
	return r.use(func(e engine.Engine) error { return e.Vacuum(ctx) })
}

func (r *relay) Limits() engine.Limits { return r.limits }

func (r *relay) Close() error {
	select {
	case <-r.stop:
		return nil
	default:
	}
	close(r.stop)
	r.stopped.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	err := errors.Join(r.failed, r.now.Close())
	r.now = nil
	return err
}
