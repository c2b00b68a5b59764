package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A store is encrypted by copying it, and every command works on it, with its keyring and not without.
func TestES6_TheCommandEncrypts(t *testing.T) {
	t.Setenv(passphraseVariable, "correct horse")
	dir := t.TempDir()
	plain, store, ring := dir+"/plain", dir+"/store", dir+"/ring"
	must(t, "demo", "--store", plain)
	must(t, "keys", "create", ring)
	refused(t, exitFailed, "exist", "keys", "create", ring)
	must(t, "keys", "add", ring, "--namespace", "team")
	if out := must(t, "keys", "list", ring); out != "\"\"\n\"team\"\n" {
		t.Error(out)
	}
	must(t, "--keys", ring, "copy", plain, store)
	sessions := must(t, "sessions", "--store", plain)
	same := func(args ...string) {
		t.Helper()
		if out := must(t, append(args, "sessions")...); out != sessions {
			t.Errorf("%v: %s, want\n%s", args, out, sessions)
		}
	}
	same("--keys", ring, "--store", store)
	refused(t, exitFailed, "--keys", "--store", store, "sessions")
	refused(t, exitFailed, "not encrypted", "--keys", ring, "--store", plain, "sessions")
	refused(t, exitUsage, "reencrypt", "--store", store, "reencrypt", "x")
	refused(t, exitUsage, "--keys", "--store", store, "reencrypt")

	file := dir + "/bundle"
	must(t, "--keys", ring, "--store", store, "bundle", "--all", "-o", file)
	if text, err := os.ReadFile(file); err != nil || !bytes.HasPrefix(text, []byte(encryptedBundle)) || bytes.Contains(text, []byte("trip")) {
		t.Errorf("%.100q, %v", text, err)
	}
	refused(t, exitUsage, "the bundle is encrypted", "--store", dir+"/other", "unbundle", file)
	must(t, "--keys", ring, "--store", dir+"/other", "unbundle", file)
	must(t, "--keys", ring, "--store", dir+"/other", "verify")
	must(t, "--keys", ring, "--store", store, "bundle", "--all", "--decrypt", "-o", file)
	must(t, "--store", dir+"/third", "unbundle", file)

	safe := dir + "/safe"
	must(t, "--keys", ring, "--store", store, "backup", safe)
	must(t, "--keys", ring, "backup", "verify", safe)
	refused(t, exitFailed, "--keys", "backup", "verify", safe)
	refused(t, exitFailed, "--keys", "--store", plain, "backup", safe)
	refused(t, exitFailed, "encrypted", "recover", store, dir+"/none")
	refused(t, exitFailed, "encrypted", "copy", plain, store)
	refused(t, exitFailed, "encrypted", "copy", store, dir+"/none")
	if _, err := os.Stat(dir + "/none"); err == nil {
		t.Error("a command that was refused has made a store")
	}
	must(t, "--keys", ring, "recover", plain, dir+"/encrypted")
	same("--keys", ring, "--store", dir+"/encrypted")
	must(t, "--keys", ring, "restore", safe, "--to", dir+"/restored")
	same("--keys", ring, "--store", dir+"/restored")
	must(t, "--keys", ring, "recover", store, dir+"/recovered")
	same("--keys", ring, "--store", dir+"/recovered")

	must(t, "keys", "rotate", ring)
	if out := must(t, "--keys", ring, "--store", store, "reencrypt", "--forget"); !strings.HasPrefix(out, "encrypted ") {
		t.Error(out)
	}
	same("--keys", ring, "--store", store)
	refused(t, exitFailed, "the keyring lacks", "--keys", ring, "--store", dir+"/restored", "sessions")
	must(t, "--keys", ring, "copy", "--decrypt", store, dir+"/back")
	same("--store", dir+"/back")

	t.Setenv(passphraseVariable, "wrong horse")
	refused(t, exitFailed, "another one", "--keys", ring, "--store", store, "sessions")
	t.Setenv(secretVariable, base64.StdEncoding.EncodeToString(make([]byte, 32)))
	refused(t, exitUsage, "set one of", "--keys", ring, "--store", store, "sessions")
	t.Setenv(passphraseVariable, "")
	t.Setenv(secretVariable, "short")
	refused(t, exitUsage, "32 bytes", "keys", "create", dir+"/new")
	t.Setenv(secretVariable, "")
	t.Setenv(passphraseFileVariable, write(t, "passphrase", "correct horse\n"))
	same("--keys", ring, "--store", store)
	t.Setenv(keysVariable, ring)
	same("--store", store)
	refused(t, exitUsage, "namespace", "keys", "destroy", ring)
	must(t, "keys", "destroy", ring, "--namespace", "")
	refused(t, exitFailed, "no keyset", "--store", store, "sessions")
}

// Keys are rotated while a host commits, and each command that does so is killed again and again. What was acknowledged
// is there, and is encrypted with the newest key at the end.
func TestES4_KeysAreRotatedUnderKills(t *testing.T) {
	testkit.Slow(t)
	secret := [32]byte{7}
	t.Setenv(secretVariable, base64.StdEncoding.EncodeToString(secret[:]))
	ctx := context.Background()
	dir := t.TempDir()
	ring := dir + "/ring"
	must(t, "keys", "create", ring)
	e, err := open.Open(ctx, dir+"/store", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	keyring, err := sealed.OpenKeyring(ctx, ring, sealed.Key(secret))
	if err != nil {
		t.Fatal(err)
	}
	in, err := sealed.Open(ctx, e, keyring, "")
	if err != nil {
		t.Fatal(err)
	}
	st, err := turnstone.Open(ctx, in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	stop := make(chan struct{})
	var hosts sync.WaitGroup
	acked := make([]int, 4)
	for i := range acked {
		s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", i)})
		if err != nil {
			t.Fatal(err)
		}
		hosts.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				c := turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k", Payload: fmt.Append(nil, acked[i])}}}
				c.Records = []turnstone.RecordChange{{Key: fmt.Sprint("a/", acked[i]%10), Value: c.Nodes[0].Payload}}
				if _, err := s.Commit(ctx, c); err != nil {
					t.Error(err)
					return
				}
				acked[i]++
			}
		})
	}
	killed := 0
	for round := 0; round < testkit.Pick(12, 4, 2) || killed < testkit.Pick(60, 10, 4); round++ {
		for try := 0; !killedAfter(t, time.Duration(rand.IntN(60+20*try))*time.Millisecond, "keys", "rotate", ring); try++ {
			killed++
		}
		for try := 0; !killedAfter(t, time.Duration(rand.IntN(80+30*try))*time.Millisecond, "--keys", ring, "--store", dir+"/store", "reencrypt", "--forget"); try++ {
			killed++
		}
	}
	close(stop)
	hosts.Wait()
	for i, n := range acked {
		s, err := st.Session(ctx, fmt.Sprint("s", i))
		if err != nil {
			t.Fatal(err)
		}
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil || int(state.Revision) != n {
			t.Errorf("session %d is at revision %d, %d commits were acknowledged: %v", i, state.Revision, n, err)
		}
	}
	if out := must(t, "--keys", ring, "--store", dir+"/store", "reencrypt"); out != "encrypted 0 values anew\n" {
		t.Error(out)
	}
	if out := must(t, "--keys", ring, "--store", dir+"/store", "verify"); !strings.Contains(out, "is right") {
		t.Error(out)
	}
	t.Logf("%d commands were killed", killed)
}

// Neither what opens a keyring nor anything of a session is in the arguments of a process that the command starts, nor
// in those that it can be started with.
func TestES1_NoSecretIsInTheProcessList(t *testing.T) {
	ssh := sshTo(t)
	t.Setenv(passphraseVariable, "correct horse")
	root := t.TempDir()
	plain, encrypted, ring := root+"/plain", root+"/encrypted", root+"/keys"
	must(t, "demo", "--store", plain)
	must(t, "keys", "create", ring)
	must(t, "copy", plain, encrypted, "--keys", ring)
	must(t, "push", "--store", encrypted, "--keys", ring, "--all", ssh(root+"/other"))
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	arguments, err := os.ReadFile(filepath.Join(home, "arguments"))
	if err != nil {
		t.Fatal(err)
	}
	s := startServe(t, "--store", encrypted, "--keys", ring)
	defer s.stop(t)
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.Process.Pid))
	if err != nil && runtime.GOOS == "linux" {
		t.Fatal(err)
	}
	if !bytes.Contains(arguments, []byte("turnstone")) {
		t.Fatalf("%q", arguments)
	}
	for _, secret := range []string{"correct horse", "trip"} {
		if bytes.Contains(arguments, []byte(secret)) || bytes.Contains(own, []byte(secret)) {
			t.Errorf("%q is in %q or %q", secret, arguments, own)
		}
	}
}
