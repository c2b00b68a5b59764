package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/shared"
	sockets "github.com/turnstonedb/turnstone/internal/socket"
)

// listen listens on an address. A socket whose process is gone is replaced.
func listen(ctx context.Context, address string, log *slog.Logger) (net.Listener, error) {
	path, unix := strings.CutPrefix(address, "unix:")
	if !unix {
		var lc net.ListenConfig
		return lc.Listen(ctx, "tcp", address)
	}
	// Of several processes that find a socket without an owner, one replaces it. The lock ends with the process.
	unlocked, err := lockFile(path + ".lock")
	if errors.Is(err, engine.ErrLocked) {
		return nil, fmt.Errorf("%w: another process serves on %s", engine.ErrUnavailable, path)
	}
	if err != nil {
		return nil, err
	}
	s := &socket{path: path, unlock: unlocked, came: make(chan net.Conn), closed: make(chan struct{})}
	if err := checkReplaceable(path); err != nil {
		return nil, errors.Join(err, unlocked())
	}
	refused := func(err error) { log.Warn("a connection was refused", "socket", path, "error", err) }
	s.on, err = shared.Listen(func() string { return path }, s.take, refused)
	if err != nil {
		return nil, errors.Join(err, unlocked())
	}
	return s, nil
}

// checkReplaceable returns an error if something is at a path that is no socket, or one that a process listens on.
func checkReplaceable(path string) error {
	switch i, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case i.Mode()&fs.ModeSocket == 0:
		return usageError{fmt.Errorf("%s is there, and no socket", path)}
	}
	if c, err := sockets.Dial(context.Background(), path); err == nil {
		return errors.Join(fmt.Errorf("%w: another process listens on %s", engine.ErrUnavailable, path), c.Close())
	}
	return nil
}

// A socket is a shared.Listener as a net.Listener, with the lock of its path.
type socket struct {
	path   string
	on     *shared.Listener
	unlock func() error
	came   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// take hands a connection to Accept.
func (s *socket) take(c *net.UnixConn) {
	select {
	case s.came <- c:
	case <-s.closed:
		_ = c.Close()
	}
}

// Addr implements net.Listener.
func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// Accept implements net.Listener.
func (s *socket) Accept() (net.Conn, error) {
	select {
	case c := <-s.came:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (s *socket) Close() (err error) {
	s.once.Do(func() {
		close(s.closed)
		err = errors.Join(s.on.Close(), s.unlock())
	})
	return err
}
