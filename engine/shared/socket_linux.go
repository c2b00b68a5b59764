package shared

import (
	"net"
	"syscall"
)

// sameUser returns an error unless the process at the other end of a Unix socket is of this process's user: see
// SO_PEERCRED in unix(7).
func sameUser(c *net.UnixConn) error {
	return peer(c, func(fd int) (uid int, err error) {
		cred, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if err != nil {
			return 0, err
		}
		return int(cred.Uid), nil
	})
}
