//go:build linux || darwin

package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// Whatever happens to a file of a store: `turnstone recover` brings what is left to a store that verifies, or says that
// nothing is; no session has what it never had, and if one lacks something, the exit code says so.
func TestRV5_AStoreWhoseFilesAreDamagedIsRecovered(t *testing.T) {
	testkit.Slow(t)
	for _, scheme := range open.Schemes() {
		t.Run(scheme, func(t *testing.T) {
			dir, other := t.TempDir()+"/store", t.TempDir()+"/store"
			older := filled(t, scheme+":"+dir, dir, 1)
			filled(t, scheme+":"+other, other, 2)
			nodes := func(url string) map[string]bool {
				out := map[string]bool{}
				for i := range 4 {
					text, _, ok := turnstoneCmd(t, "show", "s"+string(rune('0'+i)), "--full", "--json", "--store", url)
					if !ok {
						continue // The session is not there.
					}
					for line := range strings.Lines(text) {
						out[line] = true
					}
				}
				return out
			}
			want := nodes(scheme + ":" + dir)
			counts := map[string]int{}
			harmed(t, dir, older, other, testkit.Pick(2, 9, 9), func(at, file, harm string) {
				to := t.TempDir() + "/to"
				out, errs, ok := turnstoneCmd(t, "recover", scheme+":"+at, to)
				what := file + ", " + harm
				if !ok && strings.Contains(errs, "no record of it") {
					counts["nothing"]++
					return
				}
				if !ok && !strings.Contains(errs, "lost") {
					t.Errorf("%s: %s\n%s", what, errs, out)
					return
				}
				must(t, "verify", "--store", to)
				got := nodes(to)
				for node := range got {
					if !want[node] && harm != "of another store" {
						t.Errorf("%s: there never was %.300s", what, node)
					}
				}
				switch {
				case len(got) >= len(want):
					counts["all"]++
				case ok && harm != "an older copy" && !strings.HasPrefix(harm, "of another"):
					t.Errorf("%s: %d of %d nodes, and nothing is lost: %s", what, len(got), len(want), out)
				default:
					counts["some"]++
				}
			})
			t.Log(counts)
			// A file that has all pairs may be gone, or be cut.
			if counts["all"]+counts["some"] < 4*counts["nothing"] {
				t.Errorf("little was recovered: %v", counts)
			}
		})
	}
}

// The command says what is lost, and ends with exit code 4 then. Where there is nothing, it makes no store.
func TestRV5_TheCommandSaysWhatIsLost(t *testing.T) {
	dir, to := t.TempDir()+"/store", t.TempDir()+"/to"
	run := func(want int, args ...string) (string, string) {
		t.Helper()
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", storeVariable+"=")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("%v: exit code %d, want %d: %s%s", args, code, want, out.String(), errs.String())
		}
		return out.String(), errs.String()
	}
	filled(t, "pebble:"+dir, dir, 1)
	run(3, "recover", dir+"/nothing", to)
	run(3, "recover", dir, to, "--namespace", "of nobody")
	run(2, "recover", dir)
	if _, err := os.Stat(to); err == nil {
		t.Error("a store was made")
	}
	if out, _ := run(0, "recover", dir, to); !strings.Contains(out, "s1  new, at revision 20") || !strings.Contains(out, "came     4 sessions") {
		t.Error(out)
	}
	e, err := open.Open(t.Context(), dir, &open.Options{Exclusive: true})
	if err != nil {
		t.Fatal(err)
	}
	for p, err := range e.Scan(t.Context(), engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		if p.Key[4] == 'p' {
			p.Value[len(p.Value)/2] ^= 1
			if err := e.Apply(t.Context(), &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	out, errs := run(4, "recover", dir, to+"2")
	if !strings.Contains(out, "lost     session") || !strings.Contains(out, "1 damaged") || !strings.Contains(errs, "lost") {
		t.Errorf("%s%s", out, errs)
	}
	if out, _ = run(4, "recover", dir, to+"2", "--json"); !strings.Contains(out, `"lost":[{"session":"s`) || !strings.Contains(out, `"same":`) {
		t.Error(out)
	}
	run(0, "verify", "--store", to+"2")
}
