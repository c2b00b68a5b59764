package importer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/turnstonedb/turnstone/head"
)

// A line is a line of a file that is a JSON object.
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

// lines reads a file of JSON lines. The first line whose format is known decides the
// format of the file.
func (p *parser) lines(data []byte) {
	all, format := p.splitLines(data)
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

// splitLines returns the lines of a file that are JSON objects, and the format of the
// file. It sets p.gaps.
func (p *parser) splitLines(data []byte) (all []line, format string) {
	p.gaps = map[int]string{}
	gap := "" // the bytes since the last line
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
		l := line{number, raw}
		if !p.decodeLine(l, &pr) {
			continue
		}
		p.addGap(len(all), gap)
		gap = feed
		all = append(all, l)
		format = cmp.Or(format, pr.format())
	}
	p.addGap(len(all), gap)
	return all, format
}

// addGap notes the bytes before line n, unless they are what a file of lines has there:
// nothing before the first line, and a line feed before others.
func (p *parser) addGap(n int, gap string) {
	if n == 0 && gap != "" || n > 0 && gap != "\n" {
		p.gaps[n] = gap
	}
}

// decodeLine decodes a line into v. If it can't, it notes why and returns false.
func (p *parser) decodeLine(l line, v any) bool {
	err := decode(l.raw, v)
	if err != nil {
		p.fail(l.number, "%v", err)
	}
	return err == nil
}

// format returns the format of files that have such a line, or "" if it is not known.
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

// plain reads a file whose lines are messages with a role and content.
func (p *parser) plain(all []line) {
	c := Conversation{ID: p.stem, Format: "jsonl", gaps: p.gaps}
	for i, l := range all {
		var m message
		if !p.decodeLine(l, &m) {
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

// openhands reads an output file of OpenHands. Each line is a conversation.
func (p *parser) openhands(all []line) {
	for i, l := range all {
		var top struct {
			History []json.RawMessage `json:"history"`
			Model   string            `json:"model"`
			Metrics metrics           `json:"metrics"`
		}
		if !p.decodeLine(l, &top) {
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

// metrics has the usage that OpenHands reports: up to an event, or of a whole
// conversation.
type metrics struct {
	Accumulated *usage   `json:"accumulated_token_usage"`
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
	return merge(all)
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
		ev := Event{Kind: kind, Payload: compact(raw), Line: i, Turn: kind == "user", Time: e.Timestamp.Time}
		if !p.fits(line, fmt.Sprintf("event %d ", i), ev.Payload) {
			return false
		}
		c.Model = cmp.Or(e.Call.Response.Model, c.Model)
		if m := e.Metrics.Accumulated; m != nil {
			c.Model = cmp.Or(c.Model, m.Model)
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

// A piEvent is a line of a session of pi.
type piEvent struct {
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

// pi reads a session of pi. The first line is the header, the others are events in
// order.
func (p *parser) pi(all []line) {
	c := Conversation{ID: p.stem, Format: "pi", gaps: p.gaps}
	for i, l := range all {
		var e piEvent
		if !p.decodeLine(l, &e) || !p.fits(l.number, "line ", l.raw) {
			continue
		}
		ev := Event{Kind: e.Type, Payload: l.raw, Line: i, Time: first(e.Timestamp, e.Message.Timestamp)}
		switch {
		case e.Type == "session" && i > 0:
			p.fail(l.number, "a second session header")
			continue
		case e.Type == "session":
			e.header(&c)
		case e.Type == "message" && e.Message.Role == "":
			p.fail(l.number, "message has no role")
			continue
		case e.Type == "message":
			ev.Kind = e.kind()
			ev.Turn = ev.Kind == "user"
			ev.Usage = e.Message.Usage.of(e.Message.Model)
		}
		c.Events = append(c.Events, ev)
	}
	p.out = append(p.out, c)
}

// header sets in c what the header of a session says.
func (e *piEvent) header(c *Conversation) {
	if e.ID != "" {
		c.ID, c.Identity = e.ID, own("pi", e.ID)
	}
	c.Cwd, c.Model = e.Cwd, e.Model
	if e.BranchedFrom != "" {
		c.Labels = map[string]string{".pi.branched-from": clip(e.BranchedFrom, 256)}
	}
}

// kind returns the kind of a message.
func (e *piEvent) kind() string {
	switch e.Message.Role {
	case "toolResult", "bashExecution":
		return "tool"
	}
	return e.Message.Role
}
