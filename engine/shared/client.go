package shared

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
	"github.com/turnstonedb/turnstone/internal/socket"
)

const (
	// connections bounds how many calls of one process the owner serves at a time; others wait. They take
	// file descriptors of the owner.
	connections = 16
	// applyGrace is how much longer than its context an Apply waits for the reply, because it most often comes
	// at once and tells what else would be unknown.
	applyGrace = time.Second
)

var (
	errCut    = errors.New("shared: the connection was cut")
	errSilent = errors.New("shared: the process that has the store open does not answer")
)

// A client reaches the store through the owner's socket. Each call has a connection of its own while it runs.
type client struct {
	of     *Engine
	limits engine.Limits
	slots  chan struct{} // each call that has a connection holds an element
	closed chan struct{} // closed by Close
	calls  sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	left     bool       // the owner is gone, or the client is closed
	idle     []*conn    // the one that was used last is the last
	busy     map[*conn]struct{}
	trimming bool // a timer will close connections that are idle for long
}

type conn struct {
	*net.UnixConn
	in     *bufio.Reader
	limits engine.Limits // what the owner's greeting said
	used   time.Time
}

// attach connects with the owner of e's store. It fails with errGone if no owner listens, or if the owner sends no
// greeting within wait.
func attach(ctx context.Context, e *Engine, wait time.Duration) (*client, error) {
	c := &client{of: e, slots: make(chan struct{}, connections), closed: make(chan struct{}), busy: map[*conn]struct{}{}}
	first, err := c.dial(ctx, wait)
	if err != nil {
		if errors.Is(err, errSilent) {
			err = errGone // If the owner does not answer, the lock that it holds says who it is.
		}
		return nil, err
	}
	c.limits = first.limits
	c.put(first)
	return c, nil
}

// dial makes a connection and reads the owner's greeting. The error is errGone if nobody listens, and errSilent if
// the owner does not answer.
func (c *client) dial(caller context.Context, wait time.Duration) (*conn, error) {
	ctx, cancel := context.WithTimeout(caller, wait)
	defer cancel()
	s, err := socket.Dial(ctx, c.of.socket())
	if err != nil {
		switch {
		case caller.Err() != nil:
			err = caller.Err()
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
			err = errGone
		case ctx.Err() != nil, errors.Is(err, syscall.EAGAIN): // so many wait for the owner that the kernel lets no more
			err = errSilent
		case localdir.Short(err):
			err = fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
		}
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
	out := &conn{UnixConn: s, in: bufio.NewReader(s)}
	err = out.greeted(c.of)
	if !stop() && err == nil {
		err = errSilent // The connection has a deadline that is over.
	}
	if err != nil {
		s.Close()
		if caller.Err() != nil {
			err = caller.Err()
		}
		return nil, err
	}
	return out, nil
}

// greeted reads the owner's greeting, and checks that the owner is of the same user, version and driver, and has the
// same directory.
func (s *conn) greeted(e *Engine) error {
	if err := sameUser(s.UnixConn); err != nil {
		return err
	}
	hello, err := readFrame(s.in, maxRequest)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errSilent
	}
	if err != nil {
		return errGone // It closes.
	}
	var version int
	var driver string
	var id string
	l := &s.limits
	_, err = fmt.Sscanf(string(hello), greeting, &version, &driver, &id, &l.KeyBytes, &l.ValueBytes, &l.BatchBytes, &l.BatchOps)
	switch {
	case version != 0 && version != protocolVersion:
		return fmt.Errorf("%w: the process that has %s open speaks version %d of the protocol, this one version %d", engine.ErrUnavailable, e.dir, version, protocolVersion)
	case err != nil:
		return fmt.Errorf("%w: greeting %.100q", errProtocol, hello)
	case id != e.home.ID():
		return errGone // The socket leads to the store of another directory.
	case driver != e.driver.Name:
		return fmt.Errorf("shared: a process has %s open as a store of %s, and not of %s", e.dir, driver, e.driver.Name)
	}
	return nil
}

// begin counts a call as under way. It returns false if leave was called.
func (c *client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.left {
		c.calls.Add(1)
	}
	return !c.left
}

// call sends a request and passes the body of the reply to decode. When the reply is lost, a batch fails with
// engine.ErrUnknown. Any other request fails with errGone, and is repeated.
func (c *client) call(ctx context.Context, request []byte, batch bool, decode func(*decoder)) error {
	request, err := endFrame(request, maxRequest)
	if err != nil {
		return err
	}
	if !c.begin() {
		return errGone
	}
	defer c.calls.Done()
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-c.closed:
		return errGone
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s, err := c.take(ctx)
	if err != nil {
		return err
	}
	grace := time.Duration(0)
	if batch {
		grace = applyGrace
	}
	stop := context.AfterFunc(ctx, func() { s.SetDeadline(time.Now().Add(grace)) })
	reply, err := c.exchange(ctx, s, request, batch)
	if stop() && err == nil {
		c.put(s)
	} else {
		c.drop(s)
	}
	if err == nil {
		err = c.result(reply, decode)
	}
	if batch && errors.Is(err, errProtocol) {
		err = fmt.Errorf("%w: %w", engine.ErrUnknown, err)
	}
	return err
}

// result decodes a reply.
func (c *client) result(reply []byte, decode func(*decoder)) error {
	d := &decoder{b: reply[1:]}
	switch reply[0] {
	case statusOK:
		decode(d)
		return d.end()
	case statusBye:
		c.leave()
		return errGone
	case statusError:
		err := d.err()
		if errors.Is(err, engine.ErrClosed) && !errors.Is(err, engine.ErrUnknown) { // The driver has failed, and its owner gives the store up.
			c.leave()
			return errGone
		}
		return err
	}
	return fmt.Errorf("%w: status %q", errProtocol, reply[0])
}

// exchange sends a request and returns the reply.
func (c *client) exchange(ctx context.Context, s *conn, request []byte, batch bool) ([]byte, error) {
	// A request that was not sent whole is not begun.
	if n, err := s.Write(request); n < len(request) {
		return nil, c.cut(ctx, err)
	}
	reply, err := readFrame(s.in, maxFrame)
	if err == nil {
		return reply, nil
	}
	if err = c.cut(ctx, err); batch {
		// errGone would say that the call had no effect.
		err = fmt.Errorf("%w: no reply of the process that has the store open: %w", engine.ErrUnknown, strip(err))
	}
	return nil, err
}

// strip returns an error that does not match errGone.
func strip(err error) error {
	if errors.Is(err, errGone) {
		return errCut
	}
	return err
}

// cut returns the error for a connection that failed. It returns the context's error if the context has ended, and
// otherwise an error that matches errGone.
func (c *client) cut(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.leave()
	return fmt.Errorf("%w: %w", errGone, err)
}

// take returns an idle connection or a new one.
func (c *client) take(ctx context.Context) (*conn, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		s := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.busy[s] = struct{}{}
		c.mu.Unlock()
		return s, nil
	}
	c.mu.Unlock()
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.of.ended, cancel)()
	s, err := c.dial(limited, c.of.wait.takeOver)
	switch {
	case err == nil:
	case c.of.ended.Err() != nil: // Close was called.
		return nil, errGone
	case errors.Is(err, errGone):
		c.leave()
		return nil, err
	case ctx.Err() != nil, errors.Is(err, engine.ErrNoSpace), errors.Is(err, engine.ErrUnavailable):
		return nil, err
	default: // Other connections may work.
		return nil, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy[s] = struct{}{}
	select {
	case <-c.closed: // Close has not seen s.
		s.SetDeadline(time.Now().Add(c.of.wait.close))
	default:
	}
	return s, nil
}

// put keeps a connection for the next call.
func (c *client) put(s *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, s)
	if c.left {
		s.Close()
		return
	}
	s.used = time.Now()
	c.idle = append(c.idle, s)
	if !c.trimming {
		c.trimming = true
		time.AfterFunc(c.of.wait.idle, c.trim)
	}
}

// drop closes a connection.
func (c *client) drop(s *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, s)
	s.Close()
}

// trim closes connections that have been idle for long. Otherwise a burst of calls would leave the owner with too few
// file descriptors for other processes.
func (c *client) trim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(c.idle) && time.Since(c.idle[n].used) >= c.of.wait.idle {
		c.idle[n].Close()
		n++
	}
	c.idle = append([]*conn(nil), c.idle[n:]...)
	if c.trimming = len(c.idle) > 0; c.trimming {
		time.AfterFunc(c.of.wait.idle, c.trim)
	}
}

// leave makes the engine look for another owner. Calls that are under way go on.
func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	for _, s := range c.idle {
		s.Close()
	}
	c.idle = nil
}

func (c *client) gone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

func (c *client) Get(ctx context.Context, keys ...[]byte) (values [][]byte, err error) {
	err = c.call(ctx, appendList(newFrame(opGet), keys), false, func(d *decoder) { values = d.list() })
	if err == nil && len(values) != len(keys) {
		return nil, fmt.Errorf("%w: %d values for %d keys", errProtocol, len(values), len(keys))
	}
	for i := range values {
		values[i] = bytes.Clone(values[i]) // so that one does not keep the memory of all
	}
	return values, err
}

func (c *client) page(ctx context.Context, r engine.Range) (pairs []engine.Pair, more bool, err error) {
	err = c.call(ctx, appendRange(newFrame(opScan), r), false, func(d *decoder) {
		more, pairs = d.number() != 0, d.pairs()
	})
	for i := range pairs {
		pairs[i] = engine.Pair{Key: bytes.Clone(pairs[i].Key), Value: bytes.Clone(pairs[i].Value)}
	}
	return pairs, more && len(pairs) > 0, err
}

func (c *client) Apply(ctx context.Context, b *engine.Batch) error {
	if err := b.Check(c.limits); err != nil {
		return err
	}
	return c.call(ctx, appendBatch(newFrame(opApply), b), true, func(*decoder) {})
}

func (c *client) Vacuum(ctx context.Context) error {
	return c.call(ctx, newFrame(opVacuum), false, func(*decoder) {})
}

func (c *client) Limits() engine.Limits { return c.limits }

// Close waits for calls that are under way, cuts off those that take long, and closes the connections.
func (c *client) Close() error {
	c.leave()
	close(c.closed)
	c.mu.Lock()
	for s := range c.busy {
		s.SetDeadline(time.Now().Add(c.of.wait.close))
	}
	c.mu.Unlock()
	c.calls.Wait()
	return nil
}
