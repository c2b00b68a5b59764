package importer

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// Checkpoint parts of an imported session.
const (
	// OutsidePart is a JSON object: what the file says of the conversation outside
	// its messages.
	OutsidePart = "import-outside"
	// SharedPart is a JSON object: what the file says of all its conversations.
	SharedPart = "import-shared"
)

const (
	// A longer turn becomes several commits, so that each fits an engine's batch:
	// a large payload is stored apart and counts for little.
	maxCommit = 1 << 20 // payload bytes, of which each node counts …
	maxCounts = 8 << 10 // … so many at most
	maxNodes  = 2000
)

// grow adds to a session what is new in c.
func (l *loader) grow(ctx context.Context, c *Conversation, r *Result, h *held) error {
	r.Session, r.Outcome = h.session.ID(), Unchanged
	file, err := h.layout()
	if err != nil {
		return err
	}
	if h.fresh == 0 && len(c.Events) < h.mark.events {
		older := (&plan{c: c, h: h}).order()
		if c.Partial || slices.Equal(older, file.Order[:min(len(older), len(file.Order))]) {
			return nil // a snapshot of the file before it had grown
		}
	}
	end, last := h.end(c)
	passed := last < 0 || h.passed(end, &file)
	switch {
	case h.fresh == 0 && passed:
		r.Outcome = Updated
	case passed || h.extends(last):
		r.Outcome = Grown
	default:
		r.Outcome = Branched
	}
	// A snapshot with holes says less about where the session goes on than a fuller
	// one: it adds what is new, and changes nothing else.
	p := plan{keepsFile: c.Partial && len(c.Events) <= h.mark.events, last: last}
	if passed || p.keepsFile {
		p.last = -1
	}
	if err := l.commit(ctx, c, r, h, p); err != nil {
		return err
	}
	if p.keepsFile {
		if r.Commits == 0 {
			r.Outcome = Unchanged // it had nothing that is new
		}
		return nil
	}
	l.Clock.set(c.ended())
	defer l.Clock.set(present)
	return h.session.SaveMetadata(ctx, h.metadata(c))
}

// metadata returns what of the session's metadata follows the file. What people may
// have set is theirs.
func (h *held) metadata(c *Conversation) turnstone.Metadata {
	m := turnstone.Metadata{Labels: c.labels()}
	for key := range h.info.Labels {
		if _, has := m.Labels[key]; !has && strings.HasPrefix(key, fieldLabel) {
			m.Labels[key] = "" // the file does not have it any more
		}
	}
	if h.info.Name == "" {
		m.Name = c.Name
	}
	if h.info.Cwd == "" {
		m.Cwd = c.Cwd
	}
	of := func(u head.Usage) bool { return u.Model == h.info.Model }
	if h.info.Model == "" || slices.ContainsFunc(h.info.Usage, of) { // it is the one of the file so far
		m.Model = c.Model
	}
	return m
}

// end returns the node on which the session goes on after c, if that is not new, and
// the index of the event that it is; -1 if c has none on the line of work.
func (h *held) end(c *Conversation) (graph.ID, int) {
	for i := len(c.Events) - 1; i >= 0; i-- {
		if !c.Events[i].Side {
			return h.ids[i], i
		}
	}
	return graph.ID{}, -1
}

// extends reports whether the way to event last begins at the session's leaf.
func (h *held) extends(last int) bool {
	for i := last; i >= 0; i = h.before[i] {
		if !h.ids[i].IsZero() {
			return h.ids[i] == h.state.Leaf
		}
		if h.before[i] < 0 {
			id, _ := h.parent(i)
			return id == h.state.Leaf
		}
	}
	return false
}

// A plan is the commits that an import makes of a conversation.
type plan struct {
	c         *Conversation
	h         *held
	last      int  // the event on which the session goes on; -1: where it does now
	keepsFile bool // the session stays that of the file that was imported before
	follow    bool // the leaf moves with every commit, else with the last one
	bySteps   bool
	revision  head.Revision
	leaf      graph.ID // of the session now
}

// commit commits the events of c that are new, and what else differs, as p says.
func (l *loader) commit(ctx context.Context, c *Conversation, r *Result, h *held, p plan) error {
	p.c, p.h, p.bySteps, p.revision, p.leaf = c, h, l.BySteps, h.state.Revision, h.state.Leaf
	p.follow = p.last >= 0 && h.extends(p.last)
	outside, layout, err := p.parts()
	if err != nil {
		return err
	}
	used := h.topUp(c)
	if h.fresh == 0 && p.last < 0 && outside.empty() && layout.empty() && len(used) == 0 {
		return nil
	}
	defer l.Clock.set(present)
	for start, first := 0, true; ; first = false {
		end := p.cut(start)
		final := end == len(c.Events)
		in, made := p.build(start, end)
		if first {
			outside.join(&in)
		}
		at := c.ended()
		if final {
			layout.join(&in)
			in.Usage = merge(append(in.Usage, used...))
			if p.last >= 0 {
				in.Leaf = p.ref(p.last, made)
			}
		} else {
			at = c.Events[end-1].Time
		}
		if err := l.apply(ctx, &p, in, made, at); err != nil {
			return err
		}
		if r.Commits, r.Added = r.Commits+1, r.Added+len(in.Nodes); final {
			return nil
		}
		start = end
	}
}

// apply commits in, whose nodes are those of the events made.
func (l *loader) apply(ctx context.Context, p *plan, in turnstone.Commit, made []int, at time.Time) error {
	l.Clock.set(at)
	res, err := p.h.session.Commit(ctx, in)
	if errors.Is(err, turnstone.ErrUploadExpired) {
		// What is stored ahead of a large commit expires by the clock of the store, and
		// a collection of another process came upon it: that one's clock is right.
		l.Clock.set(present)
		res, err = p.h.session.Commit(ctx, in)
	}
	if errors.Is(err, turnstone.ErrInvalid) { // an edited event has the key of a tombstoned one
		for k, i := range made {
			if e := &p.c.Events[i]; e.Key != "" {
				in.Nodes[k].Key = e.versioned(p.revision + 1)
			}
		}
		res, err = p.h.session.Commit(ctx, in)
	}
	if err != nil {
		return err
	}
	for k, i := range made {
		p.h.ids[i] = res.Nodes[k]
	}
	p.revision, p.leaf = res.Revision, res.Leaf
	return nil
}

// cut returns where the commit that begins with event start ends.
func (p *plan) cut(start int) int {
	size, nodes := 0, 0
	has := map[string]bool{} // parts that the commit sets
	for i := start; i < len(p.c.Events); i++ {
		e := &p.c.Events[i]
		if !p.h.ids[i].IsZero() || p.h.gone[i] {
			continue // it is written
		}
		again := false // a part would be set twice, and one version be lost
		for name := range e.Checkpoint {
			again = again || has[name]
			has[name] = true
		}
		if nodes > 0 && (e.Turn || p.bySteps && e.Step || again || nodes == maxNodes || size > maxCommit) {
			return i
		}
		size += min(len(e.Payload), maxCounts)
		nodes++
	}
	return len(p.c.Events)
}

// build returns the commit of the events from start to end, and which they are.
func (p *plan) build(start, end int) (turnstone.Commit, []int) {
	in := turnstone.Commit{Expected: p.revision, Checkpoint: map[string][]byte{}, Leaf: turnstone.RefNone()}
	if !p.leaf.IsZero() {
		in.Leaf = turnstone.RefTo(p.leaf)
	}
	var made []int
	leaf := -1
	for i := start; i < end; i++ {
		e := &p.c.Events[i]
		if !p.h.ids[i].IsZero() || p.h.gone[i] {
			continue
		}
		n := turnstone.NewNode{Kind: e.Kind, Key: e.Key, Payload: e.Payload, Parent: p.ref(p.h.before[i], made)}
		if e.Key != "" && p.h.taken(e.Key) {
			n.Key = e.versioned(p.revision + 1)
		}
		in.Nodes = append(in.Nodes, n)
		made = append(made, i)
		if !e.Side {
			leaf = i
		}
		if !p.h.moved[i] {
			in.Usage = append(in.Usage, e.Usage...)
		}
		maps.Copy(in.Checkpoint, e.Checkpoint)
	}
	in.Usage = merge(in.Usage)
	if p.follow && leaf >= 0 {
		in.Leaf = p.ref(leaf, made)
	}
	return in, made
}

// ref refers to the node of event i, which may be one of those that are made.
func (p *plan) ref(i int, made []int) turnstone.Ref {
	if k, ok := slices.BinarySearch(made, i); ok {
		return turnstone.RefNew(k)
	}
	id := p.h.info.ForkNode
	switch {
	case i == noEvent:
		return turnstone.RefNone()
	case i >= 0:
		id = p.h.ids[i]
	}
	if id.IsZero() {
		return turnstone.RefNone()
	}
	return turnstone.RefTo(id)
}

// taken reports whether a node of the session has an event's key.
func (h *held) taken(key string) bool {
	if h.keys == nil {
		h.keys = map[string]bool{}
		for i := range h.state.Nodes {
			h.keys[h.state.Nodes[i].Key] = true
		}
	}
	return h.keys[key]
}

// topUp returns what the file says was used in all, but for what the session and the
// events that are new account for.
func (h *held) topUp(c *Conversation) []head.Usage {
	var counted head.Usage
	for _, u := range h.info.Usage {
		counted.Add(u)
	}
	for i := range c.Events {
		if h.ids[i].IsZero() && !h.gone[i] && !h.moved[i] {
			for _, u := range c.Events[i].Usage {
				counted.Add(u)
			}
		}
	}
	var out []head.Usage
	for _, u := range c.Totals {
		more, _ := beyond(counted, u)
		rest, _ := beyond(u, counted) // what is counted and belongs to the next model
		counted = rest
		if more != (head.Usage{Model: more.Model}) {
			out = append(out, more)
		}
	}
	return out
}

// merge adds up what was used, by model.
func merge(all []head.Usage) []head.Usage {
	var out []head.Usage
	for _, u := range all {
		if i := slices.IndexFunc(out, func(v head.Usage) bool { return v.Model == u.Model }); i >= 0 {
			out[i].Add(u)
		} else {
			out = append(out, u)
		}
	}
	return out
}

// changes are checkpoint parts to set and to drop.
type changes struct {
	set  map[string][]byte
	drop []string
}

func (c *changes) empty() bool { return len(c.set)+len(c.drop) == 0 }

func (c *changes) join(in *turnstone.Commit) {
	maps.Copy(in.Checkpoint, c.set)
	in.Drop = append(in.Drop, c.drop...)
}

// parts returns what the parts that an import sets are to become: those that say
// what the file has outside the messages, for the first commit, and the layout, for
// the last one.
func (p *plan) parts() (outside, layout changes, err error) {
	content, err := p.layout()
	if err != nil {
		return outside, layout, err
	}
	layout = p.h.change(map[string][]byte{LayoutPart: content})
	if content != nil && p.h.fresh > 0 { // it goes with the revision at which it is set
		layout.set[LayoutPart] = content
	}
	if !p.keepsFile {
		outside = p.h.change(map[string][]byte{OutsidePart: p.c.Outside, SharedPart: p.c.Shared})
	}
	return outside, layout, nil
}

// change returns what makes the session's parts those that are wanted; nil is none.
func (h *held) change(want map[string][]byte) changes {
	out := changes{set: map[string][]byte{}}
	for name, content := range want {
		i := slices.IndexFunc(h.state.Parts, func(have head.Part) bool { return have.Name == name })
		switch {
		case content == nil && i >= 0:
			out.drop = append(out.drop, name)
		case content != nil && (i < 0 || h.state.Parts[i].Blob != blob.Sum(content)):
			out.set[name] = content
		}
	}
	return out
}
