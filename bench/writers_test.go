package bench

import (
	"fmt"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
)

// BenchmarkWriters applies batches of a kilobyte to an engine alone, by several writers at once. Each of them waits for
// its own batches only. It reports batches/s.
func BenchmarkWriters(b *testing.B) {
	for _, name := range open.Schemes() {
		for _, writers := range []int{1, 2, 4, 8, 16, 32, 64} {
			b.Run(fmt.Sprintf("%s/%d", name, writers), func(b *testing.B) {
				e, err := open.Open(ctx, name+":"+b.TempDir()+"/store", &open.Options{Exclusive: true})
				if err != nil {
					b.Fatal(err)
				}
				defer e.Close()
				applyAll(b, e, writers)
			})
		}
	}
}

func applyAll(b *testing.B, e engine.Engine, writers int) {
	const each = 100
	value := make([]byte, 1000)
	rounds := 0
	for b.Loop() {
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for range each {
					if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: fmt.Appendf(nil, "writer %d", w), Value: value}}}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		rounds++
	}
	b.ReportMetric(float64(rounds*writers*each)/b.Elapsed().Seconds(), "batches/s")
}
