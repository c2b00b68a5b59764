package importer

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// LayoutPart is the checkpoint part that says how the nodes of an imported session made
// up its file. A session does not have the part if the file was its payloads in the order
// of their commits, each on a line. The part is JSON.
const LayoutPart = "import-layout"

// A layout is the content of LayoutPart. A position is the index of a node among those
// that the session has not inherited.
type layout struct {
	// Nodes is the number of nodes when the part was set.
	Nodes int `json:"nodes"`
	// Order has the positions of the file's nodes in the order of the file. Nil means
	// all nodes in their own order. Nodes that are not in Order or More belong to earlier
	// versions of the file.
	Order []int `json:"order,omitempty"`
	// More has the positions of nodes that others committed between imports.
	More []int `json:"more,omitempty"`
	// Gaps has the bytes before each node of the file, by its index, and after the last one.
	Gaps gaps `json:"gaps,omitempty"`
}

// layout returns the content of LayoutPart after the last commit of the plan, or nil if
// the session needs no such part.
func (p *plan) layout() ([]byte, error) {
	l, err := p.h.layout()
	if err != nil {
		return nil, err
	}
	for i := l.Nodes; i < len(p.h.own); i++ {
		l.More = append(l.More, i)
	}
	if l.Nodes = len(p.h.own) + p.h.fresh; !p.keepsFile {
		l.Order, l.Gaps = p.order(), p.c.gaps
		if len(l.Order) != len(p.c.Events) {
			l.Gaps = nil // the node of a line was tombstoned
		}
	}
	ofFile := map[int]bool{}
	for _, at := range l.Order {
		ofFile[at] = true
	}
	l.More = slices.DeleteFunc(l.More, func(at int) bool { return ofFile[at] })
	if l.inOrder() {
		l.Order = nil
	}
	if l.Order == nil && len(l.Gaps) == 0 {
		return nil, nil
	}
	return json.Marshal(&l)
}

// inOrder reports whether Order has all nodes in their own order.
func (l *layout) inOrder() bool {
	for i, at := range l.Order {
		if i != at {
			return false
		}
	}
	return len(l.Order) == l.Nodes
}

// order returns the positions of the events' nodes in the order of the file.
func (p *plan) order() []int {
	at := map[graph.ID]int{}
	for i := range p.h.own {
		at[p.h.own[i].ID] = i
	}
	next := len(p.h.own)
	type place struct{ line, node int }
	var places []place
	for i := range p.c.Events {
		switch {
		case p.h.gone[i]:
		case p.h.ids[i].IsZero():
			places = append(places, place{p.c.Events[i].Line, next})
			next++
		default:
			places = append(places, place{p.c.Events[i].Line, at[p.h.ids[i]]})
		}
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.line, b.line) })
	order := make([]int, len(places))
	for i := range places {
		order[i] = places[i].node
	}
	return order
}

// layout returns the layout of the file that was imported last. Its Order is never nil
// unless there are no nodes.
func (h *held) layout() (layout, error) {
	plain := layout{Nodes: min(h.mark.events, len(h.own))} // later nodes were committed since
	l := plain
	if h.stored != nil {
		if err := json.Unmarshal(h.stored, &l); err != nil {
			return l, fmt.Errorf("checkpoint part %s: %w", LayoutPart, err)
		}
	}
	if l.Nodes > len(h.own) { // nodes were tombstoned, so the positions are wrong
		l = plain
	}
	if l.Order == nil {
		for i := range l.Nodes {
			l.Order = append(l.Order, i)
		}
	}
	return l, nil
}

// Write writes the payloads of a session. For an imported session these are the lines of
// its file, byte for byte, and then the payloads that were committed after the import.
// For any other session these are all payloads, each on a line. state is the full graph
// of the session, and part the content of its LayoutPart.
func Write(w io.Writer, state *turnstone.State, part []byte) error {
	nodes, between, err := lines(state, part)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	for i := range nodes {
		// Flush returns the errors of writes.
		_, _ = out.Write(between.before(i))
		_, _ = out.Write(nodes[i].Payload)
	}
	_, _ = out.Write(between.before(len(nodes)))
	return out.Flush()
}

// lines returns the nodes to write, in order, and the gaps between them.
func lines(state *turnstone.State, part []byte) ([]turnstone.Node, gaps, error) {
	set := layoutSet(state)
	if part == nil || set == 0 {
		return state.Nodes, nil, nil
	}
	var l layout
	if err := json.Unmarshal(part, &l); err != nil {
		return nil, nil, fmt.Errorf("checkpoint part %s: %w", LayoutPart, err)
	}
	var inherited, file, since []turnstone.Node
	for _, n := range state.Nodes {
		switch {
		case n.Inherited:
			inherited = append(inherited, n)
		case n.Revision <= set:
			file = append(file, n)
		default:
			since = append(since, n)
		}
	}
	if len(file) != l.Nodes { // nodes were tombstoned since, so the positions are wrong
		return state.Nodes, nil, nil
	}
	if len(inherited) > 0 {
		l.Gaps = nil // the file had the inherited lines as well
	}
	ofFile := len(file)
	if l.Order != nil {
		ofFile = len(l.Order)
	}
	file, err := l.arrange(file)
	all := slices.Concat(inherited, file, since)
	if gap := l.Gaps.before(ofFile); len(all) > ofFile && len(inherited) == 0 && !bytes.HasSuffix(gap, []byte("\n")) {
		l.Gaps[ofFile] = append(gap, '\n')
	}
	return all, l.Gaps, err
}

// layoutSet returns the revision that set the layout of a session. It returns 0 if there
// is no layout or an ancestor has set it.
func layoutSet(state *turnstone.State) head.Revision {
	for _, p := range state.Parts {
		if p.Name == LayoutPart {
			return p.Set
		}
	}
	return 0
}

// arrange returns the nodes in the order of the file, and then those of More.
func (l *layout) arrange(nodes []turnstone.Node) ([]turnstone.Node, error) {
	var out []turnstone.Node
	if l.Order == nil {
		out = slices.Clone(nodes)
	}
	for _, at := range slices.Concat(l.Order, l.More) {
		if at < 0 || at >= len(nodes) {
			return nil, fmt.Errorf("checkpoint part %s: position %d of %d", LayoutPart, at, len(nodes))
		}
		out = append(out, nodes[at])
	}
	return out, nil
}

// Complete reports whether Write writes the whole path to the leaf of a session. It does not for a session in several
// files, of which the last one has only the end.
func Complete(state *turnstone.State, part []byte) bool {
	nodes, _, err := lines(state, part)
	written, parents := map[graph.ID]bool{}, map[graph.ID]graph.ID{}
	for i := range nodes {
		written[nodes[i].ID] = true
	}
	for i := range state.Nodes {
		parents[state.Nodes[i].ID] = state.Nodes[i].Parent
	}
	for at := state.Leaf; !at.IsZero() && err == nil; at = parents[at] {
		if !written[at] {
			return false
		}
	}
	return true
}

// WritePath writes the transcript of a path of a session, whose nodes are all: the nodes of the path, and what the
// agent noted for itself beside them, in the order in which they were committed. If the session was one JSON object,
// the transcript is one, too, and outside has its other fields. name is that of the format.
func WritePath(w io.Writer, all, path []turnstone.Node, name string, outside []byte) error {
	parents, notes, on := map[graph.ID]graph.ID{}, map[graph.ID]bool{}, map[graph.ID]bool{}
	for i := range all {
		parents[all[i].ID] = all[i].Parent
		notes[all[i].ID] = !inConversation(all[i].Kind) && all[i].Kind != Unreadable
	}
	for i := range path {
		on[path[i].ID] = true
	}
	var state turnstone.State
	for i := range all {
		at := all[i].ID
		for !on[at] && notes[at] {
			at = parents[at]
		}
		if on[at] || at.IsZero() {
			state.Nodes = append(state.Nodes, all[i])
		}
	}
	var fields map[string]json.RawMessage
	t := formatNamed(name)
	if t == nil || t.whole == nil || json.Unmarshal(outside, &fields) != nil {
		return Write(w, &state, nil)
	}
	messages := []json.RawMessage{}
	for i := range state.Nodes {
		messages = append(messages, state.Nodes[i].Payload)
	}
	fields[t.items] = marshal(messages)
	_, err := w.Write(append(marshal(fields), '\n'))
	return err
}
