package search

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

// sentence returns text whose words are as frequent as those of a language are (Zipf's law).
func sentence(z *rand.Zipf, n int) string {
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, "%s ", wordNumber(z.Uint64()))
	}
	return b.String()
}

// wordNumber returns a made-up word of syllables.
func wordNumber(n uint64) string {
	const consonants, vowels = "bcdfghjklmnprstvwz", "aeiou"
	w := ""
	for n += 7; n > 0; n /= uint64(len(consonants) * len(vowels)) {
		w += string(consonants[n%uint64(len(consonants))]) + string(vowels[n/uint64(len(consonants))%uint64(len(vowels))])
	}
	return w
}

// asked returns how many nodes a benchmark has.
func asked(b *testing.B) int {
	total := 20_000
	if text := os.Getenv("TURNSTONE_NODES"); text != "" {
		if _, err := fmt.Sscan(text, &total); err != nil {
			b.Fatal(err)
		}
	}
	return total
}

// BenchmarkFind makes a store of 20,000 nodes, or as many as TURNSTONE_NODES says, and an index of it, and asks for a
// word or several, a phrase, a prefix, and fields.
func BenchmarkFind(b *testing.B) {
	total := asked(b)
	dir := b.TempDir()
	e, err := pebble.Open(filepath.Join(dir, "store"), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	r := rand.New(rand.NewPCG(1, 2))
	z := rand.NewZipf(r, 1.1, 10, 300_000)
	payload := 0
	for made := 0; made < total; made += 1000 {
		s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", made)})
		if err != nil {
			b.Fatal(err)
		}
		for range 10 {
			var nodes []turnstone.NewNode
			for i := range 100 {
				text := sentence(z, 5+r.IntN(100))
				payload += len(text)
				nodes = append(nodes, turnstone.NewNode{Kind: []string{"user", "assistant", "tool"}[i%3], Payload: []byte(text)})
			}
			if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: nodes}); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := st.Seal(ctx); err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(dir, "index")
	x, err := Open(path, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer x.Close()
	begun := time.Now()
	if _, err := x.Sync(ctx, st); err != nil {
		b.Fatal(err)
	}
	indexed := time.Since(begun)
	bytes := func(path string) (n int64) {
		_ = filepath.WalkDir(path, func(_ string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				if i, err := d.Info(); err == nil {
					n += i.Size()
				}
			}
			return nil
		})
		return n
	}
	word := func() string { return wordNumber(z.Uint64()) }
	for name, query := range map[string]func() string{
		"word": word, "words": func() string { return word() + " " + word() }, "prefix": func() string { w := word(); return w[:min(3, len(w))] + "* " + word() },
		"phrase": func() string { return `"` + word() + " " + word() + `"` }, "kind": func() string { return "kind:tool " + word() },
		"session": func() string { return fmt.Sprintf("session:s%d %s", r.IntN(total/1000)*1000, word()) },
	} {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				q, err := Parse(query(), time.Now())
				if err != nil {
					b.Fatal(err)
				}
				begun := time.Now()
				if _, err := x.Find(ctx, st, q, FindOptions{}); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begun))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(bytes(path))/float64(bytes(filepath.Join(dir, "store"))), "index/store")
			b.ReportMetric(float64(bytes(path))/float64(payload), "index/payload")
			b.ReportMetric(float64(total)/indexed.Seconds(), "indexed-nodes/s")
		})
	}
}

// BenchmarkSimilar compares a text with the vectors of many nodes: TURNSTONE_NODES of them, of 384 numbers.
func BenchmarkSimilar(b *testing.B) {
	total := asked(b)
	r := rand.New(rand.NewPCG(1, 2))
	e := memory.New()
	defer e.Close()
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	for made := 0; made < total; made += 1000 {
		s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", made)})
		if err != nil {
			b.Fatal(err)
		}
		nodes := make([]turnstone.NewNode, 1000)
		for i := range nodes {
			nodes[i] = turnstone.NewNode{Kind: "user", Payload: []byte(fmt.Sprint("message ", made+i))}
		}
		if _, err := s.Commit(ctx, turnstone.Commit{Nodes: nodes}); err != nil {
			b.Fatal(err)
		}
	}
	embed := func(_ context.Context, texts []string) ([][]float32, error) {
		out := make([][]float32, len(texts))
		for i := range out {
			out[i] = make([]float32, 384)
			for j := range out[i] {
				out[i][j] = r.Float32() - 0.5
			}
		}
		return out, nil
	}
	x, err := Open(filepath.Join(b.TempDir(), "index"), Options{Embedding: &Embedding{Model: "random", Embed: embed}})
	if err != nil {
		b.Fatal(err)
	}
	defer x.Close()
	if _, err := x.Sync(ctx, st); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := x.Similar(ctx, st, "a text", nil, FindOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
