package localdir

import (
	"errors"
	"os"
	"syscall"
)

// SyncData makes the content of f durable, and of its metadata what is needed to
// read it (fdatasync, POSIX.1).
func SyncData(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
