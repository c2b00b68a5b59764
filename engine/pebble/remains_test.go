package pebble

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

// remaining returns what remains of a store, and which files can't be read whole.
func remaining(t *testing.T, dir string) (map[string]string, []string) {
	t.Helper()
	r, err := OpenRemains(dir)
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

// grown makes stores: closed, killed with logs, and with tables of which one is newer than the others. It returns what
// each has, and every value that each key ever had.
func grown(t *testing.T) (dirs []string, has []map[string]string, had []map[string]map[string]bool) {
	t.Helper()
	for _, state := range []string{"closed", "killed", "vacuumed"} {
		dir := t.TempDir() + "/store"
		e, err := Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		now, ever := map[string]string{}, map[string]map[string]bool{}
		r := rand.New(rand.NewPCG(1, 2))
		for n := range 400 {
			var b engine.Batch
			for range 1 + r.IntN(4) {
				key := fmt.Sprintf("key %03d", r.IntN(500))
				if r.IntN(6) == 0 && now[key] != "" {
					b.Delete([]byte(key))
					delete(now, key)
					break
				}
				value := fmt.Sprintf("%d %s", n, bytes.Repeat([]byte{byte(r.Uint32())}, 200+r.IntN(3000)))
				b.Set([]byte(key), []byte(value))
				now[key] = value
				if ever[key] == nil {
					ever[key] = map[string]bool{}
				}
				ever[key][value] = true
				break
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

// What remains of a store of which no table or log is damaged is the store, whatever else is missing.
func TestRemainsAreAllWithoutMANIFESTAndNotes(t *testing.T) {
	dirs, has, _ := grown(t)
	for i, dir := range dirs {
		for _, gone := range []string{"", "MANIFEST-*", "marker.*", "OPTIONS-*", "turnstone.*"} {
			if gone != "" {
				names, _ := filepath.Glob(filepath.Join(dir, gone))
				for _, name := range names {
					if err := os.Remove(name); err != nil {
						t.Fatal(err)
					}
				}
			}
			got, lost := remaining(t, dir)
			if len(lost) > 0 && (i != 1 || !strings.Contains(lost[0], ".log")) { // The log of a process that was killed may end anyhow.
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
func TestRemainsOfADamagedTableAreItsOtherBlocks(t *testing.T) {
	dirs, has, had := grown(t)
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
			got, lost := remaining(t, dir)
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
	if lacking == 0 || lacking > total/4 { // A table has about 20 blocks, and a footer without which none can be read.
		t.Errorf("%d of %d pairs are lacking", lacking, total)
	}
	t.Logf("%d of %d pairs are lacking", lacking, total)
}

// A directory that is in use, or has no store, has no remains.
func TestNoRemainsOfWhatIsNoStore(t *testing.T) {
	if _, err := OpenRemains(t.TempDir()); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
	dir := t.TempDir() + "/store"
	e, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := OpenRemains(dir); !errors.Is(err, engine.ErrLocked) {
		t.Error(err)
	}
}
