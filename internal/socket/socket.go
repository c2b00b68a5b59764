// Package socket connects with Unix sockets, and listens on them, whose paths may be longer than a socket's address.
package socket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// maxPath is the longest path in the address of a socket on all systems: see unix(4) and unix(7).
const maxPath = 103

// maxName is how many bytes the last name of a path has at most, if the whole path is longer than maxPath.
const maxName = 80

// Dial connects with the socket at a path.
func Dial(ctx context.Context, path string) (c *net.UnixConn, err error) {
	err = short(path, func(path string) error {
		d := net.Dialer{Timeout: 10 * time.Second}
		conn, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			c = conn.(*net.UnixConn)
		}
		return err
	})
	return c, err
}

// Listen makes a socket at a path, where nothing is. Closing it leaves the path as it is.
func Listen(path string) (l *net.UnixListener, err error) {
	err = short(path, func(path string) (err error) {
		if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}); err == nil {
			l.SetUnlinkOnClose(false)
		}
		return err
	})
	return l, err
}

// short calls f with path, or with a shorter path to the same socket. Linux has a short path for each directory that a
// process has open: see proc_pid_fd(5). On other systems a path that is longer than maxPath is an error.
func short(path string, f func(path string) error) error {
	if len(path) <= maxPath {
		return f(path)
	}
	name := filepath.Base(path)
	if runtime.GOOS != "linux" || len(name) > maxName {
		return fmt.Errorf("the path of the socket %s has %d bytes: at most %d are allowed, or on Linux %d for its last name", path, len(path), maxPath, maxName)
	}
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer directory.Close()
	err = f(fmt.Sprintf("/proc/self/fd/%d/%s", directory.Fd(), name))
	var of *net.OpError
	if errors.As(err, &of) { // It names the short path, which means nothing to the caller.
		return fmt.Errorf("%s %s: %w", of.Op, path, of.Err)
	}
	return err
}
