//go:build !linux && !darwin

package localdir

import (
	"context"
	"errors"
	"io"
	"os"
)

// Dir can't be had on this system: neither locks nor durable directory entries
// are known to work here.
type Dir struct{ Path string }

// Resources is unused on this system.
type Resources struct{ Bytes, Inodes, Files uint64 }

var errSystem = errors.New("engine: embedded engines run on Linux and macOS only; use postgres or memory here")

// Open fails.
func Open(string) (*Dir, error) { return nil, errSystem }

// OpenReadOnly fails.
func OpenReadOnly(string) (*Dir, error) { return nil, errSystem }

// Prepare fails.
func Prepare(string) (*Dir, error) { return nil, errSystem }

// Lock fails.
func (d *Dir) Lock(string) (io.Closer, error) { return nil, errSystem }

// Use fails.
func (d *Dir) Use() error { return errSystem }

// At returns Path.
func (d *Dir) At() string { return d.Path }

// ID returns nothing.
func (d *Dir) ID() string { return "" }

// Here fails.
func (d *Dir) Here() error { return errSystem }

// SetMoved fails.
func (d *Dir) SetMoved(string) error { return errSystem }

// Close does nothing.
func (d *Dir) Close() error { return nil }

// Need fails.
func (d *Dir) Need(context.Context, Resources) error { return errSystem }

// NeedNow fails.
func (d *Dir) NeedNow(context.Context, Resources) error { return errSystem }

// Sync fails.
func (d *Dir) Sync() error { return errSystem }

// Private fails.
func (d *Dir) Private() error { return errSystem }

// Seen fails.
func (d *Dir) Seen() error { return errSystem }

// Named returns err.
func (d *Dir) Named(err error) error { return err }

// Sync fails.
func Sync(string) error { return errSystem }

// Short reports false.
func Short(error) bool { return false }

// Unused fails.
func (d *Dir) Unused(func(string) bool) error { return errSystem }

// Resemble is not for this system.
func Resemble(*os.File, os.FileInfo) error { return errSystem }
