package importer

import (
	"strings"

	"github.com/tidwall/gjson"
)

// codex is Codex CLI: lines with a type and a payload. Response items are the conversation. Event messages repeat
// them for the user interface, and have the usage.
var codex = &format{
	name: "codex", about: "rollout JSONL of all versions, resumed and forked ones", unique: true,
	line: func(f *fields) bool {
		return f.has("timestamp", "type", "payload") && f.get("payload").IsObject()
	},
	field: places{time: "timestamp", cwd: "payload.cwd", branch: "payload.git.branch", model: "payload.model"},
	read: func(f *fields, e *entry) {
		switch f.text("type") {
		case "session_meta":
			e.bookkeeping("meta")
			e.session = f.text("payload.id", "payload.session_id")
			e.from = f.text("payload.forked_from_id", "payload.source.subagent.thread_spawn.parent_thread_id", "payload.parent_thread_id")
		case "response_item":
			readItem(f.get("payload"), e)
		case "compacted":
			e.kind = "compaction"
		case "event_msg":
			e.bookkeeping("event")
			e.usage = f.usage("", "payload.info.total_token_usage", "payload.usage")
			e.total = ofSession
			if e.usage == nil {
				e.usage, e.total = f.usage("", "payload.info.last_token_usage"), ""
			}
			if f.text("payload.type") == "thread_name_updated" {
				e.title = f.text("payload.thread_name")
			}
		default:
			e.bookkeeping(f.text("type"))
		}
	},
}

// codexOld is Codex CLI before versions with payloads: a header, and then response items.
var codexOld = &format{
	name: "codex", unique: true,
	line: func(f *fields) bool {
		return f.has("id", "timestamp", "instructions") && !f.has("type")
	},
	field: places{time: "timestamp"},
	read: func(f *fields, e *entry) {
		switch {
		case f.has("id", "timestamp", "instructions"):
			e.bookkeeping("meta")
			e.session = f.text("id")
		case f.has("record_type"):
			e.bookkeeping("event")
		default:
			readItem(gjson.Parse(f.raw), e)
		}
	},
}

// responses is the list of items of OpenAI's Responses API.
var responses = &format{
	name: "openai-responses", about: "items of the Responses API: an array, a response, or one item a line",
	line: func(f *fields) bool {
		switch f.text("type") {
		case "message":
			first := f.get("content.0.type").Str
			return first == "input_text" || first == "output_text" || first == "input_image"
		case "function_call", "function_call_output":
			return f.has("call_id")
		case "reasoning":
			return f.has("summary")
		}
		return false
	},
	whole: func(f *fields) bool { return f.text("object") == "response" && f.get("output").IsArray() },
	items: "output",
	of:    places{session: "id", time: "created_at", model: "model", usage: "usage"},
	read:  func(f *fields, e *entry) { readItem(gjson.Parse(f.raw), e) },
}

// readItem reads an item of the Responses API.
func readItem(item gjson.Result, e *entry) {
	kind := item.Get("type").Str
	switch {
	case kind == "message", kind == "" && item.Get("role").Exists():
		e.say(item.Get("role").Str)
		if text := strings.TrimSpace(item.Get("content.0.text").Str); e.turn && isContext(text) {
			e.kind, e.turn = "meta", false
		}
	case strings.HasSuffix(kind, "_output"):
		e.kind = "tool"
	case strings.HasSuffix(kind, "_call"), kind == "reasoning":
		e.kind = "assistant"
	case kind == "compaction", kind == "ghost_snapshot":
		e.bookkeeping(kind)
	}
}

// isContext reports whether a message of the user is what Codex tells the model of its surroundings.
func isContext(text string) bool {
	for _, begin := range []string{"<environment_context>", "<user_instructions>", "# AGENTS.md instructions", "<turn_aborted>", "<INSTRUCTIONS>"} {
		if strings.HasPrefix(text, begin) {
			return true
		}
	}
	return false
}
