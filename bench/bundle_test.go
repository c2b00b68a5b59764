package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

// Bundling and unbundling one session: time, the highest heap meanwhile beside what it was before, and as a yardstick the
// time that copying and syncing a file of the payloads' size takes.
func BenchmarkBundle(b *testing.B) {
	for _, nodes := range []int{10_000, 100_000} {
		from := onPebble(b, pebble.Process)
		s := history(b, from, "s", nodes)
		if err := s.Seal(ctx); err != nil {
			b.Fatal(err)
		}
		info, err := s.Info(ctx)
		if err != nil {
			b.Fatal(err)
		}
		file := filepath.Join(b.TempDir(), "bundle")
		b.Run(fmt.Sprintf("write-%d", nodes), func(b *testing.B) {
			b.SetBytes(int64(info.Bytes))
			peak := watchHeap()
			for b.Loop() {
				b.ReportMetric(float64(written(b, from, file))/1e6, "bundle-MB")
			}
			b.ReportMetric(float64(peak())/1e6, "heap-MB")
		})
		written(b, from, file)
		b.Run(fmt.Sprintf("read-%d", nodes), func(b *testing.B) {
			b.SetBytes(int64(info.Bytes))
			i := 0
			peak := watchHeap()
			for b.Loop() {
				b.StopTimer()
				to := onPebble(b, pebble.Power)
				f, err := os.Open(file)
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if _, err := to.Unbundle(ctx, f, turnstone.UnbundleOptions{As: fmt.Sprint(i)}); err != nil {
					b.Fatal(err)
				}
				i++
				b.StopTimer()
				err = errors.Join(f.Close(), to.Close())
				b.StartTimer()
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(peak())/1e6, "heap-MB")
		})
		b.Run(fmt.Sprintf("cp-%d", nodes), func(b *testing.B) {
			b.SetBytes(int64(info.Bytes))
			dir := b.TempDir()
			content := noise(int(info.Bytes), 1)
			for b.Loop() {
				f, err := os.Create(filepath.Join(dir, "copy"))
				if err != nil {
					b.Fatal(err)
				}
				_, err = f.Write(content)
				if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// written writes a bundle of session s to a file, and returns its size.
func written(b *testing.B, st *turnstone.Store, file string) int64 {
	f, err := os.Create(file)
	if err != nil {
		b.Fatal(err)
	}
	_, err = st.Bundle(ctx, f, turnstone.Bundled{ID: "s"})
	n, serr := f.Seek(0, io.SeekEnd)
	if err = errors.Join(err, serr, f.Close()); err != nil {
		b.Fatal(err)
	}
	return n
}

// watchHeap looks at the heap every few milliseconds, and returns by how many bytes it was above what it is now, at most.
func watchHeap() (peak func() uint64) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	begin := m.HeapInuse
	var highest atomic.Uint64
	done := make(chan struct{})
	go func() {
		var m runtime.MemStats
		for {
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
				runtime.ReadMemStats(&m)
				highest.Store(max(highest.Load(), m.HeapInuse))
			}
		}
	}()
	return func() uint64 {
		close(done)
		return max(highest.Load(), begin) - begin
	}
}
