package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/internal/pgtest"
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
		{exitUsage, "unknown flag: --nothing", "sessions --nothing"},
		{exitUsage, "it is used as `turnstone show SESSION", "show"},
		{exitUsage, "invalid argument", "show chat --last x"},
		{exitUsage, "say --yes", "erase chat"},
		{exitUsage, "say where to", "rewind chat"},
		{exitUsage, "a label is KEY=VALUE", "label chat nothing"},
		{exitUsage, "session, model and day", "usage --by week"},
		{exitUsage, "can't", "fork chat chat"},
		{exitUsage, "goes with a SESSION alone", "rewind chat@1 --empty"},
		{exitUsage, "--by is turn or step", "import --by foo x"},
		{exitFailed, "no such file", "export chat -o /no/such/file"},
		{exitUsage, "name the session", "cat 1234"},
		{exitUsage, "revisions are numbers from 1 on", "show chat@0"},
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
		{exitUsage, "revisions are numbers", "show chat@x"},
		{exitUsage, "none of the others can be", "usage --csv --json"},
		{exitUsage, "none of the others can be", "log chat --graph --json"},
		{exitUsage, "unknown store URL", "sessions --store foo:/tmp/x"},
		{exitUsage, "not negative", "log chat -n -1"},
		{exitUsage, "not negative", "sessions --limit -1"},
		{exitUsage, "--last", "prune"},
		{exitNotFound, "no store at", "sessions --store " + t.TempDir()},
		{exitConflict, "session exists", "fork chat@1 twin"},
		{exitConflict, "has children", "rename chat other"},
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
	e, err := badger.Open(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, errs := status(t, nil, "sessions", "--wait", "0s", "--store", store); code != exitInUse || !strings.Contains(errs, "in use by pid") {
		t.Errorf("%d: %s", code, errs)
	}
	time.AfterFunc(300*time.Millisecond, func() { e.Close() })
	if code, _, errs := status(t, nil, "sessions", "--wait", "20s", "--store", store); code != 0 {
		t.Errorf("it did not wait: %d: %s", code, errs)
	}
}

// build makes a store with sessions for the tests below.
func build(t *testing.T, f func(st *turnstone.Store)) (url string) {
	t.Helper()
	a := &app{url: t.TempDir() + "/store"}
	err := a.with(t.Context(), false, func(st *turnstone.Store, _ engine.Engine) error {
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

const evil = "red \x1b[31m bell \a c1 \u009b31m del \x7f bidi \u202e end"

// Whatever a store holds, no command sends a control or escape sequence.
func TestNothingActiveReachesTheTerminal(t *testing.T) {
	var node string
	url := build(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "a" + evil, Metadata: turnstone.Metadata{Name: evil, Model: evil, Cwd: evil, Labels: map[string]string{evil: evil}}})
		at, err := s.PutAttachment(t.Context(), strings.NewReader(evil), -1, evil, evil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(map[string]any{"role": "user", "content": evil, "tool_calls": []any{map[string]any{"id": evil, "function": map[string]any{"name": evil}}}})
		if err != nil {
			t.Fatal(err)
		}
		r := commit(t, s, turnstone.Commit{
			Turn: evil, Checkpoint: map[string][]byte{evil: []byte(evil)}, Usage: []turnstone.Usage{{Model: evil, Input: 1}},
			Nodes: []turnstone.NewNode{{Kind: evil, Key: evil, Payload: text, Attachments: []turnstone.Attachment{at}}, {Kind: "raw", Payload: []byte(evil)}, {Kind: "bytes", Payload: []byte{0xff, 0x1b, '['}}},
		})
		node = r.Nodes[0].String()
		create(t, st, turnstone.Request{ID: "b" + evil, Parent: s.ID()})
	})
	for _, args := range []string{
		"sessions", "sessions --json", "tree", "tree --json", "show a", "show a --full --whole", "show a --json", "log a", "log a --graph", "log a --json",
		"diff a b", "diff a@1 b --json", "usage --by session,model,day", "usage --csv", "usage --json", "label a", "stats", "stats --json", "verify", "verify --json",
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
	// The contents themselves: as they are to a file or pipe, visible on a terminal.
	if _, out, _ := status(t, nil, "cat", "a", node, "--store", url); !strings.Contains(out, "\u202e") {
		t.Errorf("cat to a pipe changed the bytes: %q", out)
	}
	if _, err := exec.LookPath("script"); err != nil {
		t.Skip("no script(1) to make a terminal with")
	}
	for _, args := range []string{"cat a " + node, "export a", "show a", "cat a:x"} {
		cmd := exec.Command("script", "-qec", os.Args[0]+" "+args+" --store "+url, "/dev/null")
		cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", "NO_COLOR=1", storeVariable+"=")
		out, _ := cmd.CombinedOutput() // the exit code is script's
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

func TestShortenedIDs(t *testing.T) {
	var ids []string
	url := build(t, func(st *turnstone.Store) {
		for _, id := range []string{"alpha", "alphabet", "beta", "with@1", "with:beef"} {
			s := create(t, st, turnstone.Request{ID: id})
			r := commit(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Key: "k", Payload: []byte("in " + id)}}})
			ids = append(ids, r.Leaf.String())
		}
	})
	run := func(args ...string) (int, string) {
		code, out, errs := status(t, nil, append(args, "--store", url)...)
		return code, out + errs
	}
	for name, want := range map[string]string{
		"alpha": "in alpha\n", "alphab": "in alphabet", "b": "in beta", "with@1": "in with@1", "with:beef": "in with:beef", "with@1@1": "in with@1",
		"beta:" + ids[2][:6]: "in beta", "beta:k": "in beta", "bet@1": "in beta",
	} {
		if code, out := run("show", name); code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: %d: %s", name, code, out)
		}
	}
	if code, out := run("show", "alph"); code != exitNotFound || !strings.Contains(out, `several begin with "alph"`) {
		t.Errorf("%d: %s", code, out)
	}
	for _, args := range [][]string{{"rm", "bet"}, {"erase", "bet", "--yes"}, {"tombstone", "bet", "k"}, {"rename", "bet", "x"}} {
		if code, out := run(args...); code != exitNotFound {
			t.Errorf("%v: %d: %s", args, code, out)
		}
	}
	if code, out := run("tombstone", "beta", "k"); code != 0 {
		t.Error(out)
	}
	if _, out := run("show", "beta"); strings.Contains(out, "in beta") {
		t.Error(out)
	}
}

func TestCompletion(t *testing.T) {
	url := build(t, func(st *turnstone.Store) {
		for _, id := range []string{"one", "other", "two", "o\x1b[31m"} {
			create(t, st, turnstone.Request{ID: id, Metadata: turnstone.Metadata{Name: "name of " + id}})
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

func TestUsageOfDaysAndForks(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	a := &app{url: t.TempDir() + "/store", options: turnstone.Options{Now: func() time.Time { return now }}}
	err := a.with(t.Context(), false, func(st *turnstone.Store, _ engine.Engine) error {
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range 3 {
			commit(t, s, turnstone.Commit{Expected: turnstone.Revision(i), Nodes: []turnstone.NewNode{{Kind: "user"}}, Usage: []turnstone.Usage{{Model: "m", Input: 10}, {Model: "n", Output: 1}}})
			now = now.Add(24 * time.Hour)
		}
		f := create(t, st, turnstone.Request{ID: "f", Parent: "s"})
		commit(t, f, turnstone.Commit{Usage: []turnstone.Usage{{Model: "m", Input: 5}}})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"usage --csv":                     "model,input,output,cached,written,reasoning\nm,35,0,0,0,0\nn,0,3,0,0,0\n",
		"usage --csv --by session":        "session,input,output,cached,written,reasoning\nf,5,0,0,0,0\ns,30,3,0,0,0\n",
		"usage f f --csv":                 "model,input,output,cached,written,reasoning\nm,5,0,0,0,0\n",
		"usage s --csv --by day":          "day,input,output,cached,written,reasoning\n2026-01-01,10,1,0,0,0\n2026-01-02,10,1,0,0,0\n2026-01-03,10,1,0,0,0\n",
		"usage --csv --by model,day":      "model,day,input,output,cached,written,reasoning\nm,2026-01-01,10,0,0,0,0\nn,2026-01-01,0,1,0,0,0\nm,2026-01-02,10,0,0,0,0\nn,2026-01-02,0,1,0,0,0\nm,2026-01-03,10,0,0,0,0\nn,2026-01-03,0,1,0,0,0\nm,2026-01-04,5,0,0,0,0\n",
		"usage f --json --by session,day": `{"session":"f","day":"2026-01-04","input":5,"output":0,"cachedInput":0,"cacheWrite":0,"reasoning":0}` + "\n",
	} {
		code, out, errs := status(t, []string{"TZ=UTC"}, append(strings.Fields(args), "--store", a.url)...)
		if code != 0 || out != want {
			t.Errorf("%s: %d %s\n%s\nwant\n%s", args, code, errs, out, want)
		}
	}
	if out := must(t, "usage", "--store", a.url); !strings.Contains(out, "35     3       0       0        0          total") {
		t.Error(out)
	}
}

// Random graphs are drawn so that every commit stands below all that go on from
// it, in a column that runs from them to it.
func TestGraphOfBranches(t *testing.T) {
	var all []*vertex
	at := func(revision int, parents ...*vertex) *vertex {
		v := &vertex{session: "s", order: len(all), parents: parents, subject: fmt.Sprint("commit ", revision)}
		v.Revision, v.Nodes, v.Time = turnstone.Revision(revision), 1, time.Date(2026, 1, 1, 0, revision, 0, 0, time.UTC)
		all = append(all, v)
		return v
	}
	one := at(1)
	two := at(2, one)
	three := at(3, one)
	four := at(4, two)
	five := at(5, three, four)
	at(6, one)
	at(7, five)
	at(8)
	var out bytes.Buffer
	r := reader{printer: printer{w: &out}, columns: 60}
	r.graph(newestFirst(all), 0, false)
	var got []string
	for _, l := range strings.Split(strings.TrimRight(out.String(), "\n"), "\n") {
		mark, _, _ := strings.Cut(l, "  2026")
		got = append(got, strings.TrimRight(mark, " "))
	}
	want := []string{
		"*    8",
		"*    7",
		"│ *    6",
		"* │    5",
		"├─┼─╮",
		"│ │ *    4",
		"* │ │    3",
		"│ │ *    2",
		"├─┴─╯",
		"*    1",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("\n%s", out.String())
	}
	// A clock that went back does not put a commit above what goes on from it.
	two.Time = one.Time.Add(-time.Hour)
	order := newestFirst(all)
	place := map[*vertex]int{}
	for i, v := range order {
		place[v] = i
	}
	for _, v := range all {
		for _, p := range v.parents {
			if place[p] < place[v] {
				t.Errorf("%d stands above %d", p.Revision, v.Revision)
			}
		}
	}
	if len(order) != len(all) {
		t.Errorf("%d of %d", len(order), len(all))
	}
}

func TestLogOfWhatIsTombstonedAndPruned(t *testing.T) {
	url := build(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range 3 {
			commit(t, s, turnstone.Commit{Expected: turnstone.Revision(i), Nodes: []turnstone.NewNode{{Kind: "user", Key: fmt.Sprint(i), Payload: fmt.Append(nil, "text ", i)}}})
		}
		commit(t, s, turnstone.Commit{Expected: 3, Leaf: turnstone.NoNode()})
		n, err := s.NodeByKey(t.Context(), "1")
		if err == nil {
			err = s.Tombstone(t.Context(), n.ID)
		}
		if err == nil {
			_, err = s.Prune(t.Context(), 2)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	out := must(t, "log", "s", "--graph", "--store", url)
	for _, want := range []string{"emptied the conversation", "user: text 2", "tombstoned since", "user: text 0", "pruned"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if out := must(t, "log", "s", "-n", "1", "--store", url); strings.Count(out, "\n") != 1 {
		t.Error(out)
	}
}

// A tree shows forks of forks, sub-agents, and what has lost its parent.
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
orphan  (revision 0, 0 nodes, child of gone)
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

// Reads of a store that the command changed: fork, rewind with parts, cat.
func TestChanges(t *testing.T) {
	url := build(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range 3 {
			commit(t, s, turnstone.Commit{
				Expected: turnstone.Revision(i), Nodes: []turnstone.NewNode{{Kind: "user", Payload: fmt.Append(nil, "text ", i+1)}},
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
	run("with 2 nodes", "fork", "s@2", "f", "--name", "forked")
	run("part 2", "cat", "f", "p")
	run("part 1", "cat", "s", "p", "--at", "1")
	run("at revision 4", "rewind", "s@1", "--parts")
	run("part 1", "cat", "s", "p")
	if out := must(t, "show", "s", "--store", url); strings.Contains(out, "only 2") || strings.Contains(out, "text 2") || !strings.Contains(out, "only 1") {
		t.Error(out)
	}
	run("is empty, at revision 5", "rewind", "s", "--empty")
	run("with 0 nodes", "fork", "s", "d", "--detached")
	run("", "rename", "d", "e")
	run("", "label", "e", "x=1", "--name", "new name", "--model", "m", "--cwd", "/w")
	run("new name", "sessions", "--label", "x=1", "--model", "m", "--name", "NEW")
	run("", "label", "e", "x=")
	if out := must(t, "sessions", "--label", "x=1", "--store", url); strings.Contains(out, "new name") {
		t.Error(out)
	}
	run("", "rm", "e")
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
	if out, err := run(lines); err != nil || !strings.Contains(out, "stdin  jsonl") {
		t.Errorf("%v: %s", err, out)
	}
	if out := must(t, "export", "stdin", "--store", store); out != lines {
		t.Errorf("%q", out)
	}
	// What is no transcript at all is said so in a few lines.
	out, err := run(strings.Repeat("this is no transcript\n", 1000))
	if err == nil || strings.Count(out, "\n") > 7 || !strings.Contains(out, "stdin: and 995 more like these") {
		t.Errorf("%v: %s", err, out)
	}
}

// An id is enough, wherever it is.
func TestCatByID(t *testing.T) {
	var attachment, part string
	url := build(t, func(st *turnstone.Store) {
		for i := range 3 {
			s := create(t, st, turnstone.Request{ID: fmt.Sprint("s", i)})
			a, err := s.PutAttachment(t.Context(), strings.NewReader(fmt.Sprint("attachment ", i)), -1, "", "")
			if err != nil {
				t.Fatal(err)
			}
			commit(t, s, turnstone.Commit{
				Nodes: []turnstone.NewNode{{Kind: "user", Attachments: []turnstone.Attachment{a}}}, Checkpoint: map[string][]byte{"p": fmt.Append(nil, "part ", i)},
			})
			if attachment = a.ID.String(); i == 1 {
				state, err := s.Load(t.Context(), turnstone.Scope{})
				if err != nil {
					t.Fatal(err)
				}
				part = state.Parts[0].Blob.String()
			}
		}
	})
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{attachment}, "attachment 2"},
		{[]string{part}, "part 1"},
		{[]string{"s1", part[:8]}, "part 1"},
		{[]string{"s2", attachment[:8]}, "attachment 2"},
	} {
		if out := must(t, append(append([]string{"cat"}, c.args...), "--store", url)...); out != c.want {
			t.Errorf("%v: %q", c.args, out)
		}
	}
	file := t.TempDir() + "/out"
	must(t, "cat", part, "-o", file, "--store", url)
	if data, err := os.ReadFile(file); err != nil || string(data) != "part 1" {
		t.Errorf("%q, %v", data, err)
	}
}

// A parent is a name: one that was given again can make sessions descend from
// themselves.
func TestParentsInACircle(t *testing.T) {
	url := build(t, func(st *turnstone.Store) {
		create(t, st, turnstone.Request{ID: "a"})
		create(t, st, turnstone.Request{ID: "b", Parent: "a"})
		if err := st.Delete(t.Context(), "a", turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
		create(t, st, turnstone.Request{ID: "a", Parent: "b"})
	})
	for _, args := range []string{"tree", "tree a", "tree b", "tree --json"} {
		out := must(t, append(strings.Fields(args), "--store", url)...)
		if strings.Count(out, "\n") != 2 {
			t.Errorf("%s:\n%s", args, out)
		}
	}
	must(t, "log", "a", "--graph", "--store", url)
}

// What is named is never taken for something that only begins so.
func TestNamesBeforeBeginnings(t *testing.T) {
	keys := map[string]string{}
	url := build(t, func(st *turnstone.Store) {
		for _, id := range []string{"trip", "trip@1x", "trip:k1", "agent", "agent:msg_12"} {
			s := create(t, st, turnstone.Request{ID: id})
			commit(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Key: "msg_1", Payload: []byte("msg_1 of " + id)}, {Kind: "user", Key: "k", Payload: []byte("k of " + id)}}})
		}
		// Keys that look like the beginnings of ids.
		s := create(t, st, turnstone.Request{ID: "keys"})
		c := turnstone.Commit{}
		for i := range 2000 {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "user", Key: fmt.Sprint(1000 + i), Payload: fmt.Append(nil, "node ", 1000+i)})
		}
		r := commit(t, s, c)
		for i, id := range r.Nodes { // a key that another node's id begins with, and an ambiguous beginning
			if begin := id.String()[:4]; strings.Trim(begin, "0123456789") == "" && begin >= "1000" && begin < "3000" && begin != fmt.Sprint(1000+i) {
				keys[begin] = "node " + begin
			}
		}
	})
	if len(keys) == 0 {
		t.Fatal("no node's id begins with the key of another one")
	}
	for name, want := range map[string]string{"trip@1": "k of trip\n", "agent:msg_1": "msg_1 of agent\n", "trip:k": "k of trip\n", "trip@1x": "k of trip@1x", "trip@1x@1": "k of trip@1x"} {
		if out := must(t, "show", name, "--last", "1", "--store", url); !strings.Contains(out, want) {
			t.Errorf("%s:\n%s", name, out)
		}
	}
	for key, want := range keys {
		if out := must(t, "cat", "keys", key, "--store", url); out != want {
			t.Errorf("%s: %q", key, out)
		}
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

// From Badger to PostgreSQL and back with the command.
func TestCopy(t *testing.T) {
	from := build(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		commit(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("text")}}, Checkpoint: map[string][]byte{"p": []byte("part")}})
		create(t, st, turnstone.Request{ID: "f", Parent: "s"})
	})
	server := pgtest.URL(t) + "&schema=" + pgtest.Schema(t)
	back := t.TempDir() + "/store"
	for _, args := range [][]string{{from, server}, {server, back}} {
		if out := must(t, "copy", args[0], args[1]); !strings.Contains(out, "the heads of 2 sessions") {
			t.Error(out)
		}
	}
	for _, url := range []string{server, back} {
		if got, want := must(t, "sessions", "--json", "--store", url), must(t, "sessions", "--json", "--store", from); got != want {
			t.Errorf("%s\n%s", got, want)
		}
		must(t, "verify", "--store", url)
	}
	if out := must(t, "copy", from, server, "--json"); !strings.Contains(out, `"written":0`) {
		t.Error(out)
	}
	other := build(t, func(st *turnstone.Store) { create(t, st, turnstone.Request{ID: "o"}) })
	if code, _, errs := status(t, nil, "copy", from, other); code != exitConflict || !strings.Contains(errs, "another store") {
		t.Errorf("%d: %s", code, errs)
	}
	if code, _, errs := status(t, nil, "copy", t.TempDir(), other); code != exitNotFound {
		t.Errorf("%d: %s", code, errs)
	}
}

// The corpus from Badger to PostgreSQL and back: equal heads, clean at both ends.
func TestCopyOfTheCorpus(t *testing.T) {
	dir := os.Getenv("TURNSTONE_CORPUS")
	if dir == "" {
		dir = "../../../shared/corpus"
	}
	files, err := filepath.Glob(dir + "/*.gz")
	if err != nil || len(files) == 0 {
		t.Skip("no corpus of transcripts: set TURNSTONE_CORPUS")
	}
	if race {
		t.Skip("other processes, many megabytes: there is nothing for the race detector")
	}
	from, back := t.TempDir()+"/store", t.TempDir()+"/store"
	server := pgtest.URL(t) + "&schema=" + pgtest.Schema(t)
	must(t, append([]string{"import", "--skip-bad", "--store", from}, files...)...)
	t.Log(must(t, "copy", from, server))
	t.Log(must(t, "copy", server, back))
	want := must(t, "sessions", "--json", "--limit", "0", "--store", from)
	for _, url := range []string{server, back} {
		if got := must(t, "sessions", "--json", "--limit", "0", "--store", url); got != want || strings.Count(got, "\n") < 100 {
			t.Errorf("%s: %d sessions, %d", url, strings.Count(got, "\n"), strings.Count(want, "\n"))
		}
		must(t, "verify", "--store", url)
	}
}
