package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// sshTo makes the command ssh one that runs what it is told on this machine, where turnstone is this test, and the home a
// directory of the test. It returns the address of a directory by it.
func sshTo(t *testing.T) (address func(dir string) string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("a shell script stands for ssh")
	}
	bin := t.TempDir()
	// As sshd does, it passes the last argument to a shell, in the user's home. It notes all of them in a file there.
	script := "#!/bin/sh\nfor last; do :; done\ncd \"$HOME\" && echo \"$@\" >> arguments && exec sh -c \"$last\"\n"
	if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	here := fmt.Sprintf("#!/bin/sh\nTURNSTONE_TEST_COMMAND=1 exec '%s' \"$@\"\n", os.Args[0])
	if err := os.WriteFile(filepath.Join(bin, "turnstone"), []byte(here), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return func(dir string) string { return "ssh://ada@laptop:2222" + dir }
}

func TestPU5_TheCommandPushesAndPullsThroughSSH(t *testing.T) {
	ssh := sshTo(t)
	a, b, c := t.TempDir()+"/a", t.TempDir()+"/it's b", t.TempDir()+"/c"
	must(t, "demo", "--store", a)
	refused(t, exitNotFound, "turnstone: ssh: turnstone: no store at", "pull", ssh(b), "trip", "--store", c)
	if _, err := os.Stat(b); err == nil {
		t.Error("a pull has made the store that it was to read")
	}
	if out := must(t, "push", "--store", a, "trip", "trip/train", ssh(b)); !strings.Contains(out, "trip/train  new, at revision 1\n2 sessions came, ") {
		t.Error(out)
	}
	if out := must(t, "push", "--store", a, "--all", ssh(b)); out != "0 sessions came, 0 B; 2 had all already\n" {
		t.Error(out)
	}
	if a, b := must(t, "log", "--store", a, "trip"), must(t, "log", "--store", b, "trip"); a != b {
		t.Errorf("%s\nbecame\n%s", a, b)
	}
	must(t, "clone", ssh(b), c)
	must(t, "verify", "--store", c)

	// Both go on.
	must(t, "rewind", "--store", a, "trip@2", "--parts")
	must(t, "rewind", "--store", b, "trip@3")
	must(t, "rewind", "--store", b, "trip@4")
	refused(t, exitConflict, `"trip" is at revision 7 here and at 8 there, and the last common one is 6; --branch or --as`, "push", "--store", a, "--all", ssh(b))
	refused(t, exitConflict, `"trip" is at revision 7 here and at 8 there, and the last common one is 6; --branch or --as`, "pull", "--store", a, ssh(b), "trip")
	if out := must(t, "pull", "--store", a, ssh(b), "trip", "--branch", "laptop"); !strings.Contains(out, "trip  revision 7 to 9, with a branch whose end is revision 8\n") {
		t.Error(out)
	}
	must(t, "pull", "--store", a, ssh(b), "trip", "--as", "trip/laptop", "--json")
	if a, b := must(t, "log", "--store", a, "trip/laptop"), must(t, "log", "--store", b, "trip"); a != b {
		t.Errorf("%s\nis not\n%s", a, b)
	}
	must(t, "verify", "--store", a)

	refused(t, exitUsage, "name sessions, or --group, or --all", "push", "--store", a, c+"-new")
	refused(t, exitNotFound, "session not found", "push", "--store", a, "nobody", c+"-new")
	refused(t, exitUsage, "--since is for", "push", "--store", a, "trip", "--since", "1h", c+"-new")
	refused(t, exitUsage, "--as is for", "push", "--store", a, "--all", "--as", "x", c+"-new")
	refused(t, exitNotFound, "no store at", "pull", "--store", c+"-new", a+"-none", "--all")
	refused(t, exitNotFound, "session not found", "pull", "--store", c+"-new", a, "nobody")
	if _, err := os.Stat(c + "-new"); err == nil {
		t.Error("a command that failed has made a store")
	}
	refused(t, exitNotFound, `session not found: "nobody"`, "push", "--store", a, "nobody", "trip", c) // the others come
	refused(t, exitUsage, "ssh asks for a password", "push", "--store", a, "trip", "ssh://ada:secret@laptop/dir")
	refused(t, exitUsage, "/~/DIR", "push", "--store", a, "trip", "ssh://laptop/~ada/dir")
	refused(t, exitUsage, "no address of a server", "push", "--store", a, "trip", "unix:")
	refused(t, exitUsage, "unknown store URL", "push", "--store", a, "trip", ssh("/~/x:y"))
	refused(t, exitUnavailable, "ssh: ", "push", "--store", a, "trip", ssh(b)+"?command=no-such-command")
	refused(t, exitUsage, "no address of a server", "push", "--store", a, "trip", "ssh://laptop")
	refused(t, exitUsage, "no host", "push", "--store", a, "trip", "ssh://-oProxyCommand=x/dir")
	// A directory of the user's home, and a store of this machine.
	must(t, "push", "--store", a, "--all", ssh("/~/mine"))
	must(t, "pull", "--store", a, os.Getenv("HOME")+"/mine", "--all", "--since", "1h")
	must(t, "verify", "--store", os.Getenv("HOME")+"/mine")
}

// Whenever either side of a push is killed, the other store is whole, and the next push goes on.
func TestPU4_AKilledPushLeavesTheStoreWhole(t *testing.T) {
	testkit.Slow(t)
	ssh := sshTo(t)
	a := t.TempDir() + "/a"
	const sessions = 250
	grow(t, a, sessions, 20_000)
	killed := 0
	rounds := testkit.Pick(6, 3, 1)
	for round := range rounds {
		b := fmt.Sprint(t.TempDir(), "/b", round)
		for try := 0; ; try++ {
			cmd := exec.Command(os.Args[0], "push", "--store", a, "--all", ssh(b))
			cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			after := time.AfterFunc(time.Duration(10+rand.IntN(100+50*try))*time.Millisecond, func() {
				if try%2 == 0 {
					_ = cmd.Process.Kill()
				} else {
					_ = exec.Command("pkill", "-9", "-f", "serve --stdio --store="+b).Run()
				}
			})
			err := cmd.Wait()
			after.Stop()
			if err == nil {
				break
			}
			killed++
			if found, _ := open.Holds(b); found {
				if out, errs, ok := turnstoneCmd(t, "verify", "--store", b); !ok && !strings.Contains(errs, "no store") {
					t.Fatalf("%s%s", out, errs)
				}
			}
		}
		if out := must(t, "push", "--store", a, "--all", ssh(b)); !strings.Contains(out, fmt.Sprint(sessions, " had all already")) {
			t.Error(out)
		}
		must(t, "verify", "--store", b)
	}
	t.Logf("%d pushes were killed", killed)
	if killed < rounds {
		t.Errorf("only %d pushes of %d rounds were killed", killed, rounds)
	}
}
