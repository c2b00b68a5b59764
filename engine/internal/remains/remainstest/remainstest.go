// Package remainstest tests what remains of the stores of a driver.
package remainstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
)

// A Driver is what is tested.
type Driver struct {
	Open    func(dir string) (engine.Engine, error)
	Remains func(dir string) (Remaining, error)
	Gone    []string // patterns of the files that are neither tables nor logs
	Log     string   // how the names of logs end
	Most    int      // how many percent of the pairs may be lost with a bit of a table
}

// A Remaining is an open Remains.
type Remaining interface {
	engine.Scanner
	Lost() []string
	Close() error
}

// Remaining returns what remains of a store, and which files can't be read whole.
func (d *Driver) Remaining(t *testing.T, dir string) (map[string]string, []string) {
	t.Helper()
	r, err := d.Remains(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	out := map[string]string{}
	last := ""
	for p, err := range r.Scan(t.Context(), engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		if string(p.Key) <= last {
			t.Fatalf("%q behind %q", p.Key, last)
		}
		last = string(p.Key)
		out[last] = string(p.Value)
	}
	return out, r.Lost()
}

// Grown makes stores: closed, killed with logs, and with tables of which one is newer than the others. It returns what
// each has, and every value that each key ever had.
func (d *Driver) Grown(t *testing.T) (dirs []string, has []map[string]string, had []map[string]map[string]bool) {
	t.Helper()
	for _, state := range []string{"closed", "killed", "vacuumed"} {
		dir := t.TempDir() + "/store"
		e, err := d.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		now, ever := map[string]string{}, map[string]map[string]bool{}
		r := rand.New(rand.NewPCG(1, 2))
		for n := range 400 {
			var b engine.Batch
			changed := map[string]bool{}
			for range 1 + r.IntN(4) {
				key := fmt.Sprintf("key %03d", r.IntN(500))
				if changed[key] {
					continue
				}
				changed[key] = true
				if r.IntN(6) == 0 && now[key] != "" {
					b.Delete([]byte(key))
					delete(now, key)
					continue
				}
				value := fmt.Sprintf("%d %s", n, bytes.Repeat([]byte{byte(r.Uint32())}, 200+r.IntN(3000)))
				b.Set([]byte(key), []byte(value))
				now[key] = value
				if ever[key] == nil {
					ever[key] = map[string]bool{}
				}
				ever[key][value] = true
			}
			if err := e.Apply(context.Background(), &b); err != nil {
				t.Fatal(err)
			}
			if n == 300 && state == "vacuumed" {
				if err := e.Vacuum(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
		}
		at := dir
		if state == "killed" {
			at = t.TempDir() + "/store"
			if err := os.CopyFS(at, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		dirs, has, had = append(dirs, at), append(has, now), append(had, ever)
	}
	return dirs, has, had
}

// Run tests a driver.
func (d *Driver) Run(t *testing.T) {
	t.Run("all without the MANIFEST", d.all)
	t.Run("a damaged table", d.damagedTable)
	t.Run("no store", d.noStore)
	t.Run("an end", d.ended)
}

// What remains of a store of which no table or log is damaged is the store, whatever else is missing.
func (d *Driver) all(t *testing.T) {
	dirs, has, _ := d.Grown(t)
	for i, dir := range dirs {
		for _, gone := range append([]string{""}, d.Gone...) {
			if gone != "" {
				names, _ := filepath.Glob(filepath.Join(dir, gone))
				for _, name := range names {
					if err := os.Remove(name); err != nil {
						t.Fatal(err)
					}
				}
			}
			got, lost := d.Remaining(t, dir)
			if len(lost) > 0 && (i != 1 || !strings.Contains(lost[0], d.Log)) { // The log of a process that was killed may end anyhow.
				t.Errorf("%s without %q: %v", dir, gone, lost)
			}
			for key, value := range has[i] {
				if got[key] != value {
					t.Fatalf("%s without %q: %s is %.20q, not %.20q", dir, gone, key, got[key], value)
				}
			}
			if len(got) != len(has[i]) {
				t.Errorf("%s without %q: %d pairs, not %d", dir, gone, len(got), len(has[i]))
			}
		}
	}
}

// Of a table that is damaged, the blocks that are not can be read; the file is named, and nothing shows that never was.
func (d *Driver) damagedTable(t *testing.T) {
	dirs, has, had := d.Grown(t)
	total, lacking := 0, 0
	for i, dir := range dirs {
		tables, _ := filepath.Glob(filepath.Join(dir, "*.sst"))
		r := rand.New(rand.NewPCG(uint64(i), 3))
		for range 8 {
			if len(tables) == 0 {
				break
			}
			name := tables[r.IntN(len(tables))]
			whole, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			b := bytes.Clone(whole)
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
			got, lost := d.Remaining(t, dir)
			same := true
			for key, value := range got {
				if !had[i][key][value] {
					t.Fatalf("%s never was %.20q", key, value)
				}
			}
			for key, value := range has[i] {
				total++
				if got[key] != value {
					lacking++
					same = false
				}
			}
			if !same && (len(lost) == 0 || !strings.Contains(lost[0], filepath.Base(name))) {
				t.Errorf("%s is damaged, and %v is named", name, lost)
			}
			if err := os.WriteFile(name, whole, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if lacking == 0 || lacking > total*d.Most/100 {
		t.Errorf("%d of %d pairs are lacking", lacking, total)
	}
	t.Logf("%d of %d pairs are lacking", lacking, total)
}

// A directory that is in use, or has no store, has no remains.
func (d *Driver) noStore(t *testing.T) {
	if _, err := d.Remains(t.TempDir()); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
	dir := t.TempDir() + "/store"
	e, err := d.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := d.Remains(dir); !errors.Is(err, engine.ErrLocked) {
		t.Error(err)
	}
}

// A context that has ended ends a scan, and files that can't be opened are closed again.
func (d *Driver) ended(t *testing.T) {
	dirs, _, _ := d.Grown(t)
	r, err := d.Remains(dirs[2])
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	for _, err := range r.Scan(ctx, engine.Range{}) {
		if n++; n == 3 {
			cancel()
		}
		if err != nil && !errors.Is(err, context.Canceled) || err == nil && n > 3 {
			t.Errorf("pair %d: %v", n, err)
		}
	}
	cancel()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	tables, _ := filepath.Glob(filepath.Join(dirs[2], "*.sst"))
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
	count := func() int {
		open, err := os.ReadDir("/dev/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(open)
	}
	before := count()
	for range 20 {
		if _, lost := d.Remaining(t, dirs[2]); len(lost) < len(tables) {
			t.Fatal(lost)
		}
	}
	if after := count(); after > before {
		t.Errorf("%d files are open, and %d were before", after, before)
	}
}
