package postgres_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/pgtest"
)

var (
	atSize   = flag.Int("nodes", 20_000, "nodes that BenchmarkAtSize stores")
	settings = flag.String("table", "", "storage parameters of the table in BenchmarkAtSize, instead of the driver's, for example fillfactor=80,autovacuum_vacuum_scale_factor=0.2")
)

// BenchmarkAtSize stores nodes, five a commit, in sessions of 2,000 that are written side by side, on a server of its
// own. After each fifth it logs commits/s and their latencies, how many updates were in place (HOT), dead rows,
// sizes, and how often autovacuum has come by. At the end a collection and a vacuum of the store run beside commits.
func BenchmarkAtSize(b *testing.B) {
	const perCommit, perSession, workers, beside, steps = 5, 2000, 16, 20, 5
	srv := pgtest.Private(b, "shared_buffers=1GB", "max_wal_size=4GB", "autovacuum_naptime=5s")
	c, err := pgx.Connect(ctx, srv.URL("postgres"))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(ctx)
	for _, s := range postgres.Definition("turnstone") {
		if _, err := c.Exec(ctx, s); err != nil {
			b.Fatal(err)
		}
	}
	if *settings != "" {
		if _, err := c.Exec(ctx, "ALTER TABLE turnstone.pairs SET ("+*settings+")"); err != nil {
			b.Fatal(err)
		}
	}
	e, st := stored(b, srv.URL("postgres"), nil)
	sessions := max(*atSize/perSession, workers)
	state := func() string {
		var updates, hot, dead, live, came, size, index int64
		if err := c.QueryRow(ctx, `SELECT n_tup_upd, n_tup_hot_upd, n_dead_tup, n_live_tup, autovacuum_count, pg_relation_size(relid), pg_indexes_size(relid)
			FROM pg_stat_user_tables WHERE relname = 'pairs'`).Scan(&updates, &hot, &dead, &live, &came, &size, &index); err != nil {
			b.Fatal(err)
		}
		return fmt.Sprintf("updates in place %.1f %%, rows %d and %d dead, table %d MB, index %d MB, autovacuum %d times",
			100*float64(hot)/float64(max(updates, 1)), live, dead, size>>20, index>>20, came)
	}
	took := func(all []time.Duration, begun time.Time) string {
		slices.Sort(all)
		return fmt.Sprintf("%.0f commits/s, p50 %v, p99 %v, longest %v", float64(len(all))/time.Since(begun).Seconds(),
			all[len(all)/2].Round(10*time.Microsecond), all[len(all)*99/100].Round(10*time.Microsecond), all[len(all)-1].Round(time.Millisecond))
	}
	words := strings.Fields("the agent reads a file and calls the tool again because its result was empty so that the user sees what was done")
	text := func(r *rand.Rand) []byte {
		var b []byte
		for len(b) < 110 {
			b = append(append(b, words[r.IntN(len(words))]...), ' ')
		}
		return b
	}
	commit := func(s *turnstone.Session, r *rand.Rand) (time.Duration, error) {
		nodes := make([]turnstone.NewNode, perCommit)
		for i := range nodes {
			nodes[i] = turnstone.NewNode{Kind: "message", Payload: text(r)}
		}
		begun := time.Now()
		_, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: nodes})
		return time.Since(begun), err
	}
	// fill writes the sessions from first to last, of which each worker has some at hand.
	fill := func(first, last int) string {
		var mu sync.Mutex
		var all []time.Duration
		begun := time.Now()
		parallel(b, workers, workers, func(_, w int) error {
			r := rand.New(rand.NewPCG(uint64(first), uint64(w)))
			var mine []time.Duration
			for from := first + w; from < last; from += workers * beside {
				var some []*turnstone.Session
				for n := from; n < last && len(some) < beside; n += workers {
					s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", n)})
					if err != nil {
						return err
					}
					some = append(some, s)
				}
				for range perSession / perCommit {
					for _, s := range some {
						d, err := commit(s, r)
						if err != nil {
							return err
						}
						mine = append(mine, d)
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
			return nil
		})
		return took(all, begun)
	}
	for range b.N {
		for step := range steps {
			first, last := sessions*step/steps, sessions*(step+1)/steps
			line := fill(first, last)
			b.Logf("%d nodes: %s; %s", last*perSession, line, state())
		}
		// Old sessions go on while the store is collected and vacuumed.
		stop := make(chan struct{})
		var all []time.Duration
		var mu sync.Mutex
		var writers sync.WaitGroup
		begun := time.Now()
		for w := range 4 {
			writers.Go(func() {
				r := rand.New(rand.NewPCG(7, uint64(w)))
				for {
					select {
					case <-stop:
						return
					default:
					}
					s, err := st.Session(ctx, fmt.Sprint("s", r.IntN(sessions)))
					if err == nil {
						var d time.Duration
						d, err = commit(s, r)
						mu.Lock()
						all = append(all, d)
						mu.Unlock()
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		from := time.Now()
		_, err := st.GC(ctx, gc.Options{})
		collected := time.Since(from)
		if err == nil {
			_, err = st.Vacuum(ctx, gc.VacuumOptions{})
		}
		vacuumed := time.Since(from) - collected
		close(stop)
		writers.Wait()
		if err != nil {
			b.Fatal(err)
		}
		b.Logf("a collection took %v and a vacuum %v, beside %s; %s; %d transactions were repeated",
			collected.Round(time.Millisecond), vacuumed.Round(time.Millisecond), took(all, begun), state(), e.Retries())
		info, err := st.Session(ctx, "s0")
		if err == nil {
			_, err = info.Load(ctx, turnstone.Scope{})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
