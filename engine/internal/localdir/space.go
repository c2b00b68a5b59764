//go:build linux || darwin

package localdir

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

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

// Need returns an error that matches engine.ErrNoSpace if less than r is free, and that of Here. It looks
// at most ten times a second, and waits for the disk until ctx ends.
func (d *Dir) Need(ctx context.Context, r Resources) error { return d.need(ctx, r, checkEvery) }

// NeedNow is Need with a look of its own: it does not rely on an earlier one.
func (d *Dir) NeedNow(ctx context.Context, r Resources) error { return d.need(ctx, r, 0) }

// Seen returns what the last look found of Here, and lets another one begin if that was a tenth of a second ago. It
// never waits.
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

// again returns the last look. If that look is over and began at least age ago, again begins a new one. The caller
// holds mu.
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

// look returns the free amounts.
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
