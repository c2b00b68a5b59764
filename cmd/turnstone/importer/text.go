package importer

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Text returns the text of a payload of any of the formats, as a person would read it.
func Text(payload []byte) string {
	var v any
	if json.Unmarshal(payload, &v) != nil {
		return string(payload)
	}
	if s := text(v, 0, true); s != "" {
		return s
	}
	return string(payload)
}

// Said returns what a payload says in the conversation: Text without what the model thought. It is empty if the
// payload has no such text, as bookkeeping of an agent.
func Said(payload []byte) string {
	var v any
	if json.Unmarshal(payload, &v) != nil {
		return string(payload)
	}
	return text(v, 0, false)
}

// textFields are the fields in which the formats keep text. The first one that has any counts.
var textFields = []string{
	"message", "content", "text", "parts", "payload", "data", "kwargs", "event", "part", "value", "thinking", "summary", "thought",
	"command", "observation", "attachment", "output", "result", "functionResponse", "response",
}

// text returns the text in a decoded value: of a list, the texts of its items; of an
// object, that of the first of textFields that has any, and its tool calls.
func text(v any, depth int, thoughts bool) string {
	if depth > 6 {
		return ""
	}
	var parts []string
	switch v := v.(type) {
	case string:
		return v
	case []any:
		for _, item := range v {
			if s := text(item, depth+1, thoughts); s != "" {
				parts = append(parts, s)
			}
		}
	case map[string]any:
		if kind, _ := v["type"].(string); !thoughts && (kind == "thinking" || kind == "reasoning" || v["thought"] == true) {
			return ""
		}
		for _, key := range textFields {
			if s := text(v[key], depth+1, thoughts); s != "" {
				parts = append(parts, s)
				break
			}
		}
		for _, call := range toolCalls(v) {
			parts = append(parts, call.text())
		}
	}
	return strings.Join(parts, "\n")
}

// A toolCall has the fields of a tool call as they are decoded.
type toolCall struct{ id, name, args any }

// callTypes are the types of objects that are tool calls themselves: of Anthropic, pi, and the Responses API.
var callTypes = []any{"tool_use", "toolCall", "function_call", "custom_tool_call", "tool.call"}

// toolCalls returns the tool calls of an object in the forms of the formats: in a list, as OpenAI, LangChain, Gemini
// CLI and Copilot CLI have them, in a part of Google's API, or as the object itself.
func toolCalls(m map[string]any) []toolCall {
	var out []toolCall
	add := func(v any) {
		if c, ok := v.(map[string]any); ok && c["name"] != nil {
			args := first(c["arguments"], c["args"], c["input"])
			out = append(out, toolCall{first(c["call_id"], c["callID"], c["toolCallId"], c["id"]), c["name"], args})
		}
	}
	for _, key := range []string{"tool_calls", "toolCalls", "toolRequests"} {
		list, _ := m[key].([]any)
		for _, item := range list {
			c, _ := item.(map[string]any)
			if f, ok := c["function"].(map[string]any); ok {
				out = append(out, toolCall{c["id"], f["name"], f["arguments"]})
			} else {
				add(item)
			}
		}
	}
	add(m["functionCall"])
	if slices.Contains(callTypes, m["type"]) {
		add(m)
	}
	return out
}

// first returns the first value that is not nil.
func first(all ...any) any {
	for _, v := range all {
		if v != nil {
			return v
		}
	}
	return nil
}

// text writes a call as a function call. Arguments may be a string that has JSON.
func (c toolCall) text() string {
	name, _ := c.name.(string)
	args := c.args
	if s, ok := args.(string); ok {
		var v map[string]any
		if json.Unmarshal([]byte(s), &v) != nil {
			return fmt.Sprintf("%s(%s)", name, s)
		}
		args = v
	}
	return fmt.Sprintf("%s(%s)", name, arguments(args))
}

// arguments writes the arguments of a call. Strings have no quotes.
func arguments(v any) string {
	fields, ok := v.(map[string]any)
	if !ok {
		return string(marshal(v))
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		text, ok := fields[name].(string)
		if !ok {
			text = string(marshal(fields[name]))
		}
		out = append(out, name+": "+text)
	}
	return strings.Join(out, ", ")
}

// A Call is a tool call in a payload.
type Call struct{ ID, Name string }

// Calls returns the tool calls of a payload in any of the formats.
func Calls(payload []byte) (out []Call) {
	walk(payload, func(m map[string]any) {
		for _, call := range toolCalls(m) {
			id, _ := call.id.(string)
			if name, _ := call.name.(string); name != "" {
				out = append(out, Call{ID: id, Name: name})
			}
		}
	})
	return out
}

// Answers returns the ids of the tool calls whose results a payload has.
func Answers(payload []byte) (out []string) {
	add := func(m map[string]any, names ...string) {
		for _, name := range names {
			if id, ok := m[name].(string); ok && id != "" {
				out = append(out, id)
			}
		}
	}
	walk(payload, func(m map[string]any) {
		if first(m["content"], m["output"], m["result"]) != nil && !slices.Contains(callTypes, m["type"]) {
			add(m, "tool_call_id", "tool_use_id", "toolCallId", "call_id")
		}
		if f, ok := m["functionResponse"].(map[string]any); ok {
			add(f, "id")
		}
		list, _ := m["toolCalls"].([]any) // Gemini CLI keeps the result with the call.
		for _, item := range list {
			if c, ok := item.(map[string]any); ok && c["result"] != nil {
				add(c, "id")
			}
		}
	})
	return out
}

// walk calls f for the objects of a payload that can be messages or blocks of content.
func walk(payload []byte, f func(map[string]any)) {
	var v any
	if json.Unmarshal(payload, &v) == nil {
		walkValue(v, 0, f)
	}
}

func walkValue(v any, depth int, f func(map[string]any)) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			walkValue(item, depth, f)
		}
	case map[string]any:
		f(v)
		for _, inner := range []string{"message", "content", "payload", "data", "kwargs", "parts", "event"} {
			if depth < 4 {
				walkValue(v[inner], depth+1, f)
			}
		}
	}
}

// Beside reports whether a node of an imported session is beside the conversation: it says nothing, or it is what
// the agent noted for itself.
func Beside(kind string, payload []byte) bool {
	return !inConversation(kind) || strings.TrimSpace(Said(payload)) == ""
}

// inConversation reports whether nodes of a kind are of the conversation, not notes of the agent for itself.
func inConversation(kind string) bool {
	switch kind {
	case "user", "assistant", "tool", "system", "compaction", "summary", "attachment":
		return true
	}
	return false
}
