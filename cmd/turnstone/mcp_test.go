package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// asAgent starts `turnstone mcp` and connects with it, as agents do.
func asAgent(t *testing.T, args ...string) *mcp.ClientSession {
	t.Helper()
	c := exec.Command(os.Args[0], append([]string{"mcp"}, args...)...)
	c.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", storeVariable+"=")
	c.Stderr = os.Stderr
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(context.Background(), &mcp.CommandTransport{Command: c}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// tool calls a tool, and returns what it answers as JSON, and whether that is an error.
func tool(t *testing.T, s *mcp.ClientSession, name string, arguments map[string]any) (string, bool) {
	t.Helper()
	r, err := s.CallTool(context.Background(), &mcp.CallToolParams{Name: name, Arguments: arguments})
	if err != nil {
		return err.Error(), true
	}
	if r.IsError {
		return r.Content[0].(*mcp.TextContent).Text, true
	}
	b, err := json.Marshal(r.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), false
}

func TestMC1_AnAgentSearchesAndReads(t *testing.T) {
	store := t.TempDir() + "/store"
	must(t, "import", write(t, "chat.jsonl", `{"role":"user","content":"We decided for the train to Kyoto."}
{"role":"assistant","content":"Good."}
{"role":"user","content":"And the hotel?"}
`), write(t, "other.jsonl", `{"role":"user","content":"A secret of another group: Kyoto."}`+"\n"), "--store", store)
	must(t, "label", "chat", "--group", "app/ann", "--store", store)
	must(t, "label", "other", "--group", "app/bob", "--store", store)
	s := asAgent(t, "--store", store, "--group", "app/ann")
	tools, err := s.ListTools(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, one := range tools.Tools {
		names = append(names, one.Name)
		if !one.Annotations.ReadOnlyHint {
			t.Errorf("%s may write", one.Name)
		}
	}
	slices.Sort(names)
	if strings.Join(names, " ") != "read search sessions usage" {
		t.Error(names)
	}
	found, _ := tool(t, s, "search", map[string]any{"query": "kyoto"})
	if !strings.Contains(found, "train to Kyoto") || strings.Contains(found, "secret") {
		t.Error(found)
	}
	_, node, _ := strings.Cut(found, `"node":"`)
	node, _, _ = strings.Cut(node, `"`)
	for name, c := range map[string]struct {
		in   map[string]any
		want string
		bad  bool
	}{
		"sessions": {map[string]any{"text": "chat"}, `"id":"chat"`, false},
		"read":     {map[string]any{"session": "chat"}, "And the hotel?", false},
		"read ":    {map[string]any{"session": "chat", "around": node, "last": 2}, "We decided", false},
		"read  ":   {map[string]any{"session": "chat", "last": 1}, `"cut":true`, false},
		"read   ":  {map[string]any{"session": "other"}, "not found", true},
		"read    ": {map[string]any{"session": "chat", "around": "x"}, "id", true},
		"usage":    {map[string]any{}, `"models":[]`, false},
		"usage ":   {map[string]any{"session": "other"}, "not found", true},
		"search":   {map[string]any{"query": "colour:x"}, "no field colour", true},
		"search ":  {map[string]any{"query": "secret"}, `"results":[]`, false},
		"label":    {map[string]any{"session": "chat", "label": "a", "value": "b"}, "label", true},
		"fork":     {map[string]any{"session": "chat", "new": "b"}, "fork", true},
	} {
		got, bad := tool(t, s, strings.TrimSpace(name), c.in)
		if bad != c.bad || !strings.Contains(got, c.want) {
			t.Errorf("%s %v: %v %s", name, c.in, bad, got)
		}
	}
	if _, errs, ok := turnstoneCmd(t, "mcp", "--store", store, "--group", ""); ok || !strings.Contains(errs, "--group is empty") {
		t.Errorf("an empty group: %s", errs)
	}
	p, err := s.GetPrompt(context.Background(), &mcp.GetPromptParams{Name: "decided", Arguments: map[string]string{"about": "the train"}})
	if err != nil || !strings.Contains(p.Messages[0].Content.(*mcp.TextContent).Text, `"the train"`) {
		t.Error(p, err)
	}
}

func TestMC2_AnAgentChangesWhatItMay(t *testing.T) {
	store := t.TempDir() + "/store"
	must(t, "import", write(t, "chat.jsonl", lines), "--store", store)
	s := asAgent(t, "--store", store, "--write")
	if got, bad := tool(t, s, "label", map[string]any{"session": "chat", "label": "rating", "value": "good"}); bad {
		t.Error(got)
	}
	if got, bad := tool(t, s, "fork", map[string]any{"session": "chat", "new": "other"}); bad {
		t.Error(got)
	}
	if got, bad := tool(t, s, "fork", map[string]any{"session": "chat", "new": "other"}); !bad {
		t.Error(got)
	}
	if out := must(t, "sessions", "--json", "--store", store); !strings.Contains(out, `"rating":"good"`) || !strings.Contains(out, `"id":"other"`) {
		t.Error(out)
	}
}
