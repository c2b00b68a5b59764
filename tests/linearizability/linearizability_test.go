package linearizability

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/lease"
	"github.com/turnstonedb/turnstone/queue"
)

var kills = flag.Int("kills", 12, "how often a process is killed, or connections are cut")

// environment names the variable by which a test process is told to be a worker.
const environment = "TURNSTONE_LINEARIZABILITY_WORKER"

func TestMain(m *testing.M) {
	text := os.Getenv(environment)
	if text == "" {
		os.Exit(pgtest.Main(m))
	}
	var c config
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = work(&c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var ctx = context.Background()

func TestMemory(t *testing.T) {
	c := begin(t, "")
	c.Process, c.Goroutines, c.Watch = "0", 16, true
	e := memory.New()
	withStore(t, e, func(st *turnstone.Store) { c.startFeed(t, st) })
	workers := &process{ended: make(chan struct{})} // no process of their own
	go func() {
		workers.err = workOn(ctx, unclosed{e}, c)
		close(workers.ended)
	}()
	for range *kills {
		time.Sleep(200 * time.Millisecond)
		c.nextEpoch(t)
	}
	c.enough(t, workers)
	c.stop(t)
	if <-workers.ended; workers.err != nil {
		t.Fatal(workers.err)
	}
	c.check(t, e)
}

// unclosed is an engine that stays open: what it has is looked at after the workers have closed it.
type unclosed struct{ engine.Engine }

func (unclosed) Close() error { return nil }

func TestBadger(t *testing.T) { killed(t, "badger:"+t.TempDir()+"/store", 1, 16, nil) }
func TestPebble(t *testing.T) { killed(t, "pebble:"+t.TempDir()+"/store", 1, 16, nil) }

func TestPostgreSQL(t *testing.T) {
	url, schema := pgtest.URL(t), pgtest.Schema(t)
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	killed(t, url+separator+"schema="+schema, 8, 2, func() {
		c, err := pgx.Connect(ctx, url)
		if err == nil {
			_, err = c.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
			err = errors.Join(err, c.Close(ctx))
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// killed runs so many processes of so many goroutines each on a store, and kills one after the other. Instead of
// every second kill it calls cut, if that is given.
func killed(t *testing.T, url string, processes, goroutines int, cut func()) {
	c := begin(t, url)
	c.Goroutines = goroutines
	e, err := open.Open(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	withStore(t, e, func(st *turnstone.Store) { c.startFeed(t, st) })
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	running := make([]*process, processes)
	c.Watch = processes == 1
	for i := range running {
		running[i] = c.start(t, fmt.Sprint(i))
	}
	watcher := *c
	watcher.Goroutines, watcher.Watch = 0, true
	if processes > 1 { // One process more only watches, and is killed each time.
		running = append(running, watcher.start(t, "watcher"))
	}
	for n := range *kills {
		time.Sleep(time.Duration(100+rand.IntN(400)) * time.Millisecond)
		if processes > 1 {
			running[processes].kill(t)
			running[processes] = watcher.start(t, fmt.Sprint("watcher-", n))
		}
		if cut != nil && n%2 == 0 {
			cut()
			c.nextEpoch(t)
			continue
		}
		i := rand.IntN(processes)
		running[i].kill(t)
		c.nextEpoch(t)
		running[i] = c.start(t, fmt.Sprint(i, "-", n))
	}
	c.enough(t, running...)
	c.stop(t)
	for _, p := range running {
		if <-p.ended; p.err != nil {
			t.Errorf("a worker failed: %v: %s", p.err, p.out.Bytes())
		}
	}
	if e, err = open.Open(ctx, url, nil); err != nil {
		t.Fatal(err)
	}
	c.check(t, e)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

type process struct {
	*exec.Cmd
	out   *bytes.Buffer
	ended chan struct{} // closed when it has ended
	err   error         // that it has ended with
}

func (c *config) start(t *testing.T, name string) *process {
	t.Helper()
	of := *c
	of.Process = name
	text, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(os.Args[0]), out: new(bytes.Buffer), ended: make(chan struct{})}
	p.Env = append(os.Environ(), environment+"="+string(text))
	p.Stdout, p.Stderr = p.out, p.out
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() { p.Process.Kill() })
	return p
}

func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.Process.Kill(); err != nil {
		t.Fatalf("%v: %s", err, p.out.Bytes())
	}
	<-p.ended
	if p.out.Len() > 0 {
		t.Errorf("a worker said: %s", p.out.Bytes())
	}
}

func begin(t *testing.T, url string) *config {
	c := &config{URL: url, Dir: t.TempDir()}
	c.nextEpoch(t)
	return c
}

func (c *config) nextEpoch(t *testing.T) {
	t.Helper()
	name := c.file("epoch")
	text, _ := os.ReadFile(name)
	n, _ := strconv.Atoi(string(text))
	err := os.WriteFile(name+"-next", []byte(strconv.Itoa(n+1)), 0o600)
	if err == nil {
		err = os.Rename(name+"-next", name)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// enough waits until the workers have done enough to say anything, however slow the machine is, or one has ended.
func (c *config) enough(t *testing.T, running ...*process) {
	t.Helper()
	for {
		for _, p := range running {
			select {
			case <-p.ended:
				return
			default:
			}
		}
		ops, puts := c.history(t)
		if len(ops) > 300 && len(puts) > 30 && len(c.lines(t, "watched")) > 100 && len(c.lines(t, "changes")) > 100 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// lines returns the lines of a file that a watcher writes: none if none has come so far.
func (c *config) lines(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(c.file(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

func (c *config) stop(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(c.file("stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// withStore opens the store, whose session is made if it is not there.
func withStore(t *testing.T, e engine.Engine, f func(*turnstone.Store)) {
	t.Helper()
	st, err := turnstone.Open(ctx, e, nil)
	if err == nil {
		_, _, err = st.Create(ctx, turnstone.Request{ID: "s"})
	}
	if err != nil {
		t.Fatal(err)
	}
	f(st)
	if err := st.Close(); err != nil {
		t.Error(err)
	}
}

// startFeed starts the feed, and notes where it begins.
func (c *config) startFeed(t *testing.T, st *turnstone.Store) {
	t.Helper()
	err := st.StartFeed(ctx, turnstone.FeedOptions{Keep: 24 * time.Hour})
	if err == nil {
		var f turnstone.Feed
		if f, err = st.Feed(ctx); err == nil {
			err = os.WriteFile(c.file("begin"), []byte(f.End), 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// changes checks that the changes that were watched, and those that were not watched any more, are the history: each
// cursor follows the one before, the commits of each session are all there in their order, and nothing follows a
// deletion.
func (c *config) changes(t *testing.T, st *turnstone.Store) (n int) {
	t.Helper()
	begin, err := os.ReadFile(c.file("begin"))
	if err != nil {
		t.Fatal(err)
	}
	number := func(cursor string) uint64 {
		n, err := strconv.ParseUint(cursor[32:], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	last, at, gone := map[string]uint64{}, string(begin), map[string]bool{}
	see := func(cursor, kind, session string, revision uint64) {
		n++
		switch {
		case number(cursor) != number(at)+1:
			t.Errorf("cursor %s follows %s", cursor, at)
		case gone[session]:
			t.Errorf("%s of %q after its deletion", kind, session)
		case kind == "committed" && revision != last[session]+1:
			t.Errorf("revision %d of %q follows %d", revision, session, last[session])
		}
		if kind == "committed" {
			last[session] = revision
		}
		at, gone[session] = cursor, kind == "deleted"
	}
	for _, line := range c.lines(t, "changes") {
		f := strings.Split(line, ":")
		revision, err := strconv.ParseUint(f[len(f)-1], 10, 64)
		if len(f) != 4 || err != nil {
			t.Fatalf("line %q", line)
		}
		see(f[0], f[1], f[2], revision)
	}
	f, err := st.Feed(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for at != string(f.End) {
		for change, err := range st.Watch(ctx, turnstone.Cursor(at)) {
			if err != nil {
				t.Fatal(err)
			}
			if see(string(change.Cursor), string(change.Kind), change.Session, uint64(change.Revision)); at == string(f.End) {
				break
			}
		}
	}
	for _, id := range []string{"s", "shared"} {
		s, err := st.Session(ctx, id)
		if err == nil {
			var i turnstone.Info
			if i, err = s.Info(ctx); err == nil && uint64(i.Revision) != last[id] {
				t.Errorf("%q is at revision %d, and the feed at %d", id, i.Revision, last[id])
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
	return n
}

// check checks what the workers have logged, and what the store has.
func (c *config) check(t *testing.T, e engine.Engine) {
	t.Helper()
	ops, puts := c.history(t)
	unknown := 0
	for _, o := range ops {
		if o.Return == math.MaxInt64 {
			unknown++
		}
	}
	result := porcupine.CheckOperationsTimeout(register, ops, 5*time.Minute)
	if result != porcupine.Ok {
		t.Errorf("the operations on records are not linearizable: %v", result)
	}
	withStore(t, e, func(st *turnstone.Store) {
		s, err := st.Session(ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		left := 0
		for {
			m, err := queue.Claim(ctx, s, "in", lease.Options{Steal: true})
			if errors.Is(err, queue.ErrEmpty) {
				break
			}
			if err == nil {
				left++
				_, err = m.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "message", Payload: m.Value}}})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		watched := c.watched(t, s)
		changes := c.changes(t, st)
		seen, last, tokens := map[string]int{}, 0, 0
		for _, n := range state.Nodes {
			switch n.Kind {
			case "message":
				seen[string(n.Payload)]++
			case "token":
				token, err := strconv.Atoi(string(n.Payload))
				if err != nil || token < last {
					t.Errorf("revision %d: the holder of token %d committed after that of %d", n.Revision, token, last)
				}
				last, tokens = token, tokens+1
			}
		}
		for id, acknowledged := range puts {
			if n := seen[id]; n > 1 || n == 0 && acknowledged {
				t.Errorf("message %s has %d effects; its put was acknowledged: %v", id, n, acknowledged)
			}
			delete(seen, id)
		}
		for id := range seen {
			t.Errorf("message %s was never put", id)
		}
		v, err := st.Verify(ctx, turnstone.VerifyOptions{})
		if err != nil || !v.OK() {
			t.Errorf("%v, %v", v.Problems, err)
		}
		t.Logf("%d operations on records, %d of unknown outcome: %s; %d messages, %d left at the end; %d commits under %d leases; %d of %d commits watched, %d changes of the feed",
			len(ops), unknown, result, len(puts), left, tokens, last, watched, state.Revision, changes)
		if len(ops) < 100 || len(puts) < 10 || tokens == 0 {
			t.Error("the workers did too little to say anything")
		}
	})
}

// watched checks that what the watchers have seen, one after the other, is the log of the session from its
// begin, and returns how many commits they have seen.
func (c *config) watched(t *testing.T, s *turnstone.Session) int {
	t.Helper()
	seen := c.lines(t, "watched")
	n := 0
	for e, err := range s.Log(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if n == len(seen) {
			break
		}
		if want := fmt.Sprintf("%d:%v", e.Revision, e.Commit); seen[n] != want {
			t.Fatalf("the watchers saw %s as the commit of number %d, which is %s", seen[n], n+1, want)
		}
		n++
	}
	if n != len(seen) || n < 50 {
		t.Errorf("the watchers saw %d commits, of which the log has %d", len(seen), n)
	}
	return n
}

// history returns the operations on records, and the messages that were put: whether that was
// acknowledged, by their ids.
func (c *config) history(t *testing.T) (ops []porcupine.Operation, puts map[string]bool) {
	t.Helper()
	puts = map[string]bool{}
	files, err := filepath.Glob(c.file("log-*"))
	if err != nil {
		t.Fatal(err)
	}
	for client, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		var call op
		open := false
		end := func(done op, at int64) {
			if !open {
				return
			}
			open = false
			switch {
			case call.Kind == "put":
				puts[call.Key] = done.Result == "ok"
			case done.Result != "none" && (done.Result != "unknown" || call.Kind != "read"):
				ops = append(ops, porcupine.Operation{ClientId: client, Input: call, Call: call.At, Output: done, Return: at})
			}
		}
		unknown := op{Result: "unknown"}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var o op
			if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
				break // The process was killed while it wrote.
			}
			switch {
			case !o.Done:
				end(unknown, math.MaxInt64)
				call, open = o, true
			case o.Result == "unknown":
				end(unknown, math.MaxInt64)
			default:
				end(o, o.At)
			}
		}
		end(unknown, math.MaxInt64)
		f.Close()
	}
	return ops, puts
}

// register is a record, whose state is the value that it has, or "" for none: no value is written twice.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(op).Key
			byKey[key] = append(byKey[key], o)
		}
		var out [][]porcupine.Operation
		for _, part := range byKey {
			out = append(out, part)
		}
		return out
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		in, out := input.(op), output.(op)
		now := state.(string)
		holds := in.Kind == "set" || now == in.Expect
		next := in.Value // "" after a deletion
		switch {
		case in.Kind == "read":
			return out.Value == now, now
		case out.Result == "conflict":
			return !holds, now
		case out.Result == "ok":
			return holds, next
		case holds: // Its outcome is unknown: it takes effect here, or after all others.
			return true, next
		}
		return true, now
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}
