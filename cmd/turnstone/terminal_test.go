package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

const evil = "red \x1b[31m bell \a c1 \u009b31m del \x7f bidi \u202e end"

// No command prints control or escape sequences, whatever the store holds.
func TestNothingActiveReachesTheTerminal(t *testing.T) {
	testkit.Slow(t)
	var node string
	url := build(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "a" + evil, Metadata: head.Metadata{Name: evil, Model: evil, Cwd: evil, Labels: map[string]string{evil: evil}}})
		at, err := s.PutAttachment(t.Context(), strings.NewReader(evil), -1, evil, evil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(map[string]any{"role": "user", "content": evil, "tool_calls": []any{map[string]any{"id": evil, "function": map[string]any{"name": evil}}}})
		if err != nil {
			t.Fatal(err)
		}
		r := commit(t, s, turnstone.Commit{
			Turn: evil, Checkpoint: map[string][]byte{evil: []byte(evil)}, Usage: []head.Usage{{Model: evil, Input: 1}},
			Nodes: []turnstone.NewNode{{Kind: evil, Key: evil, Payload: text, Attachments: []blob.Attachment{at}}, {Kind: "raw", Payload: []byte(evil)}, {Kind: "bytes", Payload: []byte{0xff, 0x1b, '['}}},
		})
		node = r.Nodes[0].String()
		create(t, st, turnstone.Request{ID: "b" + evil, Parent: s.ID()})
	})
	for _, args := range []string{
		"sessions", "sessions --json", "tree", "tree --json", "show a", "show a --full --whole", "show a --json", "log a", "log a --graph", "log a --json",
		"diff a b", "diff a@1 b --json", "usage --by session,model,day", "usage --csv", "usage --json", "label a", "stats", "stats --json", "verify", "verify --json", "scrub", "scrub --json", "grep .", "grep . --json --limit 0",
		"keep a x", "keep a", "keep a --json", "show missing" + evil, "rewind a:" + node, "gc", "vacuum",
	} {
		_, out, errs := status(t, nil, append(strings.Fields(args), "--store", url)...)
		for _, r := range out + errs {
			if r != '\n' && active(r) && !(strings.Contains(args, "--csv") && r == '\r') {
				t.Errorf("%s: %q in\n%q\n%q", args, r, out, errs)
				break
			}
		}
	}
	// Contents are unchanged in a file or pipe, and visible on a terminal.
	if _, out, _ := status(t, nil, "cat", "a", node, "--store", url); !strings.Contains(out, "\u202e") {
		t.Errorf("cat to a pipe changed the bytes: %q", out)
	}
	if _, err := exec.LookPath("script"); err != nil {
		t.Skip("no script(1) to make a terminal with")
	}
	for _, args := range []string{"cat a " + node, "export a", "show a", "cat a:x"} {
		cmd := exec.Command("script", "-qec", os.Args[0]+" "+args+" --store "+url, "/dev/null")
		cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", "NO_COLOR=1", storeVariable+"=")
		out, _ := cmd.CombinedOutput() // the exit code is that of script
		if len(out) < 20 {
			t.Errorf("%s: %q", args, out)
		}
		for _, r := range string(out) {
			if r != '\n' && r != '\r' && active(r) {
				t.Errorf("%s on a terminal: %q in %q", args, r, out)
				break
			}
		}
	}
}

func TestColoursAreForTerminals(t *testing.T) {
	if _, err := exec.LookPath("script"); err != nil {
		t.Skip("no script(1) to make a terminal with")
	}
	url := build(t, func(st *turnstone.Store) { create(t, st, turnstone.Request{ID: "a"}) })
	for env, want := range map[string]bool{"TERM=xterm": true, "NO_COLOR=1": false} {
		cmd := exec.Command("script", "-qec", os.Args[0]+" show a --store "+url, "/dev/null")
		cmd.Env = append(os.Environ(), "TERM=xterm", "TURNSTONE_TEST_COMMAND=1", storeVariable+"=", env)
		out, err := cmd.CombinedOutput()
		if got := strings.Contains(string(out), "\x1b["); got != want || err != nil {
			t.Errorf("%s: colours %v, %v: %q", env, got, err, out)
		}
	}
	if out := must(t, "show", "a", "--store", url); strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
}

func TestCompletion(t *testing.T) {
	url := build(t, func(st *turnstone.Store) {
		for _, id := range []string{"one", "other", "two", "o\x1b[31m"} {
			create(t, st, turnstone.Request{ID: id, Metadata: head.Metadata{Name: "name of " + id}})
		}
	})
	out := must(t, "__complete", "--store", url, "show", "o")
	if strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
	if !strings.Contains(out, "one\tname of one\n") || !strings.Contains(out, "other\t") || strings.Contains(out, "two") {
		t.Errorf("%q", out)
	}
	if out := must(t, "__complete", "--store", url, "sessions", "--parent", "t"); !strings.Contains(out, "two") {
		t.Errorf("%q", out)
	}
	if code, out, errs := status(t, nil, "__complete", "--store", t.TempDir(), "show", ""); code != 0 || strings.Contains(errs, "no store") {
		t.Errorf("%q %q", out, errs)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out := must(t, "completion", shell); !strings.Contains(out, "turnstone") {
			t.Errorf("%s: %q", shell, out)
		}
	}
}
