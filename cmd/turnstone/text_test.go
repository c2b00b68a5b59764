package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// East Asian characters and emoji take two columns each.
func TestWideCharactersCountAsTwoColumns(t *testing.T) {
	for text, want := range map[string]int{"abc": 3, "日本語": 6, "e\u0301": 1, "👍🏽": 2, "👩‍👩‍👧": 2, "ﾊﾛｰ": 3, "": 0} {
		if got := columns(text); got != want {
			t.Errorf("%q takes %d columns, want %d", text, got, want)
		}
	}
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"日本語", 6, "日本語"}, {"日本語", 5, "日本…"}, {"日本語", 4, "日…"}, {"a日本", 4, "a日…"}, {"👩‍👩‍👧👩‍👩‍👧", 3, "👩‍👩‍👧…"}, {"abcdef", 3, "ab…"},
	} {
		if got := line(c.text, c.n); got != c.want {
			t.Errorf("%q in %d columns is %q, want %q", c.text, c.n, got, c.want)
		}
	}
	for text, want := range map[string]string{"日本語日本語": "日本|語日|本語", "日本 語日本": "日本|語日|本", "ab 日本": "ab|日本"} {
		if got := strings.Join(wrap(text, 5), "|"); got != want {
			t.Errorf("%q is wrapped as %q, want %q", text, got, want)
		}
	}
	if got := wrap("日本", 1); len(got) != 2 {
		t.Errorf("%q", got)
	}
	var tab table
	tab.row("日本", "x")
	tab.row("a", "y")
	tab.row("abcdefg", "z")
	var out bytes.Buffer
	if err := tab.write(&out, 0); err != nil {
		t.Fatal(err)
	}
	if want := "日本     x\na        y\nabcdefg  z\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	out.Reset()
	if err := tab.write(&out, 9); err != nil {
		t.Fatal(err)
	}
	if want := "日本    …\na       …\nabcdefg …\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestWhatIsPipedIsNotWrapped(t *testing.T) {
	text := strings.TrimSpace(strings.Repeat("word ", 100))
	url := build(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		commit(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte(text + "\nsecond")}}})
	})
	if out := must(t, "show", "s", "--store", url); !strings.Contains(out, "\n  "+text+"\n  second\n") {
		t.Errorf("%s", out)
	}
}

// No line of help is longer than 80 columns.
func TestHelpFitsEightyColumns(t *testing.T) {
	root := (&app{}).command()
	for _, c := range append(root.Commands(), root) {
		if c.Hidden || c.Name() == "completion" {
			continue
		}
		r := (&app{}).command()
		var out bytes.Buffer
		r.SetOut(&out)
		args := []string{"--help"}
		if c != root {
			args = []string{c.Name(), "--help"}
		}
		r.SetArgs(args)
		if err := r.Execute(); err != nil {
			t.Fatal(err)
		}
		if out.Len() < 100 {
			t.Errorf("help of %s: %s", c.Name(), out.String())
		}
		for l := range strings.Lines(out.String()) {
			if n := columns(strings.TrimSuffix(l, "\n")); n > 80 && !strings.HasPrefix(l, "turnstone ") { // examples are not wrapped, so that they can be copied
				t.Errorf("help of %s has a line of %d columns: %s", c.Name(), n, l)
			}
		}
	}
}

// On a terminal no line is longer than the terminal, and none is broken within a word.
func TestHeadersFitTheTerminal(t *testing.T) {
	if _, err := exec.LookPath("script"); err != nil {
		t.Skip("no script(1) to make a terminal with")
	}
	labels := map[string]string{}
	for _, name := range strings.Fields("alpha beta gamma delta epsilon zeta eta theta iota kappa") {
		labels[name] = "value-of-" + name
	}
	url := build(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s", Metadata: head.Metadata{Name: strings.Repeat("名前 ", 20), Labels: labels}})
		commit(t, s, turnstone.Commit{
			Nodes: []turnstone.NewNode{
				{Kind: "assistant", Payload: []byte(`{"role":"assistant","content":"calls","tool_calls":[{"id":"call_abcdefghijklmnop","function":{"name":"search_for_something_long"}},{"id":"call_2","function":{"name":"other"}}]}`)},
				{Kind: "tool", Payload: []byte(`{"role":"tool","tool_call_id":"call_abcdefghijklmnop","content":"` + strings.Repeat("日本語", 40) + `"}`)},
			},
			Usage: []head.Usage{{Model: "a-model-with-a-rather-long-name", Input: 123456789, Output: 123456789, CachedInput: 123456789, CacheWrite: 123456789, Reasoning: 123456789}},
		})
	})
	for _, args := range []string{"show s", "sessions", "log s", "log s --graph", "usage --by session,model,day", "help import", "help"} {
		cmd := exec.Command("script", "-qec", "stty cols 80; "+os.Args[0]+" "+args+" --store "+url, "/dev/null")
		cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", "NO_COLOR=1", storeVariable+"=")
		out, err := cmd.CombinedOutput()
		if err != nil || len(out) < 50 {
			t.Errorf("%s: %v %s", args, err, out)
		}
		text := strings.ReplaceAll(string(out), "\r", "")
		for l := range strings.Lines(text) {
			if n := columns(strings.TrimSuffix(l, "\n")); n > 80 {
				t.Errorf("%s: a line of %d columns: %s", args, n, l)
			}
		}
		if args == "show s" {
			for name, value := range labels {
				if !strings.Contains(text, name+"="+value) {
					t.Errorf("the label %s is broken or missing:\n%s", name, text)
				}
			}
			if !strings.Contains(text, "\n          ") {
				t.Errorf("the labels are on one line:\n%s", text)
			}
		}
	}
}

// If the output can't be written, the command says so once, although several layers met
// the error.
func TestAFullOutputIsReportedOnce(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	file := write(t, "chat.jsonl", lines+`{"role":"assistant","model":"m","content":"x","usage":{"prompt_tokens":1}}`)
	store := t.TempDir() + "/store"
	must(t, "import", file, "--store", store)
	for _, args := range []string{
		"sessions", "sessions --json", "tree", "show chat", "show chat --json", "log chat", "log chat --graph", "diff chat@1 chat", "cat chat@1 x", "export chat", "export chat -o /dev/full",
		"usage", "usage --csv", "usage --json", "stats", "verify", "import --dry-run " + file, "import " + file, "label chat --json",
	} {
		if strings.HasPrefix(args, "cat") {
			node := strings.Fields(strings.SplitN(must(t, "show", "chat", "--store", store), "\n\n", 2)[1])[0]
			args = "cat chat " + node
		}
		cmd := exec.Command(os.Args[0], append(strings.Fields(args), "--store", store)...)
		cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", storeVariable+"=")
		cmd.Stdout = full
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != exitFailed {
			t.Errorf("%s: %v: %s", args, err, errs.String())
		}
		if n := strings.Count(errs.String(), "no space left"); n != 1 {
			t.Errorf("%s: said %d times: %s", args, n, errs.String())
		}
	}
}

// A table of sessions fits a terminal: it does without its least important columns, and names are cut.
func TestSessionsFitATerminal(t *testing.T) {
	info := turnstone.Info{ID: "0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f", Revision: 123456, Nodes: 10, Metadata: head.Metadata{Name: strings.Repeat("name ", 20)}}
	long := turnstone.Info{ID: strings.Repeat("id", 30)}
	for columns, want := range map[int]string{0: "REVISION", 200: "REVISION", 100: "UPDATED", 80: "UPDATED", 60: "NAME"} {
		var out strings.Builder
		l := (&sessionsFlags{}).lister(&out, columns)
		for _, i := range []*turnstone.Info{&info, &long} {
			if err := l.print(i); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.end(); err != nil {
			t.Fatal(err)
		}
		for row := range strings.Lines(out.String()) {
			if n := len([]rune(strings.TrimSuffix(row, "\n"))); columns > 0 && n > columns {
				t.Errorf("%d columns: %d in %q", columns, n, row)
			}
		}
		if head, _, _ := strings.Cut(out.String(), "\n"); columns != 60 && !strings.Contains(head, want) || columns == 80 && strings.Contains(head, "REVISION") || !strings.Contains(out.String(), info.ID) {
			t.Errorf("%d columns:\n%s", columns, out.String())
		}
	}
}
