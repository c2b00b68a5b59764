//go:build linux || darwin

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// harms are what happens to a file of a store at rest. older is the file of the same name as the store had it before, and
// foreign that of another store.
var harms = []struct {
	name string
	do   func(file, older, foreign []byte) (damaged []byte, gone bool)
}{
	{"gone", func([]byte, []byte, []byte) ([]byte, bool) { return nil, true }},
	{"empty", func([]byte, []byte, []byte) ([]byte, bool) { return []byte{}, false }},
	{"cut in half", func(file, _, _ []byte) ([]byte, bool) { return file[:len(file)/2], false }},
	{"its last bytes are gone", func(file, _, _ []byte) ([]byte, bool) { return file[:max(0, len(file)-7)], false }},
	{"its end is zero", func(file, _, _ []byte) ([]byte, bool) { return zeroed(file, len(file)-4096, len(file)), false }},
	{"its beginning is zero", func(file, _, _ []byte) ([]byte, bool) { return zeroed(file, 0, 4096), false }},
	{"a block of it is zero", func(file, _, _ []byte) ([]byte, bool) {
		return zeroed(file, len(file)/2, len(file)/2+4096), false
	}},
	{"an older copy", func(_, older, _ []byte) ([]byte, bool) { return older, older == nil }},
	{"of another store", func(_, _, foreign []byte) ([]byte, bool) { return foreign, foreign == nil }},
}

// zeroed returns a copy of file with zeros in a part of it.
func zeroed(file []byte, from, to int) []byte {
	out := bytes.Clone(file)
	clear(out[max(0, min(from, len(out))):min(to, len(out))])
	return out
}

// filled makes a store of sessions in a directory, and copies it halfway. Sessions of other seeds have other content.
func filled(t *testing.T, url, dir string, seed int) (older string) {
	t.Helper()
	older = t.TempDir() + "/store"
	for half := range 2 {
		e, err := open.Open(t.Context(), url, &open.Options{Exclusive: true})
		if err != nil {
			t.Fatal(err)
		}
		st := storetest.On(t, e)
		for i := range 4 {
			s := create(t, st, turnstone.Request{ID: fmt.Sprint("s", i)})
			for j := range 10 {
				commit(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{
					{Kind: "user", Payload: fmt.Appendf(nil, "turn %d of half %d of session %d: %d", j, half, i, seed)},
					{Kind: "tool", Payload: bytes.Repeat(fmt.Appendf(nil, "%d %d %d %d;", seed, half, i, j), 400)},
				}})
			}
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if half == 0 {
			if err := os.CopyFS(older, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return older
}

// Whatever happens to a file of a store, each command that reads prints what it printed before, or fails in a moment and
// says why, and none makes a new store over the old one.
func TestVF7_CommandsTellOfDamage(t *testing.T) {
	testkit.Slow(t)
	testkit.OneGoroutine(t)
	reads := [][]string{{"sessions", "--json"}, {"show", "s1", "--full", "--json"}, {"log", "s2", "--json"}}
	for _, scheme := range open.Schemes() {
		t.Run(scheme, func(t *testing.T) {
			dir, other := t.TempDir()+"/store", t.TempDir()+"/store"
			older := filled(t, scheme+":"+dir, dir, 1)
			filled(t, scheme+":"+other, other, 2)
			var want []string
			for _, args := range reads {
				want = append(want, must(t, append(args, "--store", scheme+":"+dir)...))
			}
			counts := map[string]int{}
			harmed(t, dir, older, other, testkit.Pick(1, 9, 9), func(at, file, harm string) {
				verified, _ := told(t, scheme+":"+at, "verify")
				outcome := "harmless"
				for k, args := range reads {
					ok, out := told(t, scheme+":"+at, args...)
					switch {
					case !ok:
						outcome = "reported"
					case out == want[k]:
					case !verified && scheme == "badger" && strings.HasSuffix(file, ".sst"):
						outcome = "reported by verify alone" // docs/engines.md says so of Badger's tables
					default:
						outcome = "silent"
						t.Errorf("%s: %s: %v prints something else", file, harm, args)
					}
				}
				counts[outcome]++
			})
			t.Log(counts)
		})
	}
}

// harmed calls f with a copy of the store in dir for each of its files and each of the harms, or for every n-th.
func harmed(t *testing.T, dir, older, other string, n int, f func(at, file, harm string)) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, entry := range files {
		file, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil || len(file) == 0 {
			continue // a lock, or a socket
		}
		before, _ := os.ReadFile(filepath.Join(older, entry.Name()))
		foreign, _ := os.ReadFile(filepath.Join(other, entry.Name()))
		for j, harm := range harms {
			damaged, gone := harm.do(file, before, foreign)
			if bytes.Equal(damaged, file) || (i+j)%n != 0 {
				continue
			}
			at := t.TempDir() + "/store"
			if err := os.CopyFS(at, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(at, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(at, entry.Name())
			if gone {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, damaged, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			f(at, entry.Name(), harm.name)
		}
	}
}

// told runs a command, which ends in time, and says why if it fails.
func told(t *testing.T, url string, args ...string) (ok bool, stdout string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	done := make(chan struct{})
	var errs string
	go func() {
		defer close(done)
		stdout, errs, ok = turnstoneCmd(t, append(args, "--store", url)...)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatalf("%v does not end", args)
	}
	if !ok && errs == "" && !strings.Contains(stdout, "damaged") && args[0] != "verify" {
		t.Errorf("%v fails and says nothing", args)
	}
	return ok, stdout
}
