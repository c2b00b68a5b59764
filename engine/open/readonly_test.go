package open_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
)

// fill puts pairs into an engine, some of which are in tables when there is a vacuum.
func fill(t *testing.T, e engine.Engine) map[string]string {
	t.Helper()
	want := map[string]string{}
	for i := range 30 {
		var b engine.Batch
		for j := range 20 {
			k := fmt.Sprintf("%03d", i*13%17*20+j)
			b.Set([]byte(k), fmt.Append(nil, i))
			want[k] = fmt.Sprint(i)
		}
		if i == 20 {
			b.Delete([]byte("404"))
		}
		if err := e.Apply(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		if i == 15 {
			if err := e.Vacuum(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	return want
}

func pairs(t *testing.T, e engine.Engine) map[string]string {
	t.Helper()
	out := map[string]string{}
	for p, err := range e.Scan(t.Context(), engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		out[string(p.Key)] = string(p.Value)
	}
	return out
}

// snapshot returns the modes, times and contents of the files in dir.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		out[path] = fmt.Sprint(info.Mode(), info.ModTime())
		if d.Type().IsRegular() {
			text, err := os.ReadFile(path)
			out[path] += string(text)
			return err
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAReadOnlyOpeningChangesNothing(t *testing.T) {
	for _, scheme := range open.Schemes() {
		t.Run(scheme, func(t *testing.T) {
			dir := t.TempDir() + "/store"
			e, err := open.Open(t.Context(), scheme+":"+dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			want := fill(t, e)
			killed := t.TempDir() + "/copy" // has what a process leaves that is killed now
			if err := errors.Join(os.CopyFS(killed, regular{os.DirFS(dir)}), os.Chmod(killed, 0o700)); err != nil {
				t.Fatal(err)
			}
			var held *engine.LockedError
			if _, err := open.Open(t.Context(), scheme+":"+dir, &open.Options{ReadOnly: true}); !errors.As(err, &held) || !strings.Contains(held.Holder, "share it") {
				t.Errorf("while the store is open: %v", err)
			}
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			for name, dir := range map[string]string{"closed": dir, "killed": killed} {
				t.Run(name, func(t *testing.T) {
					if scheme+name == "badgerkilled" { // Badger's own limit
						if _, err := open.Open(t.Context(), scheme+":"+dir, &open.Options{ReadOnly: true}); err == nil || errors.Is(err, engine.ErrCorrupt) {
							t.Errorf("what a killed process left: %v", err)
						}
						return
					}
					readOnly(t, scheme+":"+dir, dir, want)
				})
			}
		})
	}
}

// regular hides sockets, which can't be copied.
type regular struct{ fs.FS }

func (r regular) ReadDir(name string) ([]fs.DirEntry, error) {
	all, err := fs.ReadDir(r.FS, name)
	var out []fs.DirEntry
	for _, d := range all {
		if d.Type().IsRegular() {
			out = append(out, d)
		}
	}
	return out, err
}

// readOnly checks a store that is to have the pairs want.
func readOnly(t *testing.T, url, dir string, want map[string]string) {
	before := snapshot(t, dir)
	o := &open.Options{ReadOnly: true}
	first, err := open.Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	second, err := open.Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []engine.Engine{first, second} {
		if have := pairs(t, e); !reflect.DeepEqual(have, want) {
			t.Errorf("%d pairs, want %d", len(have), len(want))
		}
		var b engine.Batch
		b.Set([]byte("k"), []byte("v"))
		if err := e.Apply(t.Context(), &b); !errors.Is(err, engine.ErrReadOnly) {
			t.Errorf("Apply: %v", err)
		}
		if err := e.Vacuum(t.Context()); !errors.Is(err, engine.ErrReadOnly) {
			t.Errorf("Vacuum: %v", err)
		}
		if _, err := open.Open(t.Context(), url, nil); !errors.Is(err, engine.ErrLocked) || !strings.Contains(err.Error(), "reads it") {
			t.Errorf("Open beside it: %v", err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if _, err := e.Get(t.Context(), []byte("k")); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "turnstone.owner")); err != nil { // of the Open beside it
		t.Fatal(err)
	}
	for path, was := range snapshot(t, dir) {
		if before[path] != was && path != dir {
			t.Errorf("%s has changed", path)
		}
		delete(before, path)
	}
	for path := range before {
		if filepath.Base(path) != "turnstone.owner" {
			t.Errorf("%s is gone", path)
		}
	}
	e, err := open.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if have := pairs(t, e); !reflect.DeepEqual(have, want) {
		t.Errorf("%d pairs afterwards, want %d", len(have), len(want))
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

func TestAReadOnlyOpeningMakesNoStore(t *testing.T) {
	for _, scheme := range open.Schemes() {
		dir := t.TempDir()
		for _, d := range []string{dir, dir + "/none"} {
			if e, err := open.Open(t.Context(), scheme+":"+d, &open.Options{ReadOnly: true}); !errors.Is(err, fs.ErrNotExist) || e != nil {
				t.Errorf("%s: %v, %v", scheme, e, err)
			}
		}
		if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
			t.Errorf("%s: %v, %v", scheme, names, err)
		}
	}
	for _, url := range []string{"mem:", "postgres://localhost/db"} {
		if _, err := open.Open(t.Context(), url, &open.Options{ReadOnly: true}); !errors.Is(err, open.ErrURL) {
			t.Errorf("%s: %v", url, err)
		}
	}
}
