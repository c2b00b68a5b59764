//go:build unix

package main

import (
	"errors"
	"os"
	"syscall"

	"github.com/turnstonedb/turnstone/engine"
)

// lockFile locks a file, which it makes, until unlock is called or the process ends. It fails with engine.ErrLocked
// if another process has locked it.
func lockFile(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = engine.ErrLocked
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}
