package importer

import "strings"

// kimi is Kimi Code CLI: the protocol between its core and its user interface.
var kimi = &format{
	name: "kimi", about: "wire.jsonl and context.jsonl of Kimi CLI",
	line: func(f *fields) bool {
		return f.text("type") == "metadata" && f.has("protocol_version") || strings.HasPrefix(f.text("type"), "context.append_")
	},
	field: places{time: "time,timestamp,created_at", model: "model", cwd: "environmentDisclosure.cwd", usage: "event.usage,usage"},
	read: func(f *fields, e *entry) {
		kind := f.text("type", "message.type")
		switch event := f.text("event.type"); {
		case kind == "context.append_message":
			e.say(f.text("message.role"))
		case kind == "TurnBegin":
			e.say("user")
		case event == "content.part", event == "tool.call", kind == "ContentPart", kind == "ToolCall":
			e.kind = "assistant"
		case event == "tool.result", kind == "ToolResult":
			e.kind = "tool"
		default:
			e.bookkeeping(strings.TrimSuffix(kind, "_loop_event"))
		}
	},
}

// kimiContext is the messages that Kimi CLI sends to the model.
var kimiContext = &format{
	name: "kimi",
	line: func(f *fields) bool {
		return strings.HasPrefix(f.text("role"), "_") && (f.has("id") || f.has("token_count") || f.has("content"))
	},
	read: func(f *fields, e *entry) {
		if e.say(f.text("role")); strings.HasPrefix(e.kind, "_") {
			e.bookkeeping(strings.TrimPrefix(e.kind, "_"))
		}
	},
}
