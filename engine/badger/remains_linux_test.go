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
	dirs, _, _ := remaining.Grown(t)
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

// A log that is too large is not read.
func TestRemainsOfALogThatIsTooLarge(t *testing.T) {
	dirs, has, _ := remaining.Grown(t)
	large := filepath.Join(dirs[0], "99999.mem")
	if err := errors.Join(os.WriteFile(large, []byte("x"), 0o600), os.Truncate(large, 1<<40)); err != nil {
		t.Skip(err)
	}
	if got, lost := remaining.Remaining(t, dirs[0]); len(got) != len(has[0]) || len(lost) != 1 {
		t.Error(len(got), lost)
	}
}
