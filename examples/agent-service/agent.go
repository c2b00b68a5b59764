package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/turnstonedb/turnstone"
)

// A message is the payload of a node, in the format of chat APIs.
type message struct {
	Role       string `json:"role"`
	Content    string `json:"content"`
	ToolCalls  []call `json:"tool_calls,omitempty"`
	ToolCallID string `json:"tool_call_id,omitempty"`
}

type call struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

func (m *message) node() (turnstone.NewNode, error) {
	payload, err := json.Marshal(m)
	return turnstone.NewNode{Kind: m.Role, Payload: payload}, err
}

// The tools of the agent.
var tools = map[string]func(args []string) string{
	"add": func(args []string) string {
		sum := 0
		for _, a := range args {
			n, err := strconv.Atoi(a)
			if err != nil {
				return "error: " + strconv.Quote(a) + " is no number"
			}
			sum += n
		}
		return strconv.Itoa(sum)
	},
	"reverse": func(args []string) string {
		r := []rune(strings.Join(args, " "))
		for i, j := 0, len(r)-1; i < j; i, j = i+1, j-1 {
			r[i], r[j] = r[j], r[i]
		}
		return string(r)
	},
}

// answer stands in for a model: the same history gives the same messages. A text
// that begins with the name of a tool has it called. The last message is the
// reply.
func answer(history []message) []message {
	text := history[len(history)-1].Content
	words := strings.Fields(text)
	asked := 0
	for _, m := range history {
		if m.Role == "user" {
			asked++
		}
	}
	if len(words) > 0 {
		if tool := tools[words[0]]; tool != nil {
			id := fmt.Sprint("call_", asked)
			arguments, _ := json.Marshal(words[1:]) // can't fail: these are strings
			result := tool(words[1:])
			return []message{
				{Role: "assistant", ToolCalls: []call{{ID: id, Type: "function", Function: function{Name: words[0], Arguments: string(arguments)}}}},
				{Role: "tool", Content: result, ToolCallID: id},
				{Role: "assistant", Content: fmt.Sprintf("The tool %s says: %s", words[0], result)},
			}
		}
	}
	return []message{{Role: "assistant", Content: fmt.Sprintf("You said %q. That was question %d of this chat.", text, asked)}}
}
