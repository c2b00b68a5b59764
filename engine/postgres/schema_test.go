package postgres_test

import (
	"errors"
	"fmt"
	neturl "net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// made has e make its schema.
func made(t *testing.T, e *postgres.Engine) {
	t.Helper()
	if err := e.Apply(ctx, &engine.Batch{Deletes: [][]byte{{0}}}); err != nil {
		t.Fatal(err)
	}
}

func TestANewerSchemaIsRefused(t *testing.T) {
	schema := pgtest.Schema(t)
	made(t, open(t, schema))
	c, err := pgx.Connect(ctx, pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if _, err := c.Exec(ctx, "UPDATE "+pgx.Identifier{schema, "meta"}.Sanitize()+" SET version = version + 1"); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.Open(ctx, pgtest.URL(t), &postgres.Options{Schema: strings.Repeat("x", 64)}); err == nil {
		t.Error("a name that PostgreSQL would cut")
	}
	if _, err := postgres.Open(ctx, pgtest.URL(t), &postgres.Options{Schema: schema}); !errors.Is(err, engine.ErrNewer) {
		t.Errorf("%v", err)
	}
}

// Several processes may make the schema at once, and a role that can't define
// anything uses one that is there.
func TestRolesAndSchemas(t *testing.T) {
	schema, url := pgtest.Schema(t), pgtest.URL(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			e, err := postgres.Open(ctx, url, &postgres.Options{Schema: schema})
			if err != nil {
				t.Error(err)
				return
			}
			var b engine.Batch
			b.Set(fmt.Append(nil, i), []byte("v"))
			if vs, err := e.Get(ctx, []byte("k")); err != nil || vs[0] != nil {
				t.Errorf("before there is a schema: %q, %v", vs, err)
			}
			if err := e.Apply(ctx, &b); err != nil {
				t.Error(err)
			}
			e.Close()
		})
	}
	wg.Wait()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	role := pgx.Identifier{"runtime_" + schema}.Sanitize()
	for _, s := range append([]string{"CREATE ROLE " + role + " LOGIN"}, postgres.Grants(schema, "runtime_"+schema)...) {
		if _, err := c.Exec(ctx, s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	defer c.Exec(ctx, "DROP OWNED BY "+role+"; DROP ROLE "+role)
	u, err := neturl.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	params := u.Query()
	params.Set("user", "runtime_"+schema)
	u.RawQuery = params.Encode()
	limited := u.String()
	e, err := postgres.Open(ctx, limited, &postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var b engine.Batch
	b.Set([]byte("k"), []byte("v"))
	if err := e.Apply(ctx, &b); err != nil {
		t.Error(err)
	}
	other, err := postgres.Open(ctx, limited, &postgres.Options{Schema: schema + "_other"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Apply(ctx, &b); err == nil || errors.Is(err, engine.ErrUnknown) {
		t.Errorf("a role without the right to made a schema: %v", err)
	}
	// A look makes none.
	for range other.Scan(ctx, engine.Range{}) {
		t.Error("there is something")
	}
	var there bool
	if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)", schema+"_other").Scan(&there); err != nil || there {
		t.Errorf("%v, %v", there, err)
	}
}

// A newer version may make the schema after this one has looked.
func TestANewerSchemaThatComesLater(t *testing.T) {
	schema := pgtest.Schema(t)
	e := open(t, schema)
	made(t, open(t, schema))
	c := connect(t)
	if _, err := c.Exec(ctx, "UPDATE "+pgx.Identifier{schema, "meta"}.Sanitize()+" SET version = version + 1"); err != nil {
		t.Fatal(err)
	}
	if err := e.Apply(ctx, set("1")); !errors.Is(err, engine.ErrNewer) {
		t.Error(err)
	}
	if v := value(t, e); v != "" {
		t.Errorf("it wrote %q", v)
	}
}

func connect(t *testing.T) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(ctx, pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(ctx) })
	return c
}

// Who owns a schema that somebody else made for it needs no right to make one.
func TestASchemaOfOnesOwn(t *testing.T) {
	schema := pgtest.Schema(t)
	c := connect(t)
	owner := pgx.Identifier{"owner_" + schema}.Sanitize()
	for _, s := range []string{"CREATE ROLE " + owner + " LOGIN", "CREATE SCHEMA " + pgx.Identifier{schema}.Sanitize() + " AUTHORIZATION " + owner} {
		if _, err := c.Exec(ctx, s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	defer c.Exec(ctx, "DROP OWNED BY "+owner+"; DROP ROLE "+owner)
	e, err := postgres.Open(ctx, pgtest.URL(t)+"&role=owner_"+schema, &postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Apply(ctx, set("1")); err != nil {
		t.Error(err)
	}
}

// A definition that went halfway is finished, and a schema that goes is missed.
func TestHalfASchema(t *testing.T) {
	c := connect(t)
	for n := range postgres.Definition("x") {
		schema := pgtest.Schema(t)
		for _, s := range postgres.Definition(schema)[:n] {
			if _, err := c.Exec(ctx, s); err != nil {
				t.Fatal(err)
			}
		}
		e := open(t, schema)
		if v := value(t, e); v != "" {
			t.Errorf("%q", v)
		}
		if err := e.Apply(ctx, set("1")); err != nil {
			t.Errorf("after %d statements: %v", n, err)
		}
		if v := value(t, e); v != "1" {
			t.Errorf("%q", v)
		}
		if _, err := c.Exec(ctx, "DROP TABLE "+pgx.Identifier{schema, "pairs"}.Sanitize()); err != nil {
			t.Fatal(err)
		}
		_, err := e.Get(ctx, []byte("k"))
		var scanned error
		for _, serr := range e.Scan(ctx, engine.Range{}) {
			scanned = serr
		}
		if err == nil || scanned == nil || e.Apply(ctx, set("2")) == nil {
			t.Errorf("a table that is gone reads as if it were empty: %v, %v", err, scanned)
		}
	}
}

// A read that the server answers before the first Apply has made the schema, and whose
// answer arrives after that, finds nothing.
func TestReadsBesideTheFirstWrite(t *testing.T) {
	testkit.Slow(t)
	for range testkit.Pick(100, 20, 10) {
		e := open(t, pgtest.Schema(t))
		var wg sync.WaitGroup
		defined := make(chan struct{})
		read := func(f func() error) {
			for range 2 {
				wg.Go(func() {
					for {
						if err := f(); err != nil {
							t.Error(err)
							return
						}
						select {
						case <-defined:
							return
						default:
						}
					}
				})
			}
		}
		read(func() error { _, err := e.Get(ctx, []byte("k")); return err })
		read(func() error {
			for _, err := range e.Scan(ctx, engine.Range{}) {
				return err
			}
			return nil
		})
		if err := e.Apply(ctx, set("1")); err != nil {
			t.Error(err)
		}
		close(defined)
		wg.Wait()
		e.Close()
	}
}

// The making of the schema is cut before every message, either way: it is made
// whole or not at all, errors have a kind, and the next one makes it.
func TestDefinitionCutAtEveryStep(t *testing.T) {
	srv := pgtest.Shared(t)
	p := newProxy(t, srv.Socket())
	direct, err := pgx.Connect(ctx, srv.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close(ctx)
	for side := range 2 {
		for at := 0; ; at += testkit.Pick(1, 5, 17) {
			schema := pgtest.Schema(t)
			e, err := postgres.Open(ctx, p.url()+"&pool_max_conns=1", &postgres.Options{Schema: schema})
			if err != nil {
				t.Fatal(err)
			}
			cut := [2]int{-1, -1}
			cut[side] = at
			p.arm(cut[0], cut[1])
			err = e.Apply(ctx, set("1"))
			passed := p.passed()[side]
			p.arm(-1, -1)
			if err != nil && !errors.Is(err, engine.ErrUnavailable) && !errors.Is(err, engine.ErrUnknown) {
				t.Errorf("cut %v: %v", cut, err)
			}
			var tables int
			if err := direct.QueryRow(ctx, "SELECT count(*) FROM pg_tables WHERE schemaname = $1", schema).Scan(&tables); err != nil || tables != 0 && tables != 2 {
				t.Errorf("cut %v: %d tables, %v", cut, tables, err)
			}
			for try := 0; err != nil && try < 3; try++ {
				err = e.Apply(ctx, set("1"))
			}
			if v := value(t, e); err != nil || v != "1" {
				t.Errorf("cut %v: %q, %v", cut, v, err)
			}
			e.Close()
			if passed <= at {
				if at < 40 {
					t.Errorf("%d messages", at)
				}
				break
			}
		}
	}
}

// No statement reads more than it must: none scans the table.
func TestPlans(t *testing.T) {
	testkit.Slow(t)
	schema := pgtest.Schema(t)
	e := open(t, schema)
	made(t, e)
	c, err := pgx.Connect(ctx, pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	table := pgx.Identifier{schema, "pairs"}.Sanitize()
	for _, statement := range []string{
		"SELECT 1", // the empty table
		"INSERT INTO " + table + " SELECT decode(md5(i::text), 'hex'), 'v' FROM generate_series(1, 20) AS i",
		"ANALYZE " + table,
		"INSERT INTO " + table + " SELECT decode(md5(i::text), 'hex'), 'v' FROM generate_series(21, 100000) AS i",
		"ANALYZE " + table,
	} {
		if _, err := c.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
		for name, plan := range e.Plans(t) {
			for _, bad := range []string{"Seq Scan", "Bitmap", "Hash", "Merge", "Materialize", "JIT"} {
				if strings.Contains(plan, bad) {
					t.Errorf("after %.40s: %s has a %s:\n%s", statement, name, bad, plan)
				}
			}
			if strings.HasPrefix(name, "scan") && strings.Contains(plan, "Sort") {
				t.Errorf("after %.40s: %s sorts:\n%s", statement, name, plan)
			}
			lines := strings.Split(plan, "\n")
			for i, l := range lines {
				if strings.Contains(l, "Index") && strings.Contains(l, " on pairs") && (i+1 == len(lines) || !strings.Contains(lines[i+1], "Index Cond")) {
					t.Errorf("after %.40s: %s reads all of the index:\n%s", statement, name, plan)
				}
			}
			if reads := strings.Contains(plan, "using pairs_pkey on pairs"); reads != (name != "inserts" && name != "sets") {
				t.Errorf("after %.40s: %s reads by the index: %v:\n%s", statement, name, reads, plan)
			}
		}
	}
}
