package importer

import "github.com/tidwall/gjson"

// chat is an object {"messages": […]}, the form of OpenAI's chat requests and fine-tuning files, of mini-swe-agent,
// and of Cline's sessions.
var chat = &format{
	name: "openai", about: `chats: {"messages": […]}, an array of messages, or lines of either`,
	whole: func(f *fields) bool { return f.get("messages").IsArray() },
	items: "messages",
	field: chatFields,
	of:    places{session: "id,sessionId", time: "created,created_at,timestamp", title: "title", model: "info.config.model.model_name", usage: "usage"},
	read:  readMessage,
}

// messages is messages of chats in a list of their own.
var messages = &format{
	name:  "openai",
	line:  func(f *fields) bool { return f.get("role").Type == gjson.String },
	field: chatFields,
	read:  readMessage,
}

var chatFields = places{
	time: "timestamp,ts,created_at", model: "model,modelInfo.modelId,modelInfo.id,extra.response.model",
	usage: "usage,metrics.tokens,metrics,extra.response.usage", cost: "cost,metrics.cost,extra.cost",
}

// readMessage reads a message of a chat. Its kind is the role, whatever that is.
func readMessage(f *fields, e *entry) {
	e.kind = f.text("role")
	e.turn = e.kind == "user"
	e.blocks(f, "content")
}
