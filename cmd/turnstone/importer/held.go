package importer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// A stamp identifies the content of a conversation. The importer stores it as a record
// of the session, so that the next import sees without reading the session whether the
// file has changed.
type stamp struct {
	events int    // number of events
	torn   int    // how many of them are bytes that can't be read
	all    string // hash of the events, as digest makes it
	about  string // hash of everything else in the conversation
	name   string // hash of the name
}

func (s stamp) String() string {
	return fmt.Sprintf("%d:%d:%s:%s:%s", s.events, s.torn, s.all, s.about, s.name)
}

// parseStamp is the inverse of String. It returns the zero stamp for a record that is
// missing or malformed.
func parseStamp(record []byte) (s stamp) {
	fields := strings.Split(string(record), ":")
	if len(fields) != 5 {
		return stamp{}
	}
	if _, err := fmt.Sscan(fields[0]+" "+fields[1], &s.events, &s.torn); err != nil {
		return stamp{}
	}
	s.all, s.about, s.name = fields[2], fields[3], fields[4]
	return s
}

// sum returns the first 12 bytes of a hash as text.
func sum(h hash.Hash) string { return fmt.Sprintf("%x", h.Sum(nil)[:12]) }

// digest returns a hash of the first n events.
func (c *Conversation) digest(n int) string { return sum(c.hashed(n)) }

// hashed hashes the first n events. It goes on from the hash in the tail, if the conversation goes on from one.
func (c *Conversation) hashed(n int) hash.Cloner {
	h := sha256.New().(hash.Cloner)
	if c.since > 0 {
		h, _ = c.tail.events.Clone() // It can't fail for SHA-256.
	}
	for i := c.since; i < n; i++ {
		e := &c.Events[i]
		fmt.Fprintf(h, "%q %q %d %d\n", e.Key, e.Kind, e.Before, len(e.Payload))
		h.Write(e.Payload)
	}
	return h
}

// seal computes the stamp of the conversation.
func (c *Conversation) seal() {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %v %v\n", c.Model, c.Cwd, c.Labels, c.gaps, c.Totals)
	for i := range c.Events {
		fmt.Fprintf(h, "%d ", c.Events[i].Line)
	}
	for _, part := range [][]byte{c.Outside, c.Shared} {
		fmt.Fprintf(h, "%d\n", len(part))
		h.Write(part)
	}
	c.events = c.hashed(len(c.Events))
	c.stamp = stamp{events: len(c.Events), torn: c.torn, all: sum(c.events), about: sum(h), name: nameSum(c.Name)}
}

// nameSum returns a hash of the name of a session, by which an import knows whether the name is of an import.
func nameSum(name string) string {
	h := sha256.New()
	io.WriteString(h, name)
	return sum(h)[:8]
}

// noTime makes a Clock tell the present time.
var noTime time.Time

// ended returns the time of the last event, or the time at which the conversation began
// if it has no events.
func (c *Conversation) ended() time.Time {
	if n := len(c.Events); n > 0 {
		return c.Events[n-1].Time
	}
	return c.began
}

// A held compares a session with a conversation: it says which events of the
// conversation the session holds already. The function read makes it.
type held struct {
	session *turnstone.Session
	same    bool // the session holds all of the conversation; the fields after mark are not set
	linked  bool // events whose parents the file does not have go on from those of other files
	info    turnstone.Info
	state   *turnstone.State        // the full graph of the session
	mark    stamp                   // stamp of the conversation that was imported last
	marked  turnstone.RecordVersion // of the record with it
	own     []turnstone.Node        // the nodes of state.Nodes that the session did not inherit from its parent

	c *Conversation

	// These have an element for each event of the conversation.
	ids   []graph.ID // node that holds the event; zero if the event is new; its parent's node if it is gone
	gone  []bool     // the event was imported earlier, and its node was tombstoned since
	moved []bool     // the event is new here, but the session has it under another parent, where its usage was counted

	parents map[int]graph.ID    // nodes of other files that events follow, by their indexes
	fresh   int                 // number of events that are new
	other   int                 // number of own nodes that hold no event
	byKey   map[string]graph.ID // nodes by their keys in the file; see elsewhere
	keys    map[string]bool     // event keys of the session's nodes; see taken
	stored  []byte              // content of the checkpoint part LayoutPart; nil if there is none
}

const (
	noEvent  = -1 // the event is a root
	forkNode = -2 // the parent is the node of the parent session where an attached fork begins
)

// A fingerprint identifies the node of an event: a node holds an event if it has the same
// parent, kind, key and payload.
type fingerprint struct {
	parent    graph.ID
	kind, key string
	payload   [sha256.Size]byte
}

// fingerprint returns the fingerprint of an event below the given parent.
func (e *Event) fingerprint(parent graph.ID) fingerprint {
	return fingerprint{parent, e.Kind, base(e.Key), sha256.Sum256(e.Payload)}
}

// version separates an event's key in the file from a suffix. Keys are unique in a
// session, so a message that was edited in the file gets its key with a suffix.
const version = "~"

// base returns an event key without the suffix, as it stands in the file.
func base(key string) string {
	k, _, _ := strings.Cut(key, version)
	return k
}

// versioned returns the key for an event that is committed as revision r, if another
// node of the session has the event's own key.
func (e *Event) versioned(r head.Revision) string {
	return fmt.Sprintf("%s%s%d", e.Key, version, r)
}

// read compares a session with a conversation. The session holds an event if one of its
// nodes has the event's kind, key and payload, and the node of the event's parent as its
// parent.
func (l *loader) read(ctx context.Context, s *turnstone.Session, c *Conversation) (*held, error) {
	h := &held{session: s}
	var err error
	if h.info, err = s.Info(ctx); err != nil {
		return nil, err
	}
	last, err := s.Record(ctx, stampKey)
	if err != nil && !errors.Is(err, turnstone.ErrRecordNotFound) {
		return nil, err
	}
	h.mark = parseStamp(last.Value)
	ofFile := stamp{}
	if c.origin != "" {
		r, err := s.Record(ctx, c.fileStampKey())
		if err != nil && !errors.Is(err, turnstone.ErrRecordNotFound) {
			return nil, err
		}
		value, linked := bytes.CutSuffix(r.Value, []byte(linkedMark))
		ofFile, h.linked = parseStamp(value), linked
	}
	if h.same = h.mark == c.stamp || ofFile == c.stamp; h.same {
		return h, nil
	}
	if err := h.load(ctx); err != nil {
		return nil, err
	}
	if c.origin != "" && ofFile == (stamp{}) && h.mark != (stamp{}) {
		h.linked = true
	}
	h.c = c
	left := h.match(c)
	for _, nodes := range left {
		h.other += len(nodes)
	}
	h.findMoved(c, left)
	return h, nil
}

// load reads the nodes of the session and the layout of its file.
func (h *held) load(ctx context.Context) error {
	var err error
	if h.state, err = h.session.Load(ctx, turnstone.Scope{Full: true, Records: []string{stampKey}}); err != nil {
		return err
	}
	last := h.state.Records[stampKey]
	h.mark, h.marked = parseStamp(last.Value), last.Version
	h.setOwn()
	if !slices.ContainsFunc(h.state.Parts, func(p head.Part) bool { return p.Name == LayoutPart && p.Set > 0 }) {
		return nil
	}
	parts, err := h.session.Checkpoint(ctx, h.state.Revision)
	h.stored = parts[LayoutPart]
	return err
}

// setOwn sets own.
func (h *held) setOwn() {
	h.own = h.state.Nodes
	for len(h.own) > 0 && h.own[0].Inherited {
		h.own = h.own[1:]
	}
}

// add notes that a commit has made nodes of events.
func (h *held) add(in *turnstone.Commit, made []int, res *turnstone.Result) {
	for k, i := range made {
		h.ids[i] = res.Nodes[k]
		if h.keys != nil {
			h.keys[in.Nodes[k].Key] = true
		}
	}
	for k, i := range made {
		id, ok := h.parents[i]
		if !ok {
			id, _ = h.parent(i)
		}
		h.state.Nodes = append(h.state.Nodes, turnstone.Node{ID: h.ids[i], Parent: id, Kind: in.Nodes[k].Kind, Key: in.Nodes[k].Key})
	}
	h.state.Revision, h.state.Leaf = res.Revision, res.Leaf
	h.setOwn()
}

// forget removes the payloads of the nodes. An import that goes on from a tail does not need them.
func (h *held) forget() {
	for i := range h.state.Nodes {
		h.state.Nodes[i].Payload, h.state.Nodes[i].Attachments = nil, nil
	}
}

// match finds the node of each event. It returns the nodes of the session that no event
// has. Where a line of a mirrored session stands is for the mirror to say.
func (h *held) match(c *Conversation) map[fingerprint][]graph.ID {
	left := map[fingerprint][]graph.ID{}
	mirrored := h.info.Labels[MirrorLabel] != ""
	for i := range h.own {
		n := &h.own[i]
		k := fingerprint{n.Parent, n.Kind, base(n.Key), sha256.Sum256(n.Payload)}
		if mirrored {
			k.parent = graph.ID{}
		}
		left[k] = append(left[k], n.ID)
	}
	// If the file begins with the events of the last import, all of these events were
	// written to the session. One that the session does not have was tombstoned since.
	written := 0
	if h.begins(c) && h.state.Revision > 0 {
		written = h.mark.events
	}
	h.ids = make([]graph.ID, len(c.Events))
	h.gone, h.moved = make([]bool, len(c.Events)), make([]bool, len(c.Events))
	h.parents = map[int]graph.ID{}
	for i := range c.Events {
		parent, ok := h.parent(i)
		if !ok { // the parent is new, so the event is
			h.fresh++
			continue
		}
		var k fingerprint
		if len(left) > 0 {
			if k = c.Events[i].fingerprint(parent); mirrored {
				k.parent = graph.ID{}
			}
		}
		if other, ok := h.elsewhere(&c.Events[i]); ok && (len(left[k]) == 0 || len(left[c.Events[i].fingerprint(other)]) > 0) {
			k, h.parents[i] = c.Events[i].fingerprint(other), other
		}
		switch same := left[k]; {
		case len(same) > 0:
			h.ids[i], left[k] = same[0], same[1:]
		case i < written:
			h.ids[i], h.gone[i] = parent, true // the children of a tombstoned node are linked to its parent
		default:
			h.fresh++
		}
	}
	return left
}

// elsewhere returns the node of another file that has the id of the event's parent, which its own file lacks.
func (h *held) elsewhere(e *Event) (graph.ID, bool) {
	if !h.linked || e.missing == "" {
		return graph.ID{}, false
	}
	if h.byKey == nil {
		h.byKey = map[string]graph.ID{}
		for i := range h.state.Nodes {
			h.byKey[base(h.state.Nodes[i].Key)] = h.state.Nodes[i].ID
		}
	}
	id, ok := h.byKey[base(e.missing)]
	return id, ok
}

// begins reports whether c begins with the events of the conversation that was imported
// last.
func (h *held) begins(c *Conversation) bool {
	n := h.mark.events
	return n <= len(c.Events) && h.mark.all == c.digest(n)
}

// findMoved sets moved: it looks for new events among the nodes that no event has. Such
// a node has another parent than its event, or is another version of it that reports the same usage.
func (h *held) findMoved(c *Conversation, left map[fingerprint][]graph.ID) {
	if len(left) == 0 {
		return
	}
	elsewhere := map[fingerprint]int{}
	for k, nodes := range left {
		k.parent = graph.ID{}
		elsewhere[k] += len(nodes)
	}
	without := map[graph.ID]bool{} // nodes
	for _, nodes := range left {
		for _, id := range nodes {
			without[id] = true
		}
	}
	older := map[string][]byte{} // their payloads, by their keys in the file
	for i := range h.own {
		if without[h.own[i].ID] {
			older[base(h.own[i].Key)] = h.own[i].Payload
		}
	}
	for i := range c.Events {
		e := &c.Events[i]
		k := e.fingerprint(graph.ID{})
		switch was, ok := older[base(e.Key)]; {
		case !h.isNew(i):
		case elsewhere[k] > 0:
			h.moved[i] = true
			elsewhere[k]--
		case ok && e.Key != "" && len(e.Usage) > 0: // as when the directory in each line was changed
			h.moved[i] = slices.Equal(usageIn(c.Format, was), usageIn(c.Format, e.Payload))
		}
	}
}

// isNew reports whether event i is to be written: it has no node, and had none.
func (h *held) isNew(i int) bool { return h.ids[i].IsZero() && !h.gone[i] }

// parent returns the node that is the parent of event i. ok is false if the session does
// not have that node yet.
func (h *held) parent(i int) (id graph.ID, ok bool) {
	switch j := h.c.Events[i].Before; j {
	case noEvent:
		return graph.ID{}, true
	case forkNode:
		return h.info.ForkNode, true
	default:
		return h.ids[j], !h.ids[j].IsZero() || h.gone[j]
	}
}

// kin reports whether the session, which has the identity of c, holds an earlier or later
// state of c. The alternative is another conversation that was written to the same place.
func (h *held) kin(c *Conversation) bool {
	if c.kin == kinID || h.same || len(c.Events) == 0 || len(h.own) == 0 || h.fresh == 0 || h.begins(c) ||
		h.mark == (stamp{}) && h.other == 0 { // an import of c was cut off, or is at work
		return true
	}
	if c.kin == kinStdin {
		return false
	}
	has := map[[sha256.Size]byte]bool{}
	for i := range h.own {
		has[sha256.Sum256(h.own[i].Payload)] = true
	}
	// An agent may begin all its conversations with the same system message.
	talks := func(e Event) bool { return e.Kind != "system" }
	return !slices.ContainsFunc(c.Events, talks) ||
		slices.ContainsFunc(c.Events, func(e Event) bool { return talks(e) && has[sha256.Sum256(e.Payload)] })
}

// passed reports whether others went on from the node end, where the file ends now: the
// way from the session's leaf back to end has no node of the file that was imported last,
// whose layout is was. An import then leaves the leaf of the session where it is.
func (h *held) passed(end graph.ID, was *layout) bool {
	if end.IsZero() {
		return false
	}
	file := map[graph.ID]bool{}
	for _, at := range was.Order {
		if at >= 0 && at < len(h.own) {
			file[h.own[at].ID] = true
		}
	}
	parents := map[graph.ID]graph.ID{}
	for i := range h.state.Nodes {
		parents[h.state.Nodes[i].ID] = h.state.Nodes[i].Parent
	}
	for at := h.state.Leaf; at != end; at = parents[at] {
		if at.IsZero() || file[at] {
			return false
		}
	}
	return true
}
