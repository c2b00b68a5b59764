package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/gc"
)

// A vacuumTimer measures how long the engine's own Vacuum takes.
type vacuumTimer struct {
	engine.Engine
	took time.Duration
}

func (v *vacuumTimer) Vacuum(ctx context.Context) error {
	start := time.Now()
	defer func() { v.took += time.Since(start) }()
	return v.Engine.Vacuum(ctx)
}

// BenchmarkEraseOne erases one session, and vacuums after one was committed to, in vacuumed
// stores of 1,000 and of 20,000 sessions. It reports the time without the engine's own Vacuum,
// which is to be the same, that time, and the keys and pairs read.
func BenchmarkEraseOne(b *testing.B) {
	engines := map[string]func(b *testing.B) engine.Engine{
		"memory": func(*testing.B) engine.Engine { return memory.New() },
		"pebble": func(b *testing.B) engine.Engine {
			e, err := pebble.Open(b.TempDir()+"/store", &pebble.Options{Durability: pebble.Process})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { e.Close() })
			return e
		},
	}
	for _, name := range []string{"memory", "pebble"} {
		for _, n := range sizes(1000, 20_000) {
			read := 0
			e := &vacuumTimer{Engine: &enginetest.Faulty{Engine: engines[name](b), Done: func(c enginetest.Call, _ error) { read += c.Read }}}
			st, err := turnstone.Open(ctx, e, &turnstone.Options{Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) }})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { st.Close() })
			sessions := fill(b, st, n, 1, 2000, false)
			vacuum := func(b *testing.B) {
				if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			later.Add(int64(time.Hour))
			vacuum(b)
			later.Add(int64(time.Hour))
			vacuum(b)
			next := 0
			for what, call := range map[string]func(b *testing.B){
				"erase": func(b *testing.B) {
					if r, err := st.Erase(ctx, fmt.Sprint("s", next), turnstone.KeepChildren, turnstone.EraseOptions{}); err != nil || len(r.HeldBy) > 0 {
						b.Fatal(r, err)
					}
				},
				"vacuum": vacuum,
			} {
				b.Run(fmt.Sprint(what, "-", name, "-", n), func(b *testing.B) {
					own, runs := time.Duration(0), 0
					for b.Loop() {
						b.StopTimer()
						next++
						if err := step(sessions[next], next, 1, 2000, false); err != nil {
							b.Fatal(err)
						}
						e.took, read = 0, 0
						start := time.Now()
						b.StartTimer()
						call(b)
						own += time.Since(start) - e.took
						runs++
					}
					b.ReportMetric(float64(own.Milliseconds())/float64(runs), "own-ms/op")
					b.ReportMetric(float64(e.took.Milliseconds()), "engine-ms")
					b.ReportMetric(float64(read), "read")
				})
			}
		}
	}
}
