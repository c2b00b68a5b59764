package postgres_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/internal/pgtest"
)

// The server is killed again and again while sessions are committed to: nothing
// that was acknowledged is lost, nothing is there twice, every error has a kind.
func TestServerKilledBesideCommits(t *testing.T) {
	srv := pgtest.Private(t)
	p := newProxy(t, srv.Socket())
	e, err := postgres.Open(ctx, p.url(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	const writers, kills = 8, 5
	stop := make(chan struct{})
	var wg sync.WaitGroup
	turns := make([]int, writers) // acknowledged
	errs := make([]map[string]int, writers)
	for w := range writers {
		errs[w] = map[string]int{}
		wg.Go(func() {
			id := fmt.Sprint("s", w)
			for {
				select {
				case <-stop:
					return
				default:
				}
				err := func() error {
					s, _, err := st.Create(ctx, turnstone.Request{ID: id})
					if err != nil {
						return err
					}
					for {
						select {
						case <-stop:
							return nil
						default:
						}
						i := turns[w]
						r, err := s.Commit(ctx, turnstone.Commit{
							Expected: turnstone.Revision(i), Turn: fmt.Sprint("turn ", i),
							Nodes: []turnstone.NewNode{{Kind: "user", Payload: fmt.Append(nil, id, " ", i)}},
						})
						if err != nil {
							return err
						}
						if r.Revision != turnstone.Revision(i+1) {
							t.Errorf("%s: turn %d is revision %d", id, i, r.Revision)
							return nil
						}
						turns[w]++
					}
				}()
				if err != nil {
					errs[w][turnstone.ErrorType(err)]++
					if errors.Is(err, turnstone.ErrConflict) || errors.Is(err, turnstone.ErrTurnConflict) {
						t.Errorf("%s: %v", id, err)
						return
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	for range kills {
		time.Sleep(400 * time.Millisecond)
		if err := srv.Kill(); err != nil {
			t.Fatal(err)
		}
		p.hangUp()
		if err := srv.Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(300 * time.Millisecond)
	close(stop)
	wg.Wait()
	total := 0
	for w := range writers {
		id := fmt.Sprint("s", w)
		s, err := st.Session(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		// One that was not acknowledged may stand.
		if len(state.Nodes) != turns[w] && len(state.Nodes) != turns[w]+1 {
			t.Errorf("%s: %d nodes, %d were acknowledged", id, len(state.Nodes), turns[w])
		}
		for i, n := range state.Nodes {
			if string(n.Payload) != fmt.Sprint(id, " ", i) {
				t.Fatalf("%s: node %d is %q", id, i, n.Payload)
			}
		}
		total += turns[w]
	}
	if total < writers*kills {
		t.Errorf("%d turns in all", total)
	}
	v, err := st.Verify(ctx, nil)
	if err != nil || !v.OK() {
		t.Errorf("%v, %v", v, err)
	}
	t.Logf("%d turns, errors %v", total, errs)
	for w := range writers {
		for kind := range errs[w] {
			if kind != "unavailable" && kind != "unknown_outcome" {
				t.Errorf("errors of kind %s", kind)
			}
		}
	}
}

// A transaction that waits for a lock longer than Timeout has an unknown outcome,
// and an end that comes before a connection is free has none.
func TestTimeoutsAndExhaustion(t *testing.T) {
	schema := pgtest.Schema(t)
	e, err := postgres.Open(ctx, pgtest.URL(t)+"&pool_max_conns=1", &postgres.Options{Schema: schema, Timeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	key, set := []byte("k"), func(v string) *engine.Batch {
		return &engine.Batch{Sets: []engine.Pair{{Key: []byte("k"), Value: []byte(v)}}}
	}
	if err := e.Apply(ctx, set("1")); err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(ctx, pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	table := pgx.Identifier{schema, "pairs"}.Sanitize()
	tx, err := c.Begin(ctx)
	if err == nil {
		_, err = tx.Exec(ctx, "UPDATE "+table+" SET v = v")
	}
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error)
	go func() { waiting <- e.Apply(ctx, set("2")) }()
	time.Sleep(50 * time.Millisecond)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := e.Apply(short, set("3")); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, engine.ErrUnknown) {
		t.Errorf("no connection was free: %v", err)
	}
	if err := <-waiting; !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("it waited for a lock: %v", err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := e.Apply(ctx, set("4")); err != nil {
		t.Error(err)
	}
	// A read that takes too long is the database's failure, not the caller's.
	if tx, err = c.Begin(ctx); err == nil {
		_, err = tx.Exec(ctx, "LOCK TABLE "+table)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Get(ctx, key); !errors.Is(err, engine.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a read of a locked table: %v", err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if vs, err := e.Get(ctx, key); err != nil || strings.Contains("3", string(vs[0])) {
		t.Errorf("%q, %v", vs, err)
	}
	// Many callers share few connections.
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
	if _, err := postgres.Open(ctx, pgtest.URL(t), &postgres.Options{Schema: schema}); !errors.Is(err, postgres.ErrNewer) {
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
	limited := strings.Replace(url, "user=postgres", "user=runtime_"+schema, 1)
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

// No statement reads more than it must: none scans the table.
func TestPlans(t *testing.T) {
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
		for name, plan := range e.Plans(t, c) {
			lines := strings.Split(plan, "\n")
			for i, l := range lines {
				reads := strings.Contains(l, " on pairs") && !strings.Contains(l, "Insert on") && !strings.Contains(l, "Delete on") && !strings.Contains(l, "Bitmap Heap Scan")
				reads = reads || strings.Contains(l, "Bitmap Index Scan")
				if reads && (i+1 == len(lines) || !strings.Contains(lines[i+1], "Index Cond")) {
					t.Errorf("after %.40s: %s reads all:\n%s", statement, name, plan)
				}
			}
		}
	}
}

// Through PgBouncer, which gives every transaction another connection.
func TestPgBouncer(t *testing.T) {
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		pgtest.Missing(t, errors.New("no PgBouncer is installed (Debian: apt-get install pgbouncer)"))
	}
	srv := pgtest.Private(t, "fsync=off")
	dir := filepath.Dir(srv.Socket())
	// One server that cannot keep prepared statements apart: they are not used.
	cmd, err := srv.Command(bin, "pgbouncer.ini", fmt.Sprintf(`[databases]
postgres = host=%[1]s port=5432 user=postgres
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = %[1]s
auth_type = any
pool_mode = transaction
default_pool_size = 4
`, dir))
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	url := "postgres:///postgres?host=" + dir + "&port=6432&user=postgres&default_query_exec_mode=exec"
	for try := 0; ; try++ {
		c, err := pgx.Connect(ctx, url)
		if err == nil {
			c.Close(ctx)
			break
		}
		if try == 200 {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	enginetest.Run(t, enginetest.Driver{Durable: true, Open: func(d string) (engine.Engine, error) {
		return postgres.Open(ctx, url, &postgres.Options{Schema: fmt.Sprintf("s%x", sha256.Sum256([]byte(d)))[:20]})
	}})
	e, err := postgres.Open(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if !e.Pooled() {
		t.Error("the pooler was not noticed")
	}
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", w)})
			for i := 0; i < 20 && err == nil; i++ {
				_, err = s.Commit(ctx, turnstone.Commit{Expected: turnstone.Revision(i), Nodes: []turnstone.NewNode{{Kind: "user"}}})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if v, err := st.Verify(ctx, nil); err != nil || !v.OK() || v.Nodes != 320 {
		t.Errorf("%+v, %v", v, err)
	}
}
