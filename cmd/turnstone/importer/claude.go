package importer

import (
	"bytes"
	"encoding/json"
	"slices"
)

// record is a line of a Claude Code session.
type record struct {
	Type      string  `json:"type"`
	UUID      string  `json:"uuid"`
	Parent    *string `json:"parentUuid"`
	SessionID string  `json:"sessionId"`
	AgentID   string  `json:"agentId"`
	IsMeta    bool    `json:"isMeta"`
	Cwd       string  `json:"cwd"`
	Message   struct {
		ID      string          `json:"id"`
		Model   string          `json:"model"`
		Content json.RawMessage `json:"content"`
		Usage   *usage          `json:"usage"`
	} `json:"message"`
	line
}

// A block of a message's content, as far as it matters here.
type block struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	Use  string `json:"tool_use_id"`
}

func (r *record) blocks() []block {
	var out []block
	if c := bytes.TrimSpace(r.Message.Content); len(c) > 0 && c[0] == '[' {
		if json.Unmarshal(c, &out) != nil {
			return nil
		}
	}
	return out
}

// claude reads a Claude Code session: a tree by uuid and parentUuid. Lines of
// several session or agent ids become several conversations; one whose first
// parent is in another goes on from there.
func (p *parser) claude(all []line) {
	type key struct{ session, agent string }
	var order []key
	groups := map[key][]*record{}
	home := map[string]key{} // of a uuid: the group that has it first
	var main key
	var loose []*record // lines without a session id belong to the file's first one
	for _, l := range all {
		r := &record{line: l}
		if err := decode(l.raw, r); err != nil {
			p.fail(l.number, "%v", err)
			continue
		}
		if r.Type == "" {
			p.fail(l.number, "record has no type")
			continue
		}
		if r.SessionID == "" {
			loose = append(loose, r)
			continue
		}
		k := key{r.SessionID, r.AgentID}
		if groups[k] == nil {
			order = append(order, k)
		}
		if main == (key{}) {
			main = k
		}
		groups[k] = append(groups[k], r)
		if _, ok := home[r.UUID]; !ok {
			home[r.UUID] = k
		}
	}
	if main == (key{}) {
		main = key{session: p.stem}
		order = []key{main}
	}
	groups[main] = append(groups[main], loose...)
	slices.SortFunc(groups[main], func(a, b *record) int { return a.number - b.number })
	for _, k := range order {
		c := Conversation{ID: k.session, Format: "claude-code"}
		if k.agent != "" {
			c.ID, c.Parent = k.session+"/"+k.agent, k.session
		}
		p.claudeEvents(&c, groups[k])
		// A root whose parent is in another conversation of this file: a fork.
		if len(c.Events) > 0 && c.Parent == "" {
			for _, r := range groups[k] {
				if r.Parent == nil || *r.Parent == "" {
					continue
				}
				if from, ok := home[*r.Parent]; ok && from != k {
					c.Parent, c.ForkKey, c.Attached = from.session, *r.Parent, true
				}
				break
			}
		}
		p.out = append(p.out, c)
	}
}

// claudeEvents makes events of the records of one conversation.
func (p *parser) claudeEvents(c *Conversation, records []*record) {
	byUUID := map[string]int{}
	lastOf := map[string]int{} // of a response: it is split over lines that repeat its usage
	for i, r := range records {
		if r.UUID != "" {
			if first, dup := byUUID[r.UUID]; dup {
				p.fail(r.number, "has the uuid of line %d: %s", records[first].number, r.UUID)
				r.Type = ""
				continue
			}
			byUUID[r.UUID] = i
		}
		if r.Message.ID != "" && r.Message.Usage != nil {
			lastOf[r.Message.ID] = i
		}
		if c.Cwd == "" {
			c.Cwd = r.Cwd
		}
		if r.Message.Model != "" && r.Message.Model != "<synthetic>" {
			c.Model = r.Message.Model
		}
	}
	done := make([]bool, len(records))
	var add func(i, depth int)
	add = func(i, depth int) {
		r := records[i]
		if done[i] || r.Type == "" {
			return
		}
		done[i] = true
		e := Event{Key: clip(r.UUID, 512), Kind: r.Type, Payload: r.raw, Line: i}
		switch {
		case r.UUID == "": // bookkeeping beside the tree
			e.Side = true
		case r.Parent == nil || *r.Parent == "":
			e.Root = true
		default:
			e.Parent = *r.Parent
			if j, ok := byUUID[*r.Parent]; !ok {
				e.Root = true // the parent is in no line of this conversation
			} else if j > i && depth < 10000 {
				add(j, depth+1) // now and then a child is written before its parent
			}
		}
		e.Side = e.Side || r.Type == "progress"
		blocks := r.blocks()
		if r.Type == "user" {
			switch {
			case slices.ContainsFunc(blocks, func(b block) bool { return b.Type == "tool_result" }):
				e.Kind = "tool"
			case r.IsMeta:
				e.Kind = "meta"
			default:
				e.Turn = true
			}
		}
		if id := r.Message.ID; id != "" && lastOf[id] == i {
			e.Usage = r.Message.Usage.of(r.Message.Model)
		}
		c.Events = append(c.Events, e)
	}
	for i := range records {
		add(i, 0)
	}
}

// spawned returns the key of the event of a parent's nodes that called the
// sub-agent: the tool result names it, and the call that it answers is the node.
func spawned(payloads map[string][]byte, agent string) string {
	call := ""
	for _, payload := range payloads {
		if !bytes.Contains(payload, []byte(agent)) {
			continue
		}
		var r struct {
			record
			Result struct {
				Agent string `json:"agentId"`
			} `json:"toolUseResult"`
		}
		if json.Unmarshal(payload, &r) != nil || r.Result.Agent != agent {
			continue
		}
		for _, b := range r.blocks() {
			if b.Type == "tool_result" {
				call = b.Use
			}
		}
	}
	if call == "" {
		return ""
	}
	for key, payload := range payloads {
		var r record
		if !bytes.Contains(payload, []byte(call)) || json.Unmarshal(payload, &r) != nil {
			continue
		}
		for _, b := range r.blocks() {
			if b.Type == "tool_use" && b.ID == call {
				return key
			}
		}
	}
	return ""
}
