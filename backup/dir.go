package backup

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Directory returns a directory of the file system as a target. The first Put makes it if it is not there, but not the
// directory that it is in: so a backup does not go elsewhere where a disk is not mounted. Files and directories are for
// the user alone. What Put stores is synced to the disk.
func Directory(name string) Target { return directory(name) }

type directory string

// temporary begins the names of files that are being written.
const temporary = ".writing-"

// open opens the directory.
func (d directory) open() (*os.Root, error) { return os.OpenRoot(string(d)) }

// make makes the directory, if it is not there.
func (d directory) make() error {
	if err := os.Mkdir(string(d), 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	above, err := os.Open(filepath.Dir(filepath.Clean(string(d))))
	if err != nil {
		return err
	}
	return errors.Join(above.Sync(), above.Close())
}

func (d directory) Put(ctx context.Context, name string, r io.Reader) (err error) {
	if err := d.make(); err != nil {
		return err
	}
	root, err := d.open()
	if err != nil {
		return err
	}
	defer root.Close()
	var random [8]byte
	_, _ = rand.Read(random[:]) // does not fail
	dir := path.Dir(name)
	temp := path.Join(dir, temporary+hex.EncodeToString(random[:]))
	if err := root.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, absent(root.Remove(temp))) }()
	_, err = io.Copy(f, &cancelable{ctx, r})
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := publish(root, temp, name); err != nil {
		return err
	}
	for at := dir; ; at = path.Dir(at) {
		if err := syncDir(root, at); err != nil || at == "." {
			return err
		}
	}
}

// publish gives a file its name, unless there is one of the name.
func publish(root *os.Root, temp, name string) error {
	err := root.Link(temp, name)
	if !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	// A file system without links does not tell two processes apart that write the name at the same time.
	if _, err := root.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return cmp.Or(err, fs.ErrExist)
	}
	return root.Rename(temp, name)
}

func syncDir(root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// A cancelable is a reader that fails when ctx has ended.
type cancelable struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancelable) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}

func (d directory) Get(_ context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	root, err := d.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if length < 0 {
		return f, nil
	}
	return &part{io.LimitReader(f, length), f}, nil
}

// A part is a part of a file.
type part struct {
	io.Reader
	io.Closer
}

func (d directory) List(_ context.Context, dir string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		all, err := d.list(dir)
		if err != nil {
			yield("", err)
			return
		}
		for _, name := range all {
			if !yield(name, nil) {
				return
			}
		}
	}
}

func (d directory) list(dir string) (names []string, err error) {
	root, err := d.open()
	if err != nil {
		return nil, absent(err)
	}
	defer root.Close()
	all, err := fs.ReadDir(root.FS(), path.Clean("./"+dir))
	for _, e := range all {
		switch {
		case strings.HasPrefix(e.Name(), temporary):
		case e.IsDir():
			names = append(names, e.Name()+"/")
		default:
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, absent(err)
}

// absent returns nil for the error that there is nothing.
func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (d directory) Delete(_ context.Context, name string) error {
	root, err := d.open()
	if err != nil {
		return absent(err)
	}
	defer root.Close()
	if dir, ok := strings.CutSuffix(name, "/"); ok {
		return root.RemoveAll(dir)
	}
	return absent(root.Remove(name))
}
