package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// writing opens a store, and calls f with it.
func writing(t *testing.T, dir string, f func(ctx context.Context, st *turnstone.Store)) {
	t.Helper()
	ctx := context.Background()
	e, err := open.Open(ctx, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		t.Fatal(err)
	}
	f(ctx, st)
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// grow adds a commit with a payload of a size to each of some sessions.
func grow(t *testing.T, dir string, sessions, size int) {
	t.Helper()
	writing(t, dir, func(ctx context.Context, st *turnstone.Store) {
		for i := range sessions {
			s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", i)})
			if err != nil {
				t.Fatal(err)
			}
			payload := make([]byte, size)
			rand.NewChaCha8([32]byte{byte(i)}).Read(payload)
			if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k", Payload: payload}}}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// killedAfter runs a command that is killed after a time, and reports whether it ended before.
func killedAfter(t *testing.T, after time.Duration, args ...string) (ended bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	return cmd.Wait() == nil
}

// logs returns what the store says of its sessions.
func logs(t *testing.T, dir string, sessions int) string {
	t.Helper()
	var out strings.Builder
	for i := range sessions {
		out.WriteString(must(t, "log", "--store", dir, fmt.Sprint("s", i)))
	}
	return out.String()
}

// Whenever a backup or a restoring is killed, what was kept before can be restored, and the next one goes on.
func TestBK9_AKilledBackupLosesNothing(t *testing.T) {
	testkit.Slow(t)
	const sessions = 20
	dir := t.TempDir()
	store, safe := dir+"/store", dir+"/safe"
	killed, restores := 0, 0
	for round := 0; killed < testkit.Pick(60, 10, 4) || restores < testkit.Pick(60, 10, 4); round++ {
		grow(t, store, sessions, 60_000)
		for try := range 5 {
			if killedAfter(t, time.Duration(rand.IntN(60+20*try))*time.Millisecond, "backup", safe, "--store", store) {
				break
			}
			killed++
		}
		must(t, "backup", safe, "--store", store)
		must(t, "backup", "verify", safe)
		to := fmt.Sprint(dir, "/restored", round)
		for try := range 5 {
			if killedAfter(t, time.Duration(rand.IntN(60+40*try))*time.Millisecond, "restore", safe, "--to", to) {
				break
			}
			restores++
			if found, _ := open.Holds(to); found {
				if out, errs, ok := turnstoneCmd(t, "verify", "--store", to); !ok && !strings.Contains(errs, "no store") {
					t.Fatalf("%s%s", out, errs)
				}
			}
		}
		must(t, "restore", safe, "--to", to)
		if out := must(t, "verify", "--store", to); !strings.Contains(out, fmt.Sprint(sessions, " sessions")) {
			t.Fatal(out)
		}
		if want, got := logs(t, store, 2), logs(t, to, 2); want != got {
			t.Fatalf("%s\nbecame\n%s", want, got)
		}
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d backups and %d restorings were killed", killed, restores)
}

// The command says what it has done, restores a session beside the one that is there, and what it refuses has an exit
// code and makes no store.
func TestBK9_TheCommandBacksUpAndRestores(t *testing.T) {
	dir := t.TempDir()
	store, safe := dir+"/store", dir+"/safe"
	refused(t, exitNotFound, "no store at", "backup", safe, "--store", store)
	if _, err := os.Stat(safe); err == nil {
		t.Error("a command that failed has made a directory")
	}
	must(t, "demo", "--store", store)
	must(t, "feed", "on", "--records", "--store", store)
	if out := must(t, "backup", safe, "--store", store); !strings.Contains(out, "new generation, run 1: 2 sessions changed, 0 gone, ") {
		t.Error(out)
	}
	if out := must(t, "backup", safe, "--store", store); !strings.Contains(out, "run 1: nothing has changed") {
		t.Error(out)
	}
	before := time.Now()
	time.Sleep(1100 * time.Millisecond) // Times are printed in seconds.
	must(t, "rewind", "trip@2", "--store", store)
	must(t, "rm", "trip/train", "--store", store)
	if out := must(t, "backup", safe, "--store", store); !strings.Contains(out, "run 2: 1 session changed, 1 gone, ") {
		t.Error(out)
	}
	at := before.Format("2006-01-02 15:04:05")
	if out := must(t, "restore", safe, "trip", "--at", at, "--as", "trip/before", "--store", store); !strings.Contains(out, "trip/before  new, at revision 6") {
		t.Error(out)
	}
	must(t, "restore", safe, "trip/train", "--at", at, "--store", store)
	must(t, "log", "trip/train", "--store", store)
	must(t, "verify", "--store", store)
	if out := must(t, "restore", safe, "--store", store); !strings.Contains(out, "0 sessions came, ") || !strings.Contains(out, "1 had all already") {
		t.Error(out)
	}
	must(t, "erase", "trip/train", "--yes", "--store", store)
	if out := must(t, "restore", safe, "--at", at, "--store", store); !strings.Contains(out, "trip/train  was erased, and stays so\n") {
		t.Error(out)
	}
	if out := must(t, "backup", "list", safe); !strings.Contains(out, "2 runs") {
		t.Error(out)
	}
	refused(t, exitUsage, "want a time as", "restore", safe, "--at", "yesterday", "--store", store)
	refused(t, exitNotFound, "no backup of that time", "restore", safe, "--at", "2001-01-01", "--to", dir+"/none")
	refused(t, exitNotFound, "no backup", "restore", dir+"/nothing", "--to", dir+"/none")
	refused(t, exitNotFound, `session not found: "nobody"`, "restore", safe, "nobody", "--store", store)
	refused(t, exitUsage, "--as is for one session", "restore", safe, "--as", "x", "--store", store)
	refused(t, exitUsage, "no object store is called", "backup", "ftp://host", "--store", store)
	refused(t, exitUsage, "--new-generation is for one", "backup", safe, "--new-generation", "--every", "1m", "--store", store)
	if _, err := os.Stat(dir + "/none"); err == nil {
		t.Error("a command that failed has made a store")
	}
	packs, err := filepath.Glob(safe + "/*/packs/*")
	if err != nil || len(packs) != 2 {
		t.Fatal(packs, err)
	}
	whole, err := os.ReadFile(packs[0])
	if err != nil {
		t.Fatal(err)
	}
	whole[len(whole)/2]++
	if err := os.WriteFile(packs[0], whole, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, exitDamaged, "damaged backup: 2 problems", "backup", "verify", safe)
	refused(t, exitDamaged, `session "trip": `, "restore", safe, "--to", dir+"/rest")
}

// With --every, the command goes on until it is interrupted, and ends well then.
func TestBK9_TheCommandFollows(t *testing.T) {
	dir := t.TempDir()
	store, safe := dir+"/store", dir+"/safe"
	must(t, "demo", "--store", store)
	cmd := exec.Command(os.Args[0], "backup", safe, "--every", "1ms", "--store", store)
	cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.Contains(line, "new generation, run 1: 2 sessions changed") {
		t.Errorf("%v: %s", err, line)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	must(t, "restore", safe, "--to", dir+"/to")
}
