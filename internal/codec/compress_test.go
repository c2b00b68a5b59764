package codec_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/internal/codec"
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
			if _, err := codec.Decompress(data, nil, n-1); n > 0 && !errors.Is(err, damage.ErrMalformed) {
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

// What a delta takes depends on what is new, not on the size of the content.
func TestADeltaTakesWhatIsNew(t *testing.T) {
	base := text(300_000)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	fresh := []byte("a few words that are not there")
	changed := func(every int) []byte {
		out := bytes.Clone(base)
		for i := every / 2; i < len(out); i += every {
			out[i] ^= 1
		}
		return out
	}
	for name, c := range map[string]struct {
		content []byte
		most    int
	}{
		"equal":                  {base, 20},
		"empty":                  {nil, 10},
		"longer at its end":      {join(base, fresh), 60},
		"longer at its begin":    {join(fresh, base), 60},
		"longer in the middle":   {join(base[:100_000], fresh, base[100_000:]), 60},
		"shorter at its end":     {base[:200_000], 20},
		"shorter at its begin":   {base[100_000:], 20},
		"shorter in the middle":  {join(base[:100_000], base[200_000:]), 20},
		"two halves that swap":   {join(base[150_000:], base[:150_000]), 30},
		"doubled":                {join(base, base), 30},
		"changed at five places": {changed(60_000), 50},
		"changed at many places": {changed(1000), 3000},
		"changed throughout":     {changed(20), 120_000},
		"new":                    {random(50_000), 50_050},
	} {
		data, err := codec.Delta(base, c.content)
		if err != nil || len(data) > c.most {
			t.Errorf("%s: %d bytes, at most %d: %v", name, len(data), c.most, err)
		}
		if got, err := codec.Decompress(data, base, len(c.content)); err != nil || !bytes.Equal(got, c.content) {
			t.Errorf("%s: another content: %v", name, err)
		}
	}
}

func random(n int) []byte {
	out := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(out)
	return out
}

// A delta that copies from outside of its base, or makes another length than it says, is
// refused.
func TestADeltaIsRefusedThatIsNotOne(t *testing.T) {
	base := text(100)
	whole := func(size int, numbers ...byte) []byte { return append([]byte{2, byte(size)}, numbers...) }
	if got, err := codec.Decompress(whole(12, 2 /* runs */, 20, 5, 3, 9, 2, 2 /* windows */, 0, 'a', 'b', 'c', 'd', 'e'), base, 100); err != nil ||
		string(got) != string(base[10:15])+"abc"+string(base[10:12])+"de" {
		t.Fatalf("%q %v", got, err)
	}
	stream := whole(5, 1, 0, 4, 1, 1, 0, 9, 1, 1, 0, 0xfe, 0xff, 'a') // one window of 9 bytes, and a stored block of one
	if got, err := codec.Decompress(stream, base, 100); err != nil || string(got) != string(base[:4])+"a" {
		t.Fatalf("%q %v", got, err)
	}
	for name, data := range map[string][]byte{
		"nothing":                         whole(0),
		"no windows":                      whole(0, 0),
		"a copy behind the base":          whole(5, 1, 192, 1, 5, 0, 0),
		"a copy that begins behind it":    whole(5, 1, 204, 1, 0, 5, 0, 'a', 'b', 'c', 'd', 'e'),
		"a copy before the base":          whole(5, 1, 1, 5, 0, 0),
		"more than it says":               whole(5, 1, 0, 6, 0, 0),
		"less than it says":               whole(5, 1, 0, 4, 0, 0),
		"more fresh bytes than it says":   whole(5, 1, 0, 4, 1, 0, 'a', 'b'),
		"fewer fresh bytes than it says":  whole(5, 1, 0, 3, 2, 0, 'a'),
		"fewer runs than it says":         whole(5, 9, 0, 5, 0, 0),
		"a number that is cut off":        whole(5, 1, 0, 0x85),
		"a number that is not shortest":   whole(5, 1, 0, 0x85, 0, 0, 0),
		"a window behind the base":        whole(5, 1, 0, 4, 1, 1, 90, 11, 'a'),
		"a window that begins behind it":  whole(5, 1, 0, 4, 1, 1, 101, 0, 'a'),
		"windows that end behind it":      whole(5, 1, 0, 4, 1, 2, 50, 40, 5, 6, 'a'),
		"fresh bytes that are no stream":  whole(5, 1, 0, 4, 1, 1, 0, 9, 'a'),
		"a stream that is cut off":        whole(5, 1, 0, 4, 1, 1, 0, 9, 1, 0, 1, 0xfe, 0xff), // BFINAL, stored, one byte that is missing
		"a stream without its last block": whole(5, 1, 0, 4, 1, 1, 0, 9, 0, 1, 0, 0xfe, 0xff, 'a'),
		"a stream of too many bytes":      whole(5, 1, 0, 4, 1, 1, 0, 9, 1, 2, 0, 0xfd, 0xff, 'a', 'b'),
		"a stream of too few bytes":       whole(5, 1, 0, 3, 2, 1, 0, 9, 1, 1, 0, 0xfe, 0xff, 'a'),
		"bytes behind a stream":           whole(5, 1, 0, 4, 1, 1, 0, 9, 1, 1, 0, 0xfe, 0xff, 'a', 'b'),
		"a number larger than any offset": whole(5, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 5, 0, 0),
	} {
		if got, err := codec.Decompress(data, base, 100); !errors.Is(err, damage.ErrMalformed) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// A chain of deltas is expanded in a bounded number of pieces, and gives each content.
func TestAChainOfDeltasIsExpandedInPieces(t *testing.T) {
	content := text(200_000)
	pieces := codec.NewPieces(content)
	for i := range 30 {
		next := bytes.Clone(content)
		for j := i; j < len(next); j += 900 {
			next[j] ^= 1
		}
		next = append(next[:i*50], next[i*50+i:]...)
		data, err := codec.Delta(content, next)
		if err != nil {
			t.Fatal(err)
		}
		if pieces, err = codec.Expand(data, pieces, len(next)); err != nil || !bytes.Equal(pieces.Bytes(), next) || pieces.Len() != len(next) {
			t.Fatalf("version %d: %v", i, err)
		}
		content = next
	}
}

// A frame that claims or makes more than its record admits ends there.
func TestABombEndsAtItsLimit(t *testing.T) {
	bomb := codec.Compress(nil, make([]byte, 64<<20), codec.Fast)
	if _, err := codec.Decompress(bomb, nil, 1<<20); !errors.Is(err, damage.ErrMalformed) {
		t.Fatalf("claimed size: %v", err)
	}
	// The same frame under a header that claims little.
	_, n := bomb[0], 1
	for bomb[n]&0x80 != 0 {
		n++
	}
	lying := append([]byte{bomb[0], 100}, bomb[n+1:]...)
	allocs := testing.AllocsPerRun(3, func() {
		if _, err := codec.Decompress(lying, nil, 1<<20); !errors.Is(err, damage.ErrMalformed) {
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

func FuzzDelta(f *testing.F) {
	f.Add(text(3000), text(3100), 3)
	f.Add([]byte("a"), []byte{}, 1)
	f.Add(text(2000), random(2000), 100)
	f.Fuzz(func(t *testing.T, base, content []byte, repeat int) {
		repeat = 1 + min(max(repeat, 0), 50)
		content = slices.Concat(bytes.Repeat(content, repeat), base, content)
		data, err := codec.Delta(base, content)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := codec.Decompress(data, append([]byte{}, base...), len(content)); err != nil || !bytes.Equal(got, content) {
			t.Fatal(err)
		}
	})
}
