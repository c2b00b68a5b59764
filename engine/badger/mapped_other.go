//go:build !linux

package badger

// unmapTables does nothing here: what is mapped counts for the process until the
// system needs the memory.
func unmapTables(string) error { return nil }
