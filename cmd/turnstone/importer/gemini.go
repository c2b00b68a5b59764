package importer

import "strings"

// gemini is Gemini CLI: an object with messages, or the same in lines, of which the first is the header.
var gemini = &format{
	name: "gemini", about: "session JSON and JSONL, and checkpoints", unique: true,
	line: func(f *fields) bool { return f.has("sessionId", "projectHash") },
	whole: func(f *fields) bool {
		return f.has("sessionId", "projectHash") && f.get("messages").IsArray()
	},
	items: "messages",
	field: places{id: "id", time: "timestamp,startTime", model: "model", usage: "tokens"},
	of:    places{session: "sessionId", time: "startTime", title: "summary"},
	read: func(f *fields, e *entry) {
		switch {
		case f.has("sessionId"):
			e.session, e.id = f.text("sessionId"), ""
			e.bookkeeping("meta")
		case f.has("$rewindTo"):
			e.bookkeeping("rewind")
			e.rewind = f.text("$rewindTo")
		case f.has("$set"):
			e.bookkeeping("meta")
			e.title = f.text("$set.summary")
		default:
			e.say(f.text("type"))
			e.total = e.id // A message is written again when its usage is known.
			if e.kind != "user" && e.kind != "assistant" {
				e.bookkeeping(e.kind)
			}
			e.command = e.turn && strings.HasPrefix(f.text("content", "content.0.text"), "/")
		}
	},
}

// geminiContents is a list of contents of Google's API, such as a checkpoint of Gemini CLI.
var geminiContents = &format{
	name: "gemini-contents",
	line: func(f *fields) bool {
		return f.get("parts").IsArray() && (f.text("role") == "user" || f.text("role") == "model")
	},
	read: readContent,
}

// readContent reads the role and the parts of a content of Google's API.
func readContent(f *fields, e *entry) {
	e.say(f.text("role", "content.role"))
	if parts := f.get("parts", "content.parts"); parts.Get("0.functionResponse").Exists() || parts.Get("0.function_response").Exists() {
		e.kind, e.turn = "tool", false
	}
}

// adk is a session of Google's Agent Development Kit.
var adk = &format{
	name: "adk", about: "sessions as JSON, as its services and its web page write them",
	whole: func(f *fields) bool {
		return f.get("events").IsArray() && (f.has("app_name") || f.has("appName"))
	},
	items: "events",
	field: places{time: "timestamp", model: "model_version,modelVersion", usage: "usage_metadata,usageMetadata"},
	of:    places{session: "id"},
	read: func(f *fields, e *entry) {
		readContent(f, e)
		switch author := f.text("author"); {
		case e.kind == "tool":
		case author == "user":
			e.say("user")
		case author != "":
			e.kind, e.turn = "assistant", false
		}
	},
}
