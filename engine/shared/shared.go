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
// When the owner closes the store, or is killed, one of the others opens it with its own driver and serves what is
// left. This happens within their next calls, which take a little longer and otherwise notice nothing: a batch that
// was under way fails with engine.ErrUnknown if its reply was lost, and calls of Get, Scan and Vacuum are repeated.
// An owner whose driver has failed, and refuses everything until it is opened again, gives the store up: its own
// calls fail from then on, and another process opens it.
//
// The owner's options hold for all: its durability, and its limit of free disk space. All processes must be of the same
// user, have the same driver, and speak the same version of the protocol. The kernel tells each process which user the
// other one is of.
//
// Three files beside the driver's belong to this package: turnstone.owner, which the owner locks and describes itself
// in, turnstone.users, which all lock, and the socket. Where they can't be made, because the disk has no inode left
// or the file system no sockets, the store belongs to the process that opened it.
package shared

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

var _ engine.Engine = (*Engine)(nil)

const (
	ownerLock  = "turnstone.owner"
	socketName = "turnstone.sock"

	// tries bounds how many owners a call may see come and go.
	tries = 10
)

// A patience says how long to wait.
type patience struct {
	open     time.Duration // Open, for an owner that does not answer
	takeOver time.Duration // a call, for an owner that is closing the store, or another that is opening it: drivers take a minute at most
	driver   time.Duration // either, for a driver whose lock is held by a process that has just been killed
	close    time.Duration // Close, for calls of others
	idle     time.Duration // a connection, until it is closed
}

var usual = patience{10 * time.Second, 75 * time.Second, 250 * time.Millisecond, time.Second, time.Second}

// errGone means that the call had no effect, and that another owner is to be looked for.
var errGone = errors.New("shared: the process that had the store open is gone")

// A Driver opens the engine of a store.
type Driver struct {
	Name string // of the engine, for example "pebble", without spaces: processes with different ones refuse each other
	Open func(dir string) (engine.Engine, error)
	// Other opens the engine that a store is moved to, by a URL. Without it a store can't be moved.
	Other func(ctx context.Context, url string) (engine.Engine, error)
}

// Engine is a store that this process has open together with others. The zero Engine is a closed
// one.
type Engine struct {
	dir    string
	driver Driver
	wait   patience
	limits engine.Limits
	home   *localdir.Dir // the directory; its lock tells read-only openers that the store is in use
	ended  context.Context
	end    context.CancelFunc

	mu       sync.RWMutex // guards side, joining and closed
	side     side         // nil before Open has returned, and after Close
	joining  *joining     // set while the engine looks for another side
	closed   bool
	closing  sync.Once
	replaced sync.WaitGroup // sides that are closed in the background
	failed   error          // what Close returned
}

// A side is one end of the socket: an *owner or a *client. Its methods are those of engine.Engine. They fail with
// errGone if the call had no effect and another side has to be found.
type side interface {
	Get(ctx context.Context, keys ...[]byte) ([][]byte, error)
	page(ctx context.Context, r engine.Range) (pairs []engine.Pair, more bool, err error)
	Apply(ctx context.Context, b *engine.Batch) error
	Vacuum(ctx context.Context) error
	move(ctx context.Context, url, name string) (*Moved, error)
	Limits() engine.Limits
	Close() error
	gone() bool // reports whether no call reaches the store any more
}

// A joining is the search for a side. All calls that need a side wait for the same search.
type joining struct {
	done chan struct{} // closed at the end
	err  error         // why none was found
}

// Open opens the store in dir, or uses it beside the processes that have it open. When this process has to open it,
// now or later, it calls d.Open.
//
// Open fails with *engine.LockedError if a process has the store open without sharing it, or only reads it. It fails
// with an error that matches engine.ErrUnavailable as well if a process shares the store and does not answer for ten
// seconds.
func Open(ctx context.Context, dir string, d Driver) (*Engine, error) {
	return open(ctx, dir, d, usual)
}

func open(ctx context.Context, dir string, d Driver, wait patience) (_ *Engine, err error) {
	if d.Name == "" || strings.ContainsFunc(d.Name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("shared: %q is no name of a driver: want letters and digits", d.Name)
	}
	e := &Engine{driver: d, wait: wait}
	if e.home, err = localdir.Prepare(dir); err != nil {
		return nil, err
	}
	e.dir = e.home.Path
	if err = e.home.Use(); err != nil {
		return nil, errors.Join(err, e.home.Close())
	}
	e.ended, e.end = context.WithCancel(context.Background())
	if e.side, err = e.find(ctx, wait.open); err != nil {
		e.end()
		return nil, errors.Join(err, e.home.Close())
	}
	e.limits = e.side.Limits()
	return e, nil
}

// find connects with the owner, or becomes it.
func (e *Engine) find(ctx context.Context, wait time.Duration) (side, error) {
	begun := time.Now()
	var refused time.Time // when the driver's lock was first found to be held
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		// A store that was moved away, and perhaps replaced, is not this one any more.
		if err := e.home.Here(); err != nil {
			return nil, err
		}
		c, err := attach(ctx, e, max(0, wait-time.Since(begun)))
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, errGone) {
			return nil, err
		}
		o, err := own(e)
		if err == nil {
			return o, nil
		}
		// The owner locks a file of its own, so that its time to open the store and to close it can be told from a process
		// that does not share the store. When an owner is killed, that lock may be free a moment before the driver's.
		since, patient := begun, wait
		if !errors.Is(err, errOwned) {
			if refused.IsZero() {
				refused = time.Now()
			}
			since, patient = refused, e.wait.driver
		}
		if !errors.Is(err, engine.ErrLocked) || time.Since(since) >= patient {
			return nil, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// current returns the side for a call.
func (e *Engine) current(ctx context.Context) (side, error) {
	for {
		e.mu.RLock()
		s, closed := e.side, e.closed || e.side == nil
		e.mu.RUnlock()
		switch {
		case closed:
			return nil, engine.ErrClosed
		case !s.gone():
			return s, nil
		}
		j := e.join(s)
		select {
		case <-j.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if j.err != nil {
			return nil, j.err
		}
	}
}

// join looks for another side than old, in a goroutine of its own: opening a store does not end with a context, but
// the calls do that wait for it.
func (e *Engine) join(old side) *joining {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.joining != nil {
		return e.joining
	}
	j := &joining{done: make(chan struct{})}
	if e.closed || e.side != old { // somebody was first
		close(j.done)
		return j
	}
	e.joining = j
	go func() {
		s, err := e.find(e.ended, e.wait.takeOver)
		e.mu.Lock()
		defer e.mu.Unlock()
		if err == nil {
			e.side = s                                // Close waits for j, and closes s.
			e.replaced.Go(func() { _ = old.Close() }) // The old side is a client, whose Close has no error.
		}
		switch {
		case e.closed:
			j.err = engine.ErrClosed
		case err != nil:
			j.err = unavailable(err)
		}
		e.joining = nil
		close(j.done)
	}()
	return j
}

// unavailable returns the error of calls for which no side was found. None of them had an effect.
func unavailable(err error) error {
	switch {
	case errors.Is(err, engine.ErrUnknown): // of the driver, and not of the calls
		return fmt.Errorf("%w: %v", engine.ErrUnavailable, err)
	case errors.Is(err, engine.ErrUnavailable), errors.Is(err, engine.ErrReplaced):
		return err
	}
	return fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
}

// do calls f with the side of e, and again with another one if the call had no effect because the owner was gone.
func do[T any](ctx context.Context, e *Engine, f func(side) (T, error)) (T, error) {
	for n := 1; ; n++ {
		s, err := e.current(ctx)
		if err != nil {
			var none T
			return none, err
		}
		out, err := f(s)
		if !errors.Is(err, errGone) || errors.Is(err, engine.ErrUnknown) {
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

// Close implements engine.Engine. If this process is the owner, Close waits a second for the calls of the others that
// are under way, cuts off the rest, and returns when the store is closed: then another process can open it. If it is
// not, Close waits as long for the calls of this process, and cuts off the rest.
func (e *Engine) Close() error {
	if e.end == nil {
		return nil
	}
	e.closing.Do(func() {
		e.mu.Lock()
		e.closed = true
		j := e.joining
		e.mu.Unlock()
		e.end()
		if j != nil {
			<-j.done
		}
		e.failed = e.side.Close()
		e.replaced.Wait()
		e.failed = errors.Join(e.failed, e.home.Close())
	})
	return e.failed
}
