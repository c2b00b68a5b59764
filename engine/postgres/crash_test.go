package postgres_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// besideCommits has eight sessions committed to through url while faults happen:
// nothing that was acknowledged is lost, nothing is there twice, every error has
// a kind, and each session goes on after the last fault.
func besideCommits(t *testing.T, url string, faults func()) {
	t.Helper()
	_, st := stored(t, url, nil)
	const writers = 8
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	turns := make([]int, writers) // acknowledged
	errs := map[string]int{}
	write := func(w int) error {
		id := fmt.Sprint("s", w)
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
			mu.Lock()
			i := turns[w]
			mu.Unlock()
			r, err := s.Commit(ctx, turnstone.Commit{
				Expected: head.Revision(i), Turn: fmt.Sprint("turn ", i),
				Nodes: []turnstone.NewNode{{Kind: "user", Payload: fmt.Append(nil, id, " ", i)}},
			})
			if err != nil {
				return err
			}
			if r.Revision != head.Revision(i+1) {
				return fmt.Errorf("turn %d is revision %d", i, r.Revision)
			}
			mu.Lock()
			turns[w]++
			mu.Unlock()
		}
	}
	for w := range writers {
		wg.Go(func() {
			for {
				err := write(w)
				if err == nil {
					return
				}
				kind := turnstone.KindOf(err).Name
				mu.Lock()
				errs[kind]++
				mu.Unlock()
				if kind != "unavailable" && kind != "unknown-outcome" {
					t.Errorf("s%d: %s: %v", w, kind, err)
					return
				}
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
	faults()
	mu.Lock()
	before := append([]int(nil), turns...)
	mu.Unlock()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		all := true
		mu.Lock()
		for w := range turns {
			all = all && turns[w] > before[w]
		}
		mu.Unlock()
		if all {
			break
		}
	}
	close(stop)
	wg.Wait()
	total := 0
	for w := range writers {
		id := fmt.Sprint("s", w)
		if turns[w] == before[w] {
			t.Errorf("%s does not go on", id)
		}
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
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil || !v.OK() {
		t.Errorf("%v, %v", v, err)
	}
	t.Logf("%d turns, errors %v", total, errs)
	if len(errs) == 0 {
		t.Error("no fault was noticed")
	}
}

// The server is killed again and again, and comes back.
func TestServerKilledBesideCommits(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: TestFailover kills a server, too")
	}
	t.Parallel() // it waits for servers most of the time, as the next ones do
	srv := pgtest.Private(t, "fsync=off")
	p := newProxy(t, srv.Socket())
	besideCommits(t, p.url(), func() {
		for range testkit.Pick(5, 2, 1) {
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
	})
}

// The primary is killed and its synchronous standby promoted; clients get there
// through a proxy that switches, or by a URL that names both.
func TestFailover(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	for name, url := range map[string]func(p *proxy, primary, standby *pgtest.Server) string{
		"proxy": func(p *proxy, _, _ *pgtest.Server) string { return p.url() },
		"url": func(_ *proxy, primary, standby *pgtest.Server) string {
			return fmt.Sprintf("postgres:///postgres?host=%s,%s&port=5432,5432&user=postgres&target_session_attrs=read-write",
				filepath.Dir(primary.Socket()), filepath.Dir(standby.Socket()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name == "url" {
				t.Skip("the other way fails over, too")
			}
			t.Parallel()
			primary := pgtest.Private(t)
			standby := primary.Standby(t)
			c, err := pgx.Connect(ctx, primary.URL("postgres"))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []string{"ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"} {
				if _, err := c.Exec(ctx, s); err != nil {
					t.Fatal(err)
				}
			}
			testkit.Until(t, "the standby is synchronous", func() bool {
				var state string
				if err := c.QueryRow(ctx, "SELECT sync_state FROM pg_stat_replication").Scan(&state); err != nil && !errors.Is(err, pgx.ErrNoRows) {
					t.Fatal(err)
				}
				return state == "sync"
			})
			if err := c.Close(ctx); err != nil {
				t.Fatal(err)
			}
			p := newProxy(t, primary.Socket())
			besideCommits(t, url(p, primary, standby), func() {
				time.Sleep(500 * time.Millisecond)
				if err := primary.Kill(); err != nil {
					t.Fatal(err)
				}
				socket := standby.Socket()
				p.target.Store(&socket)
				p.hangUp()
				time.Sleep(200 * time.Millisecond) // it refuses to write, and serializable reads
				if err := standby.Promote(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(300 * time.Millisecond)
			})
		})
	}
}

// A commit that waits for a synchronous standby is shown to nobody before it is
// replicated, also when whoever waits for it gives up.
func TestNothingIsReadThatIsNotReplicated(t *testing.T) {
	testkit.Seldom(t)
	t.Parallel()
	srv := pgtest.Private(t)
	e, err := postgres.Open(ctx, srv.URL("postgres"), &postgres.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Apply(ctx, set("1")); err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(ctx, srv.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	configure := func(standbys string) {
		for _, s := range []string{"ALTER SYSTEM SET synchronous_standby_names = '" + standbys + "'", "SELECT pg_reload_conf()"} {
			if _, err := c.Exec(ctx, s); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Until(t, "the server has the new setting", func() bool {
			var now string
			if err := c.QueryRow(ctx, "SHOW synchronous_standby_names").Scan(&now); err != nil {
				t.Fatal(err)
			}
			return now == standbys
		})
		time.Sleep(100 * time.Millisecond) // other processes of the server read it, too
	}
	configure("nobody")
	b := set("2")
	b.Guard([]byte("k"), []byte("1"))
	if err := e.Apply(ctx, b); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("without a standby: %v", err)
	}
	if err := e.Apply(ctx, b); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("again: %v", err)
	}
	if v := value(t, e); v != "1" {
		t.Errorf("what no standby has is read: %q", v)
	}
	configure("")
	testkit.Until(t, "the first attempt takes effect", func() bool { return value(t, e) == "2" })
	if err := e.Apply(ctx, b); !errors.Is(err, engine.ErrConflict) {
		t.Errorf("after all: %v", err)
	}
}
