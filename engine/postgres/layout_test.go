package postgres_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/internal/pgtest"
)

var rows = flag.Int("rows", 2000, "rows of the table in BenchmarkLayout")

// layouts are tables that could hold the pairs. The one of Definition is "chosen".
var layouts = []struct {
	name  string
	table []string // with %s for the schema
}{
	{"chosen", nil},
	{"no room in pages", []string{"CREATE TABLE %s.pairs (k bytea PRIMARY KEY, v bytea NOT NULL)"}},
	{"half of each page free", []string{"CREATE TABLE %s.pairs (k bytea PRIMARY KEY, v bytea NOT NULL) WITH (fillfactor = 50)"}},
	{"16 partitions by hash", append([]string{"CREATE TABLE %s.pairs (k bytea PRIMARY KEY, v bytea NOT NULL) PARTITION BY HASH (k)"}, partitions(16)...)},
}

func partitions(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("CREATE TABLE %%[1]s.pairs_%d PARTITION OF %%[1]s.pairs FOR VALUES WITH (MODULUS %d, REMAINDER %d) WITH (fillfactor = 80)", i, n, i))
	}
	return out
}

// A laidOut is a store in one of the layouts.
type laidOut struct {
	name     string
	e        *postgres.Engine
	sessions []*turnstone.Session
	at       []int // their revisions
	rowBytes float64
}

// BenchmarkLayout measures layouts of the table with as many rows as the flag
// says, of a store with sessions of a hundred turns each, one measure of all layouts
// after the other: commits by 8 and by 32 workers to any of the sessions, the
// latter also beside one who reads the whole table again and again, as gc and verify
// do; reads of eight keys; pages of a scan.
func BenchmarkLayout(b *testing.B) {
	const perSession = 100
	full := pgtest.Schema(b)
	sessions := *rows / (3*perSession + 6)
	commit := func(s *turnstone.Session, w, i int) error {
		_, err := s.Commit(ctx, turn(i, append(fmt.Appendf(nil, "%d %d ", w, i), payload...)))
		return err
	}
	stored := func(schema string, n int) (*postgres.Engine, *turnstone.Store) {
		return stored(b, fmt.Sprint(pgtest.URL(b), "&pool_max_conns=", n+1), &postgres.Options{Schema: schema})
	}
	e, st := stored(full, 8)
	parallel(b, 8, sessions, func(_, w int) error {
		s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", w)})
		for i := 0; i < perSession && err == nil; i++ {
			err = commit(s, w, i)
		}
		return err
	})
	var keys [][]byte
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			b.Fatal(err)
		}
		keys = append(keys, p.Key)
	}
	if err := st.Close(); err != nil {
		b.Fatal(err)
	}
	c, err := pgx.Connect(ctx, pgtest.URL(b))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(ctx)
	run := func(s string) {
		if _, err := c.Exec(ctx, s); err != nil {
			b.Fatalf("%s: %v", s, err)
		}
	}
	var all []*laidOut
	for _, l := range layouts {
		schema := pgtest.Schema(b)
		run("CREATE SCHEMA " + schema)
		for _, s := range l.table {
			run(fmt.Sprintf(s, schema))
		}
		for _, s := range postgres.Definition(schema) {
			run(s)
		}
		run(fmt.Sprintf("INSERT INTO %s.pairs SELECT * FROM %s.pairs", schema, full))
		run("VACUUM ANALYZE " + schema + ".pairs")
		var size int64
		if err := c.QueryRow(ctx, "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r'", schema).Scan(&size); err != nil {
			b.Fatal(err)
		}
		o := &laidOut{name: l.name, at: make([]int, sessions), rowBytes: float64(size) / float64(len(keys))}
		o.e, st = stored(schema, 32)
		for w := range sessions { // each has its head
			s, err := st.Session(ctx, fmt.Sprint("s", w))
			if err == nil {
				err = commit(s, w, perSession)
			}
			if err != nil {
				b.Fatal(err)
			}
			o.sessions, o.at[w] = append(o.sessions, s), perSession+1
		}
		all = append(all, o)
	}
	run("CHECKPOINT")
	measure := func(name string, f func(*testing.B, *laidOut)) {
		b.Run(name, func(b *testing.B) {
			for _, o := range all {
				b.Run(o.name, func(b *testing.B) { f(b, o) })
			}
		})
	}
	commits := func(n int, scanned bool) func(*testing.B, *laidOut) {
		return func(b *testing.B, o *laidOut) {
			done := make(chan struct{})
			var scans sync.WaitGroup
			if scanned {
				scans.Go(func() {
					for {
						for _, err := range o.e.Scan(ctx, engine.Range{}) {
							if err != nil {
								b.Error(err)
								return
							}
							select {
							case <-done:
								return
							default:
							}
						}
					}
				})
			}
			before := o.e.Retries()
			workers(b, n, func(w, _ int) error {
				s := w + n*rand.IntN(max(sessions/n, 1)) // nobody else's
				if s >= sessions {
					return nil
				}
				o.at[s]++
				return commit(o.sessions[s], s, o.at[s]-1)
			})
			b.ReportMetric(100*float64(o.e.Retries()-before)/float64(b.N), "%retries")
			b.ReportMetric(o.rowBytes, "B/row")
			close(done)
			scans.Wait()
		}
	}
	measure("commit/8", commits(8, false))
	measure("commit/32", commits(32, false))
	measure("commit/32-scanned", commits(32, true))
	measure("get", func(b *testing.B, o *laidOut) {
		some := make([][]byte, 8)
		for b.Loop() {
			for i := range some {
				some[i] = keys[rand.IntN(len(keys))]
			}
			if _, err := o.e.Get(ctx, some...); err != nil {
				b.Fatal(err)
			}
		}
	})
	measure("scan", func(b *testing.B, o *laidOut) {
		for b.Loop() {
			for _, err := range o.e.Scan(ctx, engine.Range{Start: keys[rand.IntN(len(keys))], Limit: 64}) {
				if err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
