package importer

import "strings"

// shareGPT is conversations in the form of the ShareGPT data sets.
var shareGPT = &format{
	name: "sharegpt", about: "conversations with from and value, as an array or lines",
	whole: func(f *fields) bool {
		return f.get("conversations.0.from").Exists() && f.get("conversations.0.value").Exists()
	},
	items: "conversations",
	of:    places{session: "id", title: "title", model: "model"},
	read:  func(f *fields, e *entry) { e.say(f.text("from")) },
}

// chatgpt is the conversations.json of ChatGPT's export: trees of messages.
var chatgpt = &format{
	name: "chatgpt", about: "conversations.json of ChatGPT's data export", unique: true,
	whole: func(f *fields) bool { return f.get("mapping").IsObject() },
	items: "mapping",
	field: places{id: "id", parent: "parent", time: "message.create_time", model: "message.metadata.model_slug"},
	of:    places{session: "conversation_id,id", time: "create_time", title: "title", model: "default_model_slug"},
	read: func(f *fields, e *entry) {
		if e.say(f.text("message.author.role")); e.kind == "" {
			e.kind = "root"
		}
	},
}

// claudeAI is the conversations.json of Claude.ai's export.
var claudeAI = &format{
	name: "claude.ai", about: "conversations.json of Claude.ai's data export", unique: true,
	whole: func(f *fields) bool { return f.get("chat_messages").IsArray() },
	items: "chat_messages",
	field: places{id: "uuid", parent: "parent_message_uuid", time: "created_at"},
	of:    places{session: "uuid", time: "created_at", title: "name", model: "model"},
	read: func(f *fields, e *entry) {
		if e.say(f.text("sender")); strings.HasPrefix(e.parent, "00000000-") { // the root, which is not in the list
			e.parent = ""
		}
	},
}
