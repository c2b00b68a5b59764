package badger

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
)

// filled returns the directory of a closed store with so many megabytes.
func filled(t testing.TB, megabytes int) string {
	dir := filepath.Join(t.TempDir(), "store")
	e, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.NewChaCha8([32]byte{1})
	for range megabytes {
		var b engine.Batch
		for range 1000 {
			value := make([]byte, 1000)
			r.Read(value)
			b.Set(binary.BigEndian.AppendUint64(nil, r.Uint64()), value)
		}
		if err := e.Apply(context.Background(), &b); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// evict drops the files of dir from the page cache.
func evict(t testing.TB, dir string) {
	names, err := filepath.Glob(dir + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		const dontNeed = 4
		if _, _, errno := syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, dontNeed, 0, 0); errno != 0 {
			t.Fatal(errno)
		}
		f.Close()
	}
}

// fromDisk returns how many bytes this process has read from disks.
func fromDisk(t testing.TB) (n int) {
	data, err := os.ReadFile("/proc/self/io")
	if err == nil {
		_, rest, _ := strings.Cut(string(data), "\nread_bytes:")
		_, err = fmt.Sscan(rest, &n)
	}
	if err != nil {
		t.Skip(err)
	}
	return n
}

// Opening a store that no cache has reads the indexes of its tables and not their blocks.
func TestOpeningReadsIndexesOnly(t *testing.T) {
	dir := filled(t, 30)
	evict(t, dir)
	before := fromDisk(t)
	e, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	read := fromDisk(t) - before
	if read == 0 {
		t.Skip("the file system is in memory")
	}
	if read > 10<<20 {
		t.Errorf("%d bytes were read to open a store of 30 MB", read)
	}
}

// asking counts the bytes that readers ask for and release.
type asking struct {
	directory
	asked, released *int
}

func (a asking) soon(data []byte)    { *a.asked += len(data) }
func (a asking) release(data []byte) { *a.released += len(data) }

// A reader asks for the block that it seeks and, while it moves on, for what is behind; for
// each section once until the engine forgets.
func TestAReaderAsksAheadOnce(t *testing.T) {
	dir := filled(t, 12)
	names, err := openDirectory(dir, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	asked, released := 0, 0
	e, err := openFiles(asking{names, &asked, &released}, memTableSize+logExtra, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.content.close()
	size := 0
	for _, r := range e.content.runs {
		size += int(r.bytes())
	}
	get := func() {
		if _, err := e.Get(context.Background(), []byte{0x80, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
	}
	scan := func(r engine.Range) {
		for _, err := range e.Scan(context.Background(), r) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	get()
	for _, step := range []struct {
		name        string
		do          func()
		least, most int
	}{
		{"a page", func() { scan(engine.Range{Start: []byte{0x40}, Limit: 10}) }, 1, size / 4},
		{"the same page", func() { scan(engine.Range{Start: []byte{0x40}, Limit: 10}) }, 0, 0},
		{"all", func() { scan(engine.Range{}) }, size * 3 / 4, size},
		{"all once more", func() { scan(engine.Range{}) }, 0, 0},
		{"all, long after", func() { e.forget(); scan(engine.Range{}) }, size * 9 / 10, size},
	} {
		asked = 0
		if step.do(); asked < step.least || asked > step.most {
			t.Errorf("%s: asked for %d bytes of %d, not %d to %d", step.name, asked, size, step.least, step.most)
		}
	}
	if released > 0 {
		t.Errorf("%d bytes were released", released)
	}
	// A rewrite keeps in memory neither the tables that it has read nor those that it has compared.
	if err := e.rewrite(context.Background()); err != nil {
		t.Fatal(err)
	}
	if least := size + int(e.content.runs[0].bytes()); released < least {
		t.Errorf("a rewrite released %d bytes of %d", released, least)
	}
}

func BenchmarkOpenCold(b *testing.B) {
	for _, megabytes := range []int{12, 100} {
		b.Run(fmt.Sprint(megabytes, "MB"), func(b *testing.B) {
			dir := filled(b, megabytes)
			before := fromDisk(b)
			for b.Loop() {
				b.StopTimer()
				evict(b, dir)
				b.StartTimer()
				e, err := Open(dir, nil)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := e.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(fromDisk(b)-before)/float64(b.N), "read-B/op")
		})
	}
}
