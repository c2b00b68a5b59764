package importer

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/turnstonedb/turnstone/head"
)

// openhands is output.jsonl of OpenHands, of which each line is a conversation.
var openhands = &format{
	name: "openhands", about: "output.jsonl, or an array of events", inLines: true,
	whole: func(f *fields) bool { return f.has("history", "instruction") },
	own:   (*parser).openhandsRun,
}

// openhandsEvents is an array of the events of OpenHands.
var openhandsEvents = &format{
	name: "openhands",
	line: func(f *fields) bool { return f.has("action") || f.has("observation") },
	own: func(p *parser, raw []byte, id string, line int) {
		var events []json.RawMessage
		if err := json.Unmarshal(raw, &events); err != nil {
			p.fail(line, "%v", err)
			return
		}
		c := Conversation{ID: id, Format: "openhands"}
		if p.openhandsEvents(&c, events, line) {
			p.out = append(p.out, c)
		}
	},
}

// openhandsRun reads a line of output.jsonl.
func (p *parser) openhandsRun(raw []byte, id string, line int) {
	var top struct {
		History []json.RawMessage `json:"history"`
		Model   string            `json:"model"`
		Metrics metrics           `json:"metrics"`
	}
	if err := decode(raw, &top); err != nil {
		p.fail(line, "%v", err)
		return
	}
	c := Conversation{ID: id, Format: "openhands", Model: top.Model}
	if !p.openhandsEvents(&c, top.History, line) {
		return
	}
	c.Totals = top.Metrics.total(c.Model)
	for _, u := range c.Totals {
		c.Model = cmp.Or(c.Model, u.Model)
	}
	c.outside(raw, "history")
	p.out = append(p.out, c)
}

// metrics has the usage that OpenHands reports: up to an event, or of a whole
// conversation.
type metrics struct {
	Accumulated *usage   `json:"accumulated_token_usage"`
	Cost        dollars  `json:"accumulated_cost"`
	Responses   []*usage `json:"token_usages"`
}

// total returns the usage by model, if the responses name their models.
func (m *metrics) total(model string) (all []head.Usage) {
	for _, u := range m.Responses {
		all = append(all, u.of(cmp.Or(u.Model, model))...)
	}
	if all == nil && m.Accumulated != nil {
		all = m.Accumulated.of(cmp.Or(model, m.Accumulated.Model))
	}
	if all = merge(all); len(all) == 1 {
		all[0].Cost = max(all[0].Cost, uint64(m.Cost))
	}
	return all
}

// An openhandsEvent is an action or an observation.
type openhandsEvent struct {
	Action      string          `json:"action"`
	Source      string          `json:"source"`
	Observation json.RawMessage `json:"observation"`
	Timestamp   when            `json:"timestamp"`
	Metrics     metrics         `json:"llm_metrics"`
	Call        struct {
		Response openhandsResponse `json:"model_response"`
	} `json:"tool_call_metadata"`
}

type openhandsResponse struct {
	ID    string `json:"id"`
	Model string `json:"model"`
	Usage *usage `json:"usage"`
}

// kind returns the kind of the event with index i.
func (e *openhandsEvent) kind(i int) string {
	switch {
	case e.Action == "message" && i == 0 || e.Source == "user":
		return "user"
	case e.Observation != nil:
		return "tool"
	}
	return "assistant"
}

// openhandsEvents adds the events of a history to c. It returns false if one of them
// can't be read.
func (p *parser) openhandsEvents(c *Conversation, history []json.RawMessage, line int) bool {
	used := openhandsUsage{counted: map[string]bool{}}
	for i, raw := range unpaired(history) {
		var e openhandsEvent
		if err := decode(raw, &e); err != nil {
			p.fail(line, "history %d: %v", i, err)
			return false
		}
		kind := e.kind(i)
		ev := Event{Kind: kind, Payload: compact(raw), Line: i, Before: i - 1, Turn: kind == "user", Time: e.Timestamp.Time}
		if !p.fits(line, fmt.Sprintf("event %d ", i), ev.Payload) {
			return false
		}
		c.Model = cmp.Or(e.Call.Response.Model, c.Model)
		if m := e.Metrics.Accumulated; m != nil {
			c.Model = cmp.Or(c.Model, m.Model)
			m.Cost = max(m.Cost, uint64(e.Metrics.Cost))
			ev.Usage = used.accumulated(m.of(c.Model))
		} else {
			ev.Usage = used.response(&e.Call.Response)
		}
		c.Events = append(c.Events, ev)
	}
	return true
}

// unpaired returns a history as a list of events. Older versions of OpenHands write
// pairs of an action and its observation.
func unpaired(history []json.RawMessage) []json.RawMessage {
	var flat []json.RawMessage
	for _, raw := range history {
		var pair []json.RawMessage
		if json.Unmarshal(raw, &pair) == nil && pair != nil {
			flat = append(flat, pair...)
		} else {
			flat = append(flat, raw)
		}
	}
	return flat
}

// openhandsUsage finds out what each event used. Some events have the usage of the
// conversation so far, which includes all responses; some have that of one response.
type openhandsUsage struct {
	counted map[string]bool // ids of the responses that are counted
	sum     head.Usage      // of the events so far
	running bool            // an event had the usage so far; responses don't count any more
}

// accumulated returns what an event adds if u is the usage of the conversation so far.
func (s *openhandsUsage) accumulated(all []head.Usage) []head.Usage {
	s.running = true
	for _, u := range all {
		if u, s.sum = beyond(s.sum, u); u != (head.Usage{Model: u.Model}) {
			return []head.Usage{u}
		}
	}
	return nil
}

// response returns the usage of a response, unless it is counted.
func (s *openhandsUsage) response(r *openhandsResponse) []head.Usage {
	if r.ID == "" || s.counted[r.ID] || s.running {
		return nil
	}
	s.counted[r.ID] = true
	out := r.Usage.of(r.Model)
	for _, u := range out {
		s.sum.Add(u)
	}
	return out
}
