package localdir

import (
	"errors"
	"os"
	"syscall"
)

// SyncData makes the content of f durable, and of its metadata what is needed to
// read it (fdatasync, POSIX.1).
func SyncData(f *os.File) error {
	return os.NewSyscallError("fdatasync", retried(func() error { return syscall.Fdatasync(int(f.Fd())) }))
}

// keepSize is FALLOC_FL_KEEP_SIZE of fallocate(2).
const keepSize = 1

// Reserve allocates space for n bytes of f at an offset, and keeps its size
// (fallocate(2)). Where the file system can't, it does nothing.
func Reserve(f *os.File, at, n int64) error {
	err := retried(func() error { return syscall.Fallocate(int(f.Fd()), keepSize, at, n) })
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return nil
	}
	return os.NewSyscallError("fallocate", err)
}

func retried(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// ReadSparingly makes the kernel read no more of a mapping than the pages that are touched
// (madvise(2)).
func ReadSparingly(mapping []byte) { _ = syscall.Madvise(mapping, syscall.MADV_RANDOM) }

// ReadAhead begins to read a part of a mapping, which begins with a page (madvise(2)).
func ReadAhead(part []byte) { _ = syscall.Madvise(part, syscall.MADV_WILLNEED) }

// Release makes the pages of a mapping no longer count as memory of this process, until they are
// touched again (madvise(2)). The kernel keeps them as long as it has the memory.
func Release(mapping []byte) { _ = syscall.Madvise(mapping, syscall.MADV_DONTNEED) }
