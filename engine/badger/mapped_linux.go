package badger

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// unmapTables takes the pages of the tables in dir out of the process: Badger maps
// tables to write and to read them, and every page that it touched counts as the
// process's memory for as long as the table is mapped. They stay in the page
// cache, so that the next access of one costs a minor fault.
//
// MADV_DONTNEED on a shared mapping of a file loses nothing (madvise(2)), but on
// anonymous memory it does. So the caller must make sure that no table in dir is
// unmapped meanwhile, as its addresses may then be used for something else. Badger
// unmaps tables when it compacts, which it never does here, and when it is closed.
func unmapTables(dir string) error {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for line := range bytes.Lines(maps) {
		if start, n, ok := tableAt(line, dir); ok {
			if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, start, n, syscall.MADV_DONTNEED); errno != 0 {
				return os.NewSyscallError("madvise", errno)
			}
		}
	}
	return nil
}

// tableAt reads a line of /proc/self/maps (proc_pid_maps(5)): where and how long
// the mapping is, if it is a shared one of a table in dir.
func tableAt(line []byte, dir string) (start, n uintptr, ok bool) {
	fields := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(" "), 6)
	if len(fields) < 6 || len(fields[1]) != 4 || fields[1][3] != 's' {
		return 0, 0, false
	}
	path := string(bytes.TrimLeft(fields[5], " "))
	if filepath.Dir(path) != dir || filepath.Ext(path) != ".sst" {
		return 0, 0, false
	}
	from, to, ok := bytes.Cut(fields[0], []byte("-"))
	a, aerr := strconv.ParseUint(string(from), 16, strconv.IntSize)
	b, berr := strconv.ParseUint(string(to), 16, strconv.IntSize)
	if !ok || aerr != nil || berr != nil || b <= a {
		return 0, 0, false
	}
	return uintptr(a), uintptr(b - a), true
}
