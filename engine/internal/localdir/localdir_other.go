//go:build !linux && !darwin

package localdir

import (
	"errors"
)

// Dir can't be had on this system: neither locks nor durable directory entries
// are known to work here.
type Dir struct{ Path string }

// Need is unused on this system.
type Need struct{ Bytes, Inodes, Files uint64 }

var errSystem = errors.New("engine: embedded engines run on Linux and macOS only; use postgres or memory here")

// Open fails.
func Open(string, Need) (*Dir, error) { return nil, errSystem }

// Close does nothing.
func (d *Dir) Close() error { return nil }

// Room fails.
func (d *Dir) Room() error { return errSystem }

// RoomFor fails.
func (d *Dir) RoomFor(uint64) error { return errSystem }

// Sync fails.
func Sync(string) error { return errSystem }

// ReplaceFile fails.
func ReplaceFile(string, []byte) (bool, error) { return false, errSystem }

// Private fails.
func Private(string) error { return errSystem }
