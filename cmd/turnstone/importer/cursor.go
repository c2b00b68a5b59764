package importer

// cursor is the transcripts of Cursor's agent: lines with a role and a message.
var cursor = &format{
	name: "cursor", about: "transcripts of Cursor's agent",
	line:  func(f *fields) bool { return f.has("role") && f.get("message.content").Exists() },
	field: places{time: "timestamp", model: "model,message.model", usage: "usage,message.usage"},
	read: func(f *fields, e *entry) {
		if !f.has("role") {
			e.bookkeeping(f.text("type"))
			return
		}
		e.say(f.text("role"))
		e.blocks(f, "message.content")
	},
}
