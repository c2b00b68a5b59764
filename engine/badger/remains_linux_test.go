package badger

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
)

// A table that can't be read while it is mapped into memory is damage, and does not end the process.
func TestRemainsOfATableThatGoesAway(t *testing.T) {
	dirs, _, _ := grown(t)
	r, err := OpenRemains(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	tables, _ := filepath.Glob(filepath.Join(dirs[0], "*.sst"))
	for _, name := range tables {
		if err := os.Truncate(name, 0); err != nil {
			t.Fatal(err)
		}
	}
	for p, err := range r.Scan(t.Context(), engine.Range{}) {
		t.Fatal(p, err)
	}
	if len(r.Lost()) == 0 || len(tables) == 0 {
		t.Error(r.Lost())
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// Files that can't be opened are closed again, and one that is too large is not read.
func TestRemainsLeaveNothingOpen(t *testing.T) {
	dirs, _, _ := grown(t)
	tables, _ := filepath.Glob(filepath.Join(dirs[0], "*.sst"))
	for _, name := range tables {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i := max(0, len(b)-60); i < len(b); i++ {
			b[i] ^= 0x55
		}
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	large := filepath.Join(dirs[0], "99999.mem")
	if err := errors.Join(os.WriteFile(large, []byte("x"), 0o600), os.Truncate(large, 1<<40)); err != nil {
		t.Skip(err)
	}
	count := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(open)
	}
	before := count()
	for range 20 {
		if got, lost := remaining(t, dirs[0]); len(got) > 0 || len(lost) != len(tables)+1 {
			t.Fatal(len(got), lost)
		}
	}
	if after := count(); after > before {
		t.Errorf("%d files are open, and %d were before", after, before)
	}
}
