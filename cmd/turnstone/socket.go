package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/shared"
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
	l, err := listenUnix(ctx, path)
	if err != nil {
		return nil, errors.Join(err, unlocked())
	}
	s := &socket{path: path, log: log, unlock: unlocked, came: make(chan net.Conn), closed: make(chan struct{})}
	s.add(l)
	s.looks.Go(s.watch)
	return s, nil
}

func listenUnix(ctx context.Context, path string) (*net.UnixListener, error) {
	switch i, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case i.Mode()&fs.ModeSocket == 0:
		return nil, usageError{fmt.Errorf("%s is there, and no socket", path)}
	default:
		if c, err := net.Dial("unix", path); err == nil {
			return nil, errors.Join(fmt.Errorf("%w: another process listens on %s", engine.ErrUnavailable, path), c.Close())
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if errors.Is(err, syscall.EINVAL) {
		return nil, fmt.Errorf("%w: the path of a socket has 100 bytes or so at most: choose another one with --listen", err)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l.(*net.UnixListener), nil
}

// A socket is a listener on a Unix socket, for processes of this user. The mode of the file says so as well, but only a
// moment after the socket can be connected to. If the file is removed, the socket is made again.
type socket struct {
	path   string
	log    *slog.Logger
	unlock func() error
	came   chan net.Conn
	closed chan struct{}
	once   sync.Once
	looks  sync.WaitGroup // watch

	mu  sync.Mutex          // guards all
	all []*net.UnixListener // the one whose socket is at path
}

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
		s.looks.Wait() // It may be about to make the socket again.
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range s.all {
			err = errors.Join(err, l.Close())
		}
		err = errors.Join(err, s.unlock())
	})
	return err
}

// add takes connections from a listener, too. Those that have come to an earlier one go on.
func (s *socket) add(l *net.UnixListener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, before := range s.all { // Nobody can connect to it any more, and who has is accepted by then.
		before.SetUnlinkOnClose(false)
		time.AfterFunc(5*time.Second, func() { _ = before.Close() })
	}
	s.all = []*net.UnixListener{l}
	go func() {
		for {
			c, err := l.AcceptUnix()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil: // There are no descriptors: wait for some.
				time.Sleep(10 * time.Millisecond)
				continue
			}
			if err := shared.SameUser(c); err != nil && (runtime.GOOS == "linux" || runtime.GOOS == "darwin") {
				s.log.Warn("a connection was refused", "socket", s.path, "error", err)
				_ = c.Close()
				continue
			}
			select {
			case s.came <- c:
			case <-s.closed:
				_ = c.Close()
			}
		}
	}()
}

// watch makes the socket again when its file is gone.
func (s *socket) watch() {
	const every = 500 * time.Millisecond
	look := time.NewTicker(every)
	defer look.Stop()
	for {
		select {
		case <-s.closed:
			return
		case <-look.C:
		}
		if _, err := os.Lstat(s.path); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		l, err := listenUnix(context.Background(), s.path)
		if err != nil { // The directory may be gone as well.
			continue
		}
		s.log.Warn("the socket was removed, and is made again", "socket", s.path)
		s.add(l)
	}
}
