package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

func TestImportAddsWhatIsNewInAFile(t *testing.T) {
	store, file := t.TempDir()+"/store", write(t, "chat.jsonl", lines)
	run := func(want string, args ...string) {
		t.Helper()
		if out := must(t, append(args, "--store", store)...); !strings.Contains(out, want) {
			t.Errorf("%v: no %q in\n%s", args, want, out)
		}
	}
	run("imported", "import", file)
	run("", "label", "chat", "rating=good", "--name", "mine")
	run("", "keep", "chat", "v1", "--revision", "1")
	run("", "fork", "chat@1", "fork")
	if err := os.WriteFile(file, []byte(lines+`{"role":"user","content":"last"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	run("grown", "import", file)
	run("unchanged", "import", file)
	run("rating=good", "label", "chat")
	run("mine", "sessions")
	run("v1", "keep", "chat")
	run("fork at", "tree")
	if out := must(t, "export", "chat", "--store", store); out != lines+`{"role":"user","content":"last"}` {
		t.Errorf("exported %q", out)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(lines, "more", "less", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	run("branched", "import", file)
	if out := must(t, "show", "chat", "--store", store); !strings.Contains(out, "less") || strings.Contains(out, "last") {
		t.Errorf("%s", out)
	}
	run("last", "show", "chat", "--full")
	run("is right", "verify")
	run("chat~", "import", write(t, "chat.jsonl", lines))
	run("grown", "import", "--as", file, write(t, "moved.jsonl", strings.Replace(lines, "more", "less", 1)+lines))
}

func TestReplaceMustBeConfirmedAndSaysWhatIsLost(t *testing.T) {
	testkit.Slow(t)
	store, file := t.TempDir()+"/store", write(t, "chat.jsonl", lines)
	must(t, "import", file, "--store", store)
	must(t, "label", "chat", "rating=good", "--store", store)
	must(t, "keep", "chat", "v1", "--revision", "1", "--store", store)
	must(t, "fork", "chat@1", "fork", "--store", store)
	// The command does not ask if --replace deletes nothing.
	must(t, "import", "--replace", file, "--store", store)
	if err := os.WriteFile(file, []byte(lines+lines), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := status(t, nil, "import", "--replace", file, "--store", store)
	if code != exitUsage || out != "" {
		t.Errorf("%d %s", code, out)
	}
	for _, want := range []string{"deletes chat: 2 revisions of 3 nodes", "rating=good", "1 kept revision", "1 session", "confirm with --yes"} {
		if !strings.Contains(errs, want) {
			t.Errorf("no %q in %s", want, errs)
		}
	}
	if _, err := exec.LookPath("script"); err == nil {
		for _, answer := range []string{"n\n", "\n", "y\n"} {
			cmd := exec.Command("script", "-qec", os.Args[0]+" import --replace "+file+" --store "+store, "/dev/null")
			cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", "NO_COLOR=1", storeVariable+"=")
			cmd.Stdin = strings.NewReader(answer)
			out, _ := cmd.CombinedOutput() // the exit code is that of script
			done := strings.Contains(string(out), "replaced")
			if !strings.Contains(string(out), "[y/N]") || done != (answer == "y\n") {
				t.Errorf("%q: %s", answer, out)
			}
		}
		if err := os.WriteFile(file, []byte(lines+lines+lines), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out := must(t, "import", "--replace", "--yes", file, "--store", store); !strings.Contains(out, "replaced") {
		t.Error(out)
	}
	if out := must(t, "show", "fork", "--store", store); !strings.Contains(out, "hello") {
		t.Errorf("the fork is not whole:\n%s", out)
	}
}

// A message of an object that exceeds a limit is refused while the file is read, and a line is kept in parts. Both
// take little memory.
func TestAPayloadOverTheLimitIsRefusedEarly(t *testing.T) {
	testkit.Seldom(t)
	text := strings.Repeat("x", turnstone.MaxPayload)
	for name, c := range map[string]struct{ content, out, errs string }{
		"big.jsonl": {`{"role":"user","content":"a"}` + "\n" + `{"role":"user","content":"` + text + `"}` + "\n", "1 × line over the limit", ""},
		"big.json":  {`{"messages":[{"role":"user","content":"` + text + `"}]}`, "", "more than the limit of 67108864"},
	} {
		store, file := t.TempDir()+"/store", write(t, name, c.content)
		cmd := exec.Command(os.Args[0], "import", file, "--store", store)
		cmd.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", storeVariable+"=")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		began := time.Now()
		if err := cmd.Run(); (err != nil) != (c.errs != "") || !strings.Contains(out.String(), c.out) || !strings.Contains(errs.String(), c.errs) {
			t.Errorf("%s: %v: %s %s", name, err, out.String(), errs.String())
		}
		if used := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10; !testkit.Race && used > 900<<20 {
			t.Errorf("%s: it took %d bytes of memory", name, used)
		}
		t.Logf("%s: %v, %d MiB", name, time.Since(began), cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss>>10)
		if _, err := os.Stat(store); c.errs != "" && err == nil {
			t.Errorf("%s: a store was made", name)
		} else if c.errs == "" {
			if got := must(t, "export", "big", "--store", store); got != c.content {
				t.Errorf("%s: exported are %d bytes", name, len(got))
			}
		}
	}
}

func TestABinaryFileGivesOneMessage(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 1<<16)
	for i := range noise {
		noise[i] = byte(i*i>>3) | 0x80
	}
	for _, file := range []string{program, write(t, "noise.jsonl", string(noise)), write(t, "utf16.json", "[\x00{\x00}\x00]\x00")} {
		code, _, errs := status(t, nil, "import", file, "--store", t.TempDir()+"/store")
		if code != exitFailed || strings.Count(errs, "\n") != 2 || !strings.Contains(errs, filepath.Base(file)+": is binary data, not a transcript\n") || !strings.Contains(errs, "1 place can't be read") {
			t.Errorf("%d: %s", code, errs)
		}
	}
}

// A signal ends an import. Conversations that were not tried are not reported as failed, and the next import does the
// rest.
func TestAnInterruptedImportCountsNothingAsFailed(t *testing.T) {
	a := &app{url: t.TempDir() + "/store"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	commits := 0
	a.options.Validator = func(context.Context, string, *turnstone.Commit) error {
		if commits++; commits == 3 {
			cancel()
		}
		return nil
	}
	args := []string{"import", "--store", a.url}
	for i := range 5 {
		args = append(args, write(t, fmt.Sprintf("chat%d.jsonl", i), lines))
	}
	c := a.command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.ExecuteContext(ctx)
	if code := exitCode(err); code != exitInterrupted || !strings.Contains(err.Error(), "1 of 5 files are done") {
		t.Errorf("%d: %v", code, err)
	}
	if strings.Contains(out.String(), "failed") || strings.Count(out.String(), "imported") != 1 {
		t.Errorf("%s", out.String())
	}
	a.options.Validator = nil
	if out := must(t, args...); strings.Count(out, "imported") != 3 || strings.Count(out, "grown") != 1 || strings.Count(out, "unchanged") != 1 {
		t.Errorf("%s", out)
	}
	if out := must(t, "sessions", "--store", a.url); strings.Count(out, "\n") != 6 {
		t.Errorf("%s", out)
	}
}

func TestUsageByDayIsThatOfTheFile(t *testing.T) {
	store := t.TempDir() + "/store"
	must(t, "import", write(t, "chat.jsonl", `{"role":"user","content":"x","timestamp":"2025-01-02T10:00:00Z"}
{"role":"assistant","model":"m","content":"y","usage":{"prompt_tokens":3},"timestamp":"2025-01-02T10:00:01Z"}
{"role":"user","content":"x","timestamp":"2025-02-03T10:00:00Z"}
{"role":"assistant","model":"m","content":"y","usage":{"prompt_tokens":4},"timestamp":"2025-02-03T10:00:01Z"}
`), "--store", store)
	_, out, _ := status(t, []string{"TZ=UTC"}, "usage", "--by", "day", "--csv", "--store", store)
	if want := "day,input,output,cached,written,reasoning,dollars\n2025-01-02,3,0,0,0,0,\n2025-02-03,4,0,0,0,0,\n"; out != want {
		t.Errorf("%s", out)
	}
	if _, out, _ := status(t, []string{"TZ=UTC"}, "sessions", "--store", store); !strings.Contains(out, "2025-02-03 10:00:01") {
		t.Errorf("%s", out)
	}
}

// A folder is walked. Files in it that are no transcripts are named, and don't make the import fail.
func TestP16_AFolderIsWalkedAndASubAgentFindsItsSession(t *testing.T) {
	const session = "0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f"
	line := func(uuid, parent, more string) string {
		return fmt.Sprintf(`{"type":"user","uuid":%q,"parentUuid":%s,"sessionId":%q,"message":{"role":"user","content":"hi"}%s}`+"\n", uuid, parent, session, more)
	}
	dir, store := t.TempDir(), t.TempDir()+"/store"
	for name, content := range map[string]string{
		"a/" + session + "/subagents/agent-x.jsonl":     line("s", "null", `,"agentId":"x","isSidechain":true`),
		"a/" + session + "/subagents/agent-x.meta.json": "{}",
		"z/" + session + ".jsonl":                       line("u", "null", ""), // after the sub-agent in every order
		"settings.json":                                 `{"theme":"dark"}`,
		"notes.md":                                      "# notes",
		"node_modules/x.jsonl":                          lines,
		"opencode/storage/session/p/ses_1.json":         `{"id":"ses_1","projectID":"p","directory":"/w","title":"the title","time":{"created":1730000000000}}`,
		"opencode/storage/message/ses_1/msg_1.json":     `{"id":"msg_1","role":"user","time":{"created":1730000001000}}`,
		"opencode/storage/part/msg_1/prt_1.json":        `{"id":"prt_1","type":"text","text":"to do"}`,
		"opencode/storage/part/msg_1/../../../x.json":   "7",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, errs, ok := turnstoneCmd(t, "import", dir, "--store", store)
	if !ok || !strings.Contains(errs, "settings.json:1: unknown format") || strings.Contains(errs, "meta.json") || strings.Contains(errs, "notes") || strings.Contains(out, "openai") {
		t.Errorf("%v\n%s\n%s", ok, out, errs)
	}
	if out := must(t, "tree", "--store", store); !strings.Contains(out, "└─ "+session+"/x") {
		t.Errorf("%s", out)
	}
	if out := must(t, "show", "ses_1", "--store", store); !strings.Contains(out, "the title") || !strings.Contains(out, "to do") {
		t.Errorf("%s", out)
	}
}

func TestP17_AnImportSaysAsJSONWhatBecameOfEachConversation(t *testing.T) {
	store := t.TempDir() + "/store"
	torn := write(t, "torn.jsonl", lines+"{half\n"+lines)
	out, _, ok := turnstoneCmd(t, "import", torn, write(t, "no.json", "{}"), "--json", "--store", store)
	want := `{"file":"torn.jsonl","format":"openai","session":"torn","outcome":"imported","commits":4,"nodes":7,"new":7,"payload":239,"mended":{"unreadable line":1}}`
	all := strings.Split(strings.TrimSpace(out), "\n")
	if ok || len(all) != 2 || all[0] != want || !strings.Contains(all[1], `"outcome":"unreadable"`) {
		t.Errorf("%v %s", ok, out)
	}
	_, errs, _ := turnstoneCmd(t, "import", torn, write(t, "no.json", "{}"), "--store", store)
	if !strings.Contains(errs, "no.json:1: unknown format") {
		t.Errorf("%s", errs)
	}
}

func TestP25_UsageIsSummedUpByProjectAgentAndBranch(t *testing.T) {
	store := t.TempDir() + "/store"
	line := strings.Replace(spoken("s", 0), `"type":"user"`, `"type":"assistant","cwd":"/w","gitBranch":"main"`, 1)
	line = strings.Replace(line, `"role":"user"`, `"id":"m","model":"cl","usage":{"input_tokens":3,"output_tokens":1}`, 1)
	must(t, "import", write(t, "s.jsonl", line), write(t, "chat.jsonl", `{"role":"assistant","content":"y","usage":{"prompt_tokens":2}}`), "--store", store)
	if out := must(t, "usage", "--by", "project,agent,branch", "--csv", "--store", store); out != "project,agent,branch,input,output,cached,written,reasoning,dollars\n,openai,,2,0,0,0,0,\n/w,claude-code,main,3,1,0,0,0,\n" {
		t.Errorf("%s", out)
	}
	if out := must(t, "usage", "--by", "branch,model", "--json", "--store", store); !strings.Contains(out, `{"branch":"main","model":"cl","input":3,"output":1,"unpriced":true}`) {
		t.Errorf("%s", out)
	}
}

// Sessions that come from each other are linked in whatever order their files are read, also if the first one is not
// there.
func TestP16_ForksFindTheirOriginsInAnyOrder(t *testing.T) {
	dir, store := t.TempDir(), t.TempDir()+"/store"
	for name, c := range map[string][2]string{"1": {"c", "b"}, "2": {"b", "a"}, "3": {"a", "gone"}, "4": {"x", "y"}, "5": {"y", "x"}} {
		appendTo(t, filepath.Join(dir, name+".jsonl"), fmt.Sprintf(`{"type":"session_start","id":%q,"parent":%q}`+"\n"+`{"type":"message","id":"m","message":{"role":"user","content":"hi"}}`+"\n", c[0], c[1]))
	}
	for range 2 {
		must(t, "import", dir, "--store", store)
		out := must(t, "tree", "--store", store)
		for _, want := range []string{"\na ", "\n└─ b ", "\n   └─ c ", "└─ "} {
			if !strings.Contains("\n"+out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
	}
	if out := must(t, "sessions", "--json", "--store", store); strings.Count(out, "\n") != 5 {
		t.Errorf("%s", out)
	}
}
