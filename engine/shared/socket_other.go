//go:build !linux && !darwin

package shared

import (
	"errors"
	"net"
)

var errSystem = errors.New("shared: embedded engines run on Linux and macOS only")

func sameUser(*net.UnixConn) error { return errSystem }
