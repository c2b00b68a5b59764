//go:build !linux

package localdir

import "os"

// SyncData makes the content of f durable.
func SyncData(f *os.File) error { return f.Sync() }

// Boot returns 0: the system is not asked which run of the machine this is.
func Boot() uint64 { return 0 }

// Reserve does nothing on this system.
func Reserve(*os.File, int64, int64) error { return nil }

// ReadSparingly does nothing here.
func ReadSparingly([]byte) {}

// ReadAhead does nothing here.
func ReadAhead([]byte) {}

// Release does nothing here.
func Release([]byte) {}
