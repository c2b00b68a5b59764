package importer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"slices"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
)

// A stamp says which content of a conversation a session has. It is a label of the
// session: the number of events, a hash of them, and one of everything else.
type stamp struct {
	events int
	all    string // of the events
	about  string // of the rest
}

func (s stamp) String() string { return fmt.Sprintf("%d:%s:%s", s.events, s.all, s.about) }

func parseStamp(label string) (s stamp) {
	fields := strings.Split(label, ":")
	if len(fields) != 3 {
		return stamp{}
	}
	if _, err := fmt.Sscan(fields[0], &s.events); err != nil {
		return stamp{}
	}
	s.all, s.about = fields[1], fields[2]
	return s
}

func sum(h hash.Hash) string { return fmt.Sprintf("%x", h.Sum(nil)[:12]) }

// digest identifies the first n events.
func (c *Conversation) digest(n int) string {
	h := sha256.New()
	for i := range c.Events[:n] {
		e := &c.Events[i]
		fmt.Fprintf(h, "%q %q %q %v %d\n", e.Key, e.Kind, e.Parent, e.Root, len(e.Payload))
		h.Write(e.Payload)
	}
	return sum(h)
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
	c.stamp = stamp{events: len(c.Events), all: c.digest(len(c.Events)), about: sum(h)}
}

// present is the time that makes a Clock tell the present.
var present time.Time

// ended returns when the last event was.
func (c *Conversation) ended() time.Time {
	if n := len(c.Events); n > 0 {
		return c.Events[n-1].Time
	}
	return c.began
}

// held is what a session has of a conversation.
type held struct {
	session *turnstone.Session
	info    turnstone.Info
	state   *turnstone.State // with the full graph
	mark    stamp            // of the content that was imported last
	own     []turnstone.Node // of state.Nodes: those that the session added itself

	before []int              // by event: the index of its parent event, or noEvent, or forkNode
	ids    []turnstone.NodeID // by event: the node that holds it; zero for one that is new
	gone   []bool             // by event: it was imported, and is tombstoned since
	moved  []bool             // by event: it is new, but was in the session elsewhere, and its usage was counted there
	fresh  int                // events that are new

	keys   map[string]bool // of the session's nodes; see taken
	stored []byte          // LayoutPart; nil if there is none
}

const (
	noEvent  = -1 // a root
	forkNode = -2 // the node where an attached fork begins
)

// A spot is what makes a node the one that an event is already.
type spot struct {
	parent    turnstone.NodeID
	kind, key string
	payload   [sha256.Size]byte
}

// version separates an event key from what tells it from an earlier version of the
// same event: keys are unique in a session.
const version = "~"

// base returns an event key as the file has it.
func base(key string) string {
	k, _, _ := strings.Cut(key, version)
	return k
}

// versioned returns the key of an event, committed as revision r, whose own key
// stands for another node.
func (e *Event) versioned(r turnstone.Revision) string {
	return fmt.Sprintf("%s%s%d", base(e.Key), version, r)
}

// read compares a session with a conversation: an event is in the session if a node
// has its kind, key and payload and hangs from the node of the event before.
func (l *loader) read(ctx context.Context, s *turnstone.Session, c *Conversation) (*held, error) {
	h := &held{session: s}
	var err error
	if h.info, err = s.Info(ctx); err != nil {
		return nil, err
	}
	if h.mark = parseStamp(h.info.Labels[digestLabel]); h.mark == c.stamp && h.info.Revision > 0 {
		return h, nil
	}
	if h.state, err = s.Load(ctx, turnstone.Scope{Full: true}); err != nil {
		return nil, err
	}
	h.own = h.state.Nodes
	for len(h.own) > 0 && h.own[0].Inherited {
		h.own = h.own[1:]
	}
	if slices.ContainsFunc(h.state.Parts, func(p turnstone.Part) bool { return p.Name == LayoutPart && p.Set > 0 }) {
		parts, err := s.Checkpoint(ctx, h.state.Revision)
		if err != nil {
			return nil, err
		}
		h.stored = parts[LayoutPart]
	}
	h.link(c)
	at := map[spot][]turnstone.NodeID{}
	for i := range h.own {
		n := &h.own[i]
		k := spot{n.Parent, n.Kind, base(n.Key), sha256.Sum256(n.Payload)}
		at[k] = append(at[k], n.ID)
	}
	// If the file begins as it did at the last import, what it had then was written,
	// and what is not there any more was tombstoned by its owner.
	written := 0
	if n := h.mark.events; n <= len(c.Events) && h.mark.all == c.digest(n) && h.state.Revision > 0 {
		written = n
	}
	h.ids = make([]turnstone.NodeID, len(c.Events))
	h.gone, h.moved = make([]bool, len(c.Events)), make([]bool, len(c.Events))
	for i := range c.Events {
		e := &c.Events[i]
		parent, ok := h.parent(i)
		if !ok { // it hangs from an event that is new
			h.fresh++
			continue
		}
		k := spot{parent, e.Kind, base(e.Key), sha256.Sum256(e.Payload)}
		switch same := at[k]; {
		case len(same) > 0:
			h.ids[i], at[k] = same[0], same[1:]
		case i < written:
			h.ids[i], h.gone[i] = parent, true // what follows is linked past it
		default:
			h.fresh++
		}
	}
	// What is left hangs elsewhere than the file says now.
	elsewhere := map[spot]int{}
	for k, left := range at {
		elsewhere[spot{kind: k.kind, key: k.key, payload: k.payload}] += len(left)
	}
	for i := range c.Events {
		e := &c.Events[i]
		k := spot{kind: e.Kind, key: base(e.Key), payload: sha256.Sum256(e.Payload)}
		if h.ids[i].IsZero() && !h.gone[i] && elsewhere[k] > 0 {
			h.moved[i] = true
			elsewhere[k]--
		}
	}
	return h, nil
}

// link finds the parent of every event.
func (h *held) link(c *Conversation) {
	h.before = make([]int, len(c.Events))
	at := map[string]int{}
	for i := range c.Events {
		e := &c.Events[i]
		j, known := at[e.Parent]
		switch {
		case c.Attached && e.Root && e.Parent == c.ForkKey:
			h.before[i] = forkNode
		case e.Root:
			h.before[i] = noEvent
		case e.Parent == "" && i == 0 && c.Attached:
			h.before[i] = forkNode
		case e.Parent == "":
			h.before[i] = i - 1 // noEvent for the first one
		case known:
			h.before[i] = j
		default:
			h.before[i] = noEvent
		}
		if e.Key != "" {
			at[e.Key] = i
		}
	}
}

// parent returns the node that event i hangs from; ok is false if that is to be made.
func (h *held) parent(i int) (id turnstone.NodeID, ok bool) {
	switch j := h.before[i]; j {
	case noEvent:
		return turnstone.NodeID{}, true
	case forkNode:
		return h.info.ForkNode, true
	default:
		return h.ids[j], !h.ids[j].IsZero() || h.gone[j]
	}
}

// kin reports whether the session, which has the identity of c, holds c.
func (h *held) kin(c *Conversation) bool {
	n := h.mark.events
	if c.kin == kinID || h.mark == c.stamp || len(c.Events) == 0 || len(h.own) == 0 || h.fresh == 0 || n <= len(c.Events) && h.mark.all == c.digest(n) {
		return true
	}
	if c.kin == kinStdin {
		return false
	}
	has := map[[sha256.Size]byte]bool{}
	for i := range h.own {
		has[sha256.Sum256(h.own[i].Payload)] = true
	}
	talks := func(e Event) bool { return e.Kind != "system" } // all of an agent's conversations may begin alike
	return !slices.ContainsFunc(c.Events, talks) ||
		slices.ContainsFunc(c.Events, func(e Event) bool { return talks(e) && has[sha256.Sum256(e.Payload)] })
}

// passed reports whether the session has gone on from a node, the end of the file as
// it is now, with nothing of the file as it was: then it need not go back there.
func (h *held) passed(end turnstone.NodeID, was *layout) bool {
	if end.IsZero() {
		return false
	}
	file := map[turnstone.NodeID]bool{}
	for _, at := range was.Order {
		if at >= 0 && at < len(h.own) {
			file[h.own[at].ID] = true
		}
	}
	parents := map[turnstone.NodeID]turnstone.NodeID{}
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
