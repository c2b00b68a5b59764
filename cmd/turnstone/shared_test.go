package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

var kills = flag.Int("kills", 8, "how often TestProcessesAndTheCommandShareAStore kills the owner of the store")

// workerVariable has the name of a worker. Then the test binary is that worker.
const workerVariable = "TURNSTONE_TEST_WORKER"

// runWorker commits to a session of its own and to one of all workers until standard input ends. It prints each commit
// that was acknowledged: the number, and when it was begun and done.
func runWorker(name string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	for ctx.Err() == nil {
		if err := commitSome(ctx, name); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// commitSome opens the store, commits some turns, and closes it.
func commitSome(ctx context.Context, name string) (err error) {
	e, err := open.Open(ctx, os.Getenv(storeVariable), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	own, _, err := st.Create(ctx, turnstone.Request{ID: name})
	if err != nil {
		return err
	}
	all, _, err := st.Create(ctx, turnstone.Request{ID: "all"})
	if err != nil {
		return err
	}
	state, err := own.Load(ctx, turnstone.Scope{})
	if err != nil {
		return err
	}
	for n := len(state.Nodes); n < len(state.Nodes)+100 && ctx.Err() == nil; n++ {
		begun := time.Now()
		for _, s := range []*turnstone.Session{all, own} {
			if _, err := s.Commit(ctx, turnstone.Commit{
				Expected: turnstone.AnyRevision, Turn: fmt.Sprint(name, " ", n),
				Nodes: []turnstone.NewNode{{Kind: "message", Payload: fmt.Append(nil, name, " ", n)}},
			}); err != nil {
				return err
			}
		}
		fmt.Println(n, begun.UnixNano(), time.Now().UnixNano())
	}
	return nil
}

// A crowd is the workers of a test.
type crowd struct {
	t     *testing.T
	store string

	mu      sync.Mutex
	acked   map[string]int // the commits of each worker that were acknowledged
	moments [][2]time.Time // when each was begun and done
	killed  map[int]bool   // process ids
	workers sync.WaitGroup
}

// work runs a worker, and another one when it was killed, until stop is closed.
func (c *crowd) work(name string, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), workerVariable+"="+name, storeVariable+"="+c.store)
		var errs strings.Builder
		cmd.Stderr = &errs
		in, err := cmd.StdinPipe()
		if err != nil {
			c.t.Error(err)
			return
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			c.t.Error(err)
			return
		}
		if err := cmd.Start(); err != nil {
			c.t.Error(err)
			return
		}
		ended := make(chan struct{})
		go func() {
			select {
			case <-stop:
				in.Close()
			case <-ended:
			}
		}()
		c.read(name, out)
		err = cmd.Wait()
		close(ended)
		if err != nil && !c.wasKilled(cmd.Process.Pid) {
			c.t.Errorf("worker %s: %v: %s", name, err, errs.String())
			return
		}
	}
}

// read notes what a worker prints.
func (c *crowd) read(name string, out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var n int
		var begun, done int64
		if _, err := fmt.Sscan(lines.Text(), &n, &begun, &done); err != nil {
			return // the last line may be cut
		}
		c.mu.Lock()
		c.acked[name] = max(c.acked[name], n+1)
		c.moments = append(c.moments, [2]time.Time{time.Unix(0, begun), time.Unix(0, done)})
		c.mu.Unlock()
	}
}

func (c *crowd) wasKilled(pid int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.killed[pid]
}

// kill kills the owner of the store, and returns how long it took until a commit was acknowledged that was begun
// afterwards.
func (c *crowd) kill() time.Duration {
	var at time.Time
	testkit.Until(c.t, "the store has an owner that was not killed", func() bool {
		text, err := os.ReadFile(filepath.Join(c.store, "turnstone.owner"))
		fields := strings.Fields(string(text)) // pid 17 (…
		if err != nil || len(fields) < 2 {
			return false
		}
		pid, err := strconv.Atoi(fields[1])
		c.mu.Lock()
		if err == nil && !c.killed[pid] && syscall.Kill(pid, syscall.SIGKILL) == nil {
			at, c.killed[pid] = time.Now(), true
		}
		c.mu.Unlock()
		return !at.IsZero()
	})
	var after [][2]time.Time
	testkit.Until(c.t, "somebody commits", func() bool {
		c.mu.Lock()
		after = slices.Clone(c.moments)
		c.mu.Unlock()
		after = slices.DeleteFunc(after, func(m [2]time.Time) bool { return !m[0].After(at) })
		return len(after) > 0
	})
	return slices.MinFunc(after, func(a, b [2]time.Time) int { return a[1].Compare(b[1]) })[1].Sub(at)
}

// TestProcessesAndTheCommandShareAStore kills the owner of a store again and again, while four processes commit to it
// and the command reads and maintains it. What was acknowledged is there, and nothing is there twice.
func TestProcessesAndTheCommandShareAStore(t *testing.T) {
	testkit.Slow(t)
	c := &crowd{t: t, store: t.TempDir() + "/store", acked: map[string]int{}, killed: map[int]bool{}}
	names := []string{"a", "b", "c", "d"}
	stop := make(chan struct{})
	for _, name := range names {
		c.workers.Go(func() { c.work(name, stop) })
	}
	testkit.Until(t, "somebody commits", func() bool { return c.count() > 0 || t.Failed() })
	var commands atomic.Int32
	c.workers.Go(func() { c.command(stop, &commands) })
	var gaps []time.Duration
	for range *kills {
		time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
		gaps = append(gaps, c.kill())
	}
	close(stop)
	c.workers.Wait()
	slices.Sort(gaps)
	t.Logf("%d kills, %d commits, %d commands; until a commit was acknowledged that was begun after the kill: median %v, longest %v",
		*kills, c.count(), commands.Load(), gaps[len(gaps)/2].Round(time.Millisecond), gaps[len(gaps)-1].Round(time.Millisecond))
	c.check(names)
}

func (c *crowd) count() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.moments)
}

// command runs commands until stop is closed.
func (c *crowd) command(stop <-chan struct{}, n *atomic.Int32) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		args := [][]string{{"sessions"}, {"gc"}, {"show", "all", "--last", "3"}, {"stats"}, {"verify"}, {"vacuum"}}[i%6]
		cmd := exec.Command(os.Args[0], append(args, "--store", c.store)...)
		cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", storeVariable+"=")
		if out, err := cmd.CombinedOutput(); err != nil && !c.wasKilled(cmd.Process.Pid) {
			c.t.Errorf("%v: %v: %s", args, err, out)
			return
		}
		n.Add(1)
	}
}

// check compares the store with what was acknowledged.
func (c *crowd) check(names []string) {
	ctx := context.Background()
	e, err := open.Open(ctx, c.store, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer e.Close()
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer st.Close()
	payloads := func(id string) (out []string) {
		s, err := st.Session(ctx, id)
		if err != nil {
			c.t.Fatal(err)
		}
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil {
			c.t.Fatal(err)
		}
		for _, n := range state.Nodes {
			out = append(out, string(n.Payload))
		}
		return out
	}
	all := map[string][]string{}
	for _, p := range payloads("all") {
		name, _, _ := strings.Cut(p, " ")
		all[name] = append(all[name], p)
	}
	for _, name := range names {
		if c.acked[name] == 0 {
			c.t.Errorf("%s has committed nothing", name)
		}
		for of, have := range map[string][]string{name: payloads(name), "all": all[name]} {
			if len(have) < c.acked[name] {
				c.t.Errorf("%s has %d commits of %s; %d were acknowledged", of, len(have), name, c.acked[name])
			}
			for i, p := range have {
				if want := fmt.Sprint(name, " ", i); p != want {
					c.t.Fatalf("%s: commit %d of %s is %q, not %q", of, i, name, p, want)
				}
			}
		}
	}
	if v, err := st.Verify(ctx, turnstone.VerifyOptions{}); err != nil || !v.OK() {
		c.t.Errorf("%v, %v", v.Problems, err)
	}
}
