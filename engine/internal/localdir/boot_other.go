//go:build !linux

package localdir

// Boot returns 0: the system is not asked which run of the machine this is.
func Boot() uint64 { return 0 }
