package postgres_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// The test binary is one of the processes of TestTwoProcesses when this is set.
const processVariable = "TURNSTONE_TEST_PROCESS"

func TestMain(m *testing.M) {
	if name := os.Getenv(processVariable); name != "" {
		if err := process(name, os.Getenv("TURNSTONE_TEST_URL"), os.Getenv("TURNSTONE_TEST_SCHEMA"), os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(pgtest.Main(m))
}

const (
	contested = 10
	sessions  = 32 // of each process
	rounds    = 20
)

// An op is what a process did to a contested session.
type op struct {
	Session          string
	Read             bool
	Expected         uint64 // of a commit
	OK               bool
	Revision         uint64 // that was seen or made
	Call, Return     int64  // nanoseconds
	Worker           int
	Acknowledged     int // of the worker's own session, at the end
	Retries, Commits uint64
}

// process commits to its own sessions and to those that all processes contend for.
func process(name, url, schema string, w io.Writer) error {
	ctx := context.Background()
	e, err := postgres.Open(ctx, url+"&pool_max_conns=32", &postgres.Options{Schema: schema})
	if err != nil {
		return err
	}
	defer e.Close()
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		return err
	}
	defer st.Close()
	var mu sync.Mutex
	out := json.NewEncoder(w)
	var failed error
	tell := func(o op, err error) {
		mu.Lock()
		defer mu.Unlock()
		failed = errors.Join(failed, err, out.Encode(o))
	}
	var wg sync.WaitGroup
	for worker := range sessions {
		wg.Go(func() {
			own := fmt.Sprint(name, " ", worker)
			s, _, err := st.Create(ctx, turnstone.Request{ID: own})
			if err != nil {
				tell(op{}, err)
				return
			}
			for i := range rounds {
				if _, err := s.Commit(ctx, turnstone.Commit{
					Expected: head.Revision(i), Turn: fmt.Sprint(i), Nodes: []turnstone.NewNode{{Kind: "user", Payload: fmt.Append(nil, own, " ", i)}},
				}); err != nil {
					tell(op{}, fmt.Errorf("own session: %w", err))
					return
				}
				c, err := st.Session(ctx, fmt.Sprint("contested ", rand.N(contested)))
				if err != nil {
					tell(op{}, err)
					return
				}
				o := op{Session: c.ID(), Read: true, Worker: worker, Call: time.Now().UnixNano()}
				info, err := c.Info(ctx)
				o.Return, o.Revision = time.Now().UnixNano(), uint64(info.Revision)
				tell(o, err)
				o = op{Session: c.ID(), Expected: o.Revision, Worker: worker, Call: time.Now().UnixNano()}
				r, err := c.Commit(ctx, turnstone.Commit{
					Expected: info.Revision, Turn: fmt.Sprint(own, " ", i), Nodes: []turnstone.NewNode{{Kind: "user", Payload: fmt.Append(nil, own, " ", i)}},
				})
				o.Return, o.OK, o.Revision = time.Now().UnixNano(), err == nil, uint64(r.Revision)
				var conflict *turnstone.ConflictError
				if errors.As(err, &conflict) {
					o.Revision, err = uint64(conflict.Revision), nil
				}
				tell(o, err)
			}
			tell(op{Worker: worker, Acknowledged: rounds}, nil)
		})
	}
	wg.Wait()
	tell(op{Retries: e.Retries(), Commits: 2 * sessions * rounds}, nil)
	return failed
}

// registers is the model: a session's revision, which a commit that expects it
// increases by one, and which a conflict and a read show.
var registers = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		at, o := state.(uint64), input.(op)
		switch {
		case o.Read:
			return o.Revision == at, at
		case o.OK:
			return o.Expected == at && o.Revision == at+1, at + 1
		}
		return o.Revision == at && o.Expected != at, at
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

// Two processes of 32 sessions each on one database, with ten sessions that both
// commit to: one winner for each revision, every history linearizable, no turn
// lost or twice.
func TestTwoProcesses(t *testing.T) {
	testkit.Slow(t)
	url, schema := pgtest.URL(t), pgtest.Schema(t)
	e := open(t, schema)
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	for i := range contested {
		if _, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("contested ", i)}); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	history := map[string][]porcupine.Operation{}
	won := map[string]int{}
	acknowledged, retries, commits := 0, uint64(0), uint64(0)
	var wg sync.WaitGroup
	for p := range 2 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=process %d", processVariable, p), "TURNSTONE_TEST_URL="+url, "TURNSTONE_TEST_SCHEMA="+schema)
		cmd.Stderr = os.Stderr
		stdout, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			lines := bufio.NewScanner(stdout)
			for lines.Scan() {
				var o op
				if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
					t.Errorf("%s: %v", lines.Text(), err)
				}
				mu.Lock()
				if o.Session != "" {
					history[o.Session] = append(history[o.Session], porcupine.Operation{ClientId: p*sessions + o.Worker, Input: o, Output: o, Call: o.Call, Return: o.Return})
					if o.OK {
						won[o.Session]++
					}
				}
				acknowledged, retries, commits = acknowledged+o.Acknowledged, retries+o.Retries, commits+o.Commits
				mu.Unlock()
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if acknowledged != 2*sessions*rounds || len(history) != contested {
		t.Fatalf("%d turns of own sessions, %d contested sessions", acknowledged, len(history))
	}
	wins, lost := 0, 0
	for id, ops := range history {
		if result := porcupine.CheckOperationsTimeout(registers, ops, time.Minute); result != porcupine.Ok {
			t.Errorf("%s: %v", id, result)
		}
		s, err := st.Session(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil || len(state.Nodes) != won[id] || int(state.Revision) != won[id] {
			t.Errorf("%s: %d turns won, %d nodes at revision %d, %v", id, won[id], len(state.Nodes), state.Revision, err)
		}
		seen := map[string]bool{}
		for _, n := range state.Nodes {
			if seen[string(n.Payload)] {
				t.Errorf("%s: %q is there twice", id, n.Payload)
			}
			seen[string(n.Payload)] = true
		}
		wins += won[id]
		lost += len(ops)/2 - won[id]
	}
	if lost == 0 {
		t.Error("nobody lost: the sessions were not contested")
	}
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil || !v.OK() {
		t.Errorf("%v, %v", v, err)
	}
	t.Logf("contested sessions: %d commits won, %d lost; %d transactions of %d commits were repeated", wins, lost, retries, commits)
}

// A commit of one session that stands before its COMMIT, with all its locks, holds
// up nobody else: no row is written by all.
func TestSessionsDoNotWaitForEachOther(t *testing.T) {
	srv, schema := pgtest.Shared(t), pgtest.Schema(t)
	p := newProxy(t, srv.Socket())
	session := func(url, id string) *turnstone.Session {
		_, st := stored(t, url, &postgres.Options{Schema: schema, Timeout: 2 * time.Second})
		s, _, err := st.Create(ctx, turnstone.Request{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	held := session(p.url()+"&pool_max_conns=1", "held")
	commit := func(s *turnstone.Session, i int) error {
		_, err := s.Commit(ctx, turnstone.Commit{
			Expected: head.Revision(i), Turn: fmt.Sprint(i), Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte(s.ID())}},
		})
		return err
	}
	for i := range 2 {
		p.arm(-1, -1)
		if err := commit(held, i); err != nil {
			t.Fatal(err)
		}
	}
	const last = 4 // COMMIT is Bind, Describe and Execute; then comes Sync
	at := p.passed()[client] - last
	p.arm(at, -1)
	p.mu.Lock()
	p.hold = true
	p.mu.Unlock()
	done := make(chan error)
	go func() { done <- commit(held, 2) }()
	testkit.Until(t, "the proxy is silent", p.silent.Load)
	c, err := pgx.Connect(ctx, srv.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	for locks := 0; locks == 0; { // until the server has executed what it got
		if err := c.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE mode = 'RowExclusiveLock' AND relation = $1::text::regclass", schema+".pairs").Scan(&locks); err != nil {
			t.Fatal(err)
		}
	}
	other := session(srv.URL("postgres"), "other")
	for i := range 5 {
		if err := commit(other, i); err != nil {
			t.Errorf("beside an open transaction of another session: %v", err)
		}
	}
	select {
	case err := <-done:
		t.Errorf("the held commit ended: %v", err)
	default:
	}
	p.silent.Store(false)
	p.arm(-1, -1)
	p.hangUp()
	if err := <-done; err != nil && turnstone.KindOf(err).Name != "unknown-outcome" {
		t.Errorf("%s: %v", turnstone.KindOf(err).Name, err)
	}
	if err := commit(held, 2); err != nil {
		t.Error(err)
	}
}
