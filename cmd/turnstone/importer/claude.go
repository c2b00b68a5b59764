package importer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// maxKey is the longest key that an event may have. It leaves room in a node's key for
// the suffix of a version.
const maxKey = turnstone.MaxEventKey - len("~0000000000000000")

// A record is a line of a Claude Code session.
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

// parent returns the uuid of the parent, or "" for a root.
func (r *record) parent() string {
	if r.Parent == nil {
		return ""
	}
	return *r.Parent
}

// tools returns the ids of the tool calls in the record, and the ids of the calls whose
// results the record has.
func (r *record) tools() (calls, results []string) {
	content := bytes.TrimSpace(r.Message.Content)
	if len(content) == 0 || content[0] != '[' {
		return nil, nil
	}
	var blocks []struct {
		Type string `json:"type"`
		ID   string `json:"id"`
		Use  string `json:"tool_use_id"`
	}
	if json.Unmarshal(content, &blocks) != nil {
		return nil, nil
	}
	for _, b := range blocks {
		switch b.Type {
		case "tool_use":
			calls = append(calls, b.ID)
		case "tool_result":
			results = append(results, b.Use)
		}
	}
	return calls, results
}

// A claudeKey identifies one conversation of a Claude Code file.
type claudeKey struct{ session, agent string }

// A claudeFile has the records of a Claude Code file by conversation.
type claudeFile struct {
	order  []claudeKey // in the order of their first lines
	groups map[claudeKey][]*record
	home   map[string]claudeKey // the conversation that has a uuid first
	named  bool                 // the file has a session id
}

// claude reads a Claude Code session: a tree by uuid and parentUuid. Lines with
// several session or agent ids become several conversations. A conversation whose
// first parent is in another one is a fork of it.
func (p *parser) claude(all []line) {
	f := p.claudeRecords(all)
	made := map[claudeKey]*chains{}
	for _, k := range f.order {
		c := Conversation{ID: k.session, Format: "claude-code"}
		if k.agent != "" {
			c.ID, c.Agent, c.Parent = k.session+"/"+k.agent, k.agent, own("claude-code", k.session)
		}
		if f.named {
			c.Identity = own("claude-code", c.ID)
		}
		made[k] = p.claudeEvents(&c, f.groups[k])
		if len(c.Events) > 0 && c.Parent == "" {
			f.attach(&c, k)
		}
		p.out = append(p.out, c)
	}
	for i := range p.out {
		if c := &p.out[i]; c.Attached {
			c.forkBehind(made[f.home[c.ForkKey]])
		}
	}
	if len(p.out) == 1 {
		p.out[0].gaps = p.gaps
	}
}

// claudeRecords decodes the lines. Lines without a session id belong to the first
// session of the file.
func (p *parser) claudeRecords(all []line) *claudeFile {
	f := &claudeFile{groups: map[claudeKey][]*record{}, home: map[string]claudeKey{}}
	var loose []*record
	for _, l := range all {
		r := &record{line: l}
		switch {
		case !p.decodeLine(l, r):
		case r.Type == "":
			p.fail(l.number, "record has no type")
		case !p.fits(l.number, "line ", l.raw):
		case r.SessionID == "":
			loose = append(loose, r)
		default:
			f.add(r)
		}
	}
	f.named = len(f.order) > 0
	if !f.named {
		f.order = []claudeKey{{session: p.stem}}
	}
	main := f.order[0]
	f.groups[main] = append(f.groups[main], loose...)
	slices.SortFunc(f.groups[main], func(a, b *record) int { return a.number - b.number })
	return f
}

// add adds a record to its conversation.
func (f *claudeFile) add(r *record) {
	k := claudeKey{r.SessionID, r.AgentID}
	if f.groups[k] == nil {
		f.order = append(f.order, k)
	}
	f.groups[k] = append(f.groups[k], r)
	if _, ok := f.home[r.UUID]; !ok {
		f.home[r.UUID] = k
	}
}

// attach makes c, the conversation k, a fork if the first parent that one of its records
// names is in another conversation of the file.
func (f *claudeFile) attach(c *Conversation, k claudeKey) {
	i := slices.IndexFunc(f.groups[k], func(r *record) bool { return r.parent() != "" })
	if i < 0 {
		return
	}
	parent := f.groups[k][i].parent()
	if from, ok := f.home[parent]; ok && from != k {
		c.Parent, c.ForkKey, c.Attached = own("claude-code", from.session), parent, true
	}
}

// forkBehind moves the place where an attached conversation begins. If it is one of
// several parallel calls, the fork goes on behind the results of all of them. from has
// the chains of the parent; it is nil if the parent made none.
func (c *Conversation) forkBehind(from *chains) {
	if from == nil {
		return
	}
	key := c.ForkKey
	c.ForkKey = from.behind(key)
	for i := range c.Events {
		if e := &c.Events[i]; e.Root && e.Parent == key {
			e.Parent = c.ForkKey
		}
	}
}

// A claudeBuilder makes the events of one conversation.
type claudeBuilder struct {
	c       *Conversation
	records []*record
	byUUID  map[string]int  // index of a record
	done    []bool          // which records have an event, or wait for that of their parent
	added   map[string]bool // uuids of those that have an event
	chains  *chains
	counted map[string]head.Usage // usage of each response so far, by message id
}

// claudeEvents makes the events of the records of one conversation.
func (p *parser) claudeEvents(c *Conversation, records []*record) *chains {
	b := &claudeBuilder{
		c: c, records: records, byUUID: map[string]int{}, done: make([]bool, len(records)), added: map[string]bool{},
		chains: newChains(), counted: map[string]head.Usage{},
	}
	for i, r := range records {
		if first, dup := b.byUUID[r.UUID]; dup && r.UUID != "" {
			p.fail(r.number, "has the uuid of line %d: %s", records[first].number, r.UUID)
			b.done[i] = true // the record gets no event
			continue
		}
		b.byUUID[r.UUID] = i
		c.Cwd = cmp.Or(c.Cwd, r.Cwd)
		if r.Message.Model != "<synthetic>" {
			c.Model = cmp.Or(r.Message.Model, c.Model)
		}
	}
	for i := range records {
		b.add(i, 0)
	}
	return b.chains
}

// add adds the event of record i. Claude Code sometimes writes a child before its parent,
// so add adds the parent first. depth is the number of children that wait. A record whose parent
// can't come first, because the parent is not there, is the record itself or waits for it, begins a tree.
func (b *claudeBuilder) add(i, depth int) {
	r := b.records[i]
	if b.done[i] {
		return
	}
	b.done[i] = true
	e := Event{Key: clip(r.UUID, maxKey), Kind: r.Type, Payload: r.raw, Line: i, Time: r.Time.Time}
	e.Side = r.UUID == "" || r.Type == "progress" // lines without a uuid are bookkeeping beside the tree
	if r.UUID != "" {
		e.Parent = r.parent()
		if j, ok := b.byUUID[e.Parent]; ok && e.Parent != "" && j > i && depth < 10000 {
			b.add(j, depth+1)
		}
		e.Root = !b.added[e.Parent]
		b.added[r.UUID] = true
	}
	e.Kind, e.Turn = r.kind()
	switch {
	case r.UUID == "":
	case e.Root:
		b.chains.add(r, "", e.Turn)
	default:
		e.Parent = clip(b.chains.add(r, e.Parent, e.Turn), maxKey)
	}
	e.Usage = b.usage(r)
	b.c.Events = append(b.c.Events, e)
}

// kind returns the kind of the record's event, and whether it begins a turn.
func (r *record) kind() (kind string, turn bool) {
	if r.Type != "user" {
		return r.Type, false
	}
	if _, results := r.tools(); len(results) > 0 {
		return "tool", false
	}
	if r.IsMeta {
		return "meta", false
	}
	return "user", true
}

// usage returns what a record adds to the usage of its response. Each line of a response
// has the usage of the response so far. So the sum is right whichever line is the last.
func (b *claudeBuilder) usage(r *record) []head.Usage {
	var out []head.Usage
	for _, u := range r.Message.Usage.of(r.Message.Model) {
		if id := r.Message.ID; id != "" {
			u, b.counted[id] = beyond(b.counted[id], u)
		}
		if u != (head.Usage{Model: u.Model}) {
			out = append(out, u)
		}
	}
	return out
}

// beyond returns the part of u that exceeds counted, and the maximum of both.
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

// spawned returns the node among those of a parent that called a sub-agent. The result
// of the call names the agent.
func spawned(nodes []turnstone.Node, agent string) graph.ID {
	call := ""
	for i := range nodes {
		call = cmp.Or(callOf(nodes[i].Payload, agent), call)
	}
	if call == "" {
		return graph.ID{}
	}
	var found graph.ID
	for i := range nodes {
		var r record
		if !bytes.Contains(nodes[i].Payload, []byte(call)) || json.Unmarshal(nodes[i].Payload, &r) != nil {
			continue
		}
		if calls, _ := r.tools(); slices.Contains(calls, call) {
			found = nodes[i].ID
		}
	}
	return found
}

// callOf returns the id of the call that started an agent. It returns "" if the payload is not the result
// of that call.
func callOf(payload []byte, agent string) string {
	if !bytes.Contains(payload, []byte(agent)) {
		return ""
	}
	var r struct {
		record
		Result struct {
			Agent string `json:"agentId"`
		} `json:"toolUseResult"`
	}
	if json.Unmarshal(payload, &r) != nil || r.Result.Agent != agent {
		return ""
	}
	_, results := r.tools()
	if len(results) == 0 {
		return ""
	}
	return results[len(results)-1]
}
