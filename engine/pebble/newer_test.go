package pebble_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cockroach "github.com/cockroachdb/pebble/v2"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

// formatMarker returns the name of the marker that says which format of Pebble's a store has.
func formatMarker(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "marker.format-version.*"))
	if err != nil || len(names) != 1 {
		t.Fatalf("markers %v, %v", names, err)
	}
	return names[0]
}

// A new version of the library alone does not change the format of a store.
func TestTheFormatOfPebbleIsTheDriversChoice(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	e, err := pebble.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if name := formatMarker(t, dir); !strings.HasSuffix(name, ".024") {
		t.Errorf("a new store has the marker %s: who raises the format changes it for every store that is opened, for good", filepath.Base(name))
	}
}

// A store of a newer version of Pebble is told from a damaged one, and left as it is.
func TestAStoreOfANewerPebbleIsNoDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	e, err := pebble.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	var b engine.Batch
	b.Set([]byte("k"), []byte("v"))
	if err := errors.Join(e.Apply(context.Background(), &b), e.Close()); err != nil {
		t.Fatal(err)
	}
	name := formatMarker(t, dir)
	newer := strings.TrimSuffix(name, ".024") + ".099"
	if err := os.Rename(name, newer); err != nil {
		t.Fatal(err)
	}
	_, err = pebble.Open(dir, nil)
	if !errors.Is(err, engine.ErrNewer) || errors.Is(err, engine.ErrCorrupt) {
		t.Errorf("format 99 of %d: %v", cockroach.FormatNewest, err)
	}
	if formatMarker(t, dir) != newer {
		t.Error("the marker was changed")
	}
	if err := os.Rename(newer, name); err != nil {
		t.Fatal(err)
	}
	if e, err = pebble.Open(dir, nil); err != nil {
		t.Fatal(err)
	}
	if vs, err := e.Get(context.Background(), []byte("k")); err != nil || string(vs[0]) != "v" {
		t.Errorf("%q, %v", vs, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
