package importer

import (
	"cmp"

	"github.com/tidwall/gjson"
)

// cline is ui_messages.json of Cline and Roo Code, an array of the events that they show of a task. The usage of a
// request is in the text of its event, which is JSON. Their other file, with the messages that they send to the
// model, is a chat.
var cline = &format{
	name: "cline", about: "ui_messages.json and api_conversation_history.json of Cline and Roo Code",
	line:  func(f *fields) bool { return f.has("ts") && (f.has("say") || f.has("ask")) },
	field: places{time: "ts", model: "modelInfo.modelId,modelInfo.id"},
	read: func(f *fields, e *entry) {
		say, ask := f.text("say"), f.text("ask")
		e.kind = clineKind(cmp.Or(say, ask), say == "", e.at == 0)
		e.turn = e.kind == "user"
		if say == "api_req_started" {
			u := usageOf(gjson.Parse(f.text("text")))
			e.usage = u.of(e.model)
		}
	},
}

// clineKind returns the kind of an event. asked says that Cline asks the user. The first
// text is the task that the user gave.
func clineKind(what string, asked, first bool) string {
	switch what {
	case "task", "user_feedback":
		return "user"
	case "command_output", "browser_action_result", "mcp_server_response":
		return "tool"
	case "text", "reasoning", "completion_result", "tool", "command", "browser_action":
		if first && !asked {
			return "user"
		}
		return "assistant"
	}
	if asked {
		return "assistant"
	}
	return "event"
}
