package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Machine is what was measured on.
type Machine struct {
	CPU        string   `json:"cpu"`
	Cores      int      `json:"cores"`
	MemoryMiB  int      `json:"memory_mib"`
	Kernel     string   `json:"kernel"`
	FileSystem string   `json:"file_system"`
	Go         string   `json:"go"`
	Commit     string   `json:"commit"`
	Modules    []string `json:"modules"`
}

func machine(dir string) Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version(), FileSystem: "unknown"}
	m.CPU, _ = field("/proc/cpuinfo", "model name")
	if kB, err := field("/proc/meminfo", "MemTotal"); err == nil {
		n, _ := strconv.Atoi(strings.TrimSuffix(kB, " kB"))
		m.MemoryMiB = n >> 10
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) == nil {
		names := map[int64]string{0xef53: "ext4", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x01021994: "tmpfs", 0x794c7630: "overlayfs"}
		if m.FileSystem = names[int64(s.Type)]; m.FileSystem == "" {
			m.FileSystem = fmt.Sprintf("type %#x", s.Type)
		}
	}
	if out, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(out))
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if slices.Contains([]string{
				"github.com/dgraph-io/badger/v4", "github.com/cockroachdb/pebble/v2",
				"github.com/mattn/go-sqlite3", "google.golang.org/adk/v2",
			}, d.Path) {
				m.Modules = append(m.Modules, d.Path+" "+d.Version)
			}
		}
	}
	return m
}

// field returns the value of the first line of a file that begins with name.
func field(file, name string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if before, after, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(before) == name {
			return strings.TrimSpace(after), nil
		}
	}
	return "", fmt.Errorf("no %q in %s", name, file)
}

// resident returns the resident memory of this process after a collection, and
// how much of it is pages of files, in bytes.
func resident() (all, files float64) {
	debug.FreeOSMemory()
	return status("VmRSS"), status("RssFile")
}

// status returns a size of this process in bytes.
func status(name string) float64 {
	v, _ := field("/proc/self/status", name)
	kB, _ := strconv.ParseFloat(strings.TrimSuffix(v, " kB"), 64)
	return kB * 1024
}

// watchMemory looks at the memory of this process every few milliseconds, until
// stop is called, which returns the greatest sizes: of all that is resident, and
// of what is not pages of files.
func watchMemory() (stop func() (all, anonymous float64)) {
	over, seen := make(chan struct{}), make(chan [2]float64)
	go func() {
		var most [2]float64
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			most[0], most[1] = max(most[0], status("VmRSS")), max(most[1], status("RssAnon"))
			select {
			case <-tick.C:
			case <-over:
				tick.Stop()
				seen <- most
				return
			}
		}
	}()
	return func() (float64, float64) {
		close(over)
		most := <-seen
		return most[0], most[1]
	}
}

// processorTime returns what this process has used of the processors, in user
// and system mode.
func processorTime() (time.Duration, error) {
	var u unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}

// warm reads the files of dir into the page cache.
func warm(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, f)
		return errors.Join(err, f.Close())
	})
}

// evict drops the files of dir, which no process has open, from the page cache.
func evict(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Sync(); err != nil {
			return err
		}
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}
