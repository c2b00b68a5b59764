package codec_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/record"
)

// text is compressible and not trivially so.
func text(n int) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, `{"role":"assistant","id":"call_%x","content":"step %d of the plan"}`, rng.Uint64(), rng.IntN(1000))
	}
	return b.Bytes()[:n]
}

func BenchmarkCompress(b *testing.B) {
	for name, level := range map[string]codec.Level{"fast": codec.Fast, "medium": codec.Medium, "best": codec.Best} {
		for _, n := range []int{2 << 10, 8 << 10, 192 << 10} {
			content := text(n)
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				b.ReportAllocs()
				var out []byte
				for b.Loop() {
					out = codec.Compress(out[:0], content, level)
				}
				b.ReportMetric(float64(n)/float64(len(out)), "ratio")
			})
		}
	}
}

func BenchmarkDelta(b *testing.B) {
	for _, n := range []int{20 << 10, 88 << 10, 200 << 10, 400 << 10, 3 << 20} {
		base := text(n)
		content := append(bytes.Clone(base[:n/2]), append([]byte("changed"), base[n/2:]...)...)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(n))
			var out []byte
			for b.Loop() {
				out, _ = codec.Delta(base, content)
			}
			b.ReportMetric(float64(len(out)), "delta-B")
		})
	}
}

func TestWhatIsCompressedComesBack(t *testing.T) {
	for _, n := range []int{0, 1, 100, 5000, 1 << 20} {
		for _, level := range []codec.Level{codec.Fast, codec.Medium, codec.Best} {
			content := text(n)
			data := codec.Compress(nil, content, level)
			got, err := codec.Decompress(data, nil, n)
			if err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%d bytes at level %d: %v", n, level, err)
			}
			if _, err := codec.Decompress(data, nil, n-1); n > 0 && !errors.Is(err, record.ErrMalformed) {
				t.Fatalf("%d bytes within a limit of %d: %v", n, n-1, err)
			}
		}
	}
}

func TestADeltaNeedsItsBase(t *testing.T) {
	base := text(3 << 20)
	content := append(bytes.Clone(base[100:]), "and something new"...)
	data, err := codec.Delta(base, content)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > 2000 {
		t.Errorf("a change of 117 bytes takes %d", len(data))
	}
	got, err := codec.Decompress(data, base, len(content))
	if err != nil || !bytes.Equal(got, content) {
		t.Fatal(err)
	}
	if _, err := codec.Decompress(data, nil, len(content)); err == nil {
		t.Error("a delta was expanded without its base")
	}
	if got, err := codec.Decompress(data, content, len(content)); err == nil && bytes.Equal(got, content) {
		t.Error("a delta was expanded with another base")
	}
}

// A frame that claims or makes more than its record admits ends there.
func TestABombEndsAtItsLimit(t *testing.T) {
	bomb := codec.Compress(nil, make([]byte, 64<<20), codec.Fast)
	if _, err := codec.Decompress(bomb, nil, 1<<20); !errors.Is(err, record.ErrMalformed) {
		t.Fatalf("claimed size: %v", err)
	}
	// The same frame under a header that claims little.
	_, n := bomb[0], 1
	for bomb[n]&0x80 != 0 {
		n++
	}
	lying := append([]byte{bomb[0], 100}, bomb[n+1:]...)
	allocs := testing.AllocsPerRun(3, func() {
		if _, err := codec.Decompress(lying, nil, 1<<20); !errors.Is(err, record.ErrMalformed) {
			t.Errorf("made more than claimed: %v", err)
		}
	})
	if allocs > 200 {
		t.Errorf("%v allocations", allocs)
	}
}

func FuzzDecompress(f *testing.F) {
	f.Add(codec.Compress(nil, text(3000), codec.Fast), []byte(nil))
	d, err := codec.Delta(text(3000), text(3100))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(d, text(3000))
	f.Fuzz(func(t *testing.T, data, base []byte) {
		out, err := codec.Decompress(data, base, 1<<20)
		if err == nil && len(out) > 1<<20 {
			t.Fatalf("%d bytes", len(out))
		}
	})
}
