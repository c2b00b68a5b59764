package importer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// samples has a small conversation in the form of each agent: where a user asks, a tool is called, and the model
// answers, as far as the form has that. It says what an import has to find.
var samples = map[string]struct {
	data string
	want string // format, id, name, model, directory, and the kinds on the path
}{
	"rollout-2026-01-01T10-00-00-0199aaaa-0000-7000-8000-000000000001.jsonl": {`{"timestamp":"2026-01-01T10:00:00Z","type":"session_meta","payload":{"id":"0199aaaa-0000-7000-8000-000000000001","cwd":"/w","forked_from_id":"0199aaaa-0000-7000-8000-000000000000"}}
{"timestamp":"2026-01-01T10:00:00Z","type":"turn_context","payload":{"model":"gpt-x","cwd":"/w"}}
{"timestamp":"2026-01-01T10:00:00Z","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"<environment_context>x</environment_context>"}]}}
{"timestamp":"2026-01-01T10:00:01Z","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"list the files"}]}}
{"timestamp":"2026-01-01T10:00:01Z","type":"event_msg","payload":{"type":"user_message","message":"list the files"}}
{"timestamp":"2026-01-01T10:00:02Z","type":"response_item","payload":{"type":"function_call","name":"shell","arguments":"{}","call_id":"c"}}
{"timestamp":"2026-01-01T10:00:03Z","type":"response_item","payload":{"type":"function_call_output","call_id":"c","output":"a.txt"}}
{"timestamp":"2026-01-01T10:00:04Z","type":"event_msg","payload":{"type":"token_count","info":{"total_token_usage":{"input_tokens":9,"cached_input_tokens":4,"output_tokens":2,"reasoning_output_tokens":1}}}}
{"timestamp":"2026-01-01T10:00:04Z","type":"event_msg","payload":{"type":"token_count","info":{"total_token_usage":{"input_tokens":9,"cached_input_tokens":4,"output_tokens":2,"reasoning_output_tokens":1}}}}
{"timestamp":"2026-01-01T10:00:05Z","type":"response_item","payload":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"one file"}]}}
`, "codex 0199aaaa-0000-7000-8000-000000000001 'list the files' gpt-x /w meta user assistant tool assistant [{gpt-x 9 2 4 0 1 0}]"},
	"codex-old.jsonl": {`{"id":"old-1","timestamp":"2025-06-01T10:00:00Z","instructions":null}
{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}
{"record_type":"state"}
{"type":"message","role":"assistant","content":[{"type":"output_text","text":"ho"}]}
`, "codex old-1 'hi'   user assistant []"},
	"session-gemini.json": {`{
  "sessionId": "g-1", "projectHash": "h", "startTime": "2026-01-01T10:00:00Z", "messages": [
    {"id":"1","timestamp":"2026-01-01T10:00:00Z","type":"user","content":"hi"},
    {"id":"2","timestamp":"2026-01-01T10:00:01Z","type":"gemini","content":"ho","model":"gem","tokens":{"input":5,"output":2,"cached":1,"thoughts":3}},
    {"id":"3","timestamp":"2026-01-01T10:00:02Z","type":"info","content":"update available"}
  ]
}
`, "gemini g-1 'hi' gem  user assistant [{gem 5 5 1 0 3 0}]"},
	"session-gemini.jsonl": {`{"sessionId":"g-2","projectHash":"h","startTime":"2026-01-01T10:00:00Z","kind":"main"}
{"id":"1","timestamp":"2026-01-01T10:00:00Z","type":"user","content":[{"text":"wrong"}]}
{"$rewindTo":"1"}
{"id":"2","timestamp":"2026-01-01T10:00:00Z","type":"user","content":[{"text":"hi"}]}
{"id":"3","timestamp":"2026-01-01T10:00:01Z","type":"gemini","content":"h","model":"gem"}
{"id":"3","timestamp":"2026-01-01T10:00:01Z","type":"gemini","content":"ho","model":"gem","tokens":{"input":5,"output":2}}
{"$set":{"lastUpdated":"2026-01-01T10:00:01Z","summary":"A greeting"}}
`, "gemini g-2 'A greeting' gem  user assistant [{gem 5 2 0 0 0 0}]"},
	"checkpoint.json": {
		`[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"}}]},{"role":"user","parts":[{"functionResponse":{"name":"f"}}]},{"role":"model","parts":[{"text":"ho"}]}]`,
		"gemini-contents checkpoint 'hi'   user assistant tool assistant []",
	},
	"qwen.jsonl": {`{"uuid":"a","parentUuid":null,"sessionId":"q-1","timestamp":"2026-01-01T10:00:00Z","type":"user","cwd":"/w","message":{"role":"user","parts":[{"text":"hi"}]}}
{"uuid":"b","parentUuid":"a","sessionId":"q-1","timestamp":"2026-01-01T10:00:01Z","type":"assistant","model":"qw","message":{"role":"model","parts":[{"text":"ho"}]},"usageMetadata":{"promptTokenCount":7,"candidatesTokenCount":3,"cachedContentTokenCount":2,"thoughtsTokenCount":1}}
`, "qwen-code q-1 'hi' qw /w user assistant [{qw 7 4 2 0 1 0}]"},
	"events.jsonl": {`{"type":"session.start","data":{"sessionId":"cop-1","selectedModel":"gpt-y","context":{"cwd":"/w"}},"id":"1","timestamp":"2026-01-01T10:00:00Z","parentId":null}
{"type":"user.message","data":{"content":"hi"},"id":"2","timestamp":"2026-01-01T10:00:01Z","parentId":"1"}
{"type":"assistant.message","data":{"content":"","toolRequests":[{"toolCallId":"c","name":"bash","arguments":{"command":"ls"}}],"outputTokens":5},"id":"3","timestamp":"2026-01-01T10:00:02Z","parentId":"2"}
{"type":"tool.execution_complete","data":{"toolCallId":"c","result":{"content":"a.txt"}},"id":"4","timestamp":"2026-01-01T10:00:03Z","parentId":"3"}
`, "copilot-cli cop-1 'hi' gpt-y /w meta user assistant tool [{gpt-y 0 5 0 0 0 0}]"},
	"droid.jsonl": {`{"type":"session_start","id":"d-1","title":"The title","cwd":"/w"}
{"type":"message","id":"m1","parentId":"d-1","timestamp":"2026-01-01T10:00:00Z","message":{"role":"user","content":[{"type":"text","text":"hi"}]}}
{"type":"message","id":"m2","parentId":"m1","timestamp":"2026-01-01T10:00:01Z","message":{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"Execute","input":{}}]}}
{"type":"message","id":"m3","parentId":"m2","timestamp":"2026-01-01T10:00:02Z","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"x"}]}}
`, "droid d-1 'The title'  /w session user assistant tool []"},
	"openclaw.jsonl": {`{"type":"session","id":"oc-1","version":3,"timestamp":"2026-01-01T10:00:00Z","cwd":"/w"}
{"type":"message","id":"m1","parentId":"oc-1","timestamp":"2026-01-01T10:00:00Z","message":{"role":"user","content":[{"type":"text","text":"hi"}]}}
{"type":"message","id":"m2","parentId":"m1","timestamp":"2026-01-01T10:00:01Z","message":{"role":"assistant","model":"m","content":[{"type":"toolCall","id":"tc","name":"sh","arguments":{}}],"usage":{"input":12,"output":7,"cacheRead":3,"totalTokens":22,"cost":{"input":0.1,"total":0.25}}}}
{"type":"message","id":"m3","parentId":"tc","timestamp":"2026-01-01T10:00:02Z","message":{"role":"toolResult","toolCallId":"tc","content":"x"}}
`, "pi oc-1 'hi' m /w session user assistant tool [{m 15 7 3 0 0 250000000}]"},
	"wire.jsonl": {`{"type":"metadata","protocol_version":"1.4","created_at":1784950509920}
{"type":"llm.request","model":"kimi-x","time":1784950605000}
{"type":"context.append_message","message":{"role":"user","content":[{"type":"text","text":"hi"}]},"time":1784950605094}
{"type":"context.append_loop_event","event":{"type":"content.part","part":{"type":"text","text":"ho"}},"time":1784950605097}
{"type":"context.append_loop_event","event":{"type":"step.end","usage":{"inputTokens":4,"outputTokens":2}},"time":1784950605098}
`, "kimi wire 'hi' kimi-x  user assistant [{kimi-x 4 2 0 0 0 0}]"},
	"context.jsonl": {`{"role":"_checkpoint","id":0}
{"role":"user","content":"hi"}
{"role":"assistant","content":"ho"}
`, "kimi context 'hi'   user assistant []"},
	"cursor.jsonl": {`{"role":"user","message":{"content":[{"type":"text","text":"hi"}]}}
{"role":"assistant","message":{"content":[{"type":"text","text":"ho"}]}}
{"type":"turn_ended","status":"success"}
`, "cursor cursor 'hi'   user assistant []"},
	"opencode.json": {`{"info":{"id":"ses_9","title":"The title","time":{"created":1730000000000}},"messages":[{"info":{"role":"user"},"parts":[{"type":"text","text":"hi"}]},
 {"info":{"role":"assistant","modelID":"oc","cost":0.02,"tokens":{"input":5,"output":1,"reasoning":2,"cache":{"read":3,"write":4}}},"parts":[{"type":"text","text":"ho"}]}]}
`, "opencode ses_9 'The title' oc  user assistant [{oc 12 3 3 4 2 20000000}]"},
	"adk.json": {
		`{"id":"s","app_name":"a","user_id":"u","events":[{"author":"user","timestamp":1767261600.5,"content":{"role":"user","parts":[{"text":"hi"}]}},{"author":"agent","content":{"role":"model","parts":[{"text":"ho"}]},"usage_metadata":{"prompt_token_count":4,"candidates_token_count":2}}]}`,
		"adk s 'hi'   user assistant [{ 4 2 0 0 0 0}]",
	},
	"dicts.json": {
		`[{"type":"human","data":{"content":"hi"}},{"type":"ai","data":{"content":"ho","response_metadata":{"model_name":"lc"},"usage_metadata":{"input_tokens":5,"output_tokens":1,"input_token_details":{"cache_read":3}}}}]`,
		"langchain dicts 'hi' lc  user assistant [{lc 5 1 3 0 0 0}]",
	},
	"dumps.json": {
		`{"messages":[{"lc":1,"type":"constructor","id":["langchain","schema","messages","HumanMessage"],"kwargs":{"content":"hi","type":"human"}},{"lc":1,"type":"constructor","id":["langchain","schema","messages","ToolMessage"],"kwargs":{"content":"x"}}]}`,
		"langchain dumps 'hi'   user tool []",
	},
	"response.json": {
		`{"object":"response","id":"resp_1","model":"gpt-z","output":[{"type":"reasoning","summary":[]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"ho"}]}],"usage":{"input_tokens":5,"output_tokens":2,"output_tokens_details":{"reasoning_tokens":1}}}`,
		"openai-responses resp_1 '' gpt-z  assistant assistant [{gpt-z 5 2 0 0 1 0}]",
	},
	"items.json": {
		`[{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"x"}]`,
		"openai-responses items 'hi'   user assistant tool []",
	},
	"sharegpt.json": {`[{"id":"sg-1","conversations":[{"from":"human","value":"hi"},{"from":"gpt","value":"ho"}]}]`, "sharegpt sg-1 'hi'   user assistant []"},
	"chatgpt.json": {`[{"title":"The title","create_time":1767261600.5,"conversation_id":"cg-1","default_model_slug":"gpt-w","mapping":{
"r":{"id":"r","message":null,"parent":null},"a":{"id":"a","message":{"author":{"role":"user"},"create_time":1767261600.5,"content":{"content_type":"text","parts":["hi"]}},"parent":"r"},
"b":{"id":"b","message":{"author":{"role":"assistant"},"content":{"content_type":"text","parts":["ho"]}},"parent":"a"}}}]`, "chatgpt cg-1 'The title' gpt-w  root user assistant []"},
	"claude-ai.json": {
		`[{"uuid":"ca-1","name":"The title","created_at":"2026-01-01T10:00:00Z","chat_messages":[{"uuid":"a","text":"hi","sender":"human","parent_message_uuid":"00000000-0000-4000-8000-000000000000"},{"uuid":"b","text":"ho","sender":"assistant","parent_message_uuid":"a"}]}]`,
		"claude.ai ca-1 'The title'   user assistant []",
	},
	"cline.json": {
		`{"version":1,"sessionId":"cl-1","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]},{"role":"assistant","content":[{"type":"text","text":"ho"}],"modelInfo":{"id":"clm"},"metrics":{"inputTokens":5,"outputTokens":2,"cacheReadTokens":1,"cacheWriteTokens":3}}]}`,
		"openai cl-1 'hi' clm  user assistant [{clm 9 2 1 3 0 0}]",
	},
}

// Each agent's form is found out; ids, names, models, directories and usage are those of the file, and its export
// is the file byte for byte. A file of an array of conversations is exported without the array.
func TestP18_EachAgentsFormIsReadAndGivenBack(t *testing.T) {
	for name, c := range samples {
		t.Run(name, func(t *testing.T) {
			st, clock := openClocked(t)
			convs := parse(t, name, c.data)
			r := importer.Load(ctx, st, convs, importer.Options{Clock: clock})[0]
			if r.Err != nil || len(convs) != 1 || len(convs[0].Mended) > 0 && name != "openclaw.jsonl" {
				t.Fatalf("%d conversations, mended %v, %v", len(convs), convs[0].Mended, r.Err)
			}
			s := session(t, st, r.Session)
			info := infoOf(t, s)
			var kinds []string
			for _, n := range loaded(t, s, turnstone.Scope{}).Nodes {
				kinds = append(kinds, n.Kind)
			}
			got := fmt.Sprintf("%s %s '%s' %s %s %s %v", convs[0].Format, info.ID, info.Name, info.Model, info.Cwd, strings.Join(kinds, " "), info.Usage)
			if got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
			if out := exported(t, st, r.Session); out != c.data && "["+out+"]" != c.data {
				t.Errorf("exported is\n%s", out)
			}
			for _, r := range importer.Load(ctx, st, convs, importer.Options{Clock: clock}) {
				if r.Outcome != importer.Unchanged {
					t.Errorf("again: %+v", r)
				}
			}
		})
	}
}

// A conversation that was forked or resumed in a new file knows where it comes from.
func TestP18_AForkedRolloutKnowsItsOrigin(t *testing.T) {
	meta := func(id, from string) string {
		return fmt.Sprintf(`{"timestamp":"2026-01-01T10:00:00Z","type":"session_meta","payload":{"id":%q%s}}`+"\n", id, from)
	}
	const item = `{"timestamp":"2026-01-01T10:00:01Z","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}}` + "\n"
	for _, forked := range []string{meta("b", `,"forked_from_id":"a"`) + item, meta("b", "") + meta("a", "") + item} {
		st, clock := openClocked(t)
		bring(t, st, clock, "a.jsonl", meta("a", "")+item)
		r := bring(t, st, clock, "b.jsonl", forked)
		if i := infoOf(t, session(t, st, r.Session)); i.ID != "b" || i.Parent != "a" || !i.Detached {
			t.Errorf("%+v", i)
		}
	}
}

func TestP18_TitlesThatAPersonWouldGive(t *testing.T) {
	l := chain(3)
	command := strings.Replace(l[0], "text 0", "<command-name>/clear</command-name>", 1)
	for _, c := range []struct {
		lines []string
		want  string
	}{
		{l, "text 0"},
		{slices.Concat([]string{command}, l[1:]), "text 2"},
		{append(slices.Clone(l), `{"type":"summary","summary":"Of here","leafUuid":"u2"}`), "Of here"},
		{append(slices.Clone(l), `{"type":"summary","summary":"Of elsewhere","leafUuid":"x"}`), "text 0"},
		{append(slices.Clone(l), `{"type":"custom-title","customTitle":"Mine","sessionId":"s1"}`, `{"type":"ai-title","aiTitle":"Its","sessionId":"s1"}`), "Mine"},
	} {
		if got := parse(t, "s.jsonl", file(c.lines))[0].Name; got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	// A title that comes later is taken, unless a person has named the session.
	st, clock := openClocked(t)
	r := bring(t, st, clock, "s.jsonl", file(l))
	s := session(t, st, r.Session)
	bring(t, st, clock, "s.jsonl", file(append(l, `{"type":"ai-title","aiTitle":"Its","sessionId":"s1"}`)))
	if i := infoOf(t, s); i.Name != "Its" {
		t.Errorf("%q", i.Name)
	}
}

// A Codex session that was forked has a copy of its origin's lines. What the origin used counts there.
func TestP18_CopiedUsageCountsWhereItWasUsed(t *testing.T) {
	count := func(at string, in int) string {
		return fmt.Sprintf(`{"timestamp":"2026-01-01T%s.000Z","type":"event_msg","payload":{"type":"token_count","info":{"total_token_usage":{"input_tokens":%d,"output_tokens":1}}}}`+"\n", at, in)
	}
	meta := func(at, more string) string {
		return fmt.Sprintf(`{"timestamp":"2026-01-01T%s.000Z","type":"session_meta","payload":{%s}}`+"\n", at, more)
	}
	origin := meta("10:00:00", `"id":"o"`) + count("10:00:01", 5) + count("10:00:09", 8)
	fork := meta("11:00:00", `"id":"f","forked_from_id":"o"`) + meta("11:00:00", `"id":"o"`) + count("11:00:00", 5) + count("11:00:00", 8) + count("11:00:09", 20)
	st := openStore(t, memory.New())
	convs := append(parse(t, "o.jsonl", origin), parse(t, "f.jsonl", fork)...)
	for i, want := range []string{"[{ 8 1 0 0 0 0}]", "[{ 12 0 0 0 0 0}]"} {
		r := importer.Load(ctx, st, convs, importer.Options{})
		if got := fmt.Sprint(infoOf(t, session(t, st, r[i].Session)).Usage); got != want {
			t.Errorf("%s: %s, want %s", r[i].Session, got, want)
		}
	}
}
