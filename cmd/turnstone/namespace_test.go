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

// A mover, or the server, is killed again and again while a namespace moves between three databases and a client
// commits. What was acknowledged is there, the client goes on, and each time the namespace is in one database.
func TestMV8_KillsWhileANamespaceMovesLoseNothing(t *testing.T) {
	testkit.Slow(t)
	root := t.TempDir()
	list := listOf(t,
		"# kept by the operators", "",
		"east "+pgtest.URL(t)+"&schema="+pgtest.Schema(t),
		"west\t"+pgtest.URL(t)+"&schema="+pgtest.Schema(t),
		"disk "+filepath.Join(root, "disk.pebble"))
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
	names := []string{"east", "west", "disk"}
	ended, served := 0, 0
	for round := range testkit.Pick(*moves, 10, 3) {
		to := names[(round+rand.IntN(2))%3]
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
				_, _, _ = turnstoneCmd(t, "namespace", "move", "team", "--to", name) // Two of them are refused, or come first.
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
