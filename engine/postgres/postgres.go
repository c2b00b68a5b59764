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
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/turnstonedb/turnstone/engine"
)

// Options of Open. Nil and the zero value mean the defaults.
type Options struct {
	// Schema holds the table; default "turnstone". Two stores in one database
	// have two schemas, or two namespaces.
	Schema string
	// Timeout is how long the server waits for a lock (lock_timeout, unless the URL sets that). After that time the
	// call fails with engine.ErrUnavailable, without effect. A transaction that has brought no result after twice
	// that time is given up: an Apply then fails with engine.ErrUnknown. Making a connection takes at most Timeout,
	// or the URL's connect_timeout if that is not 0. Only the caller's context bounds the wait for a free
	// connection. Default 30 s, at most a day.
	Timeout time.Duration
}

// Engine is a schema of one database. The zero Engine is a closed one. Several, in any number of processes, may
// be open at once.
type Engine struct {
	pool   *pgxpool.Pool
	slow   *pgxpool.Pool // for maintenance, which may hold a connection for long
	pooled atomic.Bool   // what is set or prepared does not stay with a connection
	// defined is set once the schema is there. A read looks at it before it asks the
	// server: an answer that there is no table means an empty store only if the schema
	// was not there by then.
	defined   atomic.Bool
	settings  call // makes the settings in a transaction, where they do not stay
	schema    string
	timeout   time.Duration
	pingAfter time.Duration
	sql       statements
	closed    atomic.Bool
	retries   atomic.Uint64
	notifier  notifier
}

// Open connects to the database that url names: a URL or a keyword/value string as libpq takes it, with pgx's pool_
// parameters. pool_max_conns is 16 if it is not given. Calls for maintenance have two connections of their own: see
// engine.ForMaintenance. The first Apply makes the schema if it does not exist. If a newer version made the schema,
// the error matches engine.ErrNewer.
func Open(ctx context.Context, url string, o *Options) (*Engine, error) {
	if o == nil {
		o = &Options{}
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if !strings.Contains(url, "pool_max_conns") {
		config.MaxConns = defaultConns
	}
	e := &Engine{schema: o.Schema, timeout: o.Timeout, pingAfter: pingAfter}
	if e.schema == "" {
		e.schema = "turnstone"
	}
	if len(e.schema) > maxName || strings.ContainsRune(e.schema, 0) {
		return nil, fmt.Errorf("postgres: schema name %q: at most %d bytes, none of them 0", e.schema, maxName)
	}
	if e.timeout <= 0 {
		e.timeout = 30 * time.Second
	}
	e.timeout = min(e.timeout, 24*time.Hour)
	e.sql = statementsOf(e.schema)
	if err := e.connect(ctx, config); err != nil {
		return nil, err
	}
	there, err := e.check(ctx)
	if err != nil {
		e.closePools()
		return nil, err
	}
	e.defined.Store(there)
	return e, nil
}

// defaultConns replaces pgx's default, the number of processors. That is too few, because over a network each
// commit holds a connection for a round trip.
const defaultConns = 16

// slowConns is how many connections maintenance has beside those.
const slowConns = 2

// maxName is how long a name is before PostgreSQL cuts it (NAMEDATALEN).
const maxName = 63

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
	defined := e.defined.Load()
	err := e.read(ctx, func() call {
		out = make([][]byte, 0, len(keys))
		return call{e.sql.get, [][]byte{keysArray(keys)}, func(row [][]byte) { out = append(out, bytes.Clone(row[0])) }}
	})
	if !defined && undefined(err) {
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
	pageBytes = 1 << 20 // … but not beyond this and one value,
	leastPage = 16      // and are smaller then
)

// Scan implements engine.Engine.
func (e *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		size := firstPage
		engine.Paged(r, func(r engine.Range) (pairs []engine.Pair, more bool, err error) {
			limit := size
			if r.Limit > 0 {
				limit = min(limit, r.Limit)
			}
			query, args := e.sql.scanOpen, [][]byte{notNil(r.Start), number(limit), number(pageBytes)}
			if r.End != nil {
				query, args = e.sql.scan, append(args, r.End)
			}
			total := 0
			defined := e.defined.Load()
			err = e.readIf(ctx, r.Guards, func() call {
				pairs, total = pairs[:0], 0
				return call{query, args, func(row [][]byte) {
					total += len(row[1])
					pairs = append(pairs, engine.Pair{Key: bytes.Clone(row[0]), Value: bytes.Clone(row[1])})
				}}
			})
			if !defined && undefined(err) {
				return nil, false, nil
			}
			size = min(2*size, lastPage)
			if total >= pageBytes { // the server has looked at all of them
				size = max(2*len(pairs), leastPage)
			}
			return pairs, len(pairs) == limit || total >= pageBytes, err
		})(yield)
	}
}

// notNil returns b, or what is empty and not null.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// read runs a query in a transaction of its own. query makes it anew for each attempt.
func (e *Engine) read(ctx context.Context, query func() call) error {
	return e.readIf(ctx, nil, query)
}

// readIf is read for a query that has guards, which it looks at in the same transaction and round trip.
func (e *Engine) readIf(ctx context.Context, guards []engine.Pair, query func() call) error {
	if err := e.usable(ctx); err != nil {
		return err
	}
	var before []call
	if len(guards) > 0 {
		keys, values := pairArrays(guards)
		before = []call{{statement: e.sql.guards, args: [][]byte{keys, values}}}
	}
	for range maxAttempts {
		err := e.retry(ctx, func() error {
			return lost(ctx, e.transact(ctx, ctx, beginRead, append(slices.Clip(before), query())...))
		})
		if pe, ok := ended(err); !ok || pe.Code != divisionByZero {
			return err
		}
		bad, err := e.failing(ctx, guards)
		if err != nil {
			return err
		}
		if bad != nil {
			return &engine.ConflictError{Key: bad}
		}
	}
	return errWavering
}

// errWavering: guards did not hold, and held when they were looked at, maxAttempts times.
var errWavering = fmt.Errorf("%w: guards that do not hold when they are tried and hold when they are looked at, %d times", engine.ErrUnavailable, maxAttempts)

// Apply implements engine.Engine.
func (e *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	if err := b.Check(e.Limits()); err != nil {
		return err
	}
	if err := e.usable(ctx); err != nil {
		return err
	}
	if !e.defined.Load() {
		if err := e.define(ctx); err != nil {
			return err
		}
	}
	calls := e.calls(b)
	for range maxAttempts {
		err := e.retry(ctx, func() error {
			// Once it is sent, the outcome is reported as it is, whatever ctx says.
			return outcome(ctx, e.transact(ctx, context.WithoutCancel(ctx), beginWrite, calls...))
		})
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
	return errWavering
}

// failing returns the key of the first guard that does not hold.
func (e *Engine) failing(ctx context.Context, guards []engine.Pair) ([]byte, error) {
	keys := make([][]byte, len(guards))
	for i, g := range guards {
		keys[i] = g.Key
	}
	values, err := e.Get(ctx, keys...)
	if err != nil {
		return nil, err
	}
	for i, g := range guards {
		if !bytes.Equal(values[i], g.Value) || (values[i] == nil) != (g.Value == nil) {
			return bytes.Clone(g.Key), nil
		}
	}
	return nil, nil
}

// calls returns the statements that apply b.
//
// A key that b guards to be absent and sets is inserted: the primary key is its guard. Reading
// the key would put a predicate lock on the page of the index where the key belongs, which
// conflicts with every insert of others there.
func (e *Engine) calls(b *engine.Batch) []call {
	absent := map[string]bool{} // the keys that b guards to be absent; true if b also sets the key
	for _, g := range b.Guards {
		if g.Value == nil {
			absent[string(g.Key)] = false
		}
	}
	// In the order of keys, in which everybody locks rows.
	var inserts []engine.Pair
	sets := make([]engine.Pair, 0, len(b.Sets))
	for _, p := range b.Sets {
		if _, ok := absent[string(p.Key)]; ok {
			absent[string(p.Key)] = true
			inserts = append(inserts, p)
		} else {
			sets = append(sets, p)
		}
	}
	byKey := func(p, q engine.Pair) int { return bytes.Compare(p.Key, q.Key) }
	slices.SortFunc(inserts, byKey)
	slices.SortFunc(sets, byKey)
	guards := make([]engine.Pair, 0, len(b.Guards))
	for _, g := range b.Guards {
		if g.Value != nil || !absent[string(g.Key)] {
			guards = append(guards, g)
		}
	}
	calls := make([]call, 0, 4)
	add := func(s *statement, args ...[]byte) { calls = append(calls, call{statement: s, args: args}) }
	wantedKeys, wanted := pairArrays(guards)
	newKeys, newValues := pairArrays(inserts)
	switch {
	case len(guards) > 0 && len(inserts) > 0:
		add(e.sql.insertsIf, wantedKeys, wanted, newKeys, newValues)
	case len(guards) > 0:
		add(e.sql.guards, wantedKeys, wanted)
	case len(inserts) > 0:
		add(e.sql.inserts, newKeys, newValues)
	}
	if len(sets) > 0 {
		keys, values := pairArrays(sets)
		add(e.sql.sets, keys, values)
	}
	if len(b.Deletes) > 0 {
		add(e.sql.deletes, keysArray(b.Deletes))
	}
	return calls
}

// Vacuum implements engine.Engine: it makes the space of removed rows free for
// new ones, but for what an older transaction may still look at. What is removed
// stays in the server's files until it is overwritten, and in its log and backups
// as long as the server keeps those. For a role that does not own the table the
// server does nothing: there is autovacuum. A database without VACUUM reclaims space
// by itself. When ctx ends, the server goes on to the end.
func (e *Engine) Vacuum(ctx context.Context) error {
	if err := e.usable(ctx); err != nil {
		return err
	}
	defined := e.defined.Load()
	err := e.retry(ctx, func() error {
		_, err := e.slow.Exec(ctx, e.sql.vacuum)
		return lost(ctx, err)
	})
	if pe, ok := ended(err); !defined && undefined(err) || ok && pe.Code == syntaxError {
		return nil
	}
	return err
}

// Retries returns how often transactions were repeated after serialization
// failures and deadlocks.
func (e *Engine) Retries() uint64 { return e.retries.Load() }

func (e *Engine) usable(ctx context.Context) error {
	if e.closed.Load() || e.pool == nil { // the zero Engine has none
		return engine.ErrClosed
	}
	return ctx.Err()
}

// Close implements engine.Engine. It waits for calls that have begun.
func (e *Engine) Close() error {
	if !e.closed.Swap(true) && e.pool != nil {
		e.notifier.close()
		e.closePools()
	}
	return nil
}

func (e *Engine) closePools() {
	e.pool.Close()
	e.slow.Close()
}

// poolFor returns the pool for a call.
func (e *Engine) poolFor(ctx context.Context) *pgxpool.Pool {
	if engine.IsMaintenance(ctx) {
		return e.slow
	}
	return e.pool
}
