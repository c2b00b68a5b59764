package badger

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/table"
)

// unmapTables takes the pages of the tables of db out of the process: Badger maps
// tables to write and to read them, and every page that it touched counts as the
// process's memory for as long as the table is mapped. They stay in the page
// cache, so that the next access of one costs a minor fault.
//
// MADV_DONTNEED on a shared mapping of a file loses nothing (madvise(2)), but on
// anonymous memory it does. So none of these tables may be unmapped meanwhile, as
// its addresses may then be used for something else. Badger unmaps tables that
// are in no level (a flush that could not be recorded), which is why db is asked
// first; others when it compacts, which it never does here; and all when it is
// closed: the caller must prevent that.
func unmapTables(db *badger.DB) error {
	dir, err := filepath.Abs(db.Opts().Dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return err
	}
	tables := map[string]bool{} // by path
	for _, t := range db.Tables() {
		tables[table.NewFilename(t.ID, dir)] = true
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	var failed error
	for line := range bytes.Lines(maps) {
		path, start, n, ok := sharedFile(line)
		if !ok || !tables[path] {
			continue
		}
		if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, start, n, syscall.MADV_DONTNEED); errno != 0 {
			failed = os.NewSyscallError("madvise", errno)
		}
	}
	return failed
}

// sharedFile reads a line of /proc/self/maps (proc_pid_maps(5)): which file is
// mapped, where, and how many bytes, if the mapping is shared.
func sharedFile(line []byte) (path string, start, n uintptr, ok bool) {
	fields := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(" "), 6)
	if len(fields) < 6 || len(fields[1]) != 4 || fields[1][3] != 's' {
		return "", 0, 0, false
	}
	from, to, ok := bytes.Cut(fields[0], []byte("-"))
	a, aerr := strconv.ParseUint(string(from), 16, strconv.IntSize)
	b, berr := strconv.ParseUint(string(to), 16, strconv.IntSize)
	if !ok || aerr != nil || berr != nil || b <= a {
		return "", 0, 0, false
	}
	return string(bytes.TrimLeft(fields[5], " ")), uintptr(a), uintptr(b - a), true
}
