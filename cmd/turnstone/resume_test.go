package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const rollout = `{"timestamp":"2026-01-01T10:00:00Z","type":"session_meta","payload":{"id":"0199aaaa-0000-7000-8000-000000000001","cwd":"/work/old"}}
{"timestamp":"2026-01-01T10:00:01Z","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}}
{"timestamp":"2026-01-01T10:00:01Z","type":"event_msg","payload":{"type":"user_message","message":"hi"}}
{"timestamp":"2026-01-01T10:00:02Z","type":"response_item","payload":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"ho"}]}}
`

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
				env := []string{"HOME=" + home, "CLAUDE_CONFIG_DIR=", "CODEX_HOME="}
				code, out, errs := status(t, env, append([]string{"resume", "--store", store}, args...)...)
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
			code, _, errs := status(t, []string{"HOME=" + home, "CLAUDE_CONFIG_DIR=", "CODEX_HOME="}, "resume", c.id, "--cwd", "/work/new", "--store", store)
			if code != exitConflict || !strings.Contains(errs, "is not the beginning of the session") {
				t.Errorf("%d %s", code, errs)
			}
			must(t, "fork", c.id, "other", "--store", store)
			for _, place := range [][]string{{"other"}, {c.id, "--fork"}, {c.id + "@1"}} {
				path, command := resume(t.TempDir(), place...)
				fork := content(path)
				id := command[strings.LastIndexByte(command, ' ')+1:]
				if id == c.id || !strings.Contains(path, id) || strings.ReplaceAll(fork, id, c.id) != c.data[:len(fork)] {
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
	must(t, "import", write(t, "evil.jsonl", evil), "--store", store)
	for id, want := range map[string]string{"chat": "does not go on with a file", "../../evil": "can't be the name of a file"} {
		if code, _, errs := status(t, []string{"HOME=" + t.TempDir()}, "resume", id, "--store", store); code != exitFailed || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s", id, code, errs)
		}
	}
}
