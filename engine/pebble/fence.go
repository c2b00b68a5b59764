package pebble

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

// A fence is the file system that Pebble writes through. It exists because
// Pebble ends the process, or retries without a pause, after most errors of its
// log, its MANIFEST and its markers.
//
// The first change of a file that fails lowers the fence: the engine is told why,
// the goroutine that asked for the change is parked for ever, and so is every
// goroutine that asks for a change later. Pebble never sees the error, so none of
// its code that panics or calls Fatalf runs, and no change reaches the files any
// more. What a caller waits for then is given up by the engine, not by Pebble.
//
// A table that could not be written for want of space is the exception: Pebble
// handles that error and tries again later, because what the table was to hold is
// still in the log or in other tables.
type fence struct {
	vfs.FS
	failed   func(error) // called once, with the error that lowers the fence
	short    func(error) // called when a table finds no space
	readOnly bool        // nothing may be changed, and Pebble tries to change nothing but its lock
	opening  atomic.Bool // shortage is a failure: pebble.Open would retry for ever

	ops  sync.RWMutex // read-held by each operation on a file; held by drain
	down atomic.Bool  // no change passes any more
	shut atomic.Bool  // the open files are closed, no read passes any more

	mu   sync.Mutex // guards open
	open map[io.Closer]struct{}
}

// shortPause is how long a table that finds no space holds up the flush or
// compaction that writes it. Pebble itself tries again without a pause.
const shortPause = 100 * time.Millisecond

func newFence(fs vfs.FS, failed, short func(error)) *fence {
	return &fence{FS: fs, failed: failed, short: short, open: map[io.Closer]struct{}{}}
}

// park ends the work of the calling goroutine without ending the goroutine. It is
// used where Pebble does not expect a return, and where its locks must stay held.
func park() { select {} }

// change runs op, which changes the file name, and parks if the fence is down or
// op fails.
func (f *fence) change(name string, op func() error) error {
	if f.readOnly {
		return fmt.Errorf("pebble would change %s: %w", name, engine.ErrReadOnly)
	}
	f.ops.RLock()
	if f.down.Load() {
		f.ops.RUnlock()
		park()
	}
	err := op()
	f.ops.RUnlock()
	if err == nil {
		return nil
	}
	if localdir.Short(err) && strings.HasSuffix(name, ".sst") && !f.opening.Load() {
		f.short(err)
		time.Sleep(shortPause)
		return err
	}
	f.stop(err)
	return nil
}

// stop lowers the fence because of err and parks.
func (f *fence) stop(err error) {
	f.lower()
	f.failed(err)
	park()
}

// read runs op unless the files are closed.
func (f *fence) read(op func() error) error {
	f.ops.RLock()
	defer f.ops.RUnlock()
	if f.shut.Load() {
		return os.ErrClosed
	}
	return op()
}

// lower stops all changes that have not begun.
func (f *fence) lower() { f.down.Store(true) }

// drain lowers the fence, waits until no operation is under way and closes all
// files, so that nobody can change them any more. It reports false when an
// operation does not end in time, which happens when the disk hangs.
func (f *fence) drain(within time.Duration) bool {
	f.lower()
	done := make(chan struct{})
	go func() {
		f.ops.Lock()
		f.shut.Store(true)
		f.ops.Unlock()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(within):
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.open {
		_ = c.Close() // written files were synced, or nobody relies on them
	}
	f.open = nil
	return true
}

func (f *fence) track(c io.Closer) {
	f.mu.Lock()
	if f.open != nil {
		f.open[c] = struct{}{}
	}
	f.mu.Unlock()
}

// untrack reports whether c was still open.
func (f *fence) untrack(c io.Closer) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.open[c]
	delete(f.open, c)
	return ok
}

// opened runs op, which opens name, with changes or without.
func (f *fence) opened(name string, changes bool, op func() (vfs.File, error)) (vfs.File, error) {
	guard := f.read
	if changes {
		guard = func(op func() error) error { return f.change(name, op) }
	}
	var file vfs.File
	err := guard(func() (err error) {
		if file, err = op(); err == nil {
			f.track(file)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &fenced{File: file, f: f, name: name, changes: changes}, nil
}

func (f *fence) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.opened(name, true, func() (vfs.File, error) { return f.FS.Create(name, c) })
}

func (f *fence) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return f.opened(name, true, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, o...) })
}

func (f *fence) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.opened(name, true, func() (vfs.File, error) { return f.FS.ReuseForWrite(old, name, c) })
}

func (f *fence) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	return f.opened(name, false, func() (vfs.File, error) { return f.FS.Open(name, o...) })
}

func (f *fence) OpenDir(name string) (vfs.File, error) {
	return f.opened(name, false, func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

func (f *fence) Link(old, name string) error {
	return f.change(name, func() error { return f.FS.Link(old, name) })
}

func (f *fence) Remove(name string) error {
	return f.change(name, func() error {
		err := f.FS.Remove(name)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
}

func (f *fence) RemoveAll(name string) error {
	return f.change(name, func() error { return f.FS.RemoveAll(name) })
}

func (f *fence) Rename(old, name string) error {
	return f.change(name, func() error { return f.FS.Rename(old, name) })
}

func (f *fence) MkdirAll(name string, mode os.FileMode) error {
	return f.change(name, func() error { return f.FS.MkdirAll(name, mode) })
}

func (f *fence) Lock(name string) (io.Closer, error) {
	if f.readOnly {
		return io.NopCloser(nil), nil // the directory is locked already
	}
	var lock io.Closer
	err := f.change(name, func() (err error) {
		if lock, err = f.FS.Lock(name); err == nil {
			f.track(lock)
		}
		return err
	})
	return &fencedLock{lock, f}, err
}

// GetDiskUsage implements vfs.FS. Pebble needs it only to pace removals, and takes
// an error for one of its background work.
func (f *fence) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{}, vfs.ErrUnsupported
}

// Unwrap implements vfs.FS. It hides the file system beneath from Pebble.
func (f *fence) Unwrap() vfs.FS { return nil }

type fencedLock struct {
	io.Closer
	f *fence
}

func (l *fencedLock) Close() error {
	if !l.f.untrack(l.Closer) {
		return nil
	}
	return l.Closer.Close()
}

// A fenced is a file behind a fence.
type fenced struct {
	vfs.File
	f       *fence
	name    string
	changes bool
}

func (c *fenced) Write(p []byte) (n int, err error) {
	err = c.f.change(c.name, func() (err error) { n, err = c.File.Write(p); return err })
	return n, err
}

func (c *fenced) WriteAt(p []byte, off int64) (n int, err error) {
	err = c.f.change(c.name, func() (err error) { n, err = c.File.WriteAt(p, off); return err })
	return n, err
}

func (c *fenced) Read(p []byte) (n int, err error) {
	err = c.f.read(func() (err error) { n, err = c.File.Read(p); return err })
	return n, err
}

func (c *fenced) ReadAt(p []byte, off int64) (n int, err error) {
	err = c.f.read(func() (err error) { n, err = c.File.ReadAt(p, off); return err })
	return n, err
}

func (c *fenced) Stat() (info vfs.FileInfo, err error) {
	err = c.f.read(func() (err error) { info, err = c.File.Stat(); return err })
	return info, err
}

func (c *fenced) Prefetch(off, n int64) error {
	return c.f.read(func() error { return c.File.Prefetch(off, n) })
}

// Preallocate does nothing: the files of a small store stay small.
func (c *fenced) Preallocate(int64, int64) error { return nil }

func (c *fenced) Sync() error { return c.f.change(c.name, c.File.Sync) }

func (c *fenced) SyncData() error { return c.f.change(c.name, c.File.SyncData) }

func (c *fenced) SyncTo(n int64) (full bool, err error) {
	err = c.f.change(c.name, func() (err error) { full, err = c.File.SyncTo(n); return err })
	return full, err
}

func (c *fenced) Close() error {
	closing := func() error {
		if !c.f.untrack(c.File) {
			return nil
		}
		return c.File.Close()
	}
	if c.changes {
		return c.f.change(c.name, closing)
	}
	return c.f.read(closing)
}

// Fd implements vfs.File. It hides the descriptor, because a write through it would
// bypass the fence.
func (c *fenced) Fd() uintptr { return vfs.InvalidFd }
