//go:build !linux && !darwin

package localdir

import (
	"context"
	"errors"
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

// Lock fails.
func Lock(string, string) (*Dir, error) { return nil, errSystem }

// Use fails.
func Use(string) (*Dir, error) { return nil, errSystem }

// ID is unused on this system.
type ID string

// Prepare fails.
func Prepare(string) (ID, error) { return "", errSystem }

// Check fails.
func Check(string) (ID, error) { return "", errSystem }

// SetMoved fails.
func SetMoved(string, string) error { return errSystem }

// Close does nothing.
func (d *Dir) Close() error { return nil }

// Need fails.
func (d *Dir) Need(context.Context, Resources) error { return errSystem }

// NeedNow fails.
func (d *Dir) NeedNow(context.Context, Resources) error { return errSystem }

// Sync fails.
func Sync(string) error { return errSystem }

// Short reports false.
func Short(error) bool { return false }

// Private fails.
func Private(string) error { return errSystem }
