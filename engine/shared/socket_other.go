//go:build !linux && !darwin

package shared

import (
	"errors"
	"net"
)

var errSystem = errors.New("shared: embedded engines run on Linux and macOS only")

// SameUser returns an error: this system does not tell who is at the other end of a Unix socket.
func SameUser(*net.UnixConn) error { return errSystem }
