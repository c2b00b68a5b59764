package importer

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// maxKey leaves room in an event key for what tells versions of a line apart.
const maxKey = turnstone.MaxEventKey - len("~0000000000000000")

// record is a line of a Claude Code session.
type record struct {
	Type      string  `json:"type"`
	UUID      string  `json:"uuid"`
	Parent    *string `json:"parentUuid"`
	SessionID string  `json:"sessionId"`
	AgentID   string  `json:"agentId"`
	IsMeta    bool    `json:"isMeta"`
	Cwd       string  `json:"cwd"`
	Time      when    `json:"timestamp"`
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
		if !p.fits(l.number, "line ", l.raw) {
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
	named := main != (key{})
	if !named {
		main = key{session: p.stem}
		order = []key{main}
	}
	groups[main] = append(groups[main], loose...)
	slices.SortFunc(groups[main], func(a, b *record) int { return a.number - b.number })
	made := map[key]*chains{}
	for _, k := range order {
		c := Conversation{ID: k.session, Format: "claude-code"}
		if k.agent != "" {
			c.ID, c.Agent, c.Parent = k.session+"/"+k.agent, k.agent, own("claude-code", k.session)
		}
		if named {
			c.Identity = own("claude-code", c.ID)
		}
		made[k] = p.claudeEvents(&c, groups[k])
		// A root whose parent is in another conversation of this file: a fork.
		if len(c.Events) > 0 && c.Parent == "" {
			for _, r := range groups[k] {
				if r.Parent == nil || *r.Parent == "" {
					continue
				}
				if from, ok := home[*r.Parent]; ok && from != k {
					c.Parent, c.ForkKey, c.Attached = own("claude-code", from.session), *r.Parent, true
				}
				break
			}
		}
		p.out = append(p.out, c)
	}
	for i := range p.out { // a fork from among parallel calls goes on behind their results
		c := &p.out[i]
		if !c.Attached {
			continue
		}
		key, from := c.ForkKey, made[home[c.ForkKey]]
		if from == nil { // it is in a conversation of this file
			continue
		}
		c.ForkKey = from.behind(key)
		for j := range c.Events {
			if e := &c.Events[j]; e.Root && e.Parent == key {
				e.Parent = c.ForkKey
			}
		}
	}
	if len(p.out) == 1 {
		p.out[0].gaps = p.gaps
	}
}

// claudeEvents makes events of the records of one conversation.
func (p *parser) claudeEvents(c *Conversation, records []*record) *chains {
	byUUID := map[string]int{}
	counted := map[string]head.Usage{} // of a response: it is split over lines that repeat its usage
	chained := newChains()
	for i, r := range records {
		if r.UUID != "" {
			if first, dup := byUUID[r.UUID]; dup {
				p.fail(r.number, "has the uuid of line %d: %s", records[first].number, r.UUID)
				r.Type = ""
				continue
			}
			byUUID[r.UUID] = i
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
		e := Event{Key: clip(r.UUID, maxKey), Kind: r.Type, Payload: r.raw, Line: i, Time: r.Time.Time}
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
		if r.UUID != "" && !e.Root {
			e.Parent = clip(chained.add(r, e.Parent, e.Turn), maxKey)
		} else if r.UUID != "" {
			chained.add(r, "", e.Turn)
		}
		// Each line of a response says what was used so far: what it adds is counted,
		// so that the sum is right whichever line is the last one.
		for _, u := range r.Message.Usage.of(r.Message.Model) {
			if id := r.Message.ID; id != "" {
				u, counted[id] = beyond(counted[id], u)
			}
			if u != (head.Usage{Model: u.Model}) {
				e.Usage = append(e.Usage, u)
			}
		}
		c.Events = append(c.Events, e)
	}
	for i := range records {
		add(i, 0)
	}
	return chained
}

// beyond returns what of u is not counted yet, and the sum of both.
func beyond(counted, u head.Usage) (more, sum head.Usage) {
	more, sum = u, u
	for _, f := range [][3]*uint64{
		{&counted.Input, &more.Input, &sum.Input},
		{&counted.Output, &more.Output, &sum.Output},
		{&counted.CachedInput, &more.CachedInput, &sum.CachedInput},
		{&counted.CacheWrite, &more.CacheWrite, &sum.CacheWrite},
		{&counted.Reasoning, &more.Reasoning, &sum.Reasoning},
	} {
		*f[1] -= min(*f[0], *f[1])
		*f[2] = max(*f[0], *f[2])
	}
	return more, sum
}

// spawned returns the node, of a parent's, that called a sub-agent: the tool result
// names the agent, and the call that it answers is the node.
func spawned(nodes []turnstone.Node, agent string) (found graph.ID) {
	call := ""
	for i := range nodes {
		if !bytes.Contains(nodes[i].Payload, []byte(agent)) {
			continue
		}
		var r struct {
			record
			Result struct {
				Agent string `json:"agentId"`
			} `json:"toolUseResult"`
		}
		if json.Unmarshal(nodes[i].Payload, &r) != nil || r.Result.Agent != agent {
			continue
		}
		for _, b := range r.blocks() {
			if b.Type == "tool_result" {
				call = b.Use
			}
		}
	}
	if call == "" {
		return found
	}
	for i := range nodes {
		var r record
		if !bytes.Contains(nodes[i].Payload, []byte(call)) || json.Unmarshal(nodes[i].Payload, &r) != nil {
			continue
		}
		for _, b := range r.blocks() {
			if b.Type == "tool_use" && b.ID == call {
				found = nodes[i].ID
			}
		}
	}
	return found
}
