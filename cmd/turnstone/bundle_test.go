package main

import (
	"os"
	"os/exec"
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
	// A file that was there before stays when the command fails, and so does what is no file.
	if err := os.WriteFile(file, []byte("of before"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := file + ".link"
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	turnstoneCmd(t, "bundle", "--store", a, "nobody", "-o", link)
	if text, err := os.ReadFile(file); err != nil || string(text) != "of before" {
		t.Errorf("%q, %v", text, err)
	}
	must(t, "bundle", "--store", a, "trip", "-o", link)
	if i, err := os.Lstat(link); err != nil || i.Mode()&os.ModeSymlink == 0 {
		t.Error("a symbolic link was replaced", err)
	}
	must(t, "unbundle", "--store", b, file)
	if others, _ := filepath.Glob(file + ".new*"); len(others) > 0 {
		t.Error(others)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := exec.Command("mkfifo", pipe).Run(); err != nil {
		t.Skip("no mkfifo: ", err)
	}
	read := make(chan []byte)
	go func() { text, _ := os.ReadFile(pipe); read <- text }()
	must(t, "bundle", "--store", a, "trip", "-o", pipe)
	if text := <-read; len(text) == 0 {
		t.Error("nothing came through the pipe")
	}
	go func() { text, _ := os.ReadFile(pipe); read <- text }()
	turnstoneCmd(t, "bundle", "--store", a, "nobody", "-o", pipe)
	<-read
	if i, err := os.Stat(pipe); err != nil || i.Mode()&os.ModeNamedPipe == 0 {
		t.Error("the pipe was removed or replaced", err)
	}
}
