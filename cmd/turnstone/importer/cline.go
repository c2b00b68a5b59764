package importer

import (
	"cmp"
	"encoding/json"
	"fmt"
)

// clineEvents reads ui_messages.json, an array of the events that Cline shows of a task.
// The usage of a request is in the text of its event, which is JSON. Cline's other file,
// with the messages that it sends to the model, is a chat.
func (p *parser) clineEvents(items []json.RawMessage) {
	c := Conversation{ID: p.stem, Format: "cline"}
	for i, raw := range items {
		var e struct {
			Time      when   `json:"ts"`
			Say       string `json:"say"`
			Ask       string `json:"ask"`
			Text      string `json:"text"`
			ModelInfo struct {
				Model string `json:"modelId"`
			} `json:"modelInfo"`
		}
		if err := decode(raw, &e); err != nil {
			p.fail(0, "event %d: %v", i, err)
			return
		}
		ev := Event{Kind: clineKind(cmp.Or(e.Say, e.Ask), e.Ask != "", i == 0), Payload: compact(raw), Line: i, Time: e.Time.Time}
		if !p.fits(0, fmt.Sprintf("event %d ", i), ev.Payload) {
			return
		}
		ev.Turn = ev.Kind == "user"
		c.Model = cmp.Or(e.ModelInfo.Model, c.Model)
		var u usage
		if e.Say == "api_req_started" && json.Unmarshal([]byte(e.Text), &u) == nil {
			ev.Usage = u.of(c.Model)
		}
		c.Events = append(c.Events, ev)
	}
	p.out = append(p.out, c)
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
