// Package postgres implements engine.Engine on PostgreSQL: many hosts, one
// database.
//
// Pairs are rows of one table in a schema of its own. Every Get, page of a Scan
// and Apply is one serializable transaction and one round trip: its statements
// are sent together (pipelined), the guards of a batch are a statement that fails
// when one does not hold, and the server then skips what follows. Reads are
// serializable as well: a snapshot alone can show an order of commits that later
// reads contradict (Fekete, O'Neil and O'Neil, "A Read-Only Transaction Anomaly
// Under Snapshot Isolation", 2004).
//
// Serialization failures and deadlocks are retried, by SQLSTATE, with a jittered
// back-off and a bound. When the connection is lost after COMMIT may have been
// sent, Apply returns engine.ErrUnknown.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/turnstonedb/turnstone/engine"
)

// Options of Open. Nil and the zero value mean the defaults.
type Options struct {
	// Schema holds the table; default "turnstone". Two stores in one database
	// have two schemas, or two namespaces.
	Schema string
	// Timeout bounds one attempt of a transaction, the wait for a connection
	// apart; default 30 s. An Apply that takes longer is engine.ErrUnknown.
	Timeout time.Duration
}

// Engine is a schema of one database. Several, in any number of processes, may
// be open at once.
type Engine struct {
	pool    *pgxpool.Pool
	pooled  bool // settings do not stay with a connection
	schema  string
	timeout time.Duration
	sql     statements
	closed  atomic.Bool
	retries atomic.Uint64
}

// Open connects to the database that url names (a URL or a keyword/value string
// as libpq takes it, with pgx's pool_ parameters). The schema is made by the first
// Apply if it does not exist; one that a newer version made is ErrNewer.
func Open(ctx context.Context, url string, o *Options) (*Engine, error) {
	if o == nil {
		o = &Options{}
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "turnstone"
	}
	e := &Engine{timeout: o.Timeout}
	if e.pool, e.pooled, err = connect(ctx, config); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if e.timeout <= 0 {
		e.timeout = 30 * time.Second
	}
	if e.schema = o.Schema; e.schema == "" {
		e.schema = "turnstone"
	}
	if len(e.schema) > maxName || strings.ContainsRune(e.schema, 0) {
		e.pool.Close()
		return nil, fmt.Errorf("postgres: schema name %q: at most %d bytes, none of them 0", e.schema, maxName)
	}
	e.sql = statementsOf(e.schema)
	if err := e.check(ctx); err != nil {
		e.pool.Close()
		return nil, err
	}
	return e, nil
}

// connect makes the pool. A pooler in front of the server refuses settings at
// start as a violation of the protocol: then they go into every transaction.
func connect(ctx context.Context, config *pgxpool.Config) (pool *pgxpool.Pool, pooled bool, err error) {
	for {
		if !pooled {
			config.ConnConfig.RuntimeParams[noScans] = "off"
		} else {
			delete(config.ConnConfig.RuntimeParams, noScans)
		}
		if pool, err = pgxpool.NewWithConfig(ctx, config); err == nil {
			if err = pool.Ping(ctx); err != nil {
				pool.Close()
			}
		}
		var pe *pgconn.PgError
		if pooled || !errors.As(err, &pe) || pe.Code != protocolViolation {
			return pool, pooled, err
		}
		pooled, config = true, config.Copy()
	}
}

// maxName is how long a name is before PostgreSQL cuts it (NAMEDATALEN).
const maxName = 63

// statements are those of one schema.
type statements struct{ get, scan, scanOpen, guards, inserts, sets, deletes, vacuum string }

func statementsOf(schema string) statements {
	t := pgx.Identifier{schema, "pairs"}.Sanitize()
	return statements{
		// A subquery for each key, not a join: of a small table a join would read all,
		// and a plan that is made then stays.
		get:      `SELECT (SELECT p.v FROM ` + t + ` AS p WHERE p.k = q.k) FROM unnest($1::bytea[]) WITH ORDINALITY AS q(k, i) ORDER BY q.i`,
		scan:     `SELECT k, v FROM ` + t + ` WHERE k >= $1 AND k < $2 ORDER BY k LIMIT $3`,
		scanOpen: `SELECT k, v FROM ` + t + ` WHERE k >= $1 ORDER BY k LIMIT $2`,
		// A division by zero (22012) when one does not hold.
		guards: `SELECT 1 / (CASE WHEN EXISTS (SELECT 1 FROM unnest($1::bytea[], $2::bytea[]) AS g(k, want) WHERE (SELECT p.v FROM ` + t +
			` AS p WHERE p.k = g.k) IS DISTINCT FROM g.want) THEN 0 ELSE 1 END)`,
		inserts: `INSERT INTO ` + t + ` (k, v) SELECT * FROM unnest($1::bytea[], $2::bytea[])`,
		sets:    `INSERT INTO ` + t + ` (k, v) SELECT * FROM unnest($1::bytea[], $2::bytea[]) ON CONFLICT (k) DO UPDATE SET v = excluded.v`,
		deletes: `DELETE FROM ` + t + ` WHERE k = ANY($1::bytea[])`,
		vacuum:  `VACUUM ` + t,
	}
}

const (
	beginRead  = `BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY`
	beginWrite = `BEGIN ISOLATION LEVEL SERIALIZABLE`
	commit     = `COMMIT`

	// The plan of a prepared statement stays: one that is made while the table is
	// small would scan it when it is large.
	noScans    = `enable_seqscan`
	setNoScans = `SET LOCAL enable_seqscan = off`
)

// Limits implements engine.Engine.
func (e *Engine) Limits() engine.Limits {
	return engine.Limits{KeyBytes: 1024, ValueBytes: 1 << 20, BatchBytes: 32 << 20, BatchOps: 50_000}
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	if len(keys) == 0 {
		return nil, e.usable(ctx)
	}
	var out [][]byte
	err := e.read(ctx, e.sql.get, []any{keys}, func(rows pgx.Rows) error {
		out = make([][]byte, 0, len(keys))
		for rows.Next() {
			var v []byte
			if err := rows.Scan(&v); err != nil {
				return err
			}
			out = append(out, v)
		}
		return rows.Err()
	})
	if undefined(err) {
		return make([][]byte, len(keys)), nil
	}
	if err == nil && len(out) != len(keys) {
		err = fmt.Errorf("postgres: %d values for %d keys", len(out), len(keys))
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

const (
	firstPage = 64 // pairs; pages grow, as many scans want few, …
	lastPage  = 1024
	pageBytes = 1 << 20 // … but not beyond this by much
)

// Scan implements engine.Engine.
func (e *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	size := firstPage
	return engine.Paged(r, func(r engine.Range) (pairs []engine.Pair, more bool, err error) {
		limit := size
		if r.Limit > 0 {
			limit = min(limit, r.Limit)
		}
		start := r.Start
		if start == nil {
			start = []byte{}
		}
		query, args := e.sql.scan, []any{start, r.End, limit}
		if r.End == nil {
			query, args = e.sql.scanOpen, []any{start, limit}
		}
		err = e.read(ctx, query, args, func(rows pgx.Rows) error {
			pairs = pairs[:0]
			for rows.Next() {
				var p engine.Pair
				if err := rows.Scan(&p.Key, &p.Value); err != nil {
					return err
				}
				pairs = append(pairs, p)
			}
			return rows.Err()
		})
		if undefined(err) {
			return nil, false, nil
		}
		bytes := 0
		for _, p := range pairs {
			bytes += len(p.Key) + len(p.Value)
		}
		if size = min(2*size, lastPage); bytes > pageBytes {
			size = max(len(pairs)*pageBytes/bytes, 1)
		}
		return pairs, len(pairs) == limit, err
	})
}

// read runs a query in a transaction of its own.
func (e *Engine) read(ctx context.Context, query string, args []any, f func(pgx.Rows) error) error {
	if err := e.usable(ctx); err != nil {
		return err
	}
	return e.retry(ctx, func() error {
		return lost(ctx, e.transact(ctx, ctx, func(b *pgx.Batch) {
			e.begin(b, beginRead)
			b.Queue(query, args...).Query(f)
			b.Queue(commit)
		}))
	})
}

// Apply implements engine.Engine.
func (e *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	if err := b.Check(e.Limits()); err != nil {
		return err
	}
	if err := e.usable(ctx); err != nil {
		return err
	}
	w := split(b)
	for {
		err := e.retry(ctx, func() error {
			// Once it is sent, the outcome is reported as it is, whatever ctx says.
			err := e.transact(ctx, context.WithoutCancel(ctx), func(q *pgx.Batch) {
				e.begin(q, beginWrite)
				if len(w.guards) > 0 {
					q.Queue(e.sql.guards, w.guards, w.wanted)
				}
				if len(w.newKeys) > 0 {
					q.Queue(e.sql.inserts, w.newKeys, w.newValues)
				}
				if len(w.keys) > 0 {
					q.Queue(e.sql.sets, w.keys, w.values)
				}
				if len(b.Deletes) > 0 {
					q.Queue(e.sql.deletes, b.Deletes)
				}
				q.Queue(commit)
			})
			return outcome(ctx, err)
		})
		if undefined(err) && !errors.Is(err, engine.ErrUnknown) {
			if err := e.define(ctx); err != nil {
				return err
			}
			continue
		}
		if !errors.Is(err, errGuard) {
			return err
		}
		bad, err := e.failing(ctx, b.Guards)
		if err != nil {
			return err
		}
		if bad != nil {
			return &engine.ConflictError{Key: bad}
		} // else all of them hold by now
	}
}

// failing returns the key of the first guard that does not hold.
func (e *Engine) failing(ctx context.Context, guards []engine.Pair) ([]byte, error) {
	keys, wanted := columns(guards)
	values, err := e.Get(ctx, keys...)
	if err != nil {
		return nil, err
	}
	for i, v := range values {
		if string(v) != string(wanted[i]) || (v == nil) != (wanted[i] == nil) {
			return append([]byte(nil), keys[i]...), nil
		}
	}
	return nil, nil
}

// writes are a batch as its statements take it.
type writes struct{ guards, wanted, newKeys, newValues, keys, values [][]byte }

// split makes inserts of what is guarded to be absent and set. Such a guard need
// not be read, as the primary key refuses what is there; read, it would be a
// predicate lock on the page of the index where the key belongs, which conflicts
// with every insert of others there.
func split(b *engine.Batch) (w writes) {
	absent := map[string]bool{}
	for _, g := range b.Guards {
		if g.Value == nil {
			absent[string(g.Key)] = true
		}
	}
	set := map[string]bool{}
	for _, p := range b.Sets {
		if absent[string(p.Key)] {
			set[string(p.Key)] = true
			w.newKeys, w.newValues = append(w.newKeys, p.Key), append(w.newValues, p.Value)
		} else {
			w.keys, w.values = append(w.keys, p.Key), append(w.values, p.Value)
		}
	}
	for _, g := range b.Guards {
		if g.Value != nil || !set[string(g.Key)] {
			w.guards, w.wanted = append(w.guards, g.Key), append(w.wanted, g.Value)
		}
	}
	return w
}

func columns(pairs []engine.Pair) (keys, values [][]byte) {
	keys, values = make([][]byte, len(pairs)), make([][]byte, len(pairs))
	for i, p := range pairs {
		keys[i], values[i] = p.Key, p.Value
	}
	return keys, values
}

func (e *Engine) begin(b *pgx.Batch, statement string) {
	b.Queue(statement)
	if e.pooled {
		b.Queue(setNoScans)
	}
}

// transact sends the statements that f queues, among them BEGIN and COMMIT,
// together. ctx is for the wait for a connection, during for the rest, which takes
// as long as Options.Timeout at most.
func (e *Engine) transact(ctx, during context.Context, f func(*pgx.Batch)) error {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return &notSent{err}
	}
	defer conn.Release()
	limited, cancel := context.WithTimeout(during, e.timeout)
	defer cancel()
	var b pgx.Batch
	f(&b)
	err = conn.SendBatch(limited, &b).Close()
	if err != nil && conn.Conn().PgConn().TxStatus() != 'I' && !conn.Conn().IsClosed() {
		// If this fails, the pool drops the connection.
		_, _ = conn.Exec(limited, "ROLLBACK")
	}
	return err
}

// Vacuum implements engine.Engine: it makes the space of removed rows free for
// new ones at once. What is removed stays in the server's files until it is
// overwritten, and in its log and backups as long as the server keeps those.
func (e *Engine) Vacuum(ctx context.Context) error {
	if err := e.usable(ctx); err != nil {
		return err
	}
	err := e.retry(ctx, func() error {
		_, err := e.pool.Exec(ctx, e.sql.vacuum)
		return lost(ctx, err)
	})
	if undefined(err) {
		return nil
	}
	return err
}

// Retries returns how often transactions were repeated after serialization
// failures and deadlocks.
func (e *Engine) Retries() uint64 { return e.retries.Load() }

func (e *Engine) usable(ctx context.Context) error {
	if e.closed.Load() {
		return engine.ErrClosed
	}
	return ctx.Err()
}

// Close implements engine.Engine. It waits for calls that have begun.
func (e *Engine) Close() error {
	if !e.closed.Swap(true) {
		e.pool.Close()
	}
	return nil
}
