package postgres_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// poolers counts the PgBouncers, which share the directory of the server.
var poolers atomic.Int64

// pgbouncer starts a PgBouncer beside the shared server, with more settings, that gives
// every transaction another connection, and returns how to connect to it.
func pgbouncer(t *testing.T, settings string) (url string) {
	t.Helper()
	srv, port := pgtest.Shared(t), 6431+poolers.Add(1)
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		pgtest.Missing(t, errors.New("no PgBouncer is installed (Debian: apt-get install pgbouncer)"))
	}
	dir := filepath.Dir(srv.Socket())
	cmd, err := srv.Command(bin, fmt.Sprintf("pgbouncer-%d.ini", port), fmt.Sprintf(`[databases]
postgres = host=%[1]s port=5432 user=postgres
[pgbouncer]
listen_addr =
listen_port = %[3]d
unix_socket_dir = %[1]s
auth_type = any
pool_mode = transaction
default_pool_size = 4
server_round_robin = 1
pidfile = %[1]s/pgbouncer-%[3]d.pid
%[2]s
`, dir, settings, port))
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	url = fmt.Sprintf("postgres:///postgres?host=%s&port=%d&user=postgres", dir, port)
	for try := 0; ; try++ {
		c, err := pgx.Connect(ctx, url)
		if err == nil {
			c.Close(ctx)
			return url
		}
		if try == 200 {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestPgBouncer(t *testing.T) {
	testkit.Seldom(t)
	url := pgbouncer(t, "")
	if !testing.Short() {
		enginetest.Run(t, enginetest.Driver{Durable: true, Open: func(d string) (engine.Engine, error) {
			return postgres.Open(ctx, url, &postgres.Options{Schema: fmt.Sprintf("s%x", sha256.Sum256([]byte(d)))[:20]})
		}})
	}
	manySessions(t, url, true)
}

// One that accepts the settings at start, and drops them, shows itself by prepared
// statements that are not there, or are there already.
func TestPgBouncerThatIgnoresSettings(t *testing.T) {
	testkit.Slow(t)
	manySessions(t, pgbouncer(t, "ignore_startup_parameters = plan_cache_mode, enable_seqscan, enable_bitmapscan, jit, lock_timeout, statement_timeout"), false)
}

// manySessions commits to more sessions than there are connections. The settings
// of the URL are in force in every transaction.
func manySessions(t *testing.T, url string, noticed bool) {
	t.Helper()
	o := &postgres.Options{Schema: pgtest.Schema(t)}
	url += "&statement_timeout=12345&lock_timeout=2345"
	first, err := postgres.Open(ctx, url, o)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if first.Pooled() != noticed {
		t.Errorf("noticed at start: %v", first.Pooled())
	}
	e, st := stored(t, url, o)
	commits := testkit.Pick(20, 8, 3)
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", w)})
			for i := 0; i < commits && err == nil; i++ {
				_, err = s.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Nodes: []turnstone.NewNode{{Kind: "user"}}})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if v, err := st.Verify(ctx, turnstone.VerifyOptions{}); err != nil || !v.OK() || v.Nodes != 16*commits {
		t.Errorf("%+v, %v", v, err)
	}
	if !e.Pooled() {
		t.Error("the pooler was not noticed")
	}
	for name, want := range map[string]string{"enable_seqscan": "off", "jit": "off", "plan_cache_mode": "force_generic_plan", "statement_timeout": "12345ms", "lock_timeout": "2345ms"} {
		if got := e.Setting(t, name); got != want {
			t.Errorf("%s is %q in a transaction, not %q", name, got, want)
		}
	}
}
