package importer

// pi is pi and OpenClaw: a header, and then entries, which in newer versions are a tree by id and parentId.
var pi = &format{
	name: "pi", about: "session JSONL of pi and OpenClaw", unique: true,
	line: func(f *fields) bool {
		return f.text("type") == "session" && f.has("id") && (f.has("provider") || f.has("version") || f.has("cwd"))
	},
	field: places{
		id: "id", parent: "parentId", time: "timestamp,message.timestamp", cwd: "cwd",
		model: "message.model,modelId", usage: "message.usage", title: "name",
	},
	read: func(f *fields, e *entry) {
		switch kind := f.text("type"); kind {
		case "session":
			e.kind, e.session = "session", e.id
			e.label = [2]string{".pi.branched-from", f.text("branchedFrom", "parentSession")}
		case "message":
			e.say(f.text("message.role"))
			if e.kind == "bashExecution" {
				e.kind = "tool"
			}
		case "session_info":
			e.bookkeeping("meta")
		default:
			e.kind = kind
		}
		if e.kind != "meta" {
			e.title = ""
		}
	},
}

// droid is Factory's Droid: a header, and then messages in Anthropic's form.
var droid = &format{
	name: "droid", about: "session JSONL of Factory's Droid", unique: true,
	line:  func(f *fields) bool { return f.text("type") == "session_start" && f.has("id") },
	field: places{id: "id", parent: "parentId", time: "timestamp", cwd: "cwd", model: "message.model,model", usage: "message.usage", title: "sessionTitle,title"},
	read: func(f *fields, e *entry) {
		switch kind := f.text("type"); kind {
		case "session_start":
			e.kind, e.session = "session", e.id
			e.from = f.text("parent", "parentSessionId")
		case "message":
			e.say(f.text("message.role"))
			e.blocks(f, "message.content")
		default:
			e.bookkeeping(kind)
		}
	},
}
