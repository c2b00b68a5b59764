package shared

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// maxPath is the longest path of a socket: see unix(7).
const maxPath = 107

// socketPath returns a path of the socket in dir that is short enough. The path is valid until release is called.
func socketPath(dir string) (path string, release func(), err error) {
	path = filepath.Join(dir, socketName)
	if len(path) <= maxPath {
		return path, func() {}, nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), socketName), func() { d.Close() }, nil
}

// sameUser returns an error unless the process at the other end is of this process's user: see SO_PEERCRED in unix(7).
func sameUser(c *net.UnixConn) error {
	return peer(c, func(fd int) (uid int, err error) {
		cred, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if err != nil {
			return 0, err
		}
		return int(cred.Uid), nil
	})
}
