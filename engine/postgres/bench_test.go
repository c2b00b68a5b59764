package postgres_test

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/pgtest"
)

var payload = []byte(`{"role":"user","content":"What is the weather like in Kyoto in April, and which of the temples should we see?"}`)

// turn is a commit of four nodes.
func turn(i int, payload []byte) turnstone.Commit {
	in := turnstone.Commit{Expected: head.Revision(i), Turn: fmt.Sprint("turn ", i)}
	for range 4 {
		in.Nodes = append(in.Nodes, turnstone.NewNode{Kind: "user", Payload: payload})
	}
	return in
}

// parallel has workers run f for each number below n.
func parallel(b *testing.B, workers, n int, f func(worker, i int) error) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for w := range workers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := f(w, int(i-1)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// workers runs f b.N times in all, by n goroutines that have a session each.
func workers(b *testing.B, n int, f func(worker, turn int) error) {
	turns := make([]int, n)
	b.ResetTimer()
	parallel(b, n, b.N, func(w, _ int) error {
		turns[w]++
		return f(w, turns[w]-1)
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
}

// walPosition returns how many bytes the server's log has had.
func walPosition(b *testing.B) (bytes float64) {
	c, err := pgx.Connect(ctx, pgtest.URL(b))
	if err == nil {
		err = c.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')").Scan(&bytes)
		_ = c.Close(ctx)
	}
	if err != nil {
		b.Fatal(err)
	}
	return bytes
}

// BenchmarkCommit commits turns of four nodes by concurrent sessions, through the
// store and by a relational schema that does the same by hand: rows of nodes, a
// head with a revision, a turn id, one transaction sent at once. There is a
// connection for each session, and one for what the store does in the background.
func BenchmarkCommit(b *testing.B) {
	for _, n := range []int{1, 8, 32, 128} {
		b.Run(fmt.Sprint("turnstone/", n), func(b *testing.B) {
			e, st := stored(b, fmt.Sprint(pgtest.URL(b), "&pool_max_conns=", n+1), &postgres.Options{Schema: pgtest.Schema(b)})
			sessions := make([]*turnstone.Session, n)
			for w := range sessions {
				var err error
				if sessions[w], _, err = st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", w)}); err != nil {
					b.Fatal(err)
				}
			}
			before, written := e.Retries(), walPosition(b)
			workers(b, n, func(w, i int) error {
				_, err := sessions[w].Commit(ctx, turn(i, payload))
				return err
			})
			b.ReportMetric(100*float64(e.Retries()-before)/float64(b.N), "%retries")
			b.ReportMetric((walPosition(b)-written)/float64(b.N), "WAL-B/op")
		})
		b.Run(fmt.Sprint("relational/", n), func(b *testing.B) { relational(b, n) })
	}
}

func relational(b *testing.B, n int) {
	schema := pgx.Identifier{pgtest.Schema(b)}.Sanitize()
	pool, err := pgxpool.New(ctx, fmt.Sprint(pgtest.URL(b), "&pool_max_conns=", n+1))
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	for _, s := range []string{
		"CREATE SCHEMA " + schema,
		"CREATE TABLE " + schema + ".heads (session text PRIMARY KEY, revision bigint NOT NULL, leaf bytea, updated timestamptz NOT NULL)",
		"CREATE TABLE " + schema + ".nodes (session text, revision bigint, position int, id bytea, parent bytea, kind text, payload jsonb, PRIMARY KEY (session, revision, position))",
		"CREATE UNIQUE INDEX ON " + schema + ".nodes (session, id)",
		"CREATE TABLE " + schema + ".commits (session text, revision bigint, turn text, at timestamptz, PRIMARY KEY (session, revision))",
		"CREATE UNIQUE INDEX ON " + schema + ".commits (session, turn)",
	} {
		if _, err := pool.Exec(ctx, s); err != nil {
			b.Fatal(err)
		}
	}
	for w := range n {
		if _, err := pool.Exec(ctx, "INSERT INTO "+schema+".heads VALUES ($1, 0, NULL, now())", fmt.Sprint("s", w)); err != nil {
			b.Fatal(err)
		}
	}
	written := walPosition(b)
	defer func() { b.ReportMetric((walPosition(b)-written)/float64(b.N), "WAL-B/op") }()
	workers(b, n, func(w, turn int) error {
		session := fmt.Sprint("s", w)
		ids, parents, payloads := make([][]byte, 4), make([][]byte, 4), make([]string, 4)
		for i := range ids {
			ids[i] = fmt.Appendf(nil, "%032d", 4*turn+i)
			parents[i] = fmt.Appendf(nil, "%032d", 4*turn+i-1)
			payloads[i] = string(payload)
		}
		for {
			var q pgx.Batch
			q.Queue("BEGIN ISOLATION LEVEL SERIALIZABLE")
			q.Queue("SELECT 1 / (SELECT count(*) FROM "+schema+".heads WHERE session = $1 AND revision = $2)", session, turn)
			q.Queue("UPDATE "+schema+".heads SET revision = $2, leaf = $3, updated = now() WHERE session = $1", session, turn+1, ids[3])
			q.Queue("INSERT INTO "+schema+".nodes SELECT $1, $2, i, id, parent, 'user', payload::jsonb FROM unnest($3::bytea[], $4::bytea[], $5::text[]) WITH ORDINALITY AS n(id, parent, payload, i)", session, turn+1, ids, parents, payloads)
			q.Queue("INSERT INTO "+schema+".commits VALUES ($1, $2, $3, now())", session, turn+1, fmt.Sprint("turn ", turn))
			q.Queue("COMMIT")
			conn, err := pool.Acquire(ctx)
			if err != nil {
				return err
			}
			err = conn.SendBatch(ctx, &q).Close()
			if err != nil {
				conn.Exec(ctx, "ROLLBACK")
			}
			conn.Release()
			if err == nil {
				return nil
			}
			if !serialization(err) {
				return err
			}
		}
	})
}

func serialization(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "40001"
}

// slow stands between a client and a server and delays what passes, each way.
func slow(b *testing.B, socket string, delay time.Duration) (url string) {
	b.Helper()
	dir := b.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	pass := func(from, to net.Conn) {
		defer from.Close()
		defer to.Close()
		buf := make([]byte, 1<<20)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			time.Sleep(delay)
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", socket)
			if err != nil {
				from.Close()
				continue
			}
			go pass(from, to)
			go pass(to, from)
		}
	}()
	return "postgres:///postgres?host=" + dir + "&user=postgres"
}

// BenchmarkLatency commits turns of four nodes of one session over a network with
// a round trip of 2 ms: the store, and an interactive transaction that does the
// same statement by statement.
func BenchmarkLatency(b *testing.B) {
	srv := pgtest.Private(b, "fsync=off")
	url := slow(b, srv.Socket(), time.Millisecond)
	b.Run("turnstone", func(b *testing.B) {
		_, st := stored(b, url, nil)
		s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", b.N)})
		if err != nil {
			b.Fatal(err)
		}
		for i := 0; b.Loop(); i++ {
			if _, err := s.Commit(ctx, turn(i, payload)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("interactive", func(b *testing.B) {
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close(ctx)
		for _, s := range []string{
			"DROP TABLE IF EXISTS heads, nodes",
			"CREATE TABLE heads (session text PRIMARY KEY, revision bigint NOT NULL)",
			"CREATE TABLE nodes (session text, revision bigint, position int, payload jsonb, PRIMARY KEY (session, revision, position))",
			"INSERT INTO heads VALUES ('s', 0)",
		} {
			if _, err := c.Exec(ctx, s); err != nil {
				b.Fatal(err)
			}
		}
		for b.Loop() {
			tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable})
			var at int64
			if err == nil {
				err = tx.QueryRow(ctx, "SELECT revision FROM heads WHERE session = 's'").Scan(&at)
			}
			if err == nil {
				_, err = tx.Exec(ctx, "INSERT INTO nodes SELECT 's', $1, i, $2::jsonb FROM generate_series(1, 4) AS i", at+1, string(payload))
			}
			if err == nil {
				_, err = tx.Exec(ctx, "UPDATE heads SET revision = $1 WHERE session = 's'", at+1)
			}
			if err == nil {
				err = tx.Commit(ctx)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
