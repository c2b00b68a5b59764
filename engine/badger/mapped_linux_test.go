package badger

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dgraph-io/ristretto/v2/z"

	"github.com/turnstonedb/turnstone/engine"
)

// mapped returns how many bytes of tables in dir are resident.
func mapped(t *testing.T, dir string) (n int) {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	ours := false
	for line := range strings.Lines(string(smaps)) {
		if strings.Contains(line, "-") && !strings.Contains(strings.Fields(line)[0], ":") {
			ours = strings.Contains(line, dir+"/") && strings.HasSuffix(line, ".sst\n")
		}
		var kB int
		if _, err := fmt.Sscanf(line, "Rss: %d kB", &kB); err == nil && ours {
			n += kB << 10
		}
	}
	return n
}

// What is committed and read does not stay in the process, and all of it is still
// read right while its pages are given back.
func TestTablesAreNotResident(t *testing.T) {
	e := open(t, filepath.Join(t.TempDir(), "a store"), &Options{Durability: Process})
	const n = 2000
	value := func(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%08d", i), 64<<10/8) }
	for i := range n {
		var b engine.Batch
		b.Set(fmt.Appendf(nil, "%08d", i), value(i))
		if err := e.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := filepath.EvalSymlinks(e.db.Opts().Dir)
	if err != nil {
		t.Fatal(err)
	}
	// 128 MB went into tables, all of whose pages were touched.
	for wait := 0; mapped(t, dir) > 64<<20; wait++ {
		if wait == 100 {
			t.Fatalf("%d bytes of tables are resident", mapped(t, dir))
		}
		time.Sleep(100 * time.Millisecond)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			i := 0
			for p, err := range e.Scan(ctx, engine.Range{}) {
				if err != nil || !bytes.Equal(p.Value, value(i)) {
					t.Errorf("pair %d: %v", i, err)
					return
				}
				i++
			}
			if i != n {
				t.Errorf("%d of %d pairs", i, n)
			}
		})
	}
	read := make(chan struct{})
	go func() { wg.Wait(); close(read) }()
	for reading := true; reading; {
		if err := unmapTables(e.db); err != nil {
			t.Error(err)
		}
		select {
		case <-read:
			reading = false
		default:
		}
	}
	if err := unmapTables(e.db); err != nil || mapped(t, dir) > 0 {
		t.Errorf("%d bytes of tables are resident (%v)", mapped(t, dir), err)
	}
}

func TestSharedFile(t *testing.T) {
	const file = "/a b/gen-000001/000001.sst"
	for _, c := range []struct {
		line     string
		path     string
		start, n uintptr
		ok       bool
	}{
		{"7f0000001000-7f0000003000 rw-s 00000000 fe:00 12    " + file + "\n", file, 0x7f0000001000, 0x2000, true},
		{"7f0000001000-7f0000003000 rw-s 00000000 fe:00 12    " + file + " (deleted)\n", file + " (deleted)", 0x7f0000001000, 0x2000, true},
		{"7f0000001000-7f0000003000 rw-p 00000000 fe:00 12    " + file + "\n", "", 0, 0, false},
		{"7f0000001000-7f0000003000 rw-p 00000000 00:00 0 \n", "", 0, 0, false},
		{"7f0000003000-7f0000001000 rw-s 00000000 fe:00 12    " + file + "\n", "", 0, 0, false},
		{"", "", 0, 0, false},
	} {
		if path, start, n, ok := sharedFile([]byte(c.line)); path != c.path || start != c.start || n != c.n || ok != c.ok {
			t.Errorf("%q: %q %x %x %v", c.line, path, start, n, ok)
		}
	}
}

// A table that is in no level may be unmapped by Badger at any time, and so is
// left alone, and so is one of another generation.
func TestOnlyTablesInLevelsAreUnmapped(t *testing.T) {
	e := open(t, filepath.Join(t.TempDir(), "store"), nil)
	var b engine.Batch
	b.Set([]byte("key"), []byte("value"))
	if err := e.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	if err := e.Vacuum(ctx); err != nil { // makes a table
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(e.db.Opts().Dir)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "000099.sst")
	if err := os.WriteFile(other, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(other)
	f, err := z.OpenMmapFile(other, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(-1)
	for i := 0; i < len(f.Data); i += 4096 {
		f.Data[i]++
	}
	before := mapped(t, dir)
	if err := unmapTables(e.db); err != nil {
		t.Fatal(err)
	}
	if after := mapped(t, dir); before < 1<<20 || after != 1<<20 {
		t.Errorf("%d bytes resident, before %d", after, before)
	}
}
