package importer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/turnstonedb/turnstone/head"
)

// A line is one that is a JSON object.
type line struct {
	number int // 1-based
	raw    []byte
}

// probe has the fields by which line formats differ.
type probe struct {
	Type        string          `json:"type"`
	UUID        json.RawMessage `json:"uuid"`
	SessionID   json.RawMessage `json:"sessionId"`
	Leaf        json.RawMessage `json:"leafUuid"`
	MessageID   json.RawMessage `json:"messageId"`
	History     json.RawMessage `json:"history"`
	Instruction json.RawMessage `json:"instruction"`
	Messages    json.RawMessage `json:"messages"`
	Role        json.RawMessage `json:"role"`
	Content     json.RawMessage `json:"content"`
	Provider    json.RawMessage `json:"provider"`
}

// lines reads a file of JSON lines. The first line that tells decides the format.
func (p *parser) lines(data []byte) {
	var all []line
	format := ""
	p.gaps = map[int]string{}
	gap := "" // what stands since the last line
	between := func() {
		plain := "\n"
		if len(all) == 0 {
			plain = ""
		}
		if gap != plain {
			p.gaps[len(all)] = gap
		}
	}
	for number := 1; len(data) > 0; number++ {
		raw, rest, found := bytes.Cut(data, []byte("\n"))
		data = rest
		feed := ""
		if found {
			feed = "\n"
		}
		if len(bytes.TrimSpace(raw)) == 0 {
			gap += string(raw) + feed
			continue
		}
		var pr probe
		if err := decode(raw, &pr); err != nil {
			p.fail(number, "%v", err)
			continue
		}
		between()
		gap = feed
		all = append(all, line{number, raw})
		if format == "" {
			format = pr.format()
		}
	}
	between()
	switch format {
	case "claude":
		p.claude(all)
	case "pi":
		p.pi(all)
	case "openhands":
		p.openhands(all)
	case "chats":
		for _, l := range all {
			p.chat(fmt.Sprintf("%s/%d", p.stem, l.number-1), l.raw, l.number)
		}
	case "messages":
		p.plain(all)
	default:
		if len(all) > 0 {
			p.fail(all[0].number, "unknown format: none of OpenAI chat, tau-bench, tau2, SWE-agent, OpenHands, pi, Claude Code, or lines of role and content")
		}
	}
}

func (p *probe) format() string {
	switch {
	case p.History != nil && p.Instruction != nil:
		return "openhands"
	case p.UUID != nil || p.SessionID != nil || p.Type == "summary" && p.Leaf != nil || p.Type == "file-history-snapshot" && p.MessageID != nil:
		return "claude"
	case p.Type == "session" && p.Provider != nil:
		return "pi"
	case p.Messages != nil:
		return "chats"
	case p.Role != nil && p.Content != nil:
		return "messages"
	}
	return ""
}

// plain reads lines of role and content.
func (p *parser) plain(all []line) {
	c := Conversation{ID: p.stem, Format: "jsonl", gaps: p.gaps}
	for i, l := range all {
		var m message
		if err := decode(l.raw, &m); err != nil {
			p.fail(l.number, "%v", err)
			continue
		}
		if m.Role == "" {
			p.fail(l.number, "message has no role")
			continue
		}
		if !p.fits(l.number, "message ", l.raw) {
			continue
		}
		c.Model = cmp.Or(m.model(), c.Model)
		c.Events = append(c.Events, Event{Kind: m.Role, Payload: l.raw, Line: i, Turn: m.Role == "user", Usage: m.used(m.model()), Time: m.time()})
	}
	p.out = append(p.out, c)
}

// openhands reads an output file of OpenHands: a conversation a line.
func (p *parser) openhands(all []line) {
	for i, l := range all {
		var top struct {
			History []json.RawMessage `json:"history"`
			Model   string            `json:"model"`
			Metrics metrics           `json:"metrics"`
		}
		if err := decode(l.raw, &top); err != nil {
			p.fail(l.number, "%v", err)
			continue
		}
		c := Conversation{ID: fmt.Sprintf("%s/%d", p.stem, i), Format: "openhands", Model: top.Model}
		if !p.openhandsEvents(&c, top.History, l.number) {
			continue
		}
		c.Totals = top.Metrics.total(c.Model)
		for _, u := range c.Totals {
			c.Model = cmp.Or(c.Model, u.Model)
		}
		c.outside(l.raw, "history")
		p.out = append(p.out, c)
	}
}

// metrics are what OpenHands says of usage so far, or in all.
type metrics struct {
	Accumulated *usage   `json:"accumulated_token_usage"`
	Responses   []*usage `json:"token_usages"`
}

// total returns what was used, by model where the responses name theirs.
func (m *metrics) total(model string) (all []head.Usage) {
	for _, u := range m.Responses {
		all = append(all, u.of(cmp.Or(u.Model, model))...)
	}
	if all == nil && m.Accumulated != nil {
		all = m.Accumulated.of(cmp.Or(model, m.Accumulated.Model))
	}
	return merge(all)
}

// openhandsEvents adds the events of a history: actions and observations, which
// older versions write in pairs.
func (p *parser) openhandsEvents(c *Conversation, history []json.RawMessage, line int) bool {
	var flat []json.RawMessage
	for _, raw := range history {
		var pair []json.RawMessage
		if json.Unmarshal(raw, &pair) == nil && pair != nil {
			flat = append(flat, pair...)
		} else {
			flat = append(flat, raw)
		}
	}
	counted := map[string]bool{} // responses
	var sum head.Usage           // of the events so far
	running := false             // the events say what was used so far
	for j, raw := range flat {
		var e struct {
			Action      string          `json:"action"`
			Source      string          `json:"source"`
			Observation json.RawMessage `json:"observation"`
			Timestamp   when            `json:"timestamp"`
			Metrics     metrics         `json:"llm_metrics"`
			Call        struct {
				Response struct {
					ID    string `json:"id"`
					Model string `json:"model"`
					Usage *usage `json:"usage"`
				} `json:"model_response"`
			} `json:"tool_call_metadata"`
		}
		if err := decode(raw, &e); err != nil {
			p.fail(line, "history %d: %v", j, err)
			return false
		}
		kind := "assistant"
		switch {
		case e.Action == "message" && j == 0 || e.Source == "user":
			kind = "user"
		case e.Observation != nil:
			kind = "tool"
		}
		ev := Event{Kind: kind, Payload: compact(raw), Line: j, Turn: kind == "user", Time: e.Timestamp.Time}
		if !p.fits(line, fmt.Sprintf("event %d ", j), ev.Payload) {
			return false
		}
		// The running sum has all responses, the calls of tools only their own.
		r := &e.Call.Response
		c.Model = cmp.Or(r.Model, c.Model)
		if e.Metrics.Accumulated != nil {
			running = true
			c.Model = cmp.Or(c.Model, e.Metrics.Accumulated.Model)
			for _, u := range e.Metrics.Accumulated.of(c.Model) {
				if u, sum = beyond(sum, u); u != (head.Usage{Model: u.Model}) {
					ev.Usage = []head.Usage{u}
				}
			}
		} else if r.ID != "" && !counted[r.ID] && !running {
			counted[r.ID] = true
			ev.Usage = r.Usage.of(r.Model)
			for _, u := range ev.Usage {
				sum.Add(u)
			}
		}
		c.Events = append(c.Events, ev)
	}
	return true
}

// pi reads a session of pi: its first line is the header, then events in order.
func (p *parser) pi(all []line) {
	c := Conversation{ID: p.stem, Format: "pi", gaps: p.gaps}
	for i, l := range all {
		var e struct {
			Type         string `json:"type"`
			ID           string `json:"id"`
			Cwd          string `json:"cwd"`
			Model        string `json:"modelId"`
			BranchedFrom string `json:"branchedFrom"`
			Timestamp    when   `json:"timestamp"`
			Message      struct {
				Role      string `json:"role"`
				Model     string `json:"model"`
				Usage     *usage `json:"usage"`
				Timestamp when   `json:"timestamp"`
			} `json:"message"`
		}
		if err := decode(l.raw, &e); err != nil {
			p.fail(l.number, "%v", err)
			continue
		}
		if !p.fits(l.number, "line ", l.raw) {
			continue
		}
		ev := Event{Kind: e.Type, Payload: l.raw, Line: i, Time: first(e.Timestamp, e.Message.Timestamp)}
		switch e.Type {
		case "session":
			if i > 0 {
				p.fail(l.number, "a second session header")
				continue
			}
			if e.ID != "" {
				c.ID, c.Identity = e.ID, own("pi", e.ID)
			}
			c.Cwd, c.Model = e.Cwd, e.Model
			if e.BranchedFrom != "" {
				c.Labels = map[string]string{"pi.branched-from": clip(e.BranchedFrom, 256)}
			}
		case "message":
			if e.Message.Role == "" {
				p.fail(l.number, "message has no role")
				continue
			}
			ev.Kind = e.Message.Role
			if ev.Kind == "toolResult" || ev.Kind == "bashExecution" {
				ev.Kind = "tool"
			}
			ev.Turn = ev.Kind == "user"
			ev.Usage = e.Message.Usage.of(e.Message.Model)
		}
		c.Events = append(c.Events, ev)
	}
	p.out = append(p.out, c)
}
