package shared

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// socket returns the path of the socket in the directory of e.
func (e *Engine) socket() string { return filepath.Join(e.home.At(), socketName) }

// errSystem says that this system does not tell who is at the other end of a socket.
var errSystem = errors.New("shared: this system does not tell who is at the other end of a socket")

// peer returns an error unless the user of the process at the other end, which userOf tells of a file descriptor, is
// that of this process.
func peer(c *net.UnixConn, userOf func(fd int) (uid int, err error)) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var uid int
	var failed error
	if err := raw.Control(func(fd uintptr) { uid, failed = userOf(int(fd)) }); err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("shared: who is at the other end of the socket: %w", failed)
	}
	if uid != os.Geteuid() {
		return fmt.Errorf("shared: the process at the other end of the socket is of user %d, not of %d", uid, os.Geteuid())
	}
	return nil
}
