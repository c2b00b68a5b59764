//go:build !linux

package localdir

import "os"

// SyncData makes the content of f durable.
func SyncData(f *os.File) error { return f.Sync() }
