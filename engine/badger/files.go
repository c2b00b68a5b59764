package badger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dgraph-io/ristretto/v2/z"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

// files is the store's directory. All access to the disk except for the lock goes through
// it, so that tests can make any call fail and cut the power between any two calls. Names
// have no path.
type files interface {
	list() ([]string, error)
	create(name string) (file, error) // for reading and writing; fails when name exists
	open(name string) (file, error)   // for reading, and writing unless the engine only reads
	remove(name string) error
	rename(from, to string) error // replaces to
	// sync makes the names that the directory holds durable.
	sync() error
	// view maps name for reading until unmap is called, and reads its last bytes from the
	// disk at once. Reading data may fault when the disk fails: see caught.
	view(name string, last int64) (data []byte, unmap func() error, err error)
	// soon begins to read a part of a view from the disk. It is a hint.
	soon(data []byte)
	// release says that a view is not read for a while. It is a hint.
	release(data []byte)
	close() error
}

// A file is an open file. Writes and changes of the size are durable after SyncData.
type file interface {
	ReadAt(b []byte, at int64) (int, error)
	WriteAt(b []byte, at int64) (int, error)
	Truncate(size int64) error
	SyncData() error
	// Reserve allocates space for n bytes at an offset, so that writing them does not
	// fail for lack of space. It does not change the size of the file. If the file
	// system can't allocate space, Reserve does nothing.
	Reserve(at, n int64) error
	Size() (int64, error)
	Close() error
}

// directory implements files with a directory of the operating system.
type directory struct {
	name   string
	handle *os.File // for sync, which must not fail for lack of a file descriptor
	mode   int      // os.O_RDWR or os.O_RDONLY, for existing files
}

func openDirectory(name string, mode int) (directory, error) {
	f, err := os.Open(name)
	return directory{name, f, mode}, err
}

func (d directory) path(name string) string { return filepath.Join(d.name, name) }

func (d directory) list() ([]string, error) {
	entries, err := os.ReadDir(d.name)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (d directory) create(name string) (file, error) {
	f, err := os.OpenFile(d.path(name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d directory) open(name string) (file, error) {
	f, err := os.OpenFile(d.path(name), d.mode, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d directory) remove(name string) error     { return os.Remove(d.path(name)) }
func (d directory) rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }
func (d directory) sync() error                  { return d.handle.Sync() }
func (d directory) close() error                 { return d.handle.Close() }

func (d directory) view(name string, last int64) (data []byte, unmap func() error, err error) {
	f, err := os.Open(d.path(name))
	if err != nil {
		return nil, nil, err
	}
	defer f.Close() // the mapping stays valid
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return nil, func() error { return nil }, err
	}
	// Without advice, the kernel reads what is around the first page that is touched as well,
	// up to megabytes: the whole table for its index.
	last = min(last, info.Size())
	if _, err := f.ReadAt(make([]byte, last), info.Size()-last); err != nil {
		return nil, nil, err
	}
	if data, err = z.Mmap(f, false, info.Size()); err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	localdir.ReadSparingly(data)
	return data, func() error { return z.Munmap(data) }, nil
}

func (d directory) soon(data []byte)    { localdir.ReadAhead(data) }
func (d directory) release(data []byte) { localdir.Release(data) }

type osFile struct{ *os.File }

func (f osFile) SyncData() error           { return localdir.SyncData(f.File) }
func (f osFile) Reserve(at, n int64) error { return localdir.Reserve(f.File, at, n) }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// lost returns the error for a sync that failed. The writes before it may never reach the
// disk, although reads show them and the next sync succeeds. So the engine must stop, even
// after a shortage. (This is not so for a new file that is discarded when its sync fails.)
func lost(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: sync failed: %v", engine.ErrUnknown, err)
}

// removeAll removes files. It ignores files that do not exist.
func removeAll(d files, names []string) error {
	var failed error
	for _, n := range names {
		if err := d.remove(n); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}
