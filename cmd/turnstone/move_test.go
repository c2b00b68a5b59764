package main

import (
	"context"
	"errors"
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

// A store goes from Pebble to Badger and from there to PostgreSQL while a server serves it, whose clients notice
// nothing.
func TestMoveWhileAServerServesTheStore(t *testing.T) {
	testkit.Slow(t)
	root := t.TempDir()
	from, between := filepath.Join(root, "from"), filepath.Join(root, "between")
	server := pgtest.URL(t) + "&schema=" + pgtest.Schema(t)
	for _, step := range [][2]string{{from, "badger:" + between}, {between, server}} {
		s := startServe(t, "--store", step[0], "--listen", "unix:"+filepath.Join(root, "socket"))
		c, err := client.Open(t.Context(), s.address, nil)
		if err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var acked atomic.Int64
		var writer sync.WaitGroup
		p, _, err := c.Create(t.Context(), turnstone.Request{ID: "chat"})
		if err != nil {
			t.Fatal(err)
		}
		info, err := p.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		write := func() {
			if _, err := p.Commit(t.Context(), turnstone.Commit{Expected: info.Revision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: fmt.Append(nil, "text ", info.Revision)}}}); err != nil {
				t.Error(err)
				return
			}
			info.Revision++
			acked.Add(1)
		}
		for range 50 {
			write()
		}
		writer.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					write()
				}
			}
		})
		if out := must(t, "move", step[0], step[1]); !strings.Contains(out, "moved") {
			t.Error(out)
		}
		before := acked.Load()
		time.Sleep(20 * time.Millisecond)
		close(stop)
		writer.Wait()
		if acked.Load() <= before {
			t.Error("nothing was committed after the move")
		}
		want := must(t, "show", "chat", "--json", "--store", step[1])
		if n := strings.Count(want, "\n"); n < int(info.Revision) {
			t.Errorf("%d lines of %d commits", n, info.Revision)
		}
		if got := must(t, "show", "chat", "--json", "--store", step[0]); got != want {
			t.Error("who comes while the server runs does not see the new store")
		}
		c.Close()
		s.stop(t)
		if code, _, errs := status(t, nil, "sessions", "--store", step[0]); code != exitNotFound || !strings.Contains(errs, "was moved to") || strings.Contains(errs, "secret") {
			t.Errorf("the old place: %d, %s", code, errs)
		}
		if got := must(t, "show", "chat", "--json", "--store", step[1]); got != want {
			t.Error("the new store is another one when it is opened again")
		}
		must(t, "verify", "--store", step[1])
	}
	for _, args := range [][]string{{server, filepath.Join(root, "x")}, {filepath.Join(root, "none"), filepath.Join(root, "x")}, {from, server}} {
		if code, _, errs := status(t, nil, "move", args[0], args[1]); code != exitUsage && code != exitNotFound {
			t.Errorf("%v: %d, %s", args, code, errs)
		}
	}
}

// A process is killed while a store moves: the one that serves the store, or the command that asked for the move.
// Wherever the store is then, it has all that was acknowledged. A partial copy can't be opened.
func TestAKillWhileAStoreMovesLosesNothing(t *testing.T) {
	rounds := 3
	if testkit.Long() {
		rounds = 12
	}
	moved := 0
	for round := range rounds {
		root := t.TempDir()
		from, to := filepath.Join(root, "from"), "badger:"+filepath.Join(root, "to")
		s := startServe(t, "--store", from)
		c, err := client.Open(t.Context(), s.address, &client.Options{Patience: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		p, _, err := c.Create(t.Context(), turnstone.Request{ID: "chat"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var writer sync.WaitGroup
		acked := 0
		writer.Go(func() {
			for ctx.Err() == nil {
				if _, err := p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: fmt.Append(nil, "text ", acked)}}}); err != nil {
					return
				}
				acked++
			}
		})
		time.Sleep(50 * time.Millisecond)
		mover := exec.Command(os.Args[0], "move", from, to)
		mover.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", storeVariable+"=")
		if err := mover.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
		victim := s.Process
		if round%3 == 2 {
			victim = mover.Process
		}
		if err := victim.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		_ = mover.Wait()
		cancel()
		writer.Wait()
		c.Close()
		_ = s.Process.Kill()
		_ = s.Wait()
		code, out, errs := status(t, nil, "show", "chat", "--json", "--store", from)
		if strings.Contains(errs, "was moved to") {
			moved++
			out = must(t, "show", "chat", "--json", "--store", to)
		} else if code != 0 {
			t.Fatalf("round %d: %s", round, errs)
		} else if copied, _, ok := turnstoneCmd(t, "show", "chat", "--json", "--store", to); ok && copied != out {
			t.Errorf("round %d: a part of a copy can be opened", round)
		}
		if n := strings.Count(out, "text "); n < acked || acked == 0 {
			t.Errorf("round %d: %d commits were acknowledged, and %d are there", round, acked, n)
		}
	}
	t.Logf("%d kills, %d after the move", rounds, moved)
}
