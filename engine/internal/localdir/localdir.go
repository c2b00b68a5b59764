//go:build linux || darwin

// Package localdir is what the embedded engines share: a private directory that
// one process holds at a time, and a look at the resources left before a write
// that the database beneath could not survive running out of.
package localdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// lockName is the file that the holder locks and describes itself in.
const lockName = "turnstone.lock"

// A Dir is a directory held by this process.
type Dir struct {
	Path string
	lock *os.File
	need Need

	mu      sync.Mutex // guards checked and verdict
	checked time.Time
	verdict error
}

// Need is what must be left before a write may start.
type Need struct {
	Bytes  uint64 // free bytes on the file system
	Inodes uint64 // free inodes, where the file system counts them
	Files  uint64 // file descriptors that this process may still open
}

// checkEvery is how long a verdict of Room holds. At 500 MB/s a process writes
// 50 MB in that time, well under the 128 MiB that the drivers keep free.
const checkEvery = 100 * time.Millisecond

// Open creates path with mode 0700 if it does not exist, refuses one that
// others own or may enter, and locks it. It fails with *engine.LockedError when
// it is held already.
func Open(path string, need Need) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("engine: create store directory: %w", err)
	}
	if err := Sync(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("engine: create store directory: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("engine: %s is not a directory", path)
	}
	st := info.Sys().(*syscall.Stat_t)
	if int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("engine: %s belongs to user %d, not to %d", path, st.Uid, os.Geteuid())
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("engine: %s has mode %#o: other users could read or change the store; set it to 0700", path, mode)
	}
	f, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &engine.LockedError{Path: path, Holder: holder(f)}
		}
		return nil, fmt.Errorf("engine: lock %s: %w", path, err)
	}
	host, _ := os.Hostname()
	me := fmt.Sprintf("pid %d (%s) on %s since %s\n", os.Getpid(), filepath.Base(os.Args[0]), host, time.Now().UTC().Format(time.RFC3339))
	if err := errors.Join(f.Truncate(0), writeAt(f, me)); err != nil {
		f.Close()
		return nil, fmt.Errorf("engine: describe holder: %w", err)
	}
	d := &Dir{Path: path, lock: f, need: need}
	if err := d.Room(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

func holder(f *os.File) string {
	buf := make([]byte, 512)
	n, _ := f.ReadAt(buf, 0)
	if s := strings.TrimSpace(string(buf[:n])); s != "" {
		return s
	}
	return "another process"
}

// Close gives the directory up.
func (d *Dir) Close() error { return d.lock.Close() }

// Room returns an error that matches engine.ErrNoSpace when less is left than
// the need given to Open.
func (d *Dir) Room() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.checked) < checkEvery {
		return d.verdict
	}
	d.verdict = d.room(0)
	d.checked = time.Now()
	return d.verdict
}

// RoomFor is like Room for a write of extra bytes, and always looks anew.
func (d *Dir) RoomFor(extra uint64) error { return d.room(extra) }

func (d *Dir) room(extra uint64) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(d.Path, &fs); err != nil {
		return fmt.Errorf("engine: free space of %s: %w", d.Path, err)
	}
	if free, need := uint64(fs.Bavail)*uint64(fs.Bsize), d.need.Bytes+extra; free < need {
		return fmt.Errorf("%w: %d bytes free in %s, %d needed", engine.ErrNoSpace, free, d.Path, need)
	}
	if fs.Files > 0 && fs.Ffree < d.need.Inodes {
		return fmt.Errorf("%w: %d inodes free in %s, %d needed", engine.ErrNoSpace, fs.Ffree, d.Path, d.need.Inodes)
	}
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		return err
	}
	open, err := descriptors()
	if err != nil {
		return err
	}
	if open+d.need.Files > uint64(lim.Cur) {
		return fmt.Errorf("%w: %d of %d file descriptors are open, %d more needed", engine.ErrNoSpace, open, lim.Cur, d.need.Files)
	}
	return nil
}

// descriptors counts the open file descriptors of this process.
func descriptors() (uint64, error) {
	dir, err := os.Open("/dev/fd")
	if err != nil {
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			return 0, fmt.Errorf("%w: no file descriptor left", engine.ErrNoSpace)
		}
		return 0, fmt.Errorf("engine: count file descriptors: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return 0, fmt.Errorf("engine: count file descriptors: %w", err)
	}
	return uint64(len(names)), nil
}

// Sync makes the names in path durable.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// ReplaceFile atomically and durably replaces the content of path. With begun,
// the error leaves open which content the next reader finds.
func ReplaceFile(path string, content []byte) (begun bool, err error) {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return false, err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return false, err
	}
	// What the content may refer to in the directory comes first.
	if err := Sync(filepath.Dir(path)); err != nil {
		return false, err
	}
	if err := os.Rename(tmp, path); err != nil {
		return true, err
	}
	return true, Sync(filepath.Dir(path))
}

// Private takes the permissions of group and others from every file in path.
func Private(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if err := os.Chmod(filepath.Join(path, e.Name()), 0o600); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
