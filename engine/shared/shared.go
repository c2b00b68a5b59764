// Package shared lets any number of processes of one machine use an embedded store at once.
//
// The process that comes first opens the store with its driver. It is the owner, and serves the
// others on a Unix socket in the store's directory:
//
//	process A, the owner              process B           process C
//	Engine → the driver               Engine              Engine
//	   ↑                                 │                   │
//	   └────── turnstone.sock ───────────┴───────────────────┘
//
// When the owner closes the store, or is killed, one of the others opens it with its own driver
// and serves what is left. This happens within their next calls, which take a little longer and
// otherwise notice nothing: a batch that was under way fails with engine.ErrUnknown if its reply was lost,
// and calls that read are repeated. An owner whose driver has failed, and refuses everything until it is opened
// again, gives the store up: its own calls fail from then on, and another process opens it.
//
// The owner's options hold for all: its durability, and its limit of free disk space. All processes must be of the same
// user, which the kernel tells, and speak the same version of the protocol. Two files beside the
// driver's belong to this package: turnstone.owner, which the owner locks and describes itself in, and the socket.
package shared

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

var _ engine.Engine = (*Engine)(nil)

const (
	ownerLock  = "turnstone.owner"
	socketName = "turnstone.sock"

	// answerWait bounds how long an owner may take to open the store or to greet a process.
	answerWait = 10 * time.Second
	// tries bounds how many owners a call may see come and go.
	tries = 10
)

// errOwned means that another process is the owner, and has not answered.
var errOwned = fmt.Errorf("%w: the process that shares it does not answer", engine.ErrUnavailable)

// errGone means that the owner has closed the store or ended, and did not begin the call.
var errGone = errors.New("shared: the process that had the store open is gone")

// Engine is a store that this process has open together with others. The zero Engine is a closed
// one.
type Engine struct {
	dir    string
	open   func(dir string) (engine.Engine, error)
	limits engine.Limits

	wait time.Duration // answerWait; tests have less

	joining chan struct{} // of one element; held by the call that looks for the owner or becomes it

	mu     sync.RWMutex // guards side and closed
	side   side         // nil after the owner went
	closed bool
}

// A side is one end of the socket: an *owner or a *client. Its methods are those of engine.Engine, and fail with
// errGone if the owner was gone before it began the call.
type side interface {
	Get(ctx context.Context, keys ...[]byte) ([][]byte, error)
	page(ctx context.Context, r engine.Range) (pairs []engine.Pair, more bool, err error)
	Apply(ctx context.Context, b *engine.Batch) error
	Vacuum(ctx context.Context) error
	Limits() engine.Limits
	Close() error
	gone() bool // reports whether no call reaches the store any more, so that another side is needed
}

// Open opens the store in dir, or uses it beside the processes that have it open. When this process has to open it,
// now or later, it calls open, for example
//
//	func(dir string) (engine.Engine, error) { return badger.Open(dir, nil) }
//
// Open fails with *engine.LockedError if a process has the store open without sharing it. It fails with an error
// that matches engine.ErrUnavailable as well if a process shares the store and has not answered for ten seconds.
func Open(ctx context.Context, dir string, open func(dir string) (engine.Engine, error)) (*Engine, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	e := &Engine{dir: dir, open: open, wait: answerWait, joining: make(chan struct{}, 1)}
	return e.start(ctx)
}

func (e *Engine) start(ctx context.Context) (_ *Engine, err error) {
	if e.side, err = e.join(ctx); err != nil {
		return nil, err
	}
	e.limits = e.side.Limits()
	return e, nil
}

// join connects with the owner, or becomes it.
func (e *Engine) join(ctx context.Context) (side, error) {
	deadline := time.Now().Add(e.wait)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if _, err := e.known(); err != nil {
			return nil, err // e was closed
		}
		c, err := attach(ctx, e.dir, e.wait)
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, errGone) {
			return nil, err
		}
		o, err := own(e.dir, e.open)
		if err == nil {
			return o, nil
		}
		// The owner locks a file of its own, so that its time to open the store and to close it can
		// be told from a process that does not share the store.
		if !errors.Is(err, errOwned) || time.Now().After(deadline) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// current returns the side for a call.
func (e *Engine) current(ctx context.Context) (side, error) {
	if s, err := e.known(); s != nil || err != nil {
		return s, err
	}
	select {
	case e.joining <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-e.joining }()
	if s, err := e.known(); s != nil || err != nil {
		return s, err
	}
	s, err := e.join(ctx)
	if err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
		}
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errors.Join(engine.ErrClosed, s.Close())
	}
	e.side = s
	return s, nil
}

// known returns the side that e has, or nil if it has to join again.
func (e *Engine) known() (side, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed || e.open == nil {
		return nil, engine.ErrClosed
	}
	if e.side == nil || e.side.gone() {
		return nil, nil
	}
	return e.side, nil
}

// do calls f with the side of e, and again with another one if the owner was gone before it began.
func do[T any](ctx context.Context, e *Engine, f func(side) (T, error)) (T, error) {
	for n := 1; ; n++ {
		s, err := e.current(ctx)
		if err != nil {
			var none T
			return none, err
		}
		out, err := f(s)
		if !errors.Is(err, errGone) {
			return out, err
		}
		if n == tries {
			return out, fmt.Errorf("%w: %d times in a row: %w", engine.ErrUnavailable, n, err)
		}
	}
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	return do(ctx, e, func(s side) ([][]byte, error) { return s.Get(ctx, keys...) })
}

// Scan implements engine.Engine.
func (e *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	type page struct {
		pairs []engine.Pair
		more  bool
	}
	return engine.Paged(r, func(r engine.Range) ([]engine.Pair, bool, error) {
		p, err := do(ctx, e, func(s side) (p page, err error) {
			p.pairs, p.more, err = s.page(ctx, r)
			return p, err
		})
		return p.pairs, p.more, err
	})
}

// Apply implements engine.Engine.
func (e *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	_, err := do(ctx, e, func(s side) (struct{}, error) { return struct{}{}, s.Apply(ctx, b) })
	return err
}

// Vacuum implements engine.Engine.
func (e *Engine) Vacuum(ctx context.Context) error {
	_, err := do(ctx, e, func(s side) (struct{}, error) { return struct{}{}, s.Vacuum(ctx) })
	return err
}

// Limits implements engine.Engine.
func (e *Engine) Limits() engine.Limits { return e.limits }

// Close implements engine.Engine. If this process is the owner, Close ends the calls of the others that are
// under way, and returns when the store is closed: then another process can open it.
func (e *Engine) Close() error {
	e.mu.Lock()
	s := e.side
	e.side, e.closed = nil, true
	e.mu.Unlock()
	if e.joining != nil { // A call that is becoming the owner stops, or closes what it has opened.
		e.joining <- struct{}{}
		<-e.joining
	}
	if s == nil {
		return nil
	}
	return s.Close()
}
