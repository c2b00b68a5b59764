package importer

import "strings"

// copilot is GitHub Copilot CLI: events with a type, each of which names the one before.
var copilot = &format{
	name: "copilot-cli", about: "events.jsonl of a session", unique: true,
	line: func(f *fields) bool {
		return f.has("type", "data", "id", "timestamp") && strings.Contains(f.text("type"), ".")
	},
	field: places{
		id: "id", parent: "parentId", time: "timestamp", model: "data.model,data.selectedModel,data.newModel",
		cwd: "data.context.cwd", branch: "data.context.branch", usage: "data",
	},
	read: func(f *fields, e *entry) {
		kind := f.text("type")
		group, _, _ := strings.Cut(kind, ".")
		switch {
		case kind == "user.message":
			e.say("user")
		case kind == "assistant.message", kind == "assistant.reasoning":
			e.say("assistant")
		case kind == "tool.execution_complete":
			e.say("tool")
		case kind == "system.message":
			e.say("system")
		case kind == "session.start":
			e.kind, e.session = "meta", f.text("data.sessionId")
		case kind == "session.title_changed":
			e.kind, e.title = "meta", f.text("data.title")
		default:
			e.kind = group
		}
		if kind != "assistant.message" {
			e.usage = nil
		}
	},
}
