package badger

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
)

// A disk implements files in memory. A test can make its calls fail and cut its power.
//
// A cut keeps everything that was synced, and a random part of the rest: some sectors of
// the writes to a file since its last sync, and the names that the mode allows. After a
// failed sync the writes before it can be read, but a cut loses them, because the kernel
// takes them for written.
type disk struct {
	mu       sync.Mutex
	mode     string            // journal, btrfs or posix: which names a sync makes durable
	names    map[string]*inode // as the program sees them
	kept     map[string]*inode // the durable names
	pending  []nameChange
	capacity int64 // bytes that files may allocate; 0 means any number
	calls    int
	fail     func(call int, op, name string) error // if set, may fail a call
}

type inode struct {
	data    []byte // as the program sees it
	kept    []byte // the durable content
	writes  []change
	blocks  map[int64]bool // the blocks that are allocated
	removed bool
}

// A change of a file is a write or a new size.
type change struct {
	at   int64
	data []byte
	size int64 // the new size, if data is nil
}

type nameChange struct {
	name string
	to   *inode // nil if the name was removed
	from string // the old name, for a rename
}

const blockSize, sector = 4096, 512

func newDisk(mode string) *disk {
	return &disk{mode: mode, names: map[string]*inode{}, kept: map[string]*inode{}}
}

// call counts a call and returns the error with which it fails.
func (d *disk) call(op, name string) error {
	d.calls++
	if d.fail != nil {
		if err := d.fail(d.calls, op, name); err != nil {
			return &fs.PathError{Op: op, Path: name, Err: err}
		}
	}
	return nil
}

func (d *disk) list() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.names)), d.call("list", ".")
}

func (d *disk) create(name string) (file, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("create", name); err != nil {
		return nil, err
	}
	if d.names[name] != nil {
		return nil, fs.ErrExist
	}
	if d.capacity > 0 && d.used() >= d.capacity {
		return nil, &fs.PathError{Op: "create", Path: name, Err: syscall.ENOSPC}
	}
	n := &inode{blocks: map[int64]bool{}}
	d.names[name] = n
	d.pending = append(d.pending, nameChange{name: name, to: n})
	return &openFile{d, n, name}, nil
}

func (d *disk) open(name string) (file, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("open", name); err != nil {
		return nil, err
	}
	n := d.names[name]
	if n == nil {
		return nil, fs.ErrNotExist
	}
	return &openFile{d, n, name}, nil
}

func (d *disk) remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("remove", name); err != nil {
		return err
	}
	n := d.names[name]
	if n == nil {
		return fs.ErrNotExist
	}
	n.removed = true
	delete(d.names, name)
	d.pending = append(d.pending, nameChange{name: name})
	return nil
}

func (d *disk) rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("rename", from); err != nil {
		return err
	}
	n := d.names[from]
	if n == nil {
		return fs.ErrNotExist
	}
	delete(d.names, from)
	d.names[to] = n
	d.pending = append(d.pending, nameChange{name: to, to: n, from: from})
	return nil
}

func (d *disk) sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("sync", "."); err != nil {
		return err
	}
	d.commitNames(func(nameChange) bool { return true })
	return nil
}

func (d *disk) close() error { return nil }

// commitNames makes changes of names durable.
func (d *disk) commitNames(which func(nameChange) bool) {
	var rest []nameChange
	for _, c := range d.pending {
		if which(c) {
			c.play(d.kept)
		} else {
			rest = append(rest, c)
		}
	}
	d.pending = rest
}

func (c nameChange) play(names map[string]*inode) {
	if c.from != "" {
		delete(names, c.from)
	}
	if c.to == nil {
		delete(names, c.name)
	} else {
		names[c.name] = c.to
	}
}

func (d *disk) view(name string, _ int64) ([]byte, func() error, error) {
	f, err := d.open(name)
	if err != nil {
		return nil, nil, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, nil, err
	}
	data := make([]byte, size)
	if _, err = f.ReadAt(data, 0); errors.Is(err, io.EOF) {
		err = nil
	}
	return data, func() error { return nil }, err
}

func (d *disk) soon([]byte)    {}
func (d *disk) release([]byte) {}

// used returns how many bytes files have allocated.
func (d *disk) used() int64 {
	n := int64(0)
	for _, f := range d.names {
		n += int64(len(f.blocks)) * blockSize
	}
	return n
}

type openFile struct {
	d    *disk
	n    *inode
	name string
}

func (f *openFile) ReadAt(b []byte, at int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.call("read", f.name); err != nil {
		return 0, err
	}
	if at >= int64(len(f.n.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.n.data[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// allocate takes the blocks of a piece, as many as there is space for.
func (f *openFile) allocate(at, n int64) (got int64, err error) {
	for b := at / blockSize; b*blockSize < at+n; b++ {
		if !f.n.blocks[b] {
			if f.d.capacity > 0 && f.d.used() >= f.d.capacity {
				return max(0, b*blockSize-at), syscall.ENOSPC
			}
			f.n.blocks[b] = true
		}
	}
	return n, nil
}

func (f *openFile) WriteAt(b []byte, at int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	n := int64(len(b))
	failed := f.d.call("write", f.name)
	if failed != nil {
		n /= 2 // half of the data was written before the failure
	}
	n, err := f.allocate(at, n)
	f.n.play(change{at: at, data: bytes.Clone(b[:n])}, &f.n.data)
	f.n.writes = append(f.n.writes, change{at: at, data: bytes.Clone(b[:n])})
	if failed == nil && err != nil {
		failed = &fs.PathError{Op: "write", Path: f.name, Err: err}
	}
	return int(n), failed
}

func (n *inode) play(c change, data *[]byte) {
	size := c.size
	if c.data != nil {
		size = max(int64(len(*data)), c.at+int64(len(c.data)))
	}
	if size > int64(len(*data)) {
		*data = append(*data, make([]byte, size-int64(len(*data)))...)
	}
	*data = (*data)[:size]
	copy((*data)[min(c.at, size):], c.data)
}

func (f *openFile) Truncate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.call("truncate", f.name); err != nil {
		return err
	}
	for b := range f.n.blocks {
		if b*blockSize >= size {
			delete(f.n.blocks, b)
		}
	}
	f.n.play(change{size: size}, &f.n.data)
	f.n.writes = append(f.n.writes, change{size: size})
	return nil
}

func (f *openFile) SyncData() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.call("datasync", f.name); err != nil {
		f.n.writes = nil
		return err
	}
	for _, c := range f.n.writes {
		f.n.play(c, &f.n.kept)
	}
	f.n.writes = nil
	switch f.d.mode {
	case "journal":
		f.d.commitNames(func(nameChange) bool { return true })
	case "btrfs":
		names := map[string]bool{} // earlier changes of the same names come first
		for _, c := range f.d.pending {
			names[c.name] = names[c.name] || c.to == f.n
		}
		f.d.commitNames(func(c nameChange) bool { return names[c.name] })
	}
	return nil
}

func (f *openFile) Reserve(at, n int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.call("reserve", f.name); err != nil {
		return err
	}
	if n <= 0 {
		return syscall.EINVAL
	}
	_, err := f.allocate(at, n)
	return err
}

func (f *openFile) Size() (int64, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return int64(len(f.n.data)), f.d.call("size", f.name)
}

func (f *openFile) Close() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return f.d.call("close", f.name)
}

// cut returns a disk as it may be after a loss of power.
func (d *disk) cut(r *rand.Rand) *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := maps.Clone(d.kept)
	switch how := r.IntN(3); {
	case d.mode == "journal":
		for _, c := range d.pending[:r.IntN(len(d.pending)+1)] {
			c.play(kept)
		}
	default:
		for _, c := range d.pending {
			if how == 0 || how == 1 && r.IntN(2) == 0 {
				c.play(kept)
			}
		}
	}
	after := newDisk(d.mode)
	copies := map[*inode]*inode{}
	for name, n := range kept {
		if copies[n] == nil {
			copies[n] = n.cut(r)
		}
		after.names[name] = copies[n]
	}
	after.kept = maps.Clone(after.names)
	return after
}

func (n *inode) cut(r *rand.Rand) *inode {
	data := bytes.Clone(n.kept)
	how := r.IntN(3)
	for _, c := range n.writes {
		if c.data == nil {
			if how == 0 || r.IntN(2) == 0 {
				n.play(c, &data)
			}
			continue
		}
		for at := 0; at < len(c.data); at += sector {
			if how == 0 || how == 1 && r.IntN(2) == 0 {
				n.play(change{at: c.at + int64(at), data: c.data[at:min(at+sector, len(c.data))]}, &data)
			}
		}
	}
	return fileOf(data)
}

func fileOf(data []byte) *inode {
	n := &inode{data: data, kept: bytes.Clone(data), blocks: map[int64]bool{}}
	for b := range (int64(len(data)) + blockSize - 1) / blockSize {
		n.blocks[b] = true
	}
	return n
}

// copied returns a disk with the same files.
func (d *disk) copied() *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := newDisk(d.mode)
	for name, n := range d.names {
		c.names[name] = fileOf(bytes.Clone(n.data))
	}
	c.kept = maps.Clone(c.names)
	return c
}

// set makes every call from now on ask fail first. Calls are counted from 1.
func (d *disk) set(fail func(call int, op, name string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls, d.fail = 0, fail
}
