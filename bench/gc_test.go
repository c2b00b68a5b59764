package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/gc"
)

// noise are bytes that no compression hides.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(seed, 7))
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b
}

// later is by how much the stores' clock is ahead.
var later atomic.Int64

func store(b *testing.B, o *pebble.Options) *turnstone.Store {
	b.Helper()
	e, err := pebble.Open(b.TempDir()+"/store", o)
	if err != nil {
		b.Fatal(err)
	}
	st, err := turnstone.Open(ctx, e, &turnstone.Options{Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) }})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(st.Close(), e.Close()); err != nil {
			b.Error(err)
		}
	})
	return st
}

// fill makes n sessions of some turns with a checkpoint each, in 16 goroutines.
func fill(b *testing.B, st *turnstone.Store, n, turns, part int, fresh bool) []*turnstone.Session {
	b.Helper()
	out := make([]*turnstone.Session, n)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := g; i < n; i += 16 {
				s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", i)})
				if err != nil {
					b.Error(err)
					return
				}
				out[i] = s
				for t := range turns {
					if err := step(s, i, t, part, fresh); err != nil {
						b.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	return out
}

// step commits a turn with a checkpoint that changes a little or, if fresh is set,
// altogether: then each version is a blob, and no delta of the one before.
func step(s *turnstone.Session, i, t, part int, fresh bool) error {
	c := turn(i, t)
	c.Expected = turnstone.AnyRevision
	seed := uint64(i)
	if fresh {
		seed |= uint64(t) << 32
	}
	content := noise(part, seed)
	copy(content, fmt.Sprint("turn ", t))
	c.Checkpoint = map[string][]byte{"state": content}
	_, err := s.Commit(ctx, c)
	return err
}

// sizes returns the sizes that a benchmark has: with -short, which says only that it runs, the first one.
func sizes(all ...int) []int {
	if testing.Short() {
		return all[:1]
	}
	return all
}

// BenchmarkGCIncremental times a collection after 100 sessions were touched, in
// vacuumed stores of 1,000 and of 20,000 sessions: it is to cost the same.
func BenchmarkGCIncremental(b *testing.B) {
	for _, n := range sizes(1000, 20_000) {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			st := store(b, &pebble.Options{Durability: pebble.Process})
			sessions := fill(b, st, n, 1, 2000, false)
			later.Add(int64(time.Hour)) // what was touched then was not touched now
			if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
				b.Fatal(err)
			}
			later.Add(int64(time.Hour))
			round := 1
			for b.Loop() {
				b.StopTimer()
				for i := range 100 {
					if err := step(sessions[i*n/100], i*n/100, round, 2000, false); err != nil {
						b.Fatal(err)
					}
				}
				round++
				b.StartTimer()
				if r := collect(b, st); r.Commits != 100 {
					b.Fatalf("%+v", r)
				}
			}
		})
	}
}

func collect(b *testing.B, st *turnstone.Store) *gc.Report {
	b.Helper()
	r, err := st.GC(ctx, gc.Options{})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// BenchmarkRetained commits to a session that retains ten revisions, prunes, and reclaims what that let go of: by a
// collection, which looks at what has changed, and by a vacuum, which reads the history to find what only side branches
// show.
func BenchmarkRetained(b *testing.B) {
	for _, n := range sizes(300, 3000, 30_000) {
		for _, by := range []string{"gc", "vacuum"} {
			b.Run(fmt.Sprintf("%s/%d", by, n), func(b *testing.B) {
				st := store(b, &pebble.Options{Durability: pebble.Process})
				s, round := fill(b, st, 1, n, 500, false)[0], n
				reclaim := func() {
					_, err := s.Prune(ctx, 10)
					if by == "gc" {
						collect(b, st)
					} else if err == nil {
						_, err = st.Vacuum(ctx, gc.VacuumOptions{NoCompaction: true})
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				reclaim()
				for b.Loop() {
					b.StopTimer()
					if err := step(s, 0, round, 500, false); err != nil {
						b.Fatal(err)
					}
					round++
					b.StartTimer()
					reclaim()
				}
			})
		}
	}
}

// BenchmarkGC collects a store of 2,000 sessions with 5 checkpoints each twice:
// when nothing was indexed yet, and after half of the sessions were deleted. It
// reports blobs marked and swept a second, and how much the heap grew at most.
func BenchmarkGC(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		st := store(b, &pebble.Options{Durability: pebble.Process})
		const n, turns = 2000, 5
		fill(b, st, n, turns, 8000, true)
		peak := watch()
		b.StartTimer()
		start := time.Now()
		r := collect(b, st)
		marked := float64(r.Retained) / time.Since(start).Seconds()
		b.StopTimer()
		for i := range n / 2 {
			if err := st.Delete(ctx, fmt.Sprint("s", 2*i), turnstone.KeepChildren); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
		start = time.Now()
		r = collect(b, st)
		swept := float64(r.Deleted) / time.Since(start).Seconds()
		if r.Deleted != n/2*turns {
			b.Fatalf("%+v", r)
		}
		b.ReportMetric(marked, "marked/s")
		b.ReportMetric(swept, "swept/s")
		b.ReportMetric(float64(peak())/(1<<20), "heap-MiB")
	}
}

// watch returns a function that says by how much the heap in use grew at most.
func watch() func() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before, most := m.HeapAlloc, uint64(0)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				runtime.ReadMemStats(&m)
				if m.HeapAlloc > before {
					most = max(most, m.HeapAlloc-before)
				}
			}
		}
	}()
	return func() uint64 {
		close(stop)
		<-done
		return most
	}
}

// BenchmarkCommitBesideMaintenance commits in 8 sessions, with pauses as agents
// make them, for two seconds without and two seconds with collections and
// vacuums that follow each other without a pause, and reports the latencies of
// commits and the ratio of the 99th percentiles.
func BenchmarkCommitBesideMaintenance(b *testing.B) {
	st := store(b, nil)
	fill(b, st, 500, 5, 8000, false)
	round := 0
	for b.Loop() {
		round++
		quiet := latencies(b, st, fmt.Sprint("quiet", round), nil)
		busy := latencies(b, st, fmt.Sprint("busy", round), func(ctx context.Context) error {
			for ctx.Err() == nil {
				_, err := st.GC(ctx, gc.Options{Pace: 0.5})
				if err == nil {
					_, err = st.Vacuum(ctx, gc.VacuumOptions{Pace: 0.5})
				}
				if err != nil && ctx.Err() == nil && !errors.Is(err, gc.ErrSuperseded) {
					return err
				}
			}
			return nil
		})
		at := func(l []time.Duration, p float64) float64 { return float64(l[int(p*float64(len(l)))].Microseconds()) }
		b.ReportMetric(at(quiet, 0.5), "quiet-p50-us")
		b.ReportMetric(at(busy, 0.5), "busy-p50-us")
		b.ReportMetric(at(quiet, 0.99), "quiet-p99-us")
		b.ReportMetric(at(busy, 0.99), "busy-p99-us")
		b.ReportMetric(at(busy, 0.99)/at(quiet, 0.99), "p99-ratio")
	}
}

func latencies(b *testing.B, st *turnstone.Store, name string, beside func(context.Context) error) []time.Duration {
	b.Helper()
	bg, cancel := context.WithCancel(ctx)
	var background, wg sync.WaitGroup
	if beside != nil {
		background.Go(func() {
			if err := beside(bg); err != nil {
				b.Error(err)
			}
		})
	}
	var mu sync.Mutex
	var all []time.Duration
	for i := range 8 {
		s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint(name, "-", i)})
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			var own []time.Duration
			for t, end := 0, time.Now().Add(2*time.Second); time.Now().Before(end); t++ {
				start := time.Now()
				if err := step(s, 1000+i, t, 8000, false); err != nil {
					b.Error(err)
					return
				}
				own = append(own, time.Since(start))
				time.Sleep(5 * time.Millisecond)
			}
			mu.Lock()
			all = append(all, own...)
			mu.Unlock()
		})
	}
	wg.Wait()
	cancel()
	background.Wait()
	slices.Sort(all)
	return all
}
