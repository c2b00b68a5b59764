package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

var moves = flag.Int("moves", 24, "how often TestMV8 kills a mover or the server, with TURNSTONE_LONG=1")

// listOf writes a list of databases.
func listOf(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "databases")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A mover, or the server, is killed again and again while a namespace moves between four databases and a client
// commits. What was acknowledged is there, the client goes on, and each time the namespace is in one database.
func TestMV8_KillsWhileANamespaceMovesLoseNothing(t *testing.T) {
	testkit.Slow(t)
	root := t.TempDir()
	list := listOf(t,
		"# kept by the operators", "",
		"east "+pgtest.URL(t)+"&schema="+pgtest.Schema(t),
		"west\t"+pgtest.URL(t)+"&schema="+pgtest.Schema(t),
		"disk "+filepath.Join(root, "disk.pebble"), "old badger:"+filepath.Join(root, "old.badger"))
	socket := "unix:" + filepath.Join(root, "socket")
	t.Setenv(databasesVariable, list)
	s := startServe(t, "--listen", socket)
	c, err := client.Open(t.Context(), s.address, &client.Options{Namespace: "team", Patience: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p, _, err := c.Create(t.Context(), turnstone.Request{ID: "chat"})
	if err != nil {
		t.Fatal(err)
	}
	var acked atomic.Int64
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			n := acked.Load()
			_, err := p.Commit(t.Context(), turnstone.Commit{Expected: turnstone.AnyRevision, Turn: fmt.Sprint(n), Nodes: []turnstone.NewNode{{Kind: "user", Payload: fmt.Append(nil, "text ", n)}}})
			if err != nil {
				t.Errorf("commit %d: %v", n, err)
				return
			}
			acked.Add(1)
		}
	})
	names := []string{"east", "west", "disk", "old"}
	ended, served := 0, 0
	for round := range testkit.Pick(*moves, 10, 3) {
		to := names[(round+rand.IntN(2))%len(names)]
		mover := exec.Command(os.Args[0], "namespace", "move", "team", "--to", to)
		mover.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1")
		if err := mover.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		victim := mover.Process
		if round%4 == 3 {
			victim = s.Process
			served++
		}
		if err := victim.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		if mover.Wait() == nil {
			ended++
		}
		if victim == s.Process {
			_ = s.Wait()
			s = startServe(t, "--listen", socket)
		}
		if at := whereIs(t, "team"); len(at) > 1 {
			t.Fatalf("round %d: the namespace is in %v", round, at)
		}
		// A move that was begun goes on to where it was to go, or is given up.
		if round%2 == 0 {
			_, _, _ = turnstoneCmd(t, "namespace", "cancel", "team") // It fails if there is none.
		} else {
			for _, name := range names {
				_, _, _ = turnstoneCmd(t, "namespace", "move", "team", "--to", name) // All but one are refused, or come first.
			}
		}
		before := acked.Load()
		testkit.Until(t, "a commit after the kill", func() bool { return acked.Load() > before })
	}
	close(stop)
	writer.Wait()
	at := whereIs(t, "team")
	if len(at) != 1 {
		t.Fatalf("the namespace is in %v", at)
	}
	info, err := p.Info(t.Context())
	if err != nil || int64(info.Revision) != acked.Load() {
		t.Errorf("revision %d after %d commits: %v", info.Revision, acked.Load(), err)
	}
	t.Logf("%d commits, %d moves ended, the server was killed %d times", acked.Load(), ended, served)
	s.stop(t)
}

// The command finds a namespace, moves it, and gives up a move that was cut off; an interrupted or a late call of it
// removes the rest.
func TestMV5_TheCommandMovesANamespaceAndGivesUp(t *testing.T) {
	root := t.TempDir()
	dir := map[string]string{"east": filepath.Join(root, "east.pebble"), "west": filepath.Join(root, "west.pebble")}
	t.Setenv(databasesVariable, listOf(t, "east "+dir["east"], "west pebble:"+dir["west"], "lost postgres://nobody:hidden@127.0.0.1:1/x?connect_timeout=1"))
	refused(t, exitUnavailable, "lost", "stats") // It may be in the one that can't be asked.
	known := listOf(t, "east "+dir["east"], "west pebble:"+dir["west"])
	t.Setenv(databasesVariable, known)
	refused(t, exitNotFound, "no store", "namespace", "move", "", "--to", "west")
	refused(t, exitNotFound, "no store", "namespace", "cancel", "")
	refused(t, exitUsage, "north", "namespace", "move", "", "--to", "north")
	refused(t, exitUsage, "\"to\" not set", "namespace", "move", "")
	refused(t, exitUsage, "--read-only", "stats", "--read-only")
	refused(t, exitUsage, "--databases", "namespace", "where", "", "--databases", "")
	transcript := filepath.Join(root, "chat.jsonl")
	if err := os.WriteFile(transcript, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "import", transcript)
	from := whereIs(t, "")[0]
	to := map[string]string{"east": "west", "west": "east"}[from]
	before := must(t, "sessions", "--json")
	// cutOff calls f with the engines, of which the other one crashes after a number of batches.
	cutOff := func(after int, f func(a, b engine.Engine) error) {
		t.Helper()
		a, err := pebble.Open(dir[from], nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := pebble.Open(dir[to], nil)
		if err != nil {
			t.Fatal(err)
		}
		if f(a, &enginetest.Faulty{Engine: b, Plan: enginetest.CrashAfter(after)}) == nil {
			t.Error("it was not cut off")
		}
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Fatal(err)
		}
	}
	move := func(a, b engine.Engine) error {
		_, err := turnstone.Move(t.Context(), a, b, turnstone.MoveOptions{To: to})
		return err
	}
	cutOff(2, move)
	if out := must(t, "namespace", "where", ""); !strings.Contains(out, "here; it is being moved to "+to) {
		t.Error(out)
	}
	cutOff(1, func(a, b engine.Engine) error {
		return turnstone.CancelMove(t.Context(), a, b, turnstone.MoveOptions{})
	})
	clean := func() {
		t.Helper()
		if out := must(t, "namespace", "cancel", ""); !strings.Contains(out, "stays") {
			t.Error(out)
		}
		if at := whereIs(t, ""); len(at) != 1 || at[0] != from {
			t.Error(at)
		}
		e, err := pebble.Open(dir[to], nil)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		for p, err := range e.Scan(t.Context(), engine.Range{}) {
			t.Errorf("%x is left: %v", p.Key, err)
		}
	}
	clean()
	cutOff(2, move)
	t.Setenv(databasesVariable, listOf(t, from+" "+dir[from]))
	refused(t, exitUsage, "--lost", "namespace", "cancel", "")
	must(t, "namespace", "cancel", "", "--lost")
	t.Setenv(databasesVariable, known) // It was not lost.
	clean()
	for range 2 { // The second time there is nothing to be done.
		must(t, "namespace", "move", "", "--to", to, "--json")
	}
	if out := must(t, "namespace", "where", ""); !strings.Contains(out, "it has moved to "+to) {
		t.Error(out)
	}
	if after := must(t, "sessions", "--json"); after != before {
		t.Errorf("%s, then %s", before, after)
	}
	refused(t, exitNotFound, "was moved to", "sessions", "--databases", "", "--store", dir[from])
}

// whereIs returns the databases that have a namespace.
func whereIs(t *testing.T, namespace string) (at []string) {
	t.Helper()
	out := must(t, "namespace", "where", namespace, "--json")
	for line := range strings.Lines(out) {
		var w whereLine
		if err := json.Unmarshal([]byte(line), &w); err != nil {
			t.Fatal(err)
		}
		if w.Error != "" {
			t.Errorf("%+v", w)
		}
		if w.Here {
			at = append(at, w.Database)
		}
	}
	return at
}
