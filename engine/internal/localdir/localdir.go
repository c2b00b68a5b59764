//go:build linux || darwin

// Package localdir is what the embedded engines share: a private directory that
// one process holds at a time, and a look at the resources left before a write
// that the database beneath could not survive running out of.
package localdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

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

// Resources are amounts of what a driver can run out of. They say what is free, or what a
// driver needs to be free.
type Resources struct {
	Bytes  uint64 // space on the file system
	Inodes uint64 // if the file system counts them
	Files  uint64 // file descriptors of this process
}

// checkEvery is how long a look at what is left holds. At 500 MB/s a process
// writes 50 MB in that time, well under the 128 MiB that the drivers keep free.
const checkEvery = 100 * time.Millisecond

// Open is Prepare, and locks the directory. It fails with *engine.LockedError when the directory is locked already, or read.
// It needs no free space.
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

// Prepare creates path with mode 0700 if it does not exist, and opens it. An empty directory of this user's is made private; one
// that holds something and that others may enter is refused, and so is another user's.
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

// At returns a path of the directory that leads to it wherever it is, as long as d is open: databases that take a path, and
// join it with names of files, work in this directory and in no other one. On macOS, and where /proc is not mounted, it is Path.
func (d *Dir) At() string {
	if d.self == nil {
		return d.Path
	}
	return d.at
}

// check returns an error if somebody else owns d or may enter it. It makes an empty directory private.
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
	mine, err := d.self.Stat() // anew: a directory of an overlay can get another number
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

// Unused returns an error if somebody else's files are in the directory, where a new store is to be made. Hidden files, lost+found, and
// what Turnstone itself puts beside an engine's files do not count, nor do those that ours reports.
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

// unsyncable reports whether a directory is somebody else's to make durable, because this user may not read it, or is of a file system that does not do
// that, or that can't be written.
func unsyncable(err error) bool {
	for _, e := range []error{os.ErrPermission, syscall.EINVAL, syscall.ENOTSUP, syscall.EROFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Lock locks the file called name in the directory until it is closed, and describes this process in it. Locks of different names
// are independent. It fails with *engine.LockedError when the file is locked already.
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

// Use registers this process as a user of the store until d is closed. Another process may hold the store. Use fails with
// *engine.LockedError while a process opens the store for reading only. On a full disk it registers nothing.
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

// OpenReadOnly locks an existing directory for reading: others can lock it for reading as well, but not open it. It fails
// with *engine.LockedError if a process has the directory open, or shares it. It changes nothing there.
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

// SetMoved notes that the store in the directory was moved. It returns when that is durable. If it fails, nothing is noted, unless the error matches
// engine.ErrUnknown.
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

// Need returns an error that matches engine.ErrNoSpace if less than r is free, and that of Here. It looks
// at most ten times a second, and waits for the disk until ctx ends.
func (d *Dir) Need(ctx context.Context, r Resources) error { return d.need(ctx, r, checkEvery) }

// NeedNow is like Need, but reads the free amounts each time.
func (d *Dir) NeedNow(ctx context.Context, r Resources) error { return d.need(ctx, r, 0) }

// Seen returns what the last look found of Here, and lets another one begin if that was a tenth of a second ago. It never waits.
func (d *Dir) Seen() error {
	if d.self == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.last
	d.again(checkEvery)
	if last != nil && last.over() && errors.Is(last.err, engine.ErrReplaced) {
		return last.err
	}
	return nil
}

// need is Need with free amounts that were read within age.
func (d *Dir) need(ctx context.Context, r Resources, age time.Duration) error {
	d.mu.Lock()
	l := d.again(age)
	d.mu.Unlock()
	select {
	case <-l.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if l.err != nil {
		return l.err
	}
	return d.enough(l.left, r)
}

// again returns the last look, or a new one if that is over and was begun so long ago. The caller holds mu.
func (d *Dir) again(age time.Duration) *look {
	l := d.last
	if l == nil || l.over() && time.Since(l.begun) >= age { // one that hangs is joined
		l = &look{begun: time.Now(), done: make(chan struct{})}
		d.last = l
		go func() {
			l.left, l.err = d.look()
			close(l.done)
		}()
	}
	return l
}

// A look reads the free amounts, in a goroutine of its own: on a disk that hangs it does not end.
type look struct {
	begun time.Time
	done  chan struct{} // closed when the others are set
	left  Resources
	err   error
}

func (l *look) over() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

func (d *Dir) enough(left, r Resources) error {
	switch {
	case left.Bytes < r.Bytes:
		return fmt.Errorf("%w: %d bytes free in %s, %d needed", engine.ErrNoSpace, left.Bytes, d.Path, r.Bytes)
	case left.Inodes < r.Inodes:
		return fmt.Errorf("%w: %d inodes free in %s, %d needed", engine.ErrNoSpace, left.Inodes, d.Path, r.Inodes)
	case left.Files < r.Files:
		return fmt.Errorf("%w: this process may open %d more files, %d needed", engine.ErrNoSpace, left.Files, r.Files)
	}
	return nil
}

// look returns what is free.
func (d *Dir) look() (Resources, error) {
	if err := d.Here(); err != nil {
		return Resources{}, err
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(d.At(), &fs); err != nil {
		return Resources{}, fmt.Errorf("engine: free space of %s: %w", d.Path, err)
	}
	left := Resources{Bytes: uint64(fs.Bavail) * uint64(fs.Bsize), Inodes: fs.Ffree}
	if fs.Files == 0 {
		left.Inodes = math.MaxUint64
	}
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		return Resources{}, err
	}
	open, err := descriptors()
	if err != nil {
		return Resources{}, err
	}
	if open < uint64(lim.Cur) {
		left.Files = uint64(lim.Cur) - open
	}
	return left, nil
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
