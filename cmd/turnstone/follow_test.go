package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// spoken returns a line of a session of Claude Code.
func spoken(session string, i int) string {
	parent := "null"
	if i > 0 {
		parent = fmt.Sprintf(`"u%d"`, i-1)
	}
	return fmt.Sprintf(`{"type":"user","uuid":"u%d","parentUuid":%s,"sessionId":%q,"message":{"role":"user","content":"text %d"}}`+"\n", i, parent, session, i)
}

// appendTo appends to a file, and makes the folders that it is in.
func appendTo(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// output is an io.Writer that can be read meanwhile.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// waitFor waits until the output has n times the text what.
func (o *output) waitFor(t *testing.T, what string, n int) {
	t.Helper()
	for range 3000 {
		o.mu.Lock()
		got := strings.Count(o.b.String(), what)
		o.mu.Unlock()
		if got >= n {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	t.Fatalf("%q is not %d times in\n%s", what, n, o.b.String())
}

// followed runs `turnstone follow` until the test ends, or the function it returns is called.
func followed(t *testing.T, store string, out io.Writer, args ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		a := &app{}
		c := a.command()
		c.SetOut(out)
		c.SetErr(out)
		c.SetArgs(append([]string{"follow", "--store", store}, args...))
		done <- c.ExecuteContext(ctx)
	}()
	once := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(once)
	return once
}

func TestP19_FollowImportsWhatIsThereAndThenWhatIsWritten(t *testing.T) {
	dir, store := t.TempDir(), t.TempDir()+"/store"
	one, two := filepath.Join(dir, "p", "one.jsonl"), filepath.Join(dir, "new", "deep", "two.jsonl")
	large := strings.Repeat("It is so large that its tail is kept. ", 8000)
	appendTo(t, one, strings.Replace(spoken("one", 0), "text", large, 1))
	var out output
	stop := followed(t, store, &out, dir)
	out.waitFor(t, "imported one", 1)
	appendTo(t, one, spoken("one", 1)+spoken("one", 2)[:20])
	out.waitFor(t, "grown one", 1)
	appendTo(t, one, spoken("one", 2)[20:])
	out.waitFor(t, "grown one", 2)
	appendTo(t, two, spoken("two", 0)) // in folders that were not there
	out.waitFor(t, "imported two", 1)
	appendTo(t, two, spoken("two", 1))
	out.waitFor(t, "grown two", 1)
	edited := strings.Replace(spoken("two", 0), "text 0", "other", 1)
	if err := os.WriteFile(two, []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	out.waitFor(t, "branched two", 1)
	if err := os.Remove(two); err != nil {
		t.Fatal(err)
	}
	appendTo(t, one, spoken("one", 3))
	out.waitFor(t, "grown one", 3)
	stop()
	if got := must(t, "export", "two", "--store", store); got != edited {
		t.Errorf("of the deleted file is left %q", got)
	}
	data, err := os.ReadFile(one)
	if got := must(t, "export", "one", "--store", store); err != nil || got != string(data) {
		t.Errorf("%q, %v", got, err)
	}
}

// A line that no notification told of is seen by polling, and what the store has is not read again.
func TestP20_FollowReadsOnlyWhatHasChanged(t *testing.T) {
	t.Run("import", func(t *testing.T) { // has read it, too; a link to a file is one, and a link to a folder is not
		dir, store := t.TempDir(), t.TempDir()+"/store"
		appendTo(t, filepath.Join(dir, "a.jsonl"), spoken("a", 0))
		for name, of := range map[string]string{"b.jsonl": write(t, "x.jsonl", spoken("b", 0)), "c.jsonl": dir, "d.jsonl": "gone"} {
			if err := os.Symlink(of, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if out := must(t, "import", dir, "--store", store); strings.Count(out, "imported") != 2 {
			t.Errorf("%s", out)
		}
		if out := must(t, "follow", "--once", dir, "--store", store); out != "" {
			t.Errorf("%s", out)
		}
		all, noted := must(t, "records", "--store", store), must(t, "records", "--prefix", "import.", "--store", store)
		if strings.Contains(all, "import.file/") || strings.Count(noted, "import.file/") != 2 {
			t.Errorf("%s%s", all, noted)
		}
		if out := must(t, "status", dir, "--store", store, "--json"); !strings.Contains(out, `"files":2,"stored":2`) {
			t.Errorf("%s", out)
		}
	})
	dir, store := t.TempDir(), t.TempDir()+"/store"
	for i := range 5 {
		appendTo(t, filepath.Join(dir, fmt.Sprint("s", i, ".jsonl")), spoken(fmt.Sprint("s", i), 0))
	}
	appendTo(t, filepath.Join(dir, "settings.json"), "{}")
	run := func() string { return must(t, "follow", "--once", dir, "--store", store) }
	if out := run(); strings.Count(out, "imported") != 5 {
		t.Errorf("%s", out)
	}
	// A file of the same size and time is not read: it would become a branch.
	hidden := filepath.Join(dir, "s1.jsonl")
	info, err := os.Stat(hidden)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hidden, []byte(strings.Replace(spoken("s1", 0), "text", "TEXT", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(hidden, time.Time{}, info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if out := run(); out != "" {
		t.Errorf("%s", out)
	}
	if out := must(t, "status", dir, "--store", store, "--json"); !strings.Contains(out, `"files":6,"stored":5`) || !strings.Contains(out, "settings.json\":\"unknown format") {
		t.Errorf("%s", out)
	}
	if err := os.WriteFile(hidden, []byte(spoken("s1", 0)+spoken("s1", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := must(t, "status", dir, "--store", store); !strings.Contains(out, "behind   "+hidden) || !strings.Contains(out, "unread   settings.json: unknown format") {
		t.Errorf("%s", out)
	}
	if out := run(); out != "claude-code grown s1: 1 node new\n" {
		t.Errorf("%s", out)
	}
}

func TestP20_FollowedSessionsOfOpenCodeGrowWithTheirOtherFiles(t *testing.T) {
	dir, store := t.TempDir(), t.TempDir()+"/store"
	storage := filepath.Join(dir, "storage")
	appendTo(t, storage+"/session/p/ses_1.json", `{"id":"ses_1","projectID":"p","directory":"/w","title":"t","time":{"created":1730000000000}}`)
	appendTo(t, storage+"/message/ses_1/msg_1.json", `{"id":"msg_1","role":"user"}`)
	var out output
	stop := followed(t, store, &out, "--poll", "1h", dir)
	out.waitFor(t, "opencode imported ses_1: 2 nodes", 1)
	appendTo(t, storage+"/part/msg_1/prt_1.json", `{"id":"prt_1","type":"text","text":"hi"}`) // in a folder that was not there
	out.waitFor(t, "opencode grown ses_1: 1 node", 1)
	appendTo(t, storage+"/message/ses_1/msg_2.json", `{"id":"msg_2","role":"assistant"}`)
	out.waitFor(t, "opencode grown ses_1: 1 node", 2)
	for i := range 3 {
		appendTo(t, fmt.Sprintf("%s/part/msg_2/prt_%d.json", storage, i+2), fmt.Sprintf(`{"id":"prt_%d","type":"text","text":"ho"}`, i+2))
		out.waitFor(t, "opencode grown ses_1: 1 node", 3+i)
	}
	appendTo(t, storage+"/session/p/ses_2.json", `{"id":"ses_2","projectID":"p","directory":"/w","title":"t","time":{"created":1730000000000}}`)
	out.waitFor(t, "opencode imported ses_2: 1 node", 1)
	appendTo(t, storage+"/message/ses_2/msg_3.json", `{"id":"msg_3","role":"user"}`)
	out.waitFor(t, "opencode grown ses_2: 1 node", 1)
	stop()
	appendTo(t, storage+"/message/ses_1/msg_4.json", `{"id":"msg_4","role":"user"}`)
	if out := must(t, "follow", "--once", dir, "--store", store); !strings.Contains(out, "opencode grown ses_1: 1 node") {
		t.Errorf("%s", out)
	}
}

// Agents write, and the follower is killed, again and again. In the end the store has each file once, byte for byte.
func TestP21_NothingIsLostOrTwiceWhenAFollowerIsKilled(t *testing.T) {
	dir, store := t.TempDir(), t.TempDir()+"/store"
	rnd := rand.New(rand.NewPCG(21, uint64(testkit.Pick(200, 20, 4))))
	written := make([]int, 4)
	for range testkit.Pick(200, 20, 4) {
		cmd := exec.Command(os.Args[0], "follow", "--poll", "1s", "--store", store, dir)
		cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", storeVariable+"=")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for range 1 + rnd.IntN(6) {
			i := rnd.IntN(len(written))
			name := fmt.Sprint("s", i)
			appendTo(t, filepath.Join(dir, name+".jsonl"), spoken(name, written[i]))
			written[i]++
			time.Sleep(time.Duration(rnd.IntN(80)) * time.Millisecond)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
	}
	must(t, "follow", "--once", dir, "--store", store)
	must(t, "verify", "--store", store)
	for i, n := range written {
		name := fmt.Sprint("s", i)
		data, err := os.ReadFile(filepath.Join(dir, name+".jsonl"))
		if err != nil && n > 0 {
			t.Fatal(err)
		}
		if n == 0 {
			continue
		}
		if got := must(t, "export", name, "--store", store); got != string(data) {
			t.Errorf("%s: %d bytes, not %d", name, len(got), len(data))
		}
		if got := strings.Count(must(t, "show", name, "--full", "--json", "--store", store), "\n"); got != n {
			t.Errorf("%s: %d nodes, not %d", name, got, n)
		}
	}
}

func TestP22_TheUnitsOfFollowAreQuoted(t *testing.T) {
	store := t.TempDir() + `/a & "b" 100% it's`
	for what, want := range map[string]string{"systemd": `100%% it's"`, "launchd": "/a &amp; ", "cron": `100\% it'\''s'`, "claude-code": `it'\\''s'`} {
		out := must(t, "follow", "--print", what, "--store", store)
		if !strings.Contains(out, want) {
			t.Errorf("%s: %s", what, out)
		}
		switch what {
		case "claude-code":
			if !json.Valid([]byte(out)) {
				t.Errorf("%s", out)
			}
		case "launchd":
			var v struct{}
			if err := xml.Unmarshal([]byte(out), &v); err != nil {
				t.Error(err)
			}
		}
	}
	folder := t.TempDir()
	if out := must(t, "follow", "--print", "systemd", "--group", "my team", "--poll", "30s", folder, "--store", store); !strings.Contains(out, `"--poll" "30s" "--group" "my team" "`+folder+`"`) {
		t.Errorf("%s", out)
	}
	if code, _, errs := status(t, nil, "follow", "--print", "init", "--store", store); code != exitUsage || !strings.Contains(errs, "--print must be") {
		t.Errorf("%d %s", code, errs)
	}
	if code, _, errs := status(t, nil, "follow", "/nowhere", "--store", store); code != exitUsage || !strings.Contains(errs, "/nowhere is not a folder") {
		t.Errorf("%d %s", code, errs)
	}
}

func TestP22_FollowKnowsWhereAgentsKeepTheirSessions(t *testing.T) {
	home, store := t.TempDir(), t.TempDir()+"/store"
	appendTo(t, home+"/.claude/projects/-w/c.jsonl", spoken("c", 0))
	appendTo(t, home+"/elsewhere/sessions/2026/01/01/rollout-x.jsonl", `{"timestamp":"2026-01-01T10:00:00Z","type":"session_meta","payload":{"id":"x"}}`+"\n")
	code, out, errs := status(t, []string{"HOME=" + home, "CODEX_HOME=" + home + "/elsewhere", "CLAUDE_CONFIG_DIR=", "XDG_DATA_HOME="}, "follow", "--once", "--store", store)
	if code != 0 || out != "claude-code imported c: 1 node new\ncodex imported x: 1 node new\n" {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if code, _, errs := status(t, []string{"HOME=" + t.TempDir(), "CODEX_HOME=", "CLAUDE_CONFIG_DIR=", "XDG_DATA_HOME="}, "follow", "--once", "--store", store); code != exitFailed || !strings.Contains(errs, "name the folders") {
		t.Errorf("%d %s", code, errs)
	}
}

func TestP23_ShowLeavesOutWhatIsBesideTheConversation(t *testing.T) {
	store := t.TempDir() + "/store"
	file := write(t, "s.jsonl", spoken("s", 0)+
		`{"type":"assistant","uuid":"u1","parentUuid":"u0","sessionId":"s","timestamp":"2026-01-02T10:00:00Z","message":{"id":"m1","content":[{"type":"thinking","thinking":"a secret thought"}]}}
{"type":"assistant","uuid":"u2","parentUuid":"u1","sessionId":"s","timestamp":"2026-01-02T10:00:01Z","message":{"id":"m1","content":[{"type":"tool_use","id":"t1","name":"Read","input":{"path":"a"}}]}}
{"type":"user","uuid":"u3","parentUuid":"u2","sessionId":"s","timestamp":"2026-01-02T10:00:02Z","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"found"}]}}
{"type":"system","subtype":"turn_duration","uuid":"u4","parentUuid":"u3","sessionId":"s","durationMs":5}
`)
	must(t, "import", file, "--store", store)
	show := func(args ...string) string {
		t.Helper()
		_, out, errs := status(t, []string{"TZ=UTC"}, append([]string{"show", "s", "--store", store}, args...)...)
		if errs != "" {
			t.Error(errs)
		}
		return out
	}
	for _, c := range []struct {
		args        string
		want, never []string
	}{
		{"", []string{"text 0", "Read(path: a)", "result of Read", "2 nodes of bookkeeping", "from      s.jsonl (claude-code)", "2026-01-02 10:00:02"}, []string{"secret", "turn_duration", "import.identity"}},
		{"--all", []string{"a secret thought", "turn_duration"}, []string{"bookkeeping"}},
		{"--last 1", []string{"result of Read", "found"}, []string{"Read(path", "not here"}},
		{"--kind user", []string{"text 0"}, []string{"found"}},
		{"--since 2026-01-02", []string{"found"}, []string{"nothing"}},
		{"--since 2026-01-03", []string{"session   s"}, []string{"found"}},
	} {
		out := show(strings.Fields(c.args)...)
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", c.args, want, out)
			}
		}
		for _, never := range c.never {
			if strings.Contains(out, never) {
				t.Errorf("%s: %q is in\n%s", c.args, never, out)
			}
		}
	}
	if code, _, errs := status(t, nil, "show", "s", "--since", "soon", "--store", store); code != exitUsage || !strings.Contains(errs, "--since must be") {
		t.Errorf("%d %s", code, errs)
	}
	if out := show("--json", "--last", "1"); strings.Count(out, "\n") != 1 || !strings.Contains(out, "turn_duration") {
		t.Errorf("%s", out)
	}
}

// A file is done when all of its conversations are. A file of which a part can't be read is not.
func TestP20_AFileThatIsNotDoneIsReadAgain(t *testing.T) {
	dir, store := t.TempDir(), t.TempDir()+"/store"
	var export []string
	for i := range 30 {
		export = append(export, fmt.Sprintf(`{"uuid":"c%d","name":"n","chat_messages":[{"uuid":"m","sender":"human","text":"hi"}]}`, i))
	}
	appendTo(t, filepath.Join(dir, "conversations.json"), "["+strings.Join(export, ",")+"]")
	appendTo(t, filepath.Join(dir, "chats.jsonl"), `{"messages":[{"role":"user","content":"a"}]}`+"\n{torn\n")
	a := &app{url: store}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	commits := 0
	a.options.Validator = func(context.Context, string, *turnstone.Commit) error {
		if commits++; commits == 9 {
			cancel()
		}
		return nil
	}
	c := a.command()
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	c.SetArgs([]string{"follow", "--once", "--store", store, dir})
	if err := c.ExecuteContext(ctx); exitCode(err) != exitInterrupted {
		t.Errorf("%v", err)
	}
	for range 2 {
		_, _, _ = turnstoneCmd(t, "follow", "--once", dir, "--store", store)
		if out := must(t, "sessions", "--limit", "0", "--json", "--store", store); strings.Count(out, "\n") != 31 {
			t.Errorf("%d sessions", strings.Count(out, "\n"))
		}
		if out := must(t, "status", dir, "--json", "--store", store); !strings.Contains(out, `"files":2,"stored":1`) || !strings.Contains(out, "chats.jsonl\":\"unreadable line") {
			t.Errorf("%s", out)
		}
	}
}

// A pipe blocks neither an import nor a follower, and a linked folder is followed.
func TestP19_OddFilesDoNotStopAFollower(t *testing.T) {
	dir, store := t.TempDir(), t.TempDir()+"/store"
	if err := exec.Command("mkfifo", filepath.Join(dir, "pipe.jsonl")).Run(); err != nil {
		t.Skip(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	var out output
	stop := followed(t, store, &out, link)
	appendTo(t, filepath.Join(dir, "one.jsonl"), spoken("one", 0))
	out.waitFor(t, "imported one", 1)
	if err := exec.Command("mkfifo", filepath.Join(dir, "other.jsonl")).Run(); err != nil {
		t.Fatal(err)
	}
	appendTo(t, filepath.Join(dir, "one.jsonl"), spoken("one", 1))
	out.waitFor(t, "grown one", 1)
	stop()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	c := (&app{}).command()
	c.SetOut(io.Discard)
	c.SetErr(io.Discard)
	c.SetArgs([]string{"import", filepath.Join(dir, "pipe.jsonl"), "--store", store})
	if err := c.ExecuteContext(ctx); err == nil {
		t.Error("a pipe that sends nothing was imported")
	}
}
