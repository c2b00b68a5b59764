package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

// Backups of 1,000 sessions of ten commits to a directory: a new generation, and runs when nothing has changed, when one
// session has got a commit, and when it has and no feed tells which. Then all are restored to a store in memory.
func BenchmarkBackup(b *testing.B) {
	const sessions, commits = 1000, 10
	st := onPebble(b, pebble.Process)
	random := rand.New(rand.NewPCG(1, 1))
	var s *turnstone.Session
	for i := range sessions {
		var err error
		if s, _, err = st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", i)}); err != nil {
			b.Fatal(err)
		}
		for range commits {
			payload := make([]byte, 1000)
			for i := range payload {
				payload[i] = 'a' + byte(random.IntN(16))
			}
			if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: payload}}}); err != nil {
				b.Fatal(err)
			}
		}
	}
	to := backup.Directory(b.TempDir() + "/backup")
	run := func(b *testing.B, want int, o backup.Options) {
		r, err := backup.Run(ctx, st, to, o)
		if err != nil || r.Sessions != want {
			b.Fatalf("%+v, %v", r, err)
		}
		b.ReportMetric(float64(r.Bytes), "B-written")
	}
	b.Run("whole", func(b *testing.B) {
		for b.Loop() {
			run(b, sessions, backup.Options{NewGeneration: true})
		}
	})
	one := func(b *testing.B) {
		for b.Loop() {
			goOn(b, s)
			run(b, 1, backup.Options{})
		}
	}
	b.Run("one/compared", one)
	if err := st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour, Records: true}); err != nil {
		b.Fatal(err)
	}
	goOn(b, s)
	run(b, 1, backup.Options{})
	b.Run("one/told", one)
	b.Run("none/told", func(b *testing.B) {
		for b.Loop() {
			run(b, 0, backup.Options{})
		}
	})
	b.Run("follow", func(b *testing.B) { // what a follower keeps in memory
		heap := func() int64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		for b.Loop() {
			following, stop := context.WithCancel(ctx)
			before := heap()
			err := backup.Follow(following, st, to, backup.Options{Report: func(_ *backup.Report, err error) {
				if err != nil {
					b.Error(err)
				}
				stop()
				b.ReportMetric(float64(heap()-before)/sessions, "B-kept/session")
			}})
			if !errors.Is(err, context.Canceled) {
				b.Error(err)
			}
		}
	})
	b.Run("restore", func(b *testing.B) {
		for b.Loop() {
			e := memory.New()
			got, err := turnstone.Open(ctx, e, nil)
			if err != nil {
				b.Fatal(err)
			}
			r, err := backup.Restore(ctx, to, got, backup.RestoreOptions{})
			if err != nil || len(r.Sessions) != sessions {
				b.Fatalf("%d sessions, %v", len(r.Sessions), err)
			}
			got.Close()
			e.Close()
		}
	})
}
