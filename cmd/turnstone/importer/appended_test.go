package importer_test

import "strings"

// appended has the lines of one conversation in each format that agents append to. The one
// of Claude has parallel calls, a response on several lines, and a rewind.
var appended = map[string][]string{
	"plain.jsonl": {
		`{"role":"system","content":"s","timestamp":"2025-01-01T09:00:00Z"}`, `{"role":"user","content":"one","timestamp":"2025-01-01T10:00:00Z"}`,
		`{"role":"assistant","model":"m","content":"two","usage":{"prompt_tokens":3,"completion_tokens":1},"timestamp":"2025-01-01T10:00:05Z"}`,
		`{"role":"user","content":"one"}`, `{"role":"assistant","model":"n","content":"two","usage":{"prompt_tokens":5,"completion_tokens":1}}`,
		`{"role":"user","content":"three","timestamp":"2025-01-02T10:00:00Z"}`,
	},
	"pi.jsonl": {
		`{"type":"session","id":"p1","timestamp":"2025-01-01T10:00:00Z","cwd":"/x","provider":"a","modelId":"m"}`,
		`{"type":"message","timestamp":"2025-01-01T10:00:01Z","message":{"role":"user","content":"q"}}`,
		`{"type":"message","timestamp":"2025-01-01T10:00:02Z","message":{"role":"assistant","model":"m","content":[{"type":"toolCall","id":"c","name":"f","arguments":{}}],"usage":{"input":1,"output":2,"cacheRead":3,"cacheWrite":4}}}`,
		`{"type":"message","timestamp":"2025-01-01T10:00:03Z","message":{"role":"toolResult","toolCallId":"c","content":"r"}}`,
		`{"type":"message","timestamp":"2025-01-01T10:00:04Z","message":{"role":"user","content":"q"}}`,
	},
	"claude.jsonl": strings.Split(strings.TrimSpace(parallel), "\n"),
}

const parallel = `
{"type":"user","uuid":"u1","parentUuid":null,"sessionId":"c9","timestamp":"2025-01-01T10:00:00Z","cwd":"/w","message":{"role":"user","content":"look at both"}}
{"type":"assistant","uuid":"a1","parentUuid":"u1","sessionId":"c9","timestamp":"2025-01-01T10:00:01Z","message":{"id":"m1","model":"cl","content":[{"type":"text","text":"I will"}],"usage":{"input_tokens":3,"output_tokens":1}}}
{"type":"assistant","uuid":"a2","parentUuid":"a1","sessionId":"c9","timestamp":"2025-01-01T10:00:02Z","message":{"id":"m1","model":"cl","content":[{"type":"tool_use","id":"t1","name":"Read","input":{}}],"usage":{"input_tokens":3,"output_tokens":1}}}
{"type":"progress","uuid":"p1","parentUuid":"a2","sessionId":"c9","timestamp":"2025-01-01T10:00:02Z","data":{}}
{"type":"assistant","uuid":"a3","parentUuid":"a2","sessionId":"c9","timestamp":"2025-01-01T10:00:03Z","message":{"id":"m1","model":"cl","content":[{"type":"tool_use","id":"t2","name":"Read","input":{}}],"usage":{"input_tokens":3,"output_tokens":9}}}
{"type":"user","uuid":"r2","parentUuid":"a3","sessionId":"c9","timestamp":"2025-01-01T10:00:04Z","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t2","content":"second"}]}}
{"type":"user","uuid":"r1","parentUuid":"p1","sessionId":"c9","timestamp":"2025-01-01T10:00:05Z","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"first"}]}}
{"type":"file-history-snapshot","messageId":"u1","snapshot":{}}
{"type":"assistant","uuid":"a4","parentUuid":"r2","sessionId":"c9","timestamp":"2025-01-01T10:00:06Z","message":{"id":"m2","model":"cl","content":[{"type":"text","text":"done"}],"usage":{"input_tokens":4,"output_tokens":6}}}
{"type":"user","uuid":"u2","parentUuid":"a4","sessionId":"c9","timestamp":"2025-01-02T10:00:00Z","message":{"role":"user","content":"thanks"}}
{"type":"user","uuid":"u3","parentUuid":"a4","sessionId":"c9","timestamp":"2025-01-03T10:00:00Z","message":{"role":"user","content":"rather not"}}
`

// file returns the content of a file with these lines.
func file(all []string) string { return strings.Join(all, "\n") + "\n" }
