package main

import (
	"strings"
	"testing"
)

// A session is one file to send, as a page or as a document, and --redact takes secrets out of both.
func TestUI6_ASessionIsOneFile(t *testing.T) {
	store := t.TempDir() + "/store"
	key := "sk-ant-" + "api03-" + strings.Repeat("aB3", 31) + "AA"
	must(t, "import", write(t, "chat.jsonl", `{"role":"user","content":"Is **this** <b>it</b>? `+key+`"}`+"\n"+
		`{"role":"assistant","content":[{"type":"text","text":"Look:\n`+"```go\\nvar x = 1\\n```"+`"},{"type":"tool_use","id":"1","name":"look","input":{"path":"/x"}}]}`+"\n"+
		`{"role":"tool","tool_call_id":"1","content":"`+"``` found `````"+`"}`+"\n"), "--store", store)
	must(t, "label", "chat", "--name", "With "+key, "--store", store)
	for _, c := range []struct {
		flag  string
		wants []string
	}{
		{"--html", []string{"<!DOCTYPE html>", "<strong>this</strong>", "Content-Security-Policy", `<span class="kd">var</span>`, "Calls <b>look</b>"}},
		{"--markdown", []string{"# With ", "## user", "Is **this** <b>it</b>?", "Calls `look`:", "\n``````\n``` found `````\n``````\n"}},
	} {
		out := must(t, "show", "chat", c.flag, "--store", store)
		for _, want := range append(c.wants, key) {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", c.flag, want, out)
			}
		}
		if out = must(t, "show", "chat", c.flag, "--redact", "--store", store); strings.Contains(out, key) || strings.Count(out, "[redacted: anthropicapikey.ModelAPIKey]") < 2 {
			t.Errorf("%s: the secret is in\n%s", c.flag, out)
		}
		if out = must(t, "show", "chat", c.flag, "--last", "1", "--store", store); strings.Contains(out, "Is ") || !strings.Contains(out, "found") || !strings.Contains(out, "look") {
			t.Errorf("%s --last 1:\n%s", c.flag, out)
		}
	}
	for _, args := range [][]string{{"--redact"}, {"--html", "--markdown"}, {"--html", "--json"}} {
		if _, _, ok := turnstoneCmd(t, append([]string{"show", "chat", "--store", store}, args...)...); ok {
			t.Errorf("%v is accepted", args)
		}
	}
}
