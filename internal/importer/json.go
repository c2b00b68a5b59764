package importer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
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

	Timestamp when `json:"timestamp"`
	TS        when `json:"ts"`
	CreatedAt when `json:"created_at"`

	// Cline
	Metrics struct {
		Tokens *usage `json:"tokens"`
	} `json:"metrics"`
	ModelInfo struct {
		Model string `json:"modelId"`
	} `json:"modelInfo"`

	// mini-swe-agent
	Extra struct {
		Response struct {
			Model string `json:"model"`
			Usage *usage `json:"usage"`
		} `json:"response"`
	} `json:"extra"`
}

// model returns the model that wrote the message, if the message says so.
func (m *message) model() string { return cmp.Or(m.Model, m.ModelInfo.Model, m.Extra.Response.Model) }

// used returns what the message says was used.
func (m *message) used(model string) []head.Usage {
	for _, u := range []*usage{m.Usage, m.Metrics.Tokens, m.Extra.Response.Usage} {
		if out := u.of(model); out != nil {
			return out
		}
	}
	return nil
}

func (m *message) time() time.Time { return first(m.Timestamp, m.TS, m.CreatedAt) }

// UnmarshalJSON never fails for what is beside the point of a transcript: fields of
// other programs can have these names.
func (u *usage) UnmarshalJSON(b []byte) error {
	type plain usage
	var v plain
	if json.Unmarshal(b, &v) == nil {
		*u = usage(v)
	}
	return nil
}

// usage in the forms of OpenAI, Anthropic, pi, OpenHands and Cline.
type usage struct {
	Model string `json:"model"`

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

	HandsCacheRead  count `json:"cache_read_tokens"`
	HandsCacheWrite count `json:"cache_write_tokens"`

	ClinePrompt     count `json:"prompt"`
	ClineCompletion count `json:"completion"`
	ClineCached     count `json:"cached"`
	ClineIn         count `json:"tokensIn"`
	ClineOut        count `json:"tokensOut"`
	ClineCacheRead  count `json:"cacheReads"`
	ClineCacheWrite count `json:"cacheWrites"`
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

func (u *usage) of(model string) []head.Usage {
	if u == nil {
		return nil
	}
	out := head.Usage{
		Model:       model,
		Input:       uint64(u.Prompt + u.InputTokens + u.Input + u.ClinePrompt + u.ClineIn),
		Output:      uint64(u.Completion + u.OutputTokens + u.Output + u.ClineCompletion + u.ClineOut),
		CachedInput: uint64(u.PromptInfo.Cached + u.CacheRead + u.PiCacheRead + u.HandsCacheRead + u.ClineCached + u.ClineCacheRead),
		CacheWrite:  uint64(u.CacheCreation + u.PiCacheWrite + u.HandsCacheWrite + u.ClineCacheWrite),
		Reasoning:   uint64(u.CompletionInfo.Reasoning),
	}
	if out == (head.Usage{Model: model}) {
		return nil
	}
	return []head.Usage{out}
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
		e := Event{Kind: m.Role, Payload: compact(raw), Line: i, Turn: m.Role == "user", Usage: m.used(m.model()), Time: m.time()}
		if !p.fits(line, fmt.Sprintf("message %d ", i), e.Payload) {
			return c, false
		}
		c.Model = cmp.Or(m.model(), c.Model)
		c.Events = append(c.Events, e)
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
		Created  when              `json:"created"`
		At       when              `json:"created_at"`
		Time     when              `json:"timestamp"`
		Info     struct {
			Config struct {
				Model struct {
					Name string `json:"model_name"`
				} `json:"model"`
			} `json:"config"`
		} `json:"info"` // of mini-swe-agent
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
	c.Model = cmp.Or(top.Model, c.Model, top.Info.Config.Model.Name)
	c.Totals = top.Usage.of(c.Model)
	c.began = first(top.Created, top.At, top.Time)
	c.outside(raw, "messages")
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
			c.outside(raw, "traj")
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
		Simulations []json.RawMessage `json:"simulations"`
	}
	if err := json.Unmarshal(data, &top); err != nil {
		p.fail(0, "%v", err)
		return
	}
	shared := without(data, "simulations")
	for i, raw := range top.Simulations {
		var s struct {
			ID       string            `json:"id"`
			Start    when              `json:"start_time"`
			Time     when              `json:"timestamp"`
			Messages []json.RawMessage `json:"messages"`
		}
		if err := decode(raw, &s); err != nil {
			p.fail(0, "simulation %d: %v", i, err)
			continue
		}
		if s.ID == "" {
			s.ID = fmt.Sprintf("%s/%d", p.stem, i)
		}
		c, ok := p.messages(s.ID, "tau2", s.Messages, 0)
		if !ok {
			continue
		}
		c.Model, c.Shared, c.began = top.Info.Agent.LLM, shared, first(s.Start, s.Time)
		c.outside(raw, "messages")
		for j := range c.Events {
			e := &c.Events[j]
			var m message
			if json.Unmarshal(e.Payload, &m) == nil {
				model := c.Model
				if m.Role == "user" {
					model = top.Info.User.LLM + " (simulated user)"
				}
				e.Usage = m.used(model)
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
		Trajectory []json.RawMessage `json:"trajectory"`
		Replay     json.RawMessage   `json:"replay_config"`
		Info       struct {
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
			if step < len(top.Trajectory) {
				var s struct {
					Messages json.RawMessage `json:"messages"`
				}
				if json.Unmarshal(top.Trajectory[step], &s) == nil && s.Messages != nil {
					e.Checkpoint = map[string][]byte{"prompt": compact(s.Messages)}
					top.Trajectory[step] = without(top.Trajectory[step], "messages")
				}
			}
			step++
		}
	}
	var rest map[string]json.RawMessage
	if json.Unmarshal(data, &rest) == nil {
		if delete(rest, "history"); top.Trajectory != nil {
			rest["trajectory"] = marshal(top.Trajectory)
		}
		c.outside(marshal(rest))
	}
	c.Model = cmp.Or(c.Model, sweModel(top.Replay))
	u := usage{Prompt: top.Info.Stats.Sent, Completion: top.Info.Stats.Received}
	c.Totals = u.of(c.Model)
	p.out = append(p.out, c)
}

// sweModel returns the model that SWE-agent's configuration of a run names: an
// object, or a text that is one.
func sweModel(config json.RawMessage) string {
	var text string
	if json.Unmarshal(config, &text) == nil {
		config = json.RawMessage(text)
	}
	var c struct {
		Agent struct {
			Model struct {
				Name string `json:"name"`
			} `json:"model"`
		} `json:"agent"`
	}
	if json.Unmarshal(config, &c) != nil {
		return ""
	}
	return c.Agent.Model.Name
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
