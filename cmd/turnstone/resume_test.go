package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const rollout = `{"timestamp":"2026-01-01T10:00:00Z","type":"session_meta","payload":{"id":"0199aaaa-0000-7000-8000-000000000001","cwd":"/work/old"}}
{"timestamp":"2026-01-01T10:00:01Z","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}}
{"timestamp":"2026-01-01T10:00:01Z","type":"event_msg","payload":{"type":"user_message","message":"hi"}}
{"timestamp":"2026-01-01T10:00:02Z","type":"response_item","payload":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"ho"}]}}
`

// forkMarks is what each line of a fork has more than the line that it was copied from.
var forkMarks = regexp.MustCompile(`,"forkedFrom":\{[^}]*\}`)

// agents returns the environment of agents in a home directory.
func agents(home string) []string {
	return []string{"HOME=" + home, "TZ=UTC", "CLAUDE_CONFIG_DIR=", "CODEX_HOME=", "XDG_DATA_HOME="}
}

// A session goes back to where its agent finds it, byte for byte; to another directory, or as a fork, only what names
// the directory and the session changes. What is written can be imported again.
func TestP24_ASessionGoesBackToItsAgent(t *testing.T) {
	claudeLines := strings.ReplaceAll(spoken("0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f", 0)+spoken("0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f", 1), `"sessionId"`, `"cwd":"/work/old","sessionId"`)
	for name, c := range map[string]struct{ id, data, path, moved, command string }{
		"claude": {
			"0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f", claudeLines, ".claude/projects/-work-old/0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f.jsonl",
			".claude/projects/-work-new/0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f.jsonl", "claude --resume 0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f",
		},
		"codex": {
			"0199aaaa-0000-7000-8000-000000000001", rollout, ".codex/sessions/2026/01/01/rollout-2026-01-01T10-00-00-0199aaaa-0000-7000-8000-000000000001.jsonl",
			".codex/sessions/2026/01/01/rollout-2026-01-01T10-00-00-0199aaaa-0000-7000-8000-000000000001.jsonl", "codex resume 0199aaaa-0000-7000-8000-000000000001",
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := t.TempDir() + "/store"
			must(t, "import", write(t, "x.jsonl", c.data), "--store", store)
			resume := func(home string, args ...string) (path, command string) {
				t.Helper()
				code, out, errs := status(t, agents(home), append([]string{"resume", "--store", store}, args...)...)
				lines := strings.Split(out, "\n")
				if code != 0 || len(lines) != 3 {
					t.Fatalf("%d %s %s", code, out, errs)
				}
				return lines[0], lines[1]
			}
			content := func(path string) string {
				t.Helper()
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				return string(data)
			}
			home := t.TempDir()
			for range 2 { // the second time, the file is there
				path, command := resume(home, c.id)
				if path != filepath.Join(home, c.path) || command != "cd /work/old && "+c.command || content(path) != c.data {
					t.Errorf("%s\n%s\n%s", path, command, content(path))
				}
			}
			home = t.TempDir()
			path, command := resume(home, c.id, "--cwd", "/work/new")
			if path != filepath.Join(home, c.moved) || command != "cd /work/new && "+c.command || content(path) != strings.ReplaceAll(c.data, "/work/old", "/work/new") {
				t.Errorf("%s\n%s\n%s", path, command, content(path))
			}
			// The agent went on: its file is not overwritten.
			appendTo(t, path, "{}\n")
			code, _, errs := status(t, agents(home), "resume", c.id, "--cwd", "/work/new", "--store", store)
			if code != exitConflict || !strings.Contains(errs, "is not the beginning of the session") {
				t.Errorf("%d %s", code, errs)
			}
			must(t, "fork", c.id, "other", "--store", store)
			for _, place := range [][]string{{"other"}, {c.id, "--fork"}, {c.id + "@1"}, {c.id, "--at", "1"}} {
				path, command := resume(t.TempDir(), place...)
				fork := content(path)
				id := command[strings.LastIndexByte(command, ' ')+1:]
				original := forkMarks.ReplaceAllString(strings.ReplaceAll(fork, id, c.id), "")
				if id == c.id || !strings.Contains(path, id) || original == "" || !strings.HasPrefix(c.data, original) || strings.Count(fork, `"forkedFrom":{`) != strings.Count(fork, "\n") {
					t.Errorf("%v: %s\n%s", place, command, fork)
				}
				if out := must(t, "import", path, "--store", store); !strings.Contains(out, "imported") || !strings.Contains(out, id) {
					t.Errorf("%s", out)
				}
			}
		})
	}
}

func TestP24_WhatHasNoAgentIsRefused(t *testing.T) {
	store := t.TempDir() + "/store"
	must(t, "import", write(t, "chat.jsonl", lines), "--store", store)
	evil := strings.ReplaceAll(spoken("../../evil", 0), `"sessionId"`, `"cwd":"/w","sessionId"`)
	must(t, "import", write(t, "evil.jsonl", evil), write(t, "nowhere.jsonl", spoken("nowhere", 0)), write(t, "dash.jsonl", spoken("dash", 0)+spokenIn("dash", 1, "-")),
		write(t, "nameless.jsonl", strings.ReplaceAll(spoken("x", 0), `"sessionId":"x",`, "")), "--store", store)
	for id, want := range map[string]string{
		"chat": "does not go on with a file", "../../evil": "can't be the name of a file", "nowhere": "give --cwd", "dash": "give --cwd", "nameless": "does not name its session",
	} {
		if code, out, errs := status(t, agents(t.TempDir()), "resume", id, "--store", store); code != exitFailed || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s%s", id, code, out, errs)
		}
	}
	if code, _, errs := status(t, agents(t.TempDir()), "resume", "nowhere", "--cwd", "/"+strings.Repeat("w", 200), "--store", store); code != exitFailed || !strings.Contains(errs, "longer than 200 characters") {
		t.Errorf("%d %s", code, errs)
	}
	if code, _, errs := status(t, agents(t.TempDir()), "resume", "dash@1", "--at", "1", "--store", store); code != exitUsage || !strings.Contains(errs, "a revision or a node already") {
		t.Errorf("%d %s", code, errs)
	}
	home := t.TempDir()
	dir := filepath.Join(home, ".claude", "projects", "-w")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i, path := range []string{filepath.Join(dir, "nowhere.jsonl"), filepath.Join(home, "elsewhere.jsonl")} {
		if i == 0 {
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				t.Skip(err)
			}
		} else if err := os.Symlink(path, filepath.Join(dir, "nowhere.jsonl")); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := status(t, agents(home), "resume", "nowhere", "--cwd", "/w", "--store", store); code != exitFailed || !strings.Contains(errs, "is no regular file") {
			t.Errorf("%d %s", code, errs)
		}
		os.Remove(filepath.Join(dir, "nowhere.jsonl"))
	}
}

func spokenIn(session string, i int, cwd string) string {
	return strings.ReplaceAll(spoken(session, i), `"sessionId"`, `"cwd":"`+cwd+`","sessionId"`)
}

// What a session used counts once, though it was given back in another directory or as a fork, and read again.
func TestP24_WhatIsGivenBackAndReadAgainCountsOnce(t *testing.T) {
	said := func(id, parent, more string) string {
		return `{"type":"assistant","uuid":"` + id + `","parentUuid":` + parent + `,"sessionId":"s-1","cwd":"/work/old","message":{"id":"m` + id + `","role":"assistant","content":"ho","model":"cl","usage":{"input_tokens":5}}` + more + "}\n"
	}
	codexUsed := rollout + `{"timestamp":"2026-01-01T10:00:03Z","type":"event_msg","payload":{"type":"token_count","info":{"total_token_usage":{"input_tokens":10}}}}` + "\n"
	for name, data := range map[string]string{"claude-code": said("a", "null", "") + said("b", `"a"`, ""), "codex": codexUsed} {
		t.Run(name, func(t *testing.T) {
			home, store := t.TempDir(), t.TempDir()+"/store"
			file := write(t, "x.jsonl", data)
			must(t, "import", file, "--store", store)
			id := map[string]string{"claude-code": "s-1", "codex": "0199aaaa-0000-7000-8000-000000000001"}[name]
			used := func() string { return must(t, "usage", "--by", "agent", "--csv", "--store", store) }
			before := used()
			if !strings.Contains(before, name+",10,0") {
				t.Fatal(before)
			}
			for _, args := range [][]string{{"--cwd", "/work/new"}, {"--fork"}} {
				if code, out, errs := status(t, agents(home), append([]string{"resume", id, "--store", store}, args...)...); code != 0 {
					t.Fatal(out, errs)
				}
				if code, out, errs := status(t, agents(home), "follow", "--once", "--store", store); code != 0 || used() != before {
					t.Errorf("%v: %s%s%s", args, used(), out, errs)
				}
			}
			// The fork knows where it came from, and what is used in it counts.
			if out := must(t, "tree", "--store", store); !strings.Contains(out, "└─ ") {
				t.Errorf("%s", out)
			}
		})
	}
}

// What the agent has of a session is added to, wherever it has it, and a session in several files is given back whole.
func TestP24_WhatTheAgentHasIsAddedTo(t *testing.T) {
	home, store := t.TempDir(), t.TempDir()+"/store"
	day := filepath.Join(home, ".codex", "sessions", "2025", "12", "31")
	if err := os.MkdirAll(day, 0o700); err != nil {
		t.Fatal(err)
	}
	name := "rollout-2025-12-31T23-00-00-0199aaaa-0000-7000-8000-000000000001.jsonl"
	appendTo(t, filepath.Join(day, name), rollout)
	must(t, "import", day, "--store", store)
	first := rollout[:strings.Index(rollout, "\n")+1]
	if err := os.WriteFile(filepath.Join(day, name), []byte(first), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		code, out, errs := status(t, agents(home), "resume", "0199aaaa-0000-7000-8000-000000000001", "--store", store)
		if data, err := os.ReadFile(filepath.Join(day, name)); code != 0 || err != nil || string(data) != rollout || !strings.HasPrefix(out, filepath.Join(day, name)+"\n") {
			t.Errorf("%d %s%s %v\n%s", code, out, errs, err, data)
		}
		if err := os.RemoveAll(day); err != nil { // Then it goes where the name of the file says.
			t.Fatal(err)
		}
	}
	one, two := spokenIn("s-1", 0, "/w")+spokenIn("s-1", 1, "/w"), spokenIn("s-1", 2, "/w")
	must(t, "import", write(t, "one.jsonl", one), write(t, "two.jsonl", two), "--store", store)
	_, out, _ := status(t, agents(home), "resume", "s-1", "--store", store)
	if data, err := os.ReadFile(strings.Split(out, "\n")[0]); err != nil || string(data) != one+two {
		t.Errorf("%s %v\n%s", out, err, data)
	}
}

// A fork has what is on the path to its end, and what the agent noted beside it, in the form of the agent.
func TestP24_AForkIsThePathAndItsNotes(t *testing.T) {
	gemini := `{"sessionId":"g-1","projectHash":"abc","startTime":"2026-01-01T10:00:00Z","messages":[{"id":"a","type":"user","content":"hi"},{"id":"b","type":"gemini","content":"ho"}]}`
	old := `{"type":"session","id":"p-1","version":3,"cwd":"/w"}` + "\n" + `{"type":"message","id":"m1","parentId":"p-1","message":{"role":"user","content":"hi"}}` + "\n" + `{"type":"label","id":"m2","parentId":"m1"}` + "\n"
	header := `{"timestamp":"2026-01-01T10:00:00Z","type":"session_meta","payload":{"id":"c-1","cwd":"/w"}}` + "\n"
	event := `{"timestamp":"2026-01-01T10:00:00Z","type":"event_msg","payload":{"type":"agent_message","message":"x"}}` + "\n"
	item := func(text string) string {
		return `{"timestamp":"2026-01-01T10:00:00Z","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"` + text + `"}]}}` + "\n"
	}
	thought := `{"timestamp":"2026-01-01T10:00:00Z","type":"response_item","payload":{"type":"reasoning","encrypted_content":"old","summary":[]}}` + "\n"
	for name, c := range map[string]struct {
		versions []string
		want     string
	}{
		"gemini.json":  {[]string{gemini}, gemini},
		"pi.jsonl":     {[]string{old}, old},
		"events.jsonl": {[]string{header + event}, header + event},
		"codex.jsonl":  {[]string{header + thought + item("old") + event, header + item("new") + event}, header + item("new") + event},
	} {
		t.Run(name, func(t *testing.T) {
			store, home := t.TempDir()+"/store", t.TempDir()
			file := filepath.Join(t.TempDir(), name)
			for _, data := range c.versions {
				if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
					t.Fatal(err)
				}
				must(t, "import", file, "--store", store)
			}
			id := map[string]string{"gemini.json": "g-1", "pi.jsonl": "p-1", "events.jsonl": "c-1", "codex.jsonl": "c-1"}[name]
			code, out, errs := status(t, agents(home), "resume", id, "--fork", "--store", store)
			if code != 0 {
				t.Fatal(out, errs)
			}
			path := strings.Split(out, "\n")[0]
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			kept := sortedFields(t, forkMarks.ReplaceAllString(string(data), ""))
			want := sortedFields(t, c.want)
			for i := range want {
				want[i] = strings.ReplaceAll(want[i], id, "ID")
			}
			fork := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
			for i := range kept {
				kept[i] = fork.ReplaceAllString(kept[i], "ID")
			}
			if !slices.Equal(kept, want) {
				t.Errorf("%s\n got %q\nwant %q", path, kept, want)
			}
		})
	}
}

// sortedFields returns lines of JSON with the fields of objects in the order of their names.
func sortedFields(t *testing.T, data string) (out []string) {
	t.Helper()
	for l := range strings.Lines(data) {
		var v any
		if err := json.Unmarshal([]byte(l), &v); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		b, _ := json.Marshal(v)
		out = append(out, string(b))
	}
	return out
}

// Gemini CLI keeps the sessions of a project in a folder that it has given a name, and calls the project by a hash.
func TestP24_ASessionOfGeminiGoesToTheFolderOfItsProject(t *testing.T) {
	hash := func(dir string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(dir))) }
	home, store := t.TempDir(), t.TempDir()+"/store"
	appendTo(t, filepath.Join(home, ".gemini", "projects.json"), `{"projects":{"/work/old":"old","/work/new":"new-1","/work/bad":"../x"}}`)
	must(t, "import", write(t, "session-x.jsonl", fmt.Sprintf(`{"sessionId":"g1","projectHash":%q,"startTime":"2026-01-01T10:00:00Z","kind":"main"}
{"id":"m1","timestamp":"2026-01-01T10:00:00Z","type":"user","content":[{"text":"hi"}]}
`, hash("/work/old"))), "--store", store)
	for _, c := range []struct{ cwd, folder, project string }{
		{"", "old", "/work/old"},
		{"/work/old", "old", "/work/old"},
		{"/work/new", "new-1", "/work/new"},
		{"/work/bad", hash("/work/bad"), "/work/bad"},
		{"/work/other", hash("/work/other"), "/work/other"},
	} {
		args := []string{"resume", "g1", "--fork", "--store", store}
		if c.cwd != "" {
			args = append(args, "--cwd", c.cwd)
		}
		code, out, errs := status(t, agents(home), args...)
		path, _, _ := strings.Cut(out, "\n")
		data, err := os.ReadFile(path)
		if code != 0 || err != nil || filepath.Base(filepath.Dir(filepath.Dir(path))) != c.folder || !strings.Contains(string(data), `"projectHash":"`+hash(c.project)+`"`) {
			t.Errorf("%s: %s%s%s %v", c.cwd, out, errs, data, err)
		}
	}
}

// The agents' own readers find what resume writes, in another directory, as a fork and at an earlier place, and read the
// messages of the path.
func TestP24_TheAgentsOwnReadersReadWhatIsGivenBack(t *testing.T) {
	if _, err := os.Stat("testdata/agents/node_modules"); err != nil {
		if os.Getenv("TURNSTONE_TEST_REQUIRE") == "agents" {
			t.Fatal(err)
		}
		t.Skip("the agents' readers are not installed: npm install --omit=optional in testdata/agents")
	}
	const id = "0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f"
	claude, parent := "", "null"
	for i, said := range []string{"user", "assistant", "user", "assistant"} {
		uuid := fmt.Sprintf(`"00000000-0000-4000-8000-%012d"`, i)
		claude += fmt.Sprintf(`{"parentUuid":%s,"isSidechain":false,"userType":"external","cwd":"/work/old","sessionId":%q,"version":"2.1.0","gitBranch":"main","type":%q,"message":{"role":%[3]q,"content":[{"type":"text","text":"text %d"}]},"uuid":%s,"timestamp":"2026-01-01T10:00:0%[4]d.000Z"}`+"\n", parent, id, said, i, uuid)
		parent = uuid
	}
	pi, parent := fmt.Sprintf(`{"type":"session","version":3,"id":%q,"timestamp":"2026-01-01T10:00:00.000Z","cwd":"/work/old"}`+"\n", id), "null"
	for i, said := range []string{"user", "assistant", "user", "assistant"} {
		entry := fmt.Sprintf(`"0000000%d"`, i)
		pi += fmt.Sprintf(`{"type":"message","id":%s,"parentId":%s,"timestamp":"2026-01-01T10:00:0%d.000Z","message":{"role":%q,"content":[{"type":"text","text":"text %[3]d"}],"provider":"p","model":"m","api":"a","stopReason":"stop","timestamp":1767261601000}}`+"\n", entry, parent, i, said)
		parent = entry
	}
	all := `"texts":["user: text 0","assistant: text 1","user: text 2","assistant: text 3"]`
	for agent, c := range map[string]struct{ data, node string }{"claude": {claude, "00000000-0000-4000-8000-000000000001"}, "pi": {pi, "00000001"}} {
		home, store := t.TempDir(), t.TempDir()+"/store"
		must(t, "import", write(t, agent+".jsonl", c.data), "--store", store)
		for _, r := range []struct {
			args []string
			want string
		}{
			{[]string{id}, `"cwd":"/work/old",` + all},
			{[]string{id, "--fork"}, `"cwd":"/work/old",` + all},
			{[]string{id, "--fork", "--cwd", "/work/new"}, `"cwd":"/work/new",` + all},
			{[]string{id + ":" + c.node}, `"cwd":"/work/old","texts":["user: text 0","assistant: text 1"]`},
		} {
			code, out, errs := status(t, agents(home), append([]string{"resume", "--store", store}, r.args...)...)
			if code != 0 {
				t.Fatal(out, errs)
			}
			words := strings.Fields(out) // The last one is what the agent is told to resume.
			cmd := exec.Command("node", agent+".js", words[len(words)-1])
			cmd.Dir = "testdata/agents"
			cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
				return strings.HasPrefix(v, "CLAUDE_CONFIG_DIR=") || strings.HasPrefix(v, "PI_")
			}), "HOME="+home)
			read, err := cmd.CombinedOutput()
			if want := "{" + r.want + "}\n"; err != nil || string(read) != want {
				t.Errorf("%s %v: %v\n got %s\nwant %s", agent, r.args, err, read, want)
			}
		}
	}
}
