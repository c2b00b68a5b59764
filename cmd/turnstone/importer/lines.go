package importer

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	for number := 1; len(data) > 0; number++ {
		raw, rest, _ := bytes.Cut(data, []byte("\n"))
		data = rest
		if len(bytes.TrimSpace(raw)) == 0 {
			continue
		}
		var pr probe
		if err := decode(raw, &pr); err != nil {
			p.fail(number, "%v", err)
			continue
		}
		all = append(all, line{number, raw})
		if format == "" {
			format = pr.format()
		}
	}
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
	c := Conversation{ID: p.stem, Format: "jsonl"}
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
		if m.Model != "" {
			c.Model = m.Model
		}
		c.Events = append(c.Events, Event{Kind: m.Role, Payload: l.raw, Line: i, Turn: m.Role == "user", Usage: m.Usage.of(m.Model)})
	}
	p.out = append(p.out, c)
}

// openhands reads an output file of OpenHands: a conversation a line.
func (p *parser) openhands(all []line) {
	for i, l := range all {
		var top struct {
			History []json.RawMessage `json:"history"`
		}
		if err := decode(l.raw, &top); err != nil {
			p.fail(l.number, "%v", err)
			continue
		}
		c := Conversation{ID: fmt.Sprintf("%s/%d", p.stem, i), Format: "openhands"}
		ok := true
		for j, raw := range top.History {
			var e struct {
				Action      string          `json:"action"`
				Source      string          `json:"source"`
				Observation json.RawMessage `json:"observation"`
			}
			if err := decode(raw, &e); err != nil {
				p.fail(l.number, "history %d: %v", j, err)
				ok = false
				break
			}
			kind := "assistant"
			switch {
			case e.Action == "message" && j == 0 || e.Source == "user":
				kind = "user"
			case e.Observation != nil:
				kind = "tool"
			}
			c.Events = append(c.Events, Event{Kind: kind, Payload: compact(raw), Line: j, Turn: kind == "user"})
		}
		if ok {
			p.out = append(p.out, c)
		}
	}
}

// pi reads a session of pi: its first line is the header, then events in order.
func (p *parser) pi(all []line) {
	c := Conversation{ID: p.stem, Format: "pi"}
	for i, l := range all {
		var e struct {
			Type         string `json:"type"`
			ID           string `json:"id"`
			Cwd          string `json:"cwd"`
			Model        string `json:"modelId"`
			BranchedFrom string `json:"branchedFrom"`
			Message      struct {
				Role  string `json:"role"`
				Model string `json:"model"`
				Usage *usage `json:"usage"`
			} `json:"message"`
		}
		if err := decode(l.raw, &e); err != nil {
			p.fail(l.number, "%v", err)
			continue
		}
		ev := Event{Kind: e.Type, Payload: l.raw, Line: i}
		switch e.Type {
		case "session":
			if i > 0 {
				p.fail(l.number, "a second session header")
				continue
			}
			if e.ID != "" {
				c.ID = e.ID
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
