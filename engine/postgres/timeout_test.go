package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

func set(v string) *engine.Batch {
	return &engine.Batch{Sets: []engine.Pair{{Key: []byte("k"), Value: []byte(v)}}}
}

// value is what stands under the key that set sets.
func value(t *testing.T, e *postgres.Engine) string {
	t.Helper()
	vs, err := e.Get(ctx, []byte("k"))
	if err != nil {
		t.Fatal(err)
	}
	return string(vs[0])
}

// A transaction that waits for a lock ends at the server, without effect, by
// Options.Timeout or by what the URL says.
func TestLocksAreNotWaitedForLong(t *testing.T) {
	testkit.Slow(t)
	for name, c := range map[string]struct {
		params string
		o      postgres.Options
	}{
		"Timeout":           {"", postgres.Options{Timeout: time.Second}},
		"lock_timeout":      {"&lock_timeout=300", postgres.Options{}},
		"statement_timeout": {"&statement_timeout=300ms", postgres.Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.o.Schema = pgtest.Schema(t)
			if err := open(t, c.o.Schema).Apply(ctx, set("1")); err != nil { // without a bound
				t.Fatal(err)
			}
			e, err := postgres.Open(ctx, pgtest.URL(t)+c.params, &c.o)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			other, err := pgx.Connect(ctx, pgtest.URL(t))
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close(ctx)
			table := pgx.Identifier{c.o.Schema, "pairs"}.Sanitize()
			tx, err := other.Begin(ctx)
			if err == nil {
				_, err = tx.Exec(ctx, "LOCK TABLE "+table)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Apply(ctx, set("2")); !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("Apply: %v", err)
			}
			if _, err := e.Get(ctx, []byte("k")); !errors.Is(err, engine.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Get: %v", err)
			}
			if err := tx.Rollback(ctx); err != nil {
				t.Fatal(err)
			}
			if v := value(t, e); v != "1" {
				t.Errorf("what failed without effect set %q", v)
			}
		})
	}
}

// A connection that brings nothing is given up: for a read that is the database's
// failure, for an Apply an unknown outcome; the caller's end is not waited for
// once it is sent.
func TestSilence(t *testing.T) {
	testkit.Slow(t)
	srv, schema := pgtest.Shared(t), pgtest.Schema(t)
	p := newProxy(t, srv.Socket())
	direct, err := postgres.Open(ctx, srv.URL("postgres"), &postgres.Options{Schema: schema})
	if err == nil {
		err = errors.Join(direct.Apply(ctx, set("1")), direct.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	e, err := postgres.Open(ctx, p.url()+"&connect_timeout=30", &postgres.Options{Schema: schema, Timeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	defer p.hangUp() // Close waits up to 15 s for connections that were given up
	p.silent.Store(true)
	if _, err := e.Get(ctx, []byte("k")); !errors.Is(err, engine.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Get: %v", err)
	}
	p.silent.Store(false)
	if v := value(t, e); v != "1" {
		t.Errorf("%q", v)
	}
	p.silent.Store(true)
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := e.Apply(short, set("2")); !errors.Is(err, engine.ErrUnknown) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Apply: %v", err)
	}
	p.silent.Store(false)
	if v := value(t, e); v != "1" { // nothing was said
		t.Errorf("%q", v)
	}
	e.PingAfter(0) // and one that is asked first
	p.silent.Store(true)
	ended := make(chan error)
	go func() { ended <- e.Apply(ctx, set("2")) }()
	time.Sleep(100 * time.Millisecond)
	p.silent.Store(false)
	if err := <-ended; err != nil {
		t.Errorf("Apply upon a connection that was idle: %v", err)
	}
	e.PingAfter(time.Hour)
	if err := e.Apply(ctx, set("3")); err != nil {
		t.Error(err)
	}
}

// Many callers share few connections; an end that comes before one is free leaves
// no effect.
func TestNoConnectionIsFree(t *testing.T) {
	schema := pgtest.Schema(t)
	e, err := postgres.Open(ctx, pgtest.URL(t)+"&pool_max_conns=1", &postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Apply(ctx, set("1")); err != nil {
		t.Fatal(err)
	}
	other, err := pgx.Connect(ctx, pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(ctx)
	tx, err := other.Begin(ctx)
	if err == nil {
		_, err = tx.Exec(ctx, "UPDATE "+pgx.Identifier{schema, "pairs"}.Sanitize()+" SET v = v")
	}
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error)
	go func() { waiting <- e.Apply(ctx, set("2")) }()
	for n := 0; n == 0; { // until it has the only connection
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid").Scan(&n); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := e.Apply(short, set("3")); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, engine.ErrUnknown) {
		t.Errorf("no connection was free: %v", err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Errorf("it waited for a lock: %v", err)
	}
	if v := value(t, e); v != "2" {
		t.Errorf("%q", v)
	}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			var b engine.Batch
			b.Set(fmt.Append(nil, "many ", i), []byte("x"))
			if err := e.Apply(ctx, &b); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
