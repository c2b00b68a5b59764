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
		if err := unmapTables(dir); err != nil {
			t.Error(err)
		}
		select {
		case <-read:
			reading = false
		default:
		}
	}
	if err := unmapTables(dir); err != nil || mapped(t, dir) > 0 {
		t.Errorf("%d bytes of tables are resident (%v)", mapped(t, dir), err)
	}
}

func TestTableAt(t *testing.T) {
	for _, c := range []struct {
		line     string
		start, n uintptr
		ok       bool
	}{
		{"7f0000001000-7f0000003000 rw-s 00000000 fe:00 12    /a b/gen-000001/000001.sst\n", 0x7f0000001000, 0x2000, true},
		{"7f0000001000-7f0000003000 rw-p 00000000 fe:00 12    /a b/gen-000001/000001.sst\n", 0, 0, false},
		{"7f0000001000-7f0000003000 rw-s 00000000 fe:00 12    /a b/gen-000001/00001.mem\n", 0, 0, false},
		{"7f0000001000-7f0000003000 rw-s 00000000 fe:00 12    /a b/gen-000002/000001.sst\n", 0, 0, false},
		{"7f0000001000-7f0000003000 rw-s 00000000 fe:00 12    /a b/gen-000001/000001.sst (deleted)\n", 0, 0, false},
		{"7f0000001000-7f0000003000 rw-p 00000000 00:00 0 \n", 0, 0, false},
		{"7f0000003000-7f0000001000 rw-s 00000000 fe:00 12    /a b/gen-000001/000001.sst\n", 0, 0, false},
		{"", 0, 0, false},
	} {
		if start, n, ok := tableAt([]byte(c.line), "/a b/gen-000001"); start != c.start || n != c.n || ok != c.ok {
			t.Errorf("%q: %x %x %v", c.line, start, n, ok)
		}
	}
}
