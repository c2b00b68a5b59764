package importer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/tidwall/gjson"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// A message has the fields of a message of a benchmark's result.
type message struct {
	Role        string          `json:"role"`
	Content     json.RawMessage `json:"content"`
	ToolCalls   json.RawMessage `json:"tool_calls"`
	Model       string          `json:"model"`
	Usage       *usage          `json:"usage"`
	Cost        dollars         `json:"cost"`
	MessageType string          `json:"message_type"`
	IsDemo      bool            `json:"is_demo"`

	Timestamp when `json:"timestamp"`
	TS        when `json:"ts"`
	CreatedAt when `json:"created_at"`
}

// used returns what the message used, as that of a model.
func (m *message) used(model string) []head.Usage {
	var u usage
	if m.Usage != nil {
		u = *m.Usage
	}
	u.Cost = max(u.Cost, uint64(m.Cost))
	return u.of(model)
}

// time returns the time of the message, or the zero time.
func (m *message) time() time.Time { return firstTime(m.Timestamp, m.TS, m.CreatedAt) }

// messages makes a conversation of a list of chat messages. It returns false if one of
// them can't be read.
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
		e := Event{Kind: m.Role, Payload: compact(raw), Line: i, Before: i - 1, Turn: m.Role == "user", Usage: m.used(m.Model), Time: m.time()}
		if !p.fits(line, fmt.Sprintf("message %d ", i), e.Payload) {
			return c, false
		}
		c.Model = cmp.Or(m.Model, c.Model)
		c.Events = append(c.Events, e)
	}
	return c, true
}

// A count is a number of tokens.
type count uint64

// UnmarshalJSON takes values that are not positive numbers for 0, and never fails.
func (c *count) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseFloat(string(b), 64)
	if err == nil && n > 0 {
		*c = count(min(n, turnstone.MaxTokens))
	}
	return nil
}

// dollars is an amount in the unit of head.Usage.Cost.
type dollars uint64

// UnmarshalJSON takes what is no number for 0, and never fails.
func (d *dollars) UnmarshalJSON(b []byte) error {
	*d = dollars(nanoDollars(gjson.ParseBytes(b).Num))
	return nil
}

// tau is a conversation in a result file of tau-bench.
var tau = &format{
	name: "tau-bench", about: "result files",
	whole: func(f *fields) bool { return f.get("traj").IsArray() },
	own: func(p *parser, raw []byte, id string, line int) {
		var e struct {
			Task  any               `json:"task_id"`
			Trial any               `json:"trial"`
			Traj  []json.RawMessage `json:"traj"`
		}
		if err := decode(raw, &e); err != nil {
			p.fail(line, "%s: %v", id, err)
			return
		}
		id = fmt.Sprintf("%s/%v/%v", p.stem, e.Task, e.Trial)
		if c, ok := p.messages(id, "tau-bench", e.Traj, line); ok {
			c.outside(raw, "traj")
			p.out = append(p.out, c)
		}
	},
}

// tau2 is a result file of tau2-bench: an object with simulations. The user is
// simulated, too. The usage of the simulated user has a model name of its own.
var tau2 = &format{
	name: "tau2", about: "result files of tau2-bench",
	whole: func(f *fields) bool { return f.get("simulations").IsArray() },
	own:   (*parser).simulations,
}

// simulations reads a result file.
func (p *parser) simulations(data []byte, _ string, line int) {
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
		p.fail(line, "%v", err)
		return
	}
	shared := without(data, "simulations")
	for i, raw := range top.Simulations {
		c, ok := p.simulation(i, raw)
		if !ok {
			continue
		}
		c.Model, c.Shared = top.Info.Agent.LLM, shared
		for j := range c.Events {
			c.Events[j].simulated(c.Model, top.Info.User.LLM+" (simulated user)")
		}
		p.out = append(p.out, c)
	}
}

// simulation makes a conversation of the simulation with index i.
func (p *parser) simulation(i int, raw json.RawMessage) (Conversation, bool) {
	var s struct {
		ID       string            `json:"id"`
		Start    when              `json:"start_time"`
		Time     when              `json:"timestamp"`
		Messages []json.RawMessage `json:"messages"`
	}
	if err := decode(raw, &s); err != nil {
		p.fail(0, "simulation %d: %v", i, err)
		return Conversation{}, false
	}
	if s.ID == "" {
		s.ID = fmt.Sprintf("%s/%d", p.stem, i)
	}
	c, ok := p.messages(s.ID, "tau2", s.Messages, 0)
	c.began = firstTime(s.Start, s.Time)
	c.outside(raw, "messages")
	return c, ok
}

// simulated gives the usage of a message to the agent's or to the user's model. A message
// of the user that calls tools begins no turn.
func (e *Event) simulated(agent, user string) {
	var m message
	if json.Unmarshal(e.Payload, &m) != nil {
		return
	}
	model := agent
	if m.Role == "user" {
		model = user
	}
	e.Usage = m.used(model)
	switch string(bytes.TrimSpace(m.ToolCalls)) {
	case "", "null", "[]":
	default:
		e.Turn = false
	}
}

// swe is a trajectory of SWE-agent or SWE-smith: one run, which is one turn.
var swe = &format{
	name: "swe-agent", about: "trajectories of SWE-agent and SWE-smith",
	whole: func(f *fields) bool { return f.get("history").IsArray() && !f.has("instruction") },
	own:   (*parser).trajectory,
}

// trajectory reads a trajectory. Prompts of its steps become the checkpoint part "prompt".
func (p *parser) trajectory(data []byte, id string, line int) {
	var top struct {
		History    []json.RawMessage `json:"history"`
		Trajectory []json.RawMessage `json:"trajectory"`
		Replay     json.RawMessage   `json:"replay_config"`
		Info       struct {
			Stats struct {
				Sent     count   `json:"tokens_sent"`
				Received count   `json:"tokens_received"`
				Cost     dollars `json:"instance_cost"`
			} `json:"model_stats"`
		} `json:"info"`
	}
	if err := json.Unmarshal(data, &top); err != nil {
		p.fail(line, "%v", err)
		return
	}
	c, ok := p.messages(id, "swe-agent", top.History, line)
	if !ok {
		return
	}
	c.sweEvents(top.Trajectory)
	var rest map[string]json.RawMessage
	if json.Unmarshal(data, &rest) == nil {
		if delete(rest, "history"); top.Trajectory != nil {
			rest["trajectory"] = marshal(top.Trajectory)
		}
		c.outside(marshal(rest))
	}
	c.Model = cmp.Or(c.Model, sweModel(top.Replay))
	u := usage{head.Usage{Input: uint64(top.Info.Stats.Sent), Output: uint64(top.Info.Stats.Received), Cost: uint64(top.Info.Stats.Cost)}}
	c.Totals = u.of(c.Model)
	p.out = append(p.out, c)
}

// sweEvents sets the kinds and turns of the events. The first message of the user is the
// issue; later ones are results of tools. If a step of the trajectory has the whole
// prompt, sweEvents moves the prompt to the checkpoint part "prompt" of the step's event.
func (c *Conversation) sweEvents(trajectory []json.RawMessage) {
	started, step := false, 0
	for i := range c.Events {
		e := &c.Events[i]
		e.Turn = false
		var m message
		if json.Unmarshal(e.Payload, &m) != nil || m.IsDemo {
			continue
		}
		switch {
		case m.Role == "user" && !started:
			e.Turn, started = true, true
		case m.Role == "user":
			e.Kind = "tool"
		case m.Role == "assistant":
			if step < len(trajectory) {
				e.takePrompt(&trajectory[step])
			}
			step++
		}
	}
}

// takePrompt moves the prompt from a step of a trajectory to the event.
func (e *Event) takePrompt(step *json.RawMessage) {
	var s struct {
		Messages json.RawMessage `json:"messages"`
	}
	if json.Unmarshal(*step, &s) == nil && s.Messages != nil {
		e.Checkpoint = map[string][]byte{"prompt": compact(s.Messages)}
		*step = without(*step, "messages")
	}
}

// sweModel returns the model that SWE-agent's configuration of a run names. The
// configuration is an object, or a string that has the object as JSON.
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
