package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A session goes to another store and back, in files and through pipes.
func TestBU1_TheCommandMovesSessions(t *testing.T) {
	a, b, file := t.TempDir()+"/a", t.TempDir()+"/b", filepath.Join(t.TempDir(), "trip.bundle")
	must(t, "demo", "--store", a)
	if out := must(t, "bundle", "--store", a, "--all", "-o", file); !strings.HasPrefix(out, "wrote ") {
		t.Error(out)
	}
	if out := must(t, "unbundle", "--store", b, file); !strings.Contains(out, "trip  new, at revision ") {
		t.Error(out)
	}
	if a, b := must(t, "log", "--store", a, "trip"), must(t, "log", "--store", b, "trip"); a != b {
		t.Errorf("%s\nbecame\n%s", a, b)
	}
	must(t, "verify", "--store", b)
	if out := must(t, "unbundle", "--store", b, file, "--json"); !strings.Contains(out, `{"id":"trip","from":`) {
		t.Error(out)
	}
	if out := must(t, "unbundle", "--store", b, file, "--max", "1GiB"); !strings.Contains(out, "trip  stays at revision ") {
		t.Error(out)
	}
	if _, errs, ok := turnstoneCmd(t, "unbundle", "--store", b, file, "--max", "10"); ok || !strings.Contains(errs, "at most 10") {
		t.Error(errs)
	}
	if err := os.WriteFile(file, []byte("no bundle"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, ok := turnstoneCmd(t, "unbundle", "--store", b, file); ok || !strings.Contains(errs, "invalid bundle") {
		t.Error(errs)
	}
	if _, errs, ok := turnstoneCmd(t, "bundle", "--store", a); ok || !strings.Contains(errs, "name sessions") {
		t.Error(errs)
	}
	if _, errs, ok := turnstoneCmd(t, "bundle", "--store", a, "nobody", "-o", file+".new"); ok || !strings.Contains(errs, "session not found") {
		t.Error(errs)
	}
	if _, err := os.Stat(file + ".new"); err == nil {
		t.Error("a file of a bundle that failed is left")
	}
}
