package importer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/turnstonedb/turnstone"
)

// A message is what the chat formats have in common.
type message struct {
	Role        string          `json:"role"`
	Content     json.RawMessage `json:"content"`
	ToolCalls   json.RawMessage `json:"tool_calls"`
	Model       string          `json:"model"`
	Usage       *usage          `json:"usage"`
	MessageType string          `json:"message_type"`
	IsDemo      bool            `json:"is_demo"`
}

// usage in the forms of OpenAI, Anthropic and pi.
type usage struct {
	Prompt     count `json:"prompt_tokens"`
	Completion count `json:"completion_tokens"`
	PromptInfo struct {
		Cached count `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionInfo struct {
		Reasoning count `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`

	InputTokens   count `json:"input_tokens"`
	OutputTokens  count `json:"output_tokens"`
	CacheCreation count `json:"cache_creation_input_tokens"`
	CacheRead     count `json:"cache_read_input_tokens"`

	Input        count `json:"input"`
	Output       count `json:"output"`
	PiCacheRead  count `json:"cacheRead"`
	PiCacheWrite count `json:"cacheWrite"`
}

// A count of tokens. What is no count, such as null or a negative number,
// counts as none.
type count uint64

// UnmarshalJSON never fails: usage is beside the point of a transcript.
func (c *count) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseFloat(string(b), 64)
	if err == nil && n > 0 {
		*c = count(min(n, turnstone.MaxTokens))
	}
	return nil
}

func (u *usage) of(model string) []turnstone.Usage {
	if u == nil {
		return nil
	}
	out := turnstone.Usage{
		Model:       model,
		Input:       uint64(u.Prompt + u.InputTokens + u.Input),
		Output:      uint64(u.Completion + u.OutputTokens + u.Output),
		CachedInput: uint64(u.PromptInfo.Cached + u.CacheRead + u.PiCacheRead),
		CacheWrite:  uint64(u.CacheCreation + u.PiCacheWrite),
		Reasoning:   uint64(u.CompletionInfo.Reasoning),
	}
	if out == (turnstone.Usage{Model: model}) {
		return nil
	}
	return []turnstone.Usage{out}
}

// messages makes a conversation of a list of chat messages.
func (p *parser) messages(id, format string, items []json.RawMessage, line int) (Conversation, bool) {
	c := Conversation{ID: id, Format: format}
	for i, raw := range items {
		var m message
		if err := decode(raw, &m); err != nil {
			p.fail(line, "message %d: %v", i, err)
			return c, false
		}
		if m.Role == "" {
			p.fail(line, "message %d has no role", i)
			return c, false
		}
		if m.Model != "" {
			c.Model = m.Model
		}
		c.Events = append(c.Events, Event{
			Kind: m.Role, Payload: compact(raw), Line: i, Turn: m.Role == "user", Usage: m.Usage.of(m.Model),
		})
	}
	return c, true
}

// chat reads {"messages":[…]}, as OpenAI's chat requests and fine-tuning files have it.
func (p *parser) chat(id string, raw json.RawMessage, line int) {
	var top struct {
		ID       any               `json:"id"`
		Model    string            `json:"model"`
		Messages []json.RawMessage `json:"messages"`
		Usage    *usage            `json:"usage"`
	}
	if err := decode(raw, &top); err != nil {
		p.fail(line, "%v", err)
		return
	}
	if s, ok := top.ID.(string); ok && s != "" {
		id = s
	}
	c, ok := p.messages(id, "openai", top.Messages, line)
	if !ok {
		return
	}
	if top.Model != "" {
		c.Model = top.Model
	}
	if n := len(c.Events); n > 0 {
		c.Events[n-1].Usage = append(c.Events[n-1].Usage, top.Usage.of(c.Model)...)
	}
	p.out = append(p.out, c)
}

// tau reads a result file of tau-bench: an array of conversations.
func (p *parser) tau(items []json.RawMessage) {
	for i, raw := range items {
		var e struct {
			Task  any               `json:"task_id"`
			Trial any               `json:"trial"`
			Traj  []json.RawMessage `json:"traj"`
		}
		if err := decode(raw, &e); err != nil {
			p.fail(0, "element %d: %v", i, err)
			continue
		}
		id := fmt.Sprintf("%s/%v/%v", p.stem, e.Task, e.Trial)
		if c, ok := p.messages(id, "tau-bench", e.Traj, 0); ok {
			p.out = append(p.out, c)
		}
	}
}

// tau2 reads a result file of tau2-bench: an object of simulations. The user
// is simulated; what it used is booked apart.
func (p *parser) tau2(data []byte) {
	type llm struct {
		LLM string `json:"llm"`
	}
	var top struct {
		Info struct {
			Agent llm `json:"agent_info"`
			User  llm `json:"user_info"`
		} `json:"info"`
		Simulations []struct {
			ID       string            `json:"id"`
			Task     any               `json:"task_id"`
			Messages []json.RawMessage `json:"messages"`
		} `json:"simulations"`
	}
	if err := json.Unmarshal(data, &top); err != nil {
		p.fail(0, "%v", err)
		return
	}
	for i, s := range top.Simulations {
		if s.ID == "" {
			s.ID = fmt.Sprintf("%s/%d", p.stem, i)
		}
		c, ok := p.messages(s.ID, "tau2", s.Messages, 0)
		if !ok {
			continue
		}
		c.Model = top.Info.Agent.LLM
		for j := range c.Events {
			e := &c.Events[j]
			var m message
			if json.Unmarshal(e.Payload, &m) == nil {
				model := c.Model
				if m.Role == "user" {
					model = top.Info.User.LLM + " (simulated user)"
				}
				e.Usage = m.Usage.of(model)
				calls := bytes.TrimSpace(m.ToolCalls)
				e.Turn = e.Turn && (len(calls) == 0 || string(calls) == "null" || string(calls) == "[]")
			}
		}
		p.out = append(p.out, c)
	}
}

// swe reads a trajectory of SWE-agent or SWE-smith: one run, which is one turn.
// Where a step has the whole prompt, that becomes the checkpoint part "prompt".
func (p *parser) swe(data []byte) {
	var top struct {
		History    []json.RawMessage `json:"history"`
		Trajectory []struct {
			Messages json.RawMessage `json:"messages"`
		} `json:"trajectory"`
		Info struct {
			Stats struct {
				Sent     count `json:"tokens_sent"`
				Received count `json:"tokens_received"`
			} `json:"model_stats"`
		} `json:"info"`
	}
	if err := json.Unmarshal(data, &top); err != nil {
		p.fail(0, "%v", err)
		return
	}
	c, ok := p.messages(p.stem, "swe-agent", top.History, 0)
	if !ok {
		return
	}
	started, step := false, 0
	for i := range c.Events {
		e := &c.Events[i]
		var m message
		if json.Unmarshal(e.Payload, &m) != nil {
			continue
		}
		e.Turn = false
		if m.Role == "user" && !m.IsDemo {
			// The first one is the issue; later ones are what the tools answered.
			if e.Turn = !started; started {
				e.Kind = "tool"
			}
			started = true
		}
		if m.Role == "assistant" && !m.IsDemo {
			if step < len(top.Trajectory) && top.Trajectory[step].Messages != nil {
				e.Checkpoint = map[string][]byte{"prompt": compact(top.Trajectory[step].Messages)}
			}
			step++
		}
	}
	u := usage{Prompt: top.Info.Stats.Sent, Completion: top.Info.Stats.Received}
	if n := len(c.Events); n > 0 {
		c.Events[n-1].Usage = u.of("")
	}
	p.out = append(p.out, c)
}

// Text returns what a person would read in a payload of any of the formats.
func Text(payload []byte) string {
	var v any
	if json.Unmarshal(payload, &v) != nil {
		return string(payload)
	}
	if s := text(v, 0); s != "" {
		return s
	}
	return string(payload)
}

// text looks for the fields in which the formats keep what was said.
func text(v any, depth int) string {
	if depth > 6 {
		return ""
	}
	switch v := v.(type) {
	case string:
		return v
	case []any:
		out := ""
		for _, item := range v {
			if s := text(item, depth+1); s != "" {
				if out != "" {
					out += "\n"
				}
				out += s
			}
		}
		return out
	case map[string]any:
		out := ""
		for _, key := range []string{"message", "content", "text", "thinking", "summary", "thought", "command", "observation", "attachment"} {
			if s := text(v[key], depth+1); s != "" {
				out = s
				break
			}
		}
		for _, call := range calls(v) {
			if out != "" {
				out += "\n"
			}
			out += call
		}
		return out
	}
	return ""
}

// calls renders tool calls in the forms of OpenAI, Anthropic and pi.
func calls(m map[string]any) []string {
	var out []string
	add := func(name, args any) {
		if s, ok := args.(string); ok {
			var v map[string]any
			if json.Unmarshal([]byte(s), &v) != nil {
				out = append(out, fmt.Sprintf("%v(%s)", name, s))
				return
			}
			args = v
		}
		out = append(out, fmt.Sprintf("%v(%s)", name, arguments(args)))
	}
	if list, ok := m["tool_calls"].([]any); ok {
		for _, item := range list {
			c, _ := item.(map[string]any)
			if f, ok := c["function"].(map[string]any); ok {
				add(f["name"], f["arguments"])
			} else if c["name"] != nil {
				add(c["name"], c["arguments"])
			}
		}
	}
	switch m["type"] {
	case "tool_use":
		add(m["name"], m["input"])
	case "toolCall":
		add(m["name"], m["arguments"])
	}
	return out
}

// arguments writes those of a tool call as a person would: texts as they are.
func arguments(v any) string {
	fields, ok := v.(map[string]any)
	if !ok {
		b, _ := json.Marshal(v)
		return string(b)
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		text, ok := fields[name].(string)
		if !ok {
			b, _ := json.Marshal(fields[name])
			text = string(b)
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
		add := func(id, name any) {
			c := Call{}
			c.ID, _ = id.(string)
			c.Name, _ = name.(string)
			if c.Name != "" {
				out = append(out, c)
			}
		}
		if list, ok := m["tool_calls"].([]any); ok {
			for _, item := range list {
				c, _ := item.(map[string]any)
				if f, ok := c["function"].(map[string]any); ok {
					add(c["id"], f["name"])
				} else {
					add(c["id"], c["name"])
				}
			}
		}
		if m["type"] == "tool_use" || m["type"] == "toolCall" {
			add(m["id"], m["name"])
		}
	})
	return out
}

// Answers returns the ids of the tool calls whose results a payload has.
func Answers(payload []byte) (out []string) {
	walk(payload, func(m map[string]any) {
		for _, key := range []string{"tool_call_id", "tool_use_id", "toolCallId"} {
			if id, ok := m[key].(string); ok && id != "" {
				out = append(out, id)
			}
		}
	})
	return out
}

// walk calls f for the objects of a payload that can be messages or blocks.
func walk(payload []byte, f func(map[string]any)) {
	var v any
	if json.Unmarshal(payload, &v) != nil {
		return
	}
	var into func(v any, depth int)
	into = func(v any, depth int) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				into(item, depth)
			}
		case map[string]any:
			f(v)
			if depth < 4 {
				into(v["message"], depth+1)
				into(v["content"], depth+1)
			}
		}
	}
	into(v, 0)
}
