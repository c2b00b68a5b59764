package importer

// qwen is Qwen Code: a tree by uuid and parentUuid, whose messages have the parts of Google's API.
var qwen = &format{
	name: "qwen-code", about: "session JSONL", unique: true,
	line: func(f *fields) bool {
		return f.has("uuid", "sessionId") && (f.has("systemPayload") || f.get("message.parts").IsArray())
	},
	field: places{
		session: "sessionId", agent: "agentId", id: "uuid", parent: "parentUuid", time: "timestamp",
		model: "model", cwd: "cwd", branch: "gitBranch", usage: "usageMetadata", title: "systemPayload.customTitle",
	},
	read: func(f *fields, e *entry) {
		e.say(f.text("type"))
		e.names = true
		if e.turn && f.has("subtype") { // a notification, or what a command wrote
			e.kind, e.turn = "meta", false
		}
	},
}
