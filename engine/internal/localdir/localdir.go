//go:build linux || darwin

// Package localdir is what the embedded engines share: a private directory that
// one process holds at a time, and a check of free resources before a write,
// because the database beneath could not survive running out of them.
package localdir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/turnstonedb/turnstone/engine"
)

const (
	lockName  = "turnstone.lock"  // the holder locks it and describes itself in it
	movedName = "turnstone.moved" // says where the store was moved to
	usersName = "turnstone.users" // those who share a store lock it for as long as they do, whoever holds the directory
)

// A Dir is a directory that this process has open. It stays this directory when another one gets its path.
type Dir struct {
	Path  string // by which it was opened
	self  *os.File
	info  os.FileInfo // of self
	at    string      // leads to self
	locks []io.Closer

	mu   sync.Mutex // guards last
	last *look
}

// Open prepares the directory like Prepare, and locks it. It fails with *engine.LockedError when the directory is
// already locked, or open for reading. It needs no free space.
func Open(path string) (*Dir, error) {
	d, err := Prepare(path)
	if err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		func() error { return d.keep(d.Lock(lockName)) },
		d.moved,
		// Who only reads locks the directory itself, because there may be no file to lock.
		func() error { return d.lockSelf(syscall.LOCK_EX) },
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// Prepare creates path with mode 0700 if it does not exist, and opens it. An empty directory of this user's is made
// private; one that holds something and that others may enter is refused, and so is another user's.
func Prepare(path string) (*Dir, error) {
	if path == "" {
		return nil, fmt.Errorf("%w: the path of the store is empty", engine.ErrInvalid)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	old := filepath.Dir(path) // the nearest directory above that is there
	for old != filepath.Dir(old) && !exists(old) {
		old = filepath.Dir(old)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("engine: create store directory: %w", mapped(err))
	}
	// The last one is made durable also if it was there: who made it may have died before that.
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if err := Sync(dir); err != nil && !unsyncable(err) {
			return nil, fmt.Errorf("engine: create store directory: %w", mapped(err))
		}
		if dir == old {
			break
		}
	}
	d, err := hold(path)
	if err != nil {
		return nil, err
	}
	if err := d.check(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// hold opens a directory.
func hold(path string) (*Dir, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, fmt.Errorf("engine: %s is not a directory", path)
	}
	if err != nil {
		return nil, fmt.Errorf("engine: store directory: %w", mapped(err))
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("engine: store directory: %w", err), f.Close())
	}
	return &Dir{Path: path, self: f, info: info, at: leadingTo(f, info, path)}, nil
}

// At returns a path that leads to the directory wherever it is now, as long as d is open. A database that is given
// this path works in this directory and in no other one. On macOS, and where /proc is not mounted, it is Path.
func (d *Dir) At() string {
	if d.self == nil {
		return d.Path
	}
	return d.at
}

// check makes an empty directory private, and returns an error if somebody else owns the directory or may enter it.
func (d *Dir) check() error {
	st := d.info.Sys().(*syscall.Stat_t)
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("engine: %s belongs to user %d, not to %d", d.Path, st.Uid, os.Geteuid())
	}
	if d.info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	entries, err := os.ReadDir(d.At())
	if err != nil {
		return fmt.Errorf("engine: store directory: %w", mapped(err))
	}
	if len(entries) == 0 {
		if err := d.self.Chmod(0o700); err != nil {
			return fmt.Errorf("engine: make %s private: %w", d.Path, mapped(err))
		}
	}
	// Another process may have made it private meanwhile, and begun to use it.
	if d.info, err = d.self.Stat(); err != nil {
		return fmt.Errorf("engine: store directory: %w", err)
	}
	if mode := d.info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("engine: %s has mode %#o: other users could read or change the store; set it to 0700", d.Path, mode)
	}
	return nil
}

// ID identifies the directory on this machine, independent of its path. It contains no spaces.
func (d *Dir) ID() string {
	st := d.info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d-%d", st.Dev, st.Ino)
}

// Here returns a *engine.ReplacedError unless the directory is still at its path.
func (d *Dir) Here() error {
	if d.self == nil {
		return nil
	}
	mine, err := d.self.Stat() // looked up again: a directory of an overlay can get another inode number
	if err != nil {
		mine = d.info
	}
	now, err := os.Stat(d.Path)
	if err == nil && os.SameFile(now, mine) {
		return nil
	}
	return &engine.ReplacedError{Path: d.Path, Err: err}
}

// Named returns err with the directory's path in its text, instead of that of At.
func (d *Dir) Named(err error) error {
	if err == nil {
		return nil
	}
	if text := strings.ReplaceAll(err.Error(), d.At()+"/", d.Path+"/"); text != err.Error() {
		return &named{err, text}
	}
	return err
}

type named struct {
	error
	text string
}

func (n *named) Error() string { return n.text }
func (n *named) Unwrap() error { return n.error }

// Unused returns an error if somebody else's files are in the directory, where a new store is to be made. Hidden
// files, lost+found, and what Turnstone itself puts beside an engine's files do not count, nor do those that ours
// reports.
func (d *Dir) Unused(ours func(name string) bool) error {
	entries, err := os.ReadDir(d.At())
	if err != nil {
		return fmt.Errorf("engine: store directory: %w", mapped(err))
	}
	for _, e := range entries {
		name := e.Name()
		if !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "turnstone.") && name != "lost+found" && !ours(name) {
			return fmt.Errorf("%w: %s has no store, and other files (%s): a new store needs a directory of its own", engine.ErrInvalid, d.Path, name)
		}
	}
	return nil
}

// name returns a path of a file in the directory.
func (d *Dir) name(name string) string { return filepath.Join(d.At(), name) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// unsyncable reports whether a directory is somebody else's to make durable, because this user may not read it, or is
// of a file system that does not do that, or that can't be written.
func unsyncable(err error) bool {
	for _, e := range []error{os.ErrPermission, syscall.EINVAL, syscall.ENOTSUP, syscall.EROFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// SetMoved notes that the store in the directory was moved. It returns when that is durable. If it fails, nothing is
// noted, unless the error matches engine.ErrUnknown.
func (d *Dir) SetMoved(to string) error {
	f, err := os.OpenFile(d.name(movedName), os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("engine: note that the store was moved: %w", mapped(err))
	}
	_, err = f.WriteString(to + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = d.Sync()
	}
	if err != nil {
		err = fmt.Errorf("engine: note that the store was moved: %w", mapped(err))
		if left := errors.Join(os.Remove(f.Name()), d.Sync()); left != nil {
			err = fmt.Errorf("%w: %w: %w", engine.ErrUnknown, err, left)
		}
	}
	return err
}

// moved returns a *engine.MovedError if the store in the directory was moved.
func (d *Dir) moved() error {
	f, err := os.OpenFile(d.name(movedName), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("engine: was the store in %s moved: %w", d.Path, mapped(err))
	}
	defer f.Close()
	to := make([]byte, 4096)
	n, err := io.ReadFull(f, to)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("engine: was the store in %s moved: %w", d.Path, err)
	}
	return &engine.MovedError{Path: d.Path, To: strings.TrimSpace(string(to[:n]))}
}

// Close gives the directory up.
func (d *Dir) Close() error {
	var err error
	for i := len(d.locks) - 1; i >= 0; i-- {
		err = errors.Join(err, d.locks[i].Close())
	}
	if d.self != nil {
		err = errors.Join(err, d.self.Close())
	}
	return err
}

// Sync makes the names in the directory durable.
func (d *Dir) Sync() error { return d.self.Sync() }

// Sync makes the names in path durable.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// mapped names an error of the file system that means shortage.
func mapped(err error) error {
	if Short(err) {
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	}
	return err
}

// Short reports whether err is a shortage of disk space, quota, inodes or file
// descriptors.
func Short(err error) bool {
	for _, e := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Private takes the permissions of group and others from every file in the directory.
func (d *Dir) Private() error {
	entries, err := os.ReadDir(d.At())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if err := os.Chmod(d.name(e.Name()), 0o600); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Resemble gives f the mode of another file, and its owner if that is another user than this process's.
func Resemble(f *os.File, other os.FileInfo) error {
	if s, ok := other.Sys().(*syscall.Stat_t); ok && (int(s.Uid) != os.Geteuid() || int(s.Gid) != os.Getegid()) {
		if err := f.Chown(int(s.Uid), int(s.Gid)); err != nil {
			return err
		}
	}
	return f.Chmod(other.Mode().Perm())
}
