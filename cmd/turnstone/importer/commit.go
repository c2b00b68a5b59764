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
	// OutsidePart is a JSON object with the fields of the conversation outside its
	// messages.
	OutsidePart = "import-outside"
	// SharedPart is a JSON object with the fields that all conversations of the file
	// share.
	SharedPart = "import-shared"
)

// A turn that exceeds one of these limits becomes several commits, so that each commit
// fits the batch of an engine. A large payload becomes a blob of its own, so at most
// maxCounts bytes of it count.
const (
	maxCommit = 1 << 20 // payload bytes
	maxCounts = 8 << 10
	maxNodes  = 2000
)

// grow brings a session up to date with c: it saves the metadata, commits the new events, and
// moves the leaf unless others went on from there. An older snapshot of the file changes
// nothing; one that a crash has torn only adds its new events.
func (l *loader) grow(ctx context.Context, c *Conversation, r *Result, h *held) error {
	r.Session, r.Outcome = h.session.ID(), Unchanged
	file, err := h.layout()
	if err != nil {
		return err
	}
	if h.isOlder(c, &file) {
		return nil
	}
	end, last := h.end(c)
	passed := last < 0 || h.passed(end, &file)
	r.Outcome = h.outcome(c, last, passed)
	// A torn file says less about the leaf than a fuller one. It adds its new events and
	// changes nothing else.
	p := plan{keepsFile: !h.begins(c) && c.torn > h.mark.torn && len(c.Events)-c.torn <= h.mark.events-h.mark.torn, last: last}
	if passed || p.keepsFile {
		p.last = -1
	}
	defer l.Clock.set(noTime)
	if !p.keepsFile {
		l.Clock.set(c.ended())
		if err := h.session.SaveMetadata(ctx, h.metadata(c)); err != nil {
			return err
		}
	}
	err = l.commit(ctx, c, r, h, p)
	if err == nil && p.keepsFile && r.Commits == 0 {
		r.Outcome = Unchanged
	}
	return err
}

// isOlder reports whether c is a snapshot of the file from before the last import, whose
// layout is file: it has fewer events, none of them new, and in the same order.
func (h *held) isOlder(c *Conversation, file *layout) bool {
	if h.fresh > 0 || len(c.Events) >= h.mark.events {
		return false
	}
	older := (&plan{c: c, h: h}).order()
	return slices.Equal(older, file.Order[:min(len(older), len(file.Order))])
}

// outcome returns the outcome of an import whose last event is last. If passed is set,
// the leaf of the session stays.
func (h *held) outcome(c *Conversation, last int, passed bool) Outcome {
	switch {
	case h.fresh == 0 && passed:
		return Updated
	case passed || h.extends(last) || h.begins(c) && slices.Contains(h.ids, h.state.Leaf):
		return Grown
	}
	return Branched
}

// metadata returns the metadata that the session gets from the file. It leaves alone what
// people may have set.
func (h *held) metadata(c *Conversation) head.Metadata {
	m := head.Metadata{Labels: c.labels(), HostUpdated: c.ended()}
	for key := range h.info.Labels {
		if _, has := m.Labels[key]; !has && strings.HasPrefix(key, fieldLabel) {
			m.Labels[key] = "" // the file does not have the field any more
		}
	}
	if h.info.Labels[ProjectLabel] != "" { // what mirrors it may know better
		delete(m.Labels, ProjectLabel)
	}
	if h.info.Name == "" || h.mark.name == nameSum(h.info.Name) { // an import has set the name
		m.Name = c.Name
	}
	if h.info.Cwd == "" {
		m.Cwd = c.Cwd
	}
	used := func(u head.Usage) bool { return u.Model == h.info.Model }
	if h.info.Model == "" || h.info.Revision == 0 || slices.ContainsFunc(h.info.Usage, used) { // an import has set the model
		m.Model = c.Model
	}
	return m
}

// end returns the last event of c that can be the leaf, and its node, which is zero if
// the event is new. The index is -1 if there is no such event.
func (h *held) end(c *Conversation) (graph.ID, int) {
	for i := len(c.Events) - 1; i >= 0; i-- {
		if !c.Events[i].Side {
			return h.ids[i], i
		}
	}
	return graph.ID{}, -1
}

// extends reports whether the new events on the path to event last follow the leaf of
// the session.
func (h *held) extends(last int) bool {
	for i := last; i >= 0; i = h.c.Events[i].Before {
		if !h.ids[i].IsZero() {
			return h.ids[i] == h.state.Leaf
		}
		if id, ok := h.parents[i]; ok {
			return id == h.state.Leaf
		}
		if h.c.Events[i].Before < 0 {
			id, _ := h.parent(i)
			return id == h.state.Leaf
		}
	}
	return false
}

// A plan says how an import commits the events of a conversation.
type plan struct {
	c         *Conversation
	h         *held
	last      int  // the event that becomes the leaf; -1 leaves the leaf where it is
	keepsFile bool // the layout and the fields outside the messages stay those of the last import
	follow    bool // every commit moves the leaf; otherwise only the last one does
	bySteps   bool
	revision  head.Revision // of the session after the commits so far
	leaf      graph.ID      // of the session after the commits so far
}

// commit commits the new events of c, and what else differs, as p says.
func (l *loader) commit(ctx context.Context, c *Conversation, r *Result, h *held, p plan) error {
	p.c, p.h, p.bySteps, p.revision, p.leaf = c, h, l.BySteps, h.state.Revision, h.state.Leaf
	p.follow = p.last >= 0 && h.extends(p.last)
	outside, layout, err := p.parts()
	if err != nil {
		return err
	}
	used := h.topUp(c)
	var stamp []turnstone.RecordChange
	if !p.keepsFile {
		stamp = []turnstone.RecordChange{{Key: stampKey, Value: []byte(c.stamp.String()), Expect: h.marked}}
		if c.origin != "" {
			value := c.stamp.String()
			if h.linked {
				value += linkedMark
			}
			stamp = append(stamp, turnstone.RecordChange{Key: c.fileStampKey(), Value: []byte(value)})
		}
	}
	if h.fresh == 0 && p.last < 0 && outside.empty() && layout.empty() && len(used) == 0 {
		if _, err := h.session.ChangeRecords(ctx, stamp...); err != nil {
			return err
		}
		h.noted(c, p.keepsFile)
		return nil
	}
	for start, final := 0, false; !final; {
		end := p.cut(start)
		final = end == len(c.Events)
		in, made := p.build(start, end)
		if start == 0 {
			outside.join(&in)
		}
		at := c.ended()
		if final {
			layout.join(&in)
			in.Records = stamp
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
		r.Commits++
		r.Added += len(in.Nodes)
		start = end
	}
	if h.noted(c, p.keepsFile); !layout.empty() {
		h.stored = layout.set[LayoutPart]
	}
	return nil
}

// noted notes that the session has the stamp of c now, unless an import keeps that of the file before.
func (h *held) noted(c *Conversation, keepsFile bool) {
	if !keepsFile {
		h.mark = c.stamp
	}
}

// apply makes a commit at a time. Its nodes are those of the events made.
func (l *loader) apply(ctx context.Context, p *plan, in turnstone.Commit, made []int, at time.Time) error {
	l.Clock.set(at)
	res, err := p.h.session.Commit(ctx, in)
	if errors.Is(err, turnstone.ErrUploadExpired) {
		// A large commit uploads its blobs first, and uploads expire by the clock of the
		// store. The clock was set to the past, and a collection in another process, whose
		// clock is right, removed the uploads.
		l.Clock.set(noTime)
		res, err = p.h.session.Commit(ctx, in)
	}
	if errors.Is(err, turnstone.ErrInvalid) { // an edited event has the key of a tombstoned node
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
	p.h.add(&in, made, &res)
	p.revision, p.leaf = res.Revision, res.Leaf
	return nil
}

// cut returns the first event after the commit that begins with event start. A commit ends
// before a new turn (or step), at the limits, and before an event that would set a checkpoint
// part twice.
func (p *plan) cut(start int) int {
	size, nodes := 0, 0
	set := map[string]bool{}    // checkpoint parts that the commit sets
	models := map[string]bool{} // whose usage it has
	for i := start; i < len(p.c.Events); i++ {
		e := &p.c.Events[i]
		if !p.h.isNew(i) {
			continue
		}
		full := nodes == maxNodes || size > maxCommit || len(models)+len(e.Usage) > turnstone.MaxModels
		if nodes > 0 && (full || e.Turn || p.bySteps && e.Step || e.setsAny(set)) {
			return i
		}
		for name := range e.Checkpoint {
			set[name] = true
		}
		for _, u := range e.Usage {
			models[u.Model] = true
		}
		size += min(len(e.Payload), maxCounts)
		nodes++
	}
	return len(p.c.Events)
}

// setsAny reports whether an event sets one of the checkpoint parts. A commit can keep
// only one version of a part.
func (e *Event) setsAny(parts map[string]bool) bool {
	for name := range e.Checkpoint {
		if parts[name] {
			return true
		}
	}
	return false
}

// build returns the commit of the new events from start to end, and their indexes.
func (p *plan) build(start, end int) (turnstone.Commit, []int) {
	in := turnstone.Commit{Expected: p.revision, Checkpoint: map[string][]byte{}, Leaf: turnstone.RefNone()}
	if !p.leaf.IsZero() {
		in.Leaf = turnstone.RefTo(p.leaf)
	}
	var made []int
	leaf := -1
	for i := start; i < end; i++ {
		e := &p.c.Events[i]
		if !p.h.isNew(i) {
			continue
		}
		n := turnstone.NewNode{Kind: e.Kind, Key: e.Key, Payload: e.Payload, Parent: p.parent(i, made)}
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

// parent returns a reference to the node that event i follows.
func (p *plan) parent(i int, made []int) turnstone.Ref {
	if id, ok := p.h.parents[i]; ok {
		return turnstone.RefTo(id)
	}
	return p.ref(p.c.Events[i].Before, made)
}

// ref returns a reference to the node of event i, which may be one of the events made.
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

// topUp returns the part of c.Totals that neither the session nor the new events
// report.
func (h *held) topUp(c *Conversation) []head.Usage {
	var counted head.Usage
	for _, u := range h.info.Usage {
		counted.Add(u)
	}
	for i := range c.Events {
		if h.isNew(i) && !h.moved[i] {
			for _, u := range c.Events[i].Usage {
				counted.Add(u)
			}
		}
	}
	var out []head.Usage
	for _, u := range c.Totals {
		more, _ := beyond(counted, u)
		rest, _ := beyond(u, counted) // the rest of counted belongs to the next model
		counted = rest
		if more != (head.Usage{Model: more.Model}) {
			out = append(out, more)
		}
	}
	return out
}

// merge adds up usage by model.
func merge(all []head.Usage) []head.Usage {
	var out []head.Usage
	for _, u := range all {
		if i := slices.IndexFunc(out, func(v head.Usage) bool { return v.Model == u.Model }); i >= 0 {
			out[i].Add(u)
			for _, n := range []*uint64{&out[i].Input, &out[i].Output, &out[i].CachedInput, &out[i].CacheWrite, &out[i].Reasoning} {
				*n = min(*n, turnstone.MaxTokens)
			}
			out[i].Cost = min(out[i].Cost, turnstone.MaxCost)
		} else {
			out = append(out, u)
		}
	}
	return out
}

// changes are the checkpoint parts that a commit sets and drops.
type changes struct {
	set  map[string][]byte
	drop []string
}

func (c *changes) empty() bool { return len(c.set)+len(c.drop) == 0 }

// join adds the changes to a commit.
func (c *changes) join(in *turnstone.Commit) {
	maps.Copy(in.Checkpoint, c.set)
	in.Drop = append(in.Drop, c.drop...)
}

// parts returns the changes of checkpoint parts. The first commit sets the fields of the
// file outside the messages. The last commit sets the layout.
func (p *plan) parts() (outside, layout changes, err error) {
	content, err := p.layout()
	if err != nil {
		return outside, layout, err
	}
	layout = p.h.change(map[string][]byte{LayoutPart: content})
	if content != nil && p.h.fresh > 0 { // the layout is valid for the revision that sets it, so it is set again
		layout.set[LayoutPart] = content
	}
	if !p.keepsFile {
		outside = p.h.change(map[string][]byte{OutsidePart: p.c.Outside, SharedPart: p.c.Shared})
	}
	return outside, layout, nil
}

// change returns the changes that give the session's parts the wanted contents. A part
// with nil content is dropped.
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
