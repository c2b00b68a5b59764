package shared

import (
	"net"

	"golang.org/x/sys/unix"
)

// sameUser returns an error unless the process at the other end of a Unix socket is of this process's user: see
// LOCAL_PEERCRED in unix(4).
func sameUser(c *net.UnixConn) error {
	return peer(c, func(fd int) (uid int, err error) {
		cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
		if err != nil {
			return 0, err
		}
		return int(cred.Uid), nil
	})
}
