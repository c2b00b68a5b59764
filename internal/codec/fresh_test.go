package codec_test

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// BenchmarkAppend makes deltas of a list to which a message was appended. For comparison it compresses the same
// messages with zstd, with the bytes before them as dictionary. Before each of them it fills the processor's
// caches with other bytes, because a host's own work does that between two commits.
func BenchmarkAppend(b *testing.B) {
	list := text(40 << 10)
	others := make([]byte, 8<<20)
	zstdEncoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false), zstd.WithEncoderConcurrency(1),
		zstd.WithAllLitEntropyCompression(true), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(256<<10), zstd.WithEncoderDictRaw(1, list))
	if err != nil {
		b.Fatal(err)
	}
	for name, compress := range map[string]func(base, content []byte) ([]byte, error){
		"delta": codec.Delta,
		"zstd": func(base, content []byte) ([]byte, error) {
			var out bytes.Buffer
			n := len(content) - len(base)
			err := zstdEncoder.ResetWithOptions(&out, zstd.WithEncoderDictRaw(1, base[max(0, len(base)-64*n):]))
			if err == nil {
				_, err = zstdEncoder.Write(content[len(base):])
			}
			err = errors.Join(err, zstdEncoder.Close())
			return out.Bytes(), err
		},
	} {
		for _, n := range []int{100, 400, 1600, 2400} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				var out []byte
				i := 0
				for b.Loop() {
					b.StopTimer()
					clear(others)
					end := 10<<10 + i%20<<10
					b.StartTimer()
					var err error
					if out, err = compress(list[:end], list[:end+n]); err != nil {
						b.Fatal(err)
					}
					i++
				}
				b.ReportMetric(float64(len(out)), "delta-B")
			})
		}
	}
}

// Up to 2 KiB of fresh bytes are a DEFLATE stream, as a reader of another make reads it, and more are a zstd frame.
func TestFreshBytesAreAStreamOrAFrame(t *testing.T) {
	base := text(40 << 10)
	for _, n := range []int{17, 400, 2 << 10, 2<<10 + 1, 8 << 10} {
		fresh := fmt.Appendf(nil, "%x", random(n))[:n]
		content := append(bytes.Clone(base), fresh...)
		data, err := codec.Delta(base, content)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := codec.Decompress(data, base, len(content)); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d fresh bytes do not come back: %v", n, err)
		}
		frame := bytes.Contains(data, []byte{0x28, 0xb5, 0x2f, 0xfd}) // RFC 8878, 3.1.1
		if few := n <= 2<<10; frame == few {
			t.Errorf("%d fresh bytes: a frame of zstd is %v", n, frame)
			continue
		} else if !few || n == 17 { // so few are stored as they are
			continue
		}
		// Method, length, one run of three numbers, and one window at the end of the base.
		rest := data[1:]
		var numbers []uint64
		for range 8 {
			v, k := binary.Uvarint(rest)
			numbers, rest = append(numbers, v), rest[k:]
		}
		if want := []uint64{uint64(len(content)), 1, 0, uint64(len(base)), uint64(n), 1, uint64(len(base)) - numbers[7], min(8<<10, max(4<<10, 64*uint64(n)))}; !slices.Equal(numbers, want) {
			t.Errorf("%d fresh bytes: numbers %v, want %v", n, numbers, want)
			continue
		}
		got, err := io.ReadAll(flate.NewReaderDict(bytes.NewReader(rest), base[len(base)-int(numbers[7]):]))
		if err != nil || !bytes.Equal(got, fresh) {
			t.Errorf("%d fresh bytes: the standard library reads %q, %v", n, got, err)
		}
		if len(rest) > n*5/8 {
			t.Errorf("%d hexadecimal digits take %d bytes", n, len(rest))
		}
	}
}

// bits are those of a DEFLATE stream.
type bits struct {
	b []byte
	n uint
}

// put appends n bits, the least significant one first.
func (w *bits) put(v, n uint) {
	for i := range n {
		if w.n%8 == 0 {
			w.b = append(w.b, 0)
		}
		w.b[len(w.b)-1] |= byte(v>>i&1) << (w.n % 8)
		w.n++
	}
}

// header appends that of a block whose only codes are the end of the block, 0, and the length 3, 1, and the distance
// 1, 0, if distance is 1, or no distance if it is 0 (RFC 1951, section 3.2.7).
func (w *bits) header(final, distance uint) {
	w.put(final, 1)
	w.put(2, 2)
	w.put(258-257, 5)
	w.put(0, 5)
	w.put(18-4, 4)
	lengths := map[int]uint{18: 1, 0: 2, 1: 2} // codes 0, 10 and 11
	for _, symbol := range []int{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1} {
		w.put(lengths[symbol], 3)
	}
	for _, zeros := range []uint{138, 118} {
		w.put(0, 1)
		w.put(zeros-11, 7)
	}
	for _, length := range []uint{1, 1, distance} {
		w.put(1, 1)
		w.put(length, 1)
	}
}

// A stream that uses a code that its block does not have is refused, whatever the streams and blocks before had.
func TestAStreamHasOnlyTheCodesOfItsBlock(t *testing.T) {
	base := []byte("0123456789")
	delta := func(w *bits) []byte { return append([]byte{2, 13, 1, 0, 10, 3, 1, 0, 10}, w.b...) } // 10 bytes of base and 3 fresh ones
	var good, bad, later bits
	good.header(1, 1)
	bad.header(1, 0)
	later.header(0, 1)
	later.put(0, 1) // the end of the first block
	later.header(1, 0)
	for _, w := range []*bits{&good, &bad, &later} {
		w.put(1, 1) // three bytes
		w.put(0, 1) // from one byte before
		w.put(0, 1) // the end
	}
	for range 10 {
		if got, err := codec.Decompress(delta(&good), base, 100); err != nil || string(got) != "0123456789999" {
			t.Fatalf("%q, %v", got, err)
		}
		for _, w := range []*bits{&bad, &later} {
			if got, err := codec.Decompress(delta(w), base, 100); !errors.Is(err, damage.ErrMalformed) {
				t.Errorf("%q, %v", got, err)
			}
		}
	}
}
