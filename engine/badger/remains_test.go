package badger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/remains/remainstest"
)

var remaining = &remainstest.Driver{
	Open:    func(dir string) (engine.Engine, error) { return Open(dir, nil) },
	Remains: func(dir string) (remainstest.Remaining, error) { return OpenRemains(dir) },
	Gone:    []string{"MANIFEST", "KEYREGISTRY", "*.vlog", "DISCARD", "turnstone.*"},
	Log:     ".mem",
	Most:    50, // A table whose index or last block is damaged can't be read at all.
}

// What can be read of tables and logs remains, whatever else is damaged or missing.
func TestRemains(t *testing.T) { remaining.Run(t) }

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
		if got, _ := remaining.Remaining(t, dir); len(got) > n {
			t.Fatalf("seed %d: %d pairs of %d", seed, len(got), n)
		}
	}
}

// Entries of a log that are overwritten by zeros are missed.
func TestRemainsOfALogWithZeros(t *testing.T) {
	dirs, has, _ := remaining.Grown(t)
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
	if got, lost := remaining.Remaining(t, dir); len(got) >= len(has[1]) || len(lost) != 1 || !strings.Contains(lost[0], filepath.Base(logs[0])) {
		t.Errorf("%d of %d pairs, %v", len(got), len(has[1]), lost)
	}
}

// Whatever a log has in it, it is read to an end.
func FuzzReadLog(f *testing.F) {
	entry := append(make([]byte, 20), 0, 0, 9, 1, 0)
	entry = append(append(entry, "k\x00\x00\x00\x00\x00\x00\x00\x01"...), 'v')
	f.Add(binary.BigEndian.AppendUint32(entry, crc32.Checksum(entry[20:], castagnoli)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := readLog(b)
		if len(all) > len(b)/15 {
			t.Errorf("%d entries of %d bytes, %v", len(all), len(b), err)
		}
	})
}
