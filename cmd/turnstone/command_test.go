package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/head"
)

// status runs the command as a process, and returns its exit code.
func status(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", storeVariable+"="), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestExitCodes(t *testing.T) {
	store := t.TempDir() + "/store"
	must(t, "import", write(t, "chat.jsonl", lines), "--store", store)
	for _, c := range []struct {
		code int
		says string
		args string
	}{
		{0, "", "sessions"},
		{0, "", ""},
		{exitUsage, "no command \"sesions\"; did you mean sessions?", "sesions"},
		{exitUsage, "no command \"sesions\"; did you mean sessions?", "help sesions"},
		{exitUsage, "unknown flag: --nothing", "sessions --nothing"},
		{exitUnavailable, "unavailable", "sessions --store postgres://127.0.0.1:1/db?sslmode=disable"},
		{exitUsage, "usage: `turnstone show SESSION", "show"},
		{exitUsage, "invalid argument", "show chat --last x"},
		{exitUsage, "confirm with --yes", "erase chat"},
		{exitUsage, "no target", "rewind chat"},
		{exitUsage, "want KEY=VALUE", "label chat nothing"},
		{exitUsage, "not \"colour\"", "label chat --unset name,colour"},
		{exitUsage, "--unset name", "label chat --name="},
		{exitUsage, "--by must be a list of session, model, day", "usage --by week"},
		{exitUsage, "can't", "fork chat chat"},
		{exitUsage, "without a revision or node", "rewind chat@1 --empty"},
		{exitUsage, "--by must be turn or step", "import --by foo x"},
		{exitFailed, "no such file", "export chat -o /no/such/file"},
		{exitUsage, "give the session as well", "cat 1234"},
		{exitUsage, "--limit must not be negative", "records --limit -1"},
		{exitNotFound, "record not found", "records chat no"},
		{exitUsage, "a revision is a number from 1 on", "show chat@0"},
		{exitNotFound, "session not found: \"none\"", "show none"},
		{exitNotFound, "node not found", "show chat --leaf beef"},
		{exitNotFound, "node not found", "tombstone chat beef"},
		{exitNotFound, "revision not found", "show chat --at 9"},
		{exitNotFound, "revision not found", "show chat@9"},
		{exitNotFound, "no attachment, checkpoint part or node", "cat chat nothing"},
		{exitNotFound, "no session has", "cat " + strings.Repeat("0", 64)},
		{exitNotFound, "not found", "rm chat none"},
		{exitNotFound, "give the whole id: chat", "rm cha"},
		{exitNotFound, "not a place in it", "log chat@1"},
		{exitUsage, "a revision is a number", "show chat@x"},
		{exitUsage, "none of the others can be", "usage --csv --json"},
		{exitUsage, "none of the others can be", "log chat --graph --json"},
		{exitUsage, "unknown store URL", "sessions --store foo:/tmp/x"},
		{exitUsage, "must not be negative", "log chat -n -1"},
		{exitUsage, "must not be negative", "show chat --last -1"},
		{exitUsage, "a revision or a node already", "show chat@1 --at 1"},
		{exitUsage, "must not be negative", "sessions --limit -1"},
		{exitUsage, "--last", "prune"},
		{exitNotFound, "no store at", "sessions --store " + t.TempDir()},
		{exitConflict, "exists already", "fork chat@1 twin"},
		{exitConflict, "exists already", "rename chat twin"},
		{exitConflict, "has children", "rm chat --children refuse"},
	} {
		args := strings.Fields(c.args)
		if !strings.Contains(c.args, "--store") {
			args = append(args, "--store", store)
		}
		if c.args == "fork chat@1 twin" {
			must(t, args...)
		}
		if code, out, errs := status(t, nil, args...); code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%s: exit code %d, not %d: %s\n%s", c.args, code, c.code, errs, out)
		}
	}
	e, err := pebble.Open(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, errs := status(t, nil, "sessions", "--wait", "0s", "--store", store); code != exitUnavailable || !strings.Contains(errs, "in use by pid") {
		t.Errorf("%d: %s", code, errs)
	}
	time.AfterFunc(300*time.Millisecond, func() { e.Close() })
	if code, _, errs := status(t, nil, "sessions", "--wait", "20s", "--store", store); code != 0 {
		t.Errorf("it did not wait: %d: %s", code, errs)
	}
}

// build makes a store, calls f to fill it, and returns its URL.
func build(t *testing.T, f func(st *turnstone.Store)) (url string) {
	t.Helper()
	a := &app{url: t.TempDir() + "/store"}
	err := a.with(t.Context(), false, func(st *turnstone.Store) error {
		f(st)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return a.url
}

func commit(t *testing.T, s *turnstone.Session, c turnstone.Commit) turnstone.Result {
	t.Helper()
	r, err := s.Commit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func create(t *testing.T, st *turnstone.Store, r turnstone.Request) *turnstone.Session {
	t.Helper()
	s, _, err := st.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestUsageOfDaysAndForks(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	a := &app{url: t.TempDir() + "/store", options: turnstone.Options{Now: func() time.Time { return now }}}
	err := a.with(t.Context(), false, func(st *turnstone.Store) error {
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range 3 {
			commit(t, s, turnstone.Commit{Expected: head.Revision(i), Nodes: []turnstone.NewNode{{Kind: "user"}}, Usage: []head.Usage{{Model: "m", Input: 10}, {Model: "n", Output: 1}}})
			now = now.Add(24 * time.Hour)
		}
		f := create(t, st, turnstone.Request{ID: "f", Parent: "s"})
		commit(t, f, turnstone.Commit{Usage: []head.Usage{{Model: "m", Input: 5}}})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"usage --csv":                     "model,input,output,cached,written,reasoning,dollars\nm,35,0,0,0,0,\nn,0,3,0,0,0,\n",
		"usage --csv --by session":        "session,input,output,cached,written,reasoning,dollars\nf,5,0,0,0,0,\ns,30,3,0,0,0,\n",
		"usage f f --csv":                 "model,input,output,cached,written,reasoning,dollars\nm,5,0,0,0,0,\n",
		"usage s --csv --by day":          "day,input,output,cached,written,reasoning,dollars\n2026-01-01,10,1,0,0,0,\n2026-01-02,10,1,0,0,0,\n2026-01-03,10,1,0,0,0,\n",
		"usage --csv --by model,day":      "model,day,input,output,cached,written,reasoning,dollars\nm,2026-01-01,10,0,0,0,0,\nn,2026-01-01,0,1,0,0,0,\nm,2026-01-02,10,0,0,0,0,\nn,2026-01-02,0,1,0,0,0,\nm,2026-01-03,10,0,0,0,0,\nn,2026-01-03,0,1,0,0,0,\nm,2026-01-04,5,0,0,0,0,\n",
		"usage f --json --by session,day": `{"session":"f","day":"2026-01-04","model":"","input":5,"unpriced":true}` + "\n",
	} {
		code, out, errs := status(t, []string{"TZ=UTC"}, append(strings.Fields(args), "--store", a.url)...)
		if code != 0 || out != want {
			t.Errorf("%s: %d %s\n%s\nwant\n%s", args, code, errs, out, want)
		}
	}
	must(t, "label", "f", "--group", "app/user", "--store", a.url)
	for group, want := range map[string]string{"app": "m,5,0,0,0,0,\n", "app/user": "m,5,0,0,0,0,\n", "app/other": ""} {
		if out := must(t, "usage", "--csv", "--group", group, "--store", a.url); out != "model,input,output,cached,written,reasoning,dollars\n"+want {
			t.Errorf("group %s: %q", group, out)
		}
	}
	if code, _, errs := status(t, nil, "usage", "f", "--group", "app", "--store", a.url); code != 2 {
		t.Errorf("%d: %s", code, errs)
	}
	if out := must(t, "usage", "--store", a.url); !strings.Contains(out, "35     3       0       0        0          ?     total") {
		t.Error(out)
	}
}

// A tree shows forks of forks, sub-agents, and sessions whose parent was deleted.
func TestTree(t *testing.T) {
	url := build(t, func(st *turnstone.Store) {
		create(t, st, turnstone.Request{ID: "root"})
		create(t, st, turnstone.Request{ID: "fork", Parent: "root"})
		create(t, st, turnstone.Request{ID: "agent", Parent: "fork", Detached: true})
		create(t, st, turnstone.Request{ID: "gone"})
		create(t, st, turnstone.Request{ID: "orphan", Parent: "gone", Detached: true})
		create(t, st, turnstone.Request{ID: "last", Parent: "root", Detached: true})
		if err := st.Delete(t.Context(), "gone", turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
	})
	want := `root  (revision 0, 0 nodes)
├─ fork  (revision 0, 0 nodes, fork)
│  └─ agent  (revision 0, 0 nodes, child)
└─ last  (revision 0, 0 nodes, child)
orphan  (revision 0, 0 nodes)
`
	if out := must(t, "tree", "--store", url); out != want {
		t.Errorf("\n%s\nwant\n%s", out, want)
	}
	if out := must(t, "tree", "fork", "--store", url); out != "fork  (revision 0, 0 nodes, fork of root)\n└─ agent  (revision 0, 0 nodes, child)\n" {
		t.Errorf("\n%s", out)
	}
	if out := must(t, "tree", "--json", "--store", url); !strings.Contains(out, `{"depth":2,"id":"agent"`) || strings.Count(out, "\n") != 5 {
		t.Errorf("\n%s", out)
	}
}

// The command reads a store that it has changed with fork and rewind.
func TestChanges(t *testing.T) {
	url := build(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range 3 {
			commit(t, s, turnstone.Commit{
				Expected: head.Revision(i), Nodes: []turnstone.NewNode{{Kind: "user", Payload: fmt.Append(nil, "text ", i+1)}},
				Checkpoint: map[string][]byte{"p": fmt.Append(nil, "part ", i+1), fmt.Sprint("only ", i+1): {1}},
			})
		}
	})
	run := func(want string, args ...string) {
		t.Helper()
		if out := must(t, append(args, "--store", url)...); !strings.Contains(out, want) {
			t.Errorf("%v: %q", args, out)
		}
	}
	run("with 2 nodes", "fork", "s@2", "f", "--name", "forked", "--group", "forks")
	run("forked", "sessions", "--group", "forks")
	run("part 2", "cat", "f", "p")
	run("part 1", "cat", "s", "p", "--at", "1")
	run("at revision 4", "rewind", "s@1", "--parts")
	run("part 1", "cat", "s", "p")
	if out := must(t, "show", "s", "--store", url); strings.Contains(out, "only 2") || strings.Contains(out, "text 2") || !strings.Contains(out, "only 1") {
		t.Error(out)
	}
	run("is empty, at revision 5", "rewind", "s", "--empty")
	run("with 0 nodes", "fork", "s", "d", "--detached")
	run("all has the 5 revisions of s", "fork", "s", "all", "--revisions")
	run("part 2", "cat", "all", "p", "--at", "2")
	run("with 2 nodes", "fork", "s@2", "bare", "--no-checkpoint")
	if out := must(t, "show", "bare", "--store", url); strings.Contains(out, "part") {
		t.Error(out)
	}
	if _, errs, ok := turnstoneCmd(t, "fork", "s@1", "n", "--revisions", "--store", url); ok || !strings.Contains(errs, "--revisions needs SESSION") {
		t.Error(errs)
	}
	run("", "rename", "d", "e")
	run("", "label", "e", "x=1", "--name", "new name", "--model", "m", "--cwd", "/w", "--group", "app/user")
	run("new name", "sessions", "--label", "x=1", "--model", "m", "--name", "NEW")
	run("new name", "sessions", "--group", "app")
	run(`"group":"app/user"`, "sessions", "--group", "app/user", "--json")
	run("group     app/user", "show", "e")
	if out := must(t, "sessions", "--group", "app/other", "--store", url); strings.Contains(out, "new name") {
		t.Error(out)
	}
	run("", "label", "e", "x=")
	if out := must(t, "sessions", "--label", "x=1", "--store", url); strings.Contains(out, "new name") {
		t.Error(out)
	}
	run("", "label", "e", "y=2", "--unset", "name,model,group,labels")
	if out := must(t, "sessions", "--json", "--store", url); strings.Contains(out, "new name") || !strings.Contains(out, `"cwd":"/w"`) || !strings.Contains(out, `"y":"2"`) || strings.Contains(out, "app/user") {
		t.Error(out)
	}
	if _, errs, ok := turnstoneCmd(t, "changes", "--store", url); ok || !strings.Contains(errs, "turnstone feed on") {
		t.Error(errs)
	}
	run("", "feed", "on", "--keep", "2d")
	run("", "changes")
	run("", "rm", "e")
	run("deleted    e\n", "changes")
	run(`"kind":"deleted","session":"e","incarnation":"`, "changes", "--json")
	first, _, _ := strings.Cut(must(t, "changes", "--store", url), " ")
	run("", "rename", "f", "g")
	if out := must(t, "changes", "--after", first, "--store", url); strings.Contains(out, "deleted") || !strings.Contains(out, "renamed    f to g") {
		t.Error(out)
	}
	run("", "feed", "off")
	run("", "rename", "g", "f")
	if _, errs, ok := turnstoneCmd(t, "feed", "maybe", "--store", url); ok || !strings.Contains(errs, "maybe") {
		t.Error(errs)
	}
	if out := must(t, "sessions", "--store", url); strings.Contains(out, "new name") {
		t.Error(out)
	}
	run("is right", "verify")
}

func TestImportOfStandardInput(t *testing.T) {
	store := t.TempDir() + "/store"
	run := func(input string) (string, error) {
		cmd := exec.Command(os.Args[0], "import", "-", "--store", store)
		cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1")
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(lines); err != nil || !strings.Contains(out, "stdin  openai") {
		t.Errorf("%v: %s", err, out)
	}
	if out := must(t, "export", "stdin", "--store", store); out != lines {
		t.Errorf("%q", out)
	}
	// A file that is not a transcript gives a few lines of errors, not one for each line.
	out, err := run(strings.Repeat("this is no transcript\n", 1000))
	if err == nil || strings.Count(out, "\n") > 3 || !strings.Contains(out, "stdin:1: unknown format") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestForksHaveTheCheckpointOfTheirRevision(t *testing.T) {
	url := build(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		part := func(v string) map[string][]byte { return map[string][]byte{"plan": []byte(v)} }
		commit(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user"}}, Checkpoint: part("v1")})
		commit(t, s, turnstone.Commit{Expected: 1, Checkpoint: part("v2")})
		commit(t, s, turnstone.Commit{Expected: 2, Nodes: []turnstone.NewNode{{Kind: "user"}}, Checkpoint: part("v3")})
	})
	for at, want := range map[string]string{"s@1": "v1", "s@2": "v2", "s@3": "v3", "s": "v3"} {
		must(t, "fork", at, "of "+at, "--store", url)
		if out := must(t, "cat", "of "+at, "plan", "--store", url); out != want {
			t.Errorf("fork of %s: %q", at, out)
		}
	}
	if out := must(t, "usage", "s", "s", "--json", "--store", url); out != "" {
		t.Error(out)
	}
}

func TestRecordsAreListedAndWritten(t *testing.T) {
	url := build(t, func(st *turnstone.Store) {
		for _, id := range []string{"a", "b"} {
			set := func(key, value string) turnstone.RecordChange {
				return turnstone.RecordChange{Key: key, Value: []byte(value)}
			}
			commit(t, create(t, st, turnstone.Request{ID: id}), turnstone.Commit{Records: []turnstone.RecordChange{
				set("plan", `{"of":"`+id+`"}`), set("note", "two\nlines"), set(".hidden", "h"), set("raw", "\xff\x00"),
			}})
		}
	})
	run := func(args ...string) string {
		return must(t, append(append([]string{"records"}, args...), "--store", url)...)
	}
	keys := func(out string) (keys []string) {
		for _, l := range strings.Split(strings.TrimSpace(out), "\n")[1:] {
			f := strings.Fields(l)
			keys = append(keys, f[0]+"/"+f[1])
		}
		return keys
	}
	if got := fmt.Sprint(keys(run("a"))); got != "[a/.hidden a/note a/plan a/raw]" {
		t.Error(got)
	}
	if got := fmt.Sprint(len(keys(run())), keys(run("--prefix", "p"))); got != "6 [a/plan b/plan]" && got != "6 [b/plan a/plan]" {
		t.Error(got)
	}
	if out := run("a"); !strings.Contains(out, `{"of":"a"}`) || !strings.Contains(out, "two lines") || !strings.Contains(out, "(bytes)") {
		t.Error(out)
	}
	if out := run("a", "raw"); out != "\xff\x00" {
		t.Errorf("%q", out)
	}
	for key, want := range map[string]string{"plan": `"size":10,"value":{"of":"a"}`, "note": `"text":"two\nlines"`, "raw": `"base64":"/wA="`} {
		if out := run("a", key, "--json"); !strings.Contains(out, want) || strings.Count(out, "\n") != 1 {
			t.Errorf("%q", out)
		}
	}
	if out, errs, ok := turnstoneCmd(t, "records", "--limit", "2", "--store", url); !ok || len(keys(out)) != 2 || !strings.Contains(errs, "--limit 0") {
		t.Error(out, errs)
	}
	if out := run("--limit", "0"); len(keys(out)) != 6 {
		t.Error(out)
	}
}

func TestAReadOnlyStoreIsReadAndNotChanged(t *testing.T) {
	url := build(t, func(st *turnstone.Store) {
		commit(t, create(t, st, turnstone.Request{ID: "s"}), turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("hello")}}})
	})
	files := func() (out []string) {
		entries, err := os.ReadDir(url)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprint(e.Name(), info.Size(), info.ModTime()))
		}
		return out
	}
	before := files()
	for _, args := range [][]string{{"sessions"}, {"show", "s"}, {"log", "s"}, {"verify"}, {"stats"}, {"usage"}, {"tree"}, {"gc", "--dry-run"}, {"records"}, {"export", "s"}} {
		must(t, append(args, "--read-only", "--store", url)...)
	}
	for _, args := range [][]string{{"rm", "s"}, {"gc"}, {"vacuum"}, {"fork", "s", "t"}, {"label", "s", "a=b"}, {"feed", "on"}} {
		if code, _, errs := status(t, nil, append(args, "--read-only", "--store", url)...); code != exitUsage || !strings.Contains(errs, "opened for reading only") {
			t.Errorf("%v: exit code %d: %s", args, code, errs)
		}
	}
	must(t, "copy", url, t.TempDir()+"/copy", "--read-only")
	if after := files(); !slices.Equal(before, after) {
		t.Errorf("%v became %v", before, after)
	}
	if code, _, errs := status(t, nil, "sessions", "--read-only", "--store", "mem:"); code != exitUsage || !strings.Contains(errs, "directory") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}
