package shared

import (
	"fmt"
	"net"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxPath is the longest path of a socket: see unix(4).
const maxPath = 103

// socketPath returns the path of the socket in dir. The path is valid until release is called.
func socketPath(dir string) (path string, release func(), err error) {
	if path = filepath.Join(dir, socketName); len(path) > maxPath {
		return "", nil, fmt.Errorf("shared: the path %s is longer than %d bytes, which is the most for a socket on this system", path, maxPath)
	}
	return path, func() {}, nil
}

// sameUser returns an error unless the process at the other end is of this process's user: see LOCAL_PEERCRED in unix(4).
func sameUser(c *net.UnixConn) error {
	return peer(c, func(fd int) (uid int, err error) {
		cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
		if err != nil {
			return 0, err
		}
		return int(cred.Uid), nil
	})
}
