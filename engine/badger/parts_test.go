package badger

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/dgraph-io/badger/v4/y"
)

// A table whose index or footer differs in any bit is refused before Badger opens it and
// ends the process.
func TestEveryBitOfAnIndexIsCovered(t *testing.T) {
	d := newDisk("posix")
	w := &tableWriter{files: d, number: func() uint64 { return 1 }}
	for i := range 300 {
		if err := w.add(y.KeyWithTs(fmt.Appendf(nil, "%04d", i), 7), y.ValueStruct{Value: bytes.Repeat([]byte("v"), 100)}); err != nil {
			t.Fatal(err)
		}
	}
	r, err := w.finish()
	if err != nil || len(r) != 1 {
		t.Fatal(r, err)
	}
	info, data := r[0].tableInfo, d.names[tableName(1)].data
	if int(info.tail) != r[0].table.IndexSize()+4+int(data[len(data)-1])+4 {
		t.Errorf("index and footer are %d bytes, Badger's index %d", info.tail, r[0].table.IndexSize())
	}
	for bit := (len(data) - int(info.tail)) * 8; bit < len(data)*8; bit++ {
		data[bit/8] ^= 1 << (bit % 8)
		if _, err := openTableFile(d, info); err == nil {
			t.Fatalf("bit %d of byte %d of %d", bit%8, bit/8, len(data))
		}
		data[bit/8] ^= 1 << (bit % 8)
	}
}

// A memtable counts more bytes for a write than its skip list takes, because Badger ends
// the process if a skip list outgrows its arena. And the groups of a memtable fit into its
// log.
func TestAMemtableCountsMoreThanItTakes(t *testing.T) {
	for name, size := range map[string]func(*rand.Rand) (key, value int){
		"the smallest": func(*rand.Rand) (int, int) { return 1, 1 },
		"any":          func(r *rand.Rand) (int, int) { return 1 + r.IntN(500), r.IntN(3000) },
		"the largest":  func(*rand.Rand) (int, int) { return 512, 512 << 10 },
	} {
		r := rand.New(rand.NewPCG(1, 9))
		d := newDisk("posix")
		l, err := createLog(d, 1, memTableSize+logExtra, nil)
		if err != nil {
			t.Fatal(err)
		}
		m := newMemtable(l, 0, nil)
		buf := make([]byte, 513)
		values := make([]byte, 512<<10)
		for n := uint64(1); ; n++ {
			k, v := size(r)
			key, value := buf[:k], values[:v]
			r := r.Uint64()
			for i := range key {
				key[i] = byte(r >> (i % 8 * 8))
			}
			if !m.fits(cost(key, value)) {
				break
			}
			m.put(n, key, value)
			frame := make([]byte, frameHeader)
			if v == 0 {
				frame = appendDelete(frame, key)
			} else {
				frame = appendSet(frame, key, value)
			}
			// Leave out the bytes of the log, because they are many.
			l.pos += int64(len(frame)+frameAlign-1)/frameAlign*frameAlign + frameHeader
			if got := m.list.MemSize(); got > int64(m.size) {
				t.Fatalf("%s: after %d writes the list takes %d, counted %d", name, n, got, m.size)
			}
			if l.pos+frameHeader > l.size {
				t.Fatalf("%s: after %d writes the log is full, the memtable has %d of %d", name, n, m.size, m.arena)
			}
		}
	}
}
