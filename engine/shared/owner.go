package shared

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// errOwned means that another process is the owner, and has not answered.
var errOwned = fmt.Errorf("%w: the process that shares it does not answer", engine.ErrUnavailable)

// An owner has the store open, and serves it to other processes.
type owner struct {
	of *Engine

	gate   sync.RWMutex // read-held by calls; guards driver and mover
	driver engine.Engine
	mover  *mover        // while the store is moved to another engine
	moving sync.Mutex    // held by move
	vacuum chan struct{} // holds a token while a vacuum or a move goes on
	moved  bool          // the store was moved; guarded by vacuum

	// What it serves others with; nil if it can't.
	lock     io.Closer
	listener *Listener

	closing chan struct{}
	once    sync.Once
	closed  error // what Close returned

	mu      sync.Mutex // guards conns
	conns   map[*net.UnixConn]struct{}
	serving sync.WaitGroup // the goroutines that answer
}

// own opens the store of e and serves it. The error matches errOwned if another process is the owner.
func own(e *Engine) (_ *owner, err error) {
	lock, err := e.home.Lock(ownerLock)
	switch {
	case errors.Is(err, engine.ErrLocked):
		return nil, fmt.Errorf("%w: %w", errOwned, err)
	case errors.Is(err, engine.ErrNoSpace):
		lock = nil // Opening a store needs no space, and serving it does.
	case err != nil:
		return nil, err
	}
	defer func() {
		if err != nil && lock != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	driver, err := e.driver.Open(e.dir)
	if err != nil {
		return nil, err
	}
	if err = e.home.Here(); err != nil { // the driver may have opened another directory
		return nil, errors.Join(err, driver.Close())
	}
	o := &owner{of: e, driver: driver, vacuum: make(chan struct{}, 1), lock: lock, closing: make(chan struct{}), conns: map[*net.UnixConn]struct{}{}}
	if lock == nil {
		return o, nil
	}
	l, lerr := Listen(e.socket, o.accept, nil)
	if lerr != nil { // Others are told that the store is not shared.
		o.lock = nil
		if err := lock.Close(); err != nil {
			return nil, errors.Join(err, driver.Close())
		}
		return o, nil
	}
	o.listener = l
	return o, nil
}

// accept serves a connection, unless o closes.
func (o *owner) accept(c *net.UnixConn) {
	if !o.enter(c) {
		c.Close()
		return
	}
	go o.serve(c)
}

// enter notes a connection that is to be served. It returns false if o closes.
func (o *owner) enter(c *net.UnixConn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-o.closing:
		return false
	default:
	}
	o.conns[c] = struct{}{}
	o.serving.Add(1)
	return true
}

// serve answers the requests of a connection. Another goroutine reads them meanwhile, so that when the client goes, the
// requests that are being answered end.
func (o *owner) serve(c *net.UnixConn) {
	defer o.serving.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer func() {
		c.Close()
		o.mu.Lock()
		delete(o.conns, c)
		o.mu.Unlock()
	}()
	if _, err := c.Write(o.greeting()); err != nil {
		return
	}
	requests := make(chan []byte)
	go func() {
		defer cancel()
		for in := bufio.NewReader(c); ; {
			request, err := readFrame(in, maxRequest)
			if err != nil {
				return
			}
			select {
			case requests <- request:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case request := <-requests:
			if _, err := c.Write(o.answer(ctx, request)); err != nil {
				return
			}
		case <-ctx.Done():
			return
		case <-o.closing:
			bye, _ := endFrame(newFrame(statusBye), maxFrame)
			_, _ = c.Write(bye) // a client that is gone needs none
			return
		}
	}
}

// greeting returns the frame that each connection begins with.
func (o *owner) greeting() []byte {
	l := o.Limits()
	text := fmt.Appendf(make([]byte, 4), greeting, protocolVersion, o.of.driver.Name, o.of.home.ID(), l.KeyBytes, l.ValueBytes, l.BatchBytes, l.BatchOps)
	frame, _ := endFrame(text, maxFrame)
	return frame
}

// answer carries out a request, and returns the reply.
func (o *owner) answer(ctx context.Context, request []byte) []byte {
	reply, err := o.carryOut(ctx, request[0], &decoder{b: request[1:]}, newFrame(statusOK))
	if err == nil {
		reply, err = endFrame(reply, maxFrame)
	}
	if err != nil {
		reply, _ = endFrame(appendError(newFrame(statusError), err), maxFrame)
	}
	return reply
}

// carryOut appends the result to reply.
func (o *owner) carryOut(ctx context.Context, op byte, d *decoder, reply []byte) ([]byte, error) {
	switch op {
	case opGet:
		keys := d.list()
		if err := d.end(); err != nil {
			return nil, err
		}
		values, err := o.Get(ctx, keys...)
		return appendList(reply, values), err
	case opScan:
		r := d.scope()
		if err := d.end(); err != nil {
			return nil, err
		}
		pairs, more, err := o.page(ctx, r)
		return appendPairs(appendFlag(reply, more), pairs), err
	case opApply:
		b := d.batch()
		if err := d.end(); err != nil {
			return nil, err
		}
		return reply, o.Apply(ctx, b)
	case opVacuum:
		if err := d.end(); err != nil {
			return nil, err
		}
		return reply, o.Vacuum(ctx)
	case opMove:
		url, name := string(d.bytes()), string(d.bytes())
		if err := d.end(); err != nil {
			return nil, err
		}
		m, err := o.move(ctx, url, name)
		if err != nil {
			return nil, err
		}
		return appendMoved(reply, m), nil
	}
	return nil, fmt.Errorf("%w: operation %q", errProtocol, op)
}

func (o *owner) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	o.gate.RLock()
	defer o.gate.RUnlock()
	values, err := o.driver.Get(ctx, keys...)
	return values, o.noted(err)
}

// page reads one page of r.
func (o *owner) page(ctx context.Context, r engine.Range) (pairs []engine.Pair, more bool, err error) {
	// The drivers' pages are as large, so that they read no pair in vain.
	const pagePairs, pageBytes = 1000, 272 << 10
	size := 0
	o.gate.RLock()
	defer o.gate.RUnlock()
	for p, err := range o.driver.Scan(ctx, r) {
		if err != nil {
			return nil, false, o.noted(err)
		}
		pairs = append(pairs, p)
		if size += len(p.Value); len(pairs) == pagePairs || size >= pageBytes {
			return pairs, len(pairs) != r.Limit, nil
		}
	}
	return pairs, false, nil
}

func (o *owner) Apply(ctx context.Context, b *engine.Batch) error {
	o.gate.RLock()
	defer o.gate.RUnlock()
	err := o.driver.Apply(ctx, b)
	if o.mover != nil {
		o.mover.touch(b) // after it was applied: a pass that copies the keys before would miss it
	}
	return o.noted(err)
}

func (o *owner) Vacuum(ctx context.Context) error {
	select {
	case o.vacuum <- struct{}{}:
		defer func() { <-o.vacuum }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return o.noted(o.now().Vacuum(ctx))
}

func (o *owner) Limits() engine.Limits { return o.now().Limits() }

// now returns the engine that the store is on.
func (o *owner) now() engine.Engine {
	o.gate.RLock()
	defer o.gate.RUnlock()
	return o.driver
}

// gone is false even after the driver has failed: then the calls of this process fail, until it opens the store again.
func (o *owner) gone() bool { return false }

// noted returns the error of the driver. If the driver refuses everything, o gives the store up, so that another
// process can open it.
func (o *owner) noted(err error) error {
	if errors.Is(err, engine.ErrClosed) {
		if gone := o.of.home.Here(); gone != nil && !errors.Is(err, engine.ErrReplaced) {
			err = fmt.Errorf("%w: %w", err, gone) // that is why it was closed
		}
		go o.Close()
	}
	return err
}

// Close ends the serving and closes the store.
func (o *owner) Close() error {
	o.once.Do(func() {
		o.mu.Lock()
		close(o.closing)
		o.mu.Unlock()
		if o.listener != nil {
			o.closed = o.listener.Close()
			o.rest()
		}
		o.moving.Lock()
		defer o.moving.Unlock()
		o.closed = errors.Join(o.closed, o.now().Close())
		if o.lock != nil {
			o.closed = errors.Join(o.closed, o.lock.Close())
		}
	})
	return o.closed
}

// rest waits until requests that are under way are answered, and cuts off those that take long.
func (o *owner) rest() {
	rested := make(chan struct{})
	go func() {
		o.serving.Wait()
		close(rested)
	}()
	select {
	case <-rested:
		return
	case <-time.After(o.of.wait.close):
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.conns {
		c.Close()
	}
}
