//go:build linux

package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/pgtest"
)

// BenchmarkCluster measures what docs/scale.md plans with, on a private PostgreSQL server.
//
// "commits" commits turns of four nodes, 1.2 KB, in 64 sessions of 16 namespaces, and reports the processor's time that
// the host and the server take for a commit, and what a node takes on disk after vacuum.
//
// "move" moves a namespace to another server while a session commits to it, and reports the bytes of keys and values a
// second, how long commits waited, and the longest time that a commit took.
func BenchmarkCluster(b *testing.B) {
	b.Run("commits", benchCluster)
	b.Run("move", benchMove)
}

func benchCluster(b *testing.B) {
	const spaces = 16
	s := pgtest.Private(b)
	e, err := postgres.Open(ctx, s.URL("postgres"), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { e.Close() })
	var stores []*turnstone.Store
	for i := range spaces {
		st, err := turnstone.Open(ctx, e, &turnstone.Options{Namespace: fmt.Sprint("team ", i)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { st.Close() })
		stores = append(stores, st)
	}
	var host, server time.Duration
	round := 0
	for b.Loop() {
		b.StopTimer()
		sessions := make([]*turnstone.Session, concurrent)
		for i := range sessions {
			if sessions[i], _, err = stores[i%spaces].Create(ctx, turnstone.Request{ID: fmt.Sprint(round, "/", i)}); err != nil {
				b.Fatal(err)
			}
		}
		round++
		commits := script()
		h, p := processor(b), processors(b, s)
		b.StartTimer()
		commitAll(b, sessions, commits)
		b.StopTimer()
		host, server = host+processor(b)-h, server+processors(b, s)-p
		b.StartTimer()
	}
	report(b)
	commits := time.Duration(b.N * concurrent * turns)
	b.ReportMetric(float64((host/commits).Nanoseconds())/1000, "host-µs/commit")
	b.ReportMetric(float64((server/commits).Nanoseconds())/1000, "server-µs/commit")
	for _, st := range stores {
		collect(b, st)
		if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(tableBytes(b, s))/float64(commits)/4, "B/node")
}

// processor returns the processor's time that this process has taken.
func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// processors returns the processor's time that the processes of a server have taken: those that live, and those that
// the first one has waited for.
func processors(b *testing.B, s *pgtest.Server) (sum time.Duration) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on all systems that Go runs on
	first := s.Pid()
	all, err := os.ReadDir("/proc")
	if err != nil {
		b.Fatal(err)
	}
	for _, d := range all {
		stat, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue // No process, or one that has ended.
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // from the third on
		number := func(i int) int { n, _ := strconv.Atoi(fields[i-3]); return n }
		if d.Name() == strconv.Itoa(first) {
			sum += time.Duration(number(14)+number(15)+number(16)+number(17)) * tick
		} else if number(4) == first {
			sum += time.Duration(number(14)+number(15)) * tick
		}
	}
	return sum
}

// tableBytes returns what the table and its index take.
func tableBytes(b *testing.B, s *pgtest.Server) (size int64) {
	c, err := pgx.Connect(ctx, s.URL("postgres"))
	if err == nil {
		defer c.Close(ctx)
		err = c.QueryRow(ctx, "SELECT pg_total_relation_size('turnstone.pairs')").Scan(&size)
	}
	if err != nil {
		b.Fatal(err)
	}
	return size
}

func benchMove(b *testing.B) {
	databases := map[string]engine.Engine{}
	for _, name := range []string{"a", "b"} {
		e, err := postgres.Open(ctx, pgtest.Private(b).URL("postgres"), nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { e.Close() })
		databases[name] = e
	}
	open := func(_ context.Context, name string) (engine.Engine, error) { return databases[name], nil }
	st, err := turnstone.Open(ctx, databases["a"], &turnstone.Options{Database: open})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { st.Close() })
	for round := range 10 {
		commitAll(b, newSessions(b, st, round), script())
	}
	var longest atomic.Int64
	var beside sync.WaitGroup
	stop := make(chan struct{})
	s, _, err := st.Create(ctx, turnstone.Request{ID: "beside"})
	if err != nil {
		b.Fatal(err)
	}
	beside.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			begun := time.Now()
			c := turn(1, i)
			c.Expected = turnstone.AnyRevision
			if _, err := s.Commit(ctx, c); err != nil {
				b.Error(err)
				return
			}
			longest.Store(max(longest.Load(), int64(time.Since(begun))))
		}
	})
	from, to := "a", "b"
	var size int64
	var paused time.Duration
	for b.Loop() {
		r, err := turnstone.Move(ctx, databases[from], databases[to], turnstone.MoveOptions{To: to})
		if err != nil {
			b.Fatal(err)
		}
		size, paused = size+r.Bytes, max(paused, r.Paused)
		from, to = to, from
	}
	close(stop)
	beside.Wait()
	b.ReportMetric(float64(size)/1e6/b.Elapsed().Seconds(), "MB/s")
	b.ReportMetric(float64(paused.Microseconds())/1000, "pause-ms")
	b.ReportMetric(float64(longest.Load())/1e6, "longest-commit-ms")
}
