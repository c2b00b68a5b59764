package open_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
)

// A list of databases is read as a whole or not at all, and its errors show no URL.
func TestAListOfDatabasesIsRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "databases")
	write := func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	east, west := "east "+filepath.Join(dir, "east.pebble"), "west\tbadger:"+filepath.Join(dir, "west")
	for name, lines := range map[string][]string{
		"empty": {"", "# nothing"}, "no URL": {"east"}, "three words": {east + " secret"}, "twice": {east, east},
		"two names": {east, strings.Replace(east, "east", "other", 1)}, "memory": {"east mem:"}, "no engine": {"east what:secret"},
		"a long name": {strings.Repeat("x", 129) + east}, "no text": {"\xff" + east},
	} {
		write(lines...)
		if d, err := open.ReadDatabases(path, nil); !errors.Is(err, open.ErrURL) || d != nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	write("# kept by the operators", east, "", " "+west+" ")
	d, err := open.ReadDatabases(path, nil)
	if err != nil || !slices.Equal(d.Names(), []string{"east", "west"}) {
		t.Fatal(err)
	}
	e, err := d.Open(t.Context(), "east")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := d.Open(t.Context(), "east"); err != nil || again != e {
		t.Error("it is opened twice", err)
	}
	if _, err := d.Open(t.Context(), "north"); !errors.Is(err, open.ErrURL) {
		t.Error(err)
	}
	write(west)
	if err := d.Reload(); err != nil || !slices.Equal(d.Names(), []string{"west"}) {
		t.Error(d.Names(), err)
	}
	write(west, "east "+filepath.Join(dir, "another")) // also after it was not in the list
	if err := d.Reload(); !errors.Is(err, open.ErrURL) || !slices.Equal(d.Names(), []string{"west"}) {
		t.Error(d.Names(), err)
	}
	write("another "+filepath.Join(dir, "east.pebble"), west)
	if err := d.Reload(); !errors.Is(err, open.ErrURL) {
		t.Error(d.Names(), err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"east", "none"} {
		if _, err := d.Open(t.Context(), name); !errors.Is(err, engine.ErrClosed) {
			t.Error(err)
		}
	}
	if _, err := e.Get(t.Context(), []byte("k")); !errors.Is(err, engine.ErrClosed) {
		t.Error("it stays open", err)
	}
}

// A new database becomes the home of its part of the namespaces, and changes nothing for the others.
func TestNamespacesPreferDatabasesEvenly(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	homes := map[string]int{}
	const spaces = 4000
	for i := range spaces {
		before, after := slices.Clone(names), append(slices.Clone(names), "e")
		open.Prefer(before, fmt.Sprint(i))
		open.Prefer(after, fmt.Sprint(i))
		homes[after[0]]++
		if i := slices.Index(after, "e"); !slices.Equal(slices.Delete(slices.Clone(after), i, i+1), before) {
			t.Fatalf("%v, then %v", before, after)
		}
	}
	for name, n := range homes {
		if n < spaces/5*8/10 || n > spaces/5*12/10 {
			t.Errorf("%s is the home of %d of %d", name, n, spaces)
		}
	}
}
