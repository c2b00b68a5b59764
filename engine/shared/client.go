package shared

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

const (
	// connections bounds how many calls of one process the owner serves at a time; others wait.
	connections = 64
	// applyGrace is how much longer than its context an Apply waits for the reply, because it most often comes
	// at once and tells what else would be unknown.
	applyGrace = time.Second
)

// A client reaches the store through the owner's socket. Each call has a connection of its own while it runs.
type client struct {
	dir    string
	wait   time.Duration // how long the owner may take to greet
	limits engine.Limits
	slots  chan struct{} // each call holds an element
	left   atomic.Bool   // the owner is gone, or the client is closed

	mu   sync.Mutex // guards idle
	idle []*conn
}

type conn struct {
	*net.UnixConn
	in     *bufio.Reader
	limits engine.Limits // what the owner's greeting said
}

// attach connects with the owner of dir. It fails with errGone if there is none that listens, or that greets within wait.
func attach(ctx context.Context, dir string, wait time.Duration) (*client, error) {
	c := &client{dir: dir, wait: wait, slots: make(chan struct{}, connections)}
	first, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	c.limits, c.idle = first.limits, append(c.idle, first)
	return c, nil
}

// dial makes a connection and reads the owner's greeting.
func (c *client) dial(caller context.Context) (*conn, error) {
	path, release, err := socketPath(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errGone
	}
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(caller, c.wait)
	defer cancel()
	var d net.Dialer
	s, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		switch {
		case caller.Err() != nil:
			err = caller.Err()
		case absent(err), errors.Is(err, syscall.EAGAIN): // so many wait for the owner that the kernel lets no more
			err = errGone
		case localdir.Short(err):
			err = fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
		}
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	out := &conn{UnixConn: s.(*net.UnixConn), in: bufio.NewReader(s)}
	if err := out.greeted(c.dir); err != nil {
		s.Close()
		switch {
		case caller.Err() != nil:
			err = caller.Err()
		case errors.Is(err, errCut):
			err = errGone // If the owner does not answer, the lock that it holds says who it is.
		}
		return nil, err
	}
	return out, nil
}

// greeted reads the owner's greeting, and checks that the owner is of the same user and version.
func (s *conn) greeted(dir string) error {
	if err := sameUser(s.UnixConn); err != nil {
		return err
	}
	hello, err := readFrame(s.in)
	if err != nil {
		return fmt.Errorf("%w: %w", errCut, err)
	}
	var version int
	l := &s.limits
	_, err = fmt.Sscanf(string(hello), greeting, &version, &l.KeyBytes, &l.ValueBytes, &l.BatchBytes, &l.BatchOps)
	if version != 0 && version != protocolVersion {
		return fmt.Errorf("%w: the process that has %s open speaks version %d of the protocol, this one version %d", engine.ErrLocked, dir, version, protocolVersion)
	}
	if err != nil {
		return fmt.Errorf("%w: greeting %.100q", errProtocol, hello)
	}
	return nil
}

// errCut means that the connection ended.
var errCut = errors.New("shared: the connection was cut")

// call sends a request and passes what follows the status of the reply to decode. If changes is set, a request whose
// reply is lost fails with engine.ErrUnknown; else with errGone.
func (c *client) call(ctx context.Context, request []byte, changes bool, decode func(*decoder)) error {
	request, err := endFrame(request)
	if err != nil {
		return err
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
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
	if changes {
		grace = applyGrace
	}
	stop := context.AfterFunc(ctx, func() { s.SetDeadline(time.Now().Add(grace)) })
	reply, err := c.exchange(ctx, s, request, changes)
	if !stop() || err != nil {
		s.Close()
	} else {
		c.put(s)
	}
	if err != nil {
		return err
	}
	d := &decoder{b: reply[1:]}
	if reply[0] == statusOK {
		decode(d)
		return d.end()
	}
	err = d.err()
	if errors.Is(err, engine.ErrClosed) { // The driver has failed, and its owner gives the store up.
		c.leave()
		return errGone
	}
	return err
}

// exchange sends a request and returns the reply, which has the status statusOK or statusError.
func (c *client) exchange(ctx context.Context, s *conn, request []byte, changes bool) ([]byte, error) {
	// A request that was not sent whole is not begun.
	if n, err := s.Write(request); n < len(request) {
		return nil, c.cut(ctx, err)
	}
	reply, err := readFrame(s.in)
	switch {
	case err != nil:
		if err = c.cut(ctx, err); !changes {
			return nil, err
		}
		if ctx.Err() == nil {
			err = errCut // not errGone, which says that the call had no effect
		}
		return nil, fmt.Errorf("%w: no reply of the process that has the store open: %w", engine.ErrUnknown, err)
	case reply[0] == statusBye:
		c.leave()
		return nil, errGone
	case reply[0] != statusOK && reply[0] != statusError:
		return nil, fmt.Errorf("%w: status %q", errProtocol, reply[0])
	}
	return reply, nil
}

// cut returns the error for a connection that failed: that of the context if it has ended, else errGone.
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
	if n := len(c.idle); n > 0 && !c.left.Load() {
		s := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return s, nil
	}
	c.mu.Unlock()
	if c.left.Load() {
		return nil, errGone
	}
	s, err := c.dial(ctx)
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, engine.ErrNoSpace):
	case errors.Is(err, errGone):
		c.leave()
	default:
		err = fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	return s, err
}

// put keeps a connection for the next call.
func (c *client) put(s *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left.Load() {
		s.Close()
		return
	}
	c.idle = append(c.idle, s)
}

// leave makes the engine look for another owner. Calls that are under way go on.
func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left.Store(true)
	for _, s := range c.idle {
		s.Close()
	}
	c.idle = nil
}

func (c *client) gone() bool { return c.left.Load() }

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

// Close waits for calls that are under way, at most closeWait, and closes the connections.
func (c *client) Close() error {
	late := time.After(closeWait)
wait:
	for range cap(c.slots) {
		select {
		case c.slots <- struct{}{}:
		case <-late:
			break wait
		}
	}
	c.leave()
	return nil
}
