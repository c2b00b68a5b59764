package badger

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"

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
		for _, gone := range []string{"", "MANIFEST", "KEYREGISTRY", "*.vlog", "DISCARD", "turnstone.*"} {
			if gone != "" {
				names, _ := filepath.Glob(filepath.Join(dir, gone))
				for _, name := range names {
					if err := os.Remove(name); err != nil {
						t.Fatal(err)
					}
				}
			}
			got, lost := remaining(t, dir)
			if len(lost) > 0 && (i != 1 || !strings.Contains(lost[0], ".mem")) { // The log of a process that was killed may end anyhow.
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
	if lacking == 0 || lacking > total/2 { // A table whose index or last block is damaged can't be read at all.
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

// A table that lies about its order, and is damaged, does not hold a reader up.
func TestRemainsOfATableOutOfOrder(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		dir := t.TempDir()
		b := table.NewTableBuilder(table.Options{BlockSize: 64, Compression: options.None, ChkMode: options.OnBlockRead, TableSize: 1 << 16})
		n := 6 + r.IntN(20)
		for range n {
			key := append([]byte{pairByte}, byte('a'+r.IntN(6)), byte('a'+r.IntN(6)))
			b.Add(y.KeyWithTs(key, 1), y.ValueStruct{Value: bytes.Repeat([]byte("v"), 34)}, 0)
		}
		content := b.Finish()
		b.Close()
		for range 1 + r.IntN(3) {
			content[r.IntN(len(content)*2/3)] ^= 1
		}
		if err := errors.Join(os.WriteFile(dir+"/000001.sst", content, 0o600), os.Chmod(dir, 0o700)); err != nil {
			t.Fatal(err)
		}
		if got, _ := remaining(t, dir); len(got) > n {
			t.Fatalf("seed %d: %d pairs of %d", seed, len(got), n)
		}
	}
}

// Entries of a log that are overwritten by zeros are missed.
func TestRemainsOfALogWithZeros(t *testing.T) {
	dirs, has, _ := grown(t)
	dir := dirs[1] // killed
	logs, _ := filepath.Glob(filepath.Join(dir, "*.mem"))
	b, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	at := 20
	for range 100 {
		n := at + 2
		var numbers [3]uint64
		for i := range numbers {
			v, size := binary.Uvarint(b[n:])
			numbers[i], n = v, n+size
		}
		at = n + int(numbers[0]+numbers[1]) + 4
	}
	clear(b[at : at+600])
	if err := os.WriteFile(logs[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, lost := remaining(t, dir); len(got) >= len(has[1]) || len(lost) != 1 || !strings.Contains(lost[0], filepath.Base(logs[0])) {
		t.Errorf("%d of %d pairs, %v", len(got), len(has[1]), lost)
	}
}
