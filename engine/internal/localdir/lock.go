//go:build linux || darwin

package localdir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// Lock locks the file called name in the directory until it is closed, and describes this process in it. Locks of
// different names are independent. It fails with *engine.LockedError when the file is locked already.
func (d *Dir) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(d.name(name), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("engine: lock %s: %w", d.Path, mapped(err))
	}
	if err := lock(d.Path, f, syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	host, _ := os.Hostname()
	me := fmt.Sprintf("pid %d (%s) on %s since %s\n", os.Getpid(), filepath.Base(os.Args[0]), host, time.Now().UTC().Format(time.RFC3339))
	if f.Truncate(0) == nil {
		f.WriteAt([]byte(me), 0) // for people only: a full disk must not prevent reading
	}
	return f, nil
}

// keep keeps a lock until d is closed.
func (d *Dir) keep(lock io.Closer, err error) error {
	if err == nil {
		d.locks = append(d.locks, lock)
	}
	return err
}

// Use registers this process as a user of the store until d is closed. Another process may hold the store. Use fails
// with *engine.LockedError while a process opens the store for reading only. On a full disk it registers nothing.
func (d *Dir) Use() error {
	f, err := os.OpenFile(d.name(usersName), os.O_RDONLY|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if Short(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("engine: lock %s: %w", d.Path, err)
	}
	if err := lock(d.Path, f, syscall.LOCK_SH); err != nil {
		return errors.Join(err, f.Close())
	}
	return d.keep(f, nil)
}

// OpenReadOnly locks an existing directory for reading: others can lock it for reading as well, but not open it. It
// fails with *engine.LockedError if a process has the directory open, or shares it. It changes nothing there.
func OpenReadOnly(path string) (*Dir, error) {
	if path == "" {
		return nil, fmt.Errorf("%w: the path of the store is empty", engine.ErrInvalid)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	d, err := hold(path)
	if err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		d.unshared, // Most that fail do so here, before they keep anybody out.
		func() error { return d.lockOld(lockName, syscall.LOCK_SH) }, // From here on nobody opens the directory,
		func() error { return d.lockSelf(syscall.LOCK_SH) },          // and nobody begins to share it.
		d.unshared, // Somebody may have begun in between.
		d.moved,
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// unshared returns an error if processes share the directory.
func (d *Dir) unshared() error {
	locks := len(d.locks)
	err := d.lockOld(usersName, syscall.LOCK_EX)
	if errors.Is(err, engine.ErrLocked) {
		return &engine.LockedError{Path: d.Path, Holder: "processes that share it"}
	}
	for _, l := range d.locks[locks:] {
		err = errors.Join(err, l.Close())
	}
	d.locks = d.locks[:locks]
	return err
}

// lockOld locks a file of the directory, if there is one.
func (d *Dir) lockOld(name string, how int) error {
	f, err := os.OpenFile(d.name(name), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("engine: lock %s: %w", d.Path, mapped(err))
	}
	if err := lock(d.Path, f, how); err != nil {
		return errors.Join(err, f.Close())
	}
	return d.keep(f, nil)
}

// lockSelf locks the directory itself. Not all file systems can do that; then the locks of files are all there is.
func (d *Dir) lockSelf(how int) error {
	f, err := os.Open(d.At()) // not self: this lock is to go before the others
	if err != nil {
		return fmt.Errorf("engine: store directory: %w", mapped(err))
	}
	err = lock(d.Path, f, how)
	if errors.Is(err, engine.ErrLocked) {
		return errors.Join(err, f.Close())
	}
	if err != nil {
		return f.Close()
	}
	return d.keep(f, nil)
}

// lock locks f, which is in the directory path, exclusively or shared.
func lock(path string, f *os.File, how int) error {
	const looks = 20 // for some milliseconds: who looks whether a file is locked locks it for a moment
	for n := 1; ; n++ {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("engine: lock %s: %w", path, err)
		}
		if n == looks {
			break
		}
		time.Sleep(time.Duration(n) * 50 * time.Microsecond)
	}
	who := holder(f)
	if how == syscall.LOCK_EX && syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil {
		// Those who only read do not describe themselves, so the file still says who had the directory before them.
		who = "a process that reads it, or shares it"
	}
	return &engine.LockedError{Path: path, Holder: who}
}

func holder(f *os.File) string {
	buf := make([]byte, 512)
	n, _ := f.ReadAt(buf, 0)
	if s := strings.TrimSpace(string(buf[:n])); s != "" {
		return s
	}
	return "another process"
}
