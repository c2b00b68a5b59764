package importer

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// LayoutPart is the checkpoint part that says how the nodes of an imported session
// made up its file, if the file was not simply their payloads in the order of their
// commits, each on a line. It is JSON.
const LayoutPart = "import-layout"

type layout struct {
	// Nodes is how many nodes the session had added itself when the part was set.
	Nodes int `json:"nodes"`
	// Order has the positions among those, in the order of the file. Nil stands for
	// all of them as they are. What it leaves out is of earlier versions of the file.
	Order []int `json:"order,omitempty"`
	// More has the positions of those that were committed between imports, by others.
	More []int `json:"more,omitempty"`
	// Gaps is what stands before the line of a number, from 0 on, and behind the last
	// one, where that is not one line feed between lines.
	Gaps map[int]string `json:"gaps,omitempty"`
}

// layout returns the part for a session when the plan is done; nil for none.
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
			l.Gaps = nil // a line is tombstoned
		}
	}
	ofFile := map[int]bool{}
	for _, at := range l.Order {
		ofFile[at] = true
	}
	l.More = slices.DeleteFunc(l.More, func(at int) bool { return ofFile[at] })
	plain := len(l.Order) == l.Nodes
	for i, at := range l.Order {
		plain = plain && i == at
	}
	if plain {
		l.Order = nil
	}
	if plain && len(l.Gaps) == 0 {
		return nil, nil
	}
	return json.Marshal(&l)
}

// order returns the positions of the events' nodes among all that the session adds
// itself, in the order of the file.
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

// layout returns how the session's nodes make up the file that was imported last,
// with the order spelled out.
func (h *held) layout() (layout, error) {
	plain := layout{Nodes: min(h.mark.events, len(h.own))} // what comes behind was committed since
	l := plain
	if h.stored != nil {
		if err := json.Unmarshal(h.stored, &l); err != nil {
			return l, fmt.Errorf("checkpoint part %s: %w", LayoutPart, err)
		}
	}
	if l.Nodes > len(h.own) { // nodes were tombstoned: the positions no longer fit
		l = plain
	}
	if l.Order == nil {
		for i := range l.Nodes {
			l.Order = append(l.Order, i)
		}
	}
	return l, nil
}

// Write writes a session's payloads: of an imported one the lines of its file, byte
// for byte, and then what was committed since; of any other all, each on a line. The
// state is that of the full graph, and part the content of its LayoutPart.
func Write(w io.Writer, state *turnstone.State, part []byte) error {
	nodes, gaps, err := lines(state, part)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	for i := range nodes {
		gap, ok := gaps[i]
		if !ok && i > 0 || ok && gap == "" && i > 0 {
			gap = "\n"
		}
		// An error stays until Flush.
		_, _ = out.WriteString(gap)
		_, _ = out.Write(nodes[i].Payload)
	}
	if end, ok := gaps[len(nodes)]; ok {
		_, _ = out.WriteString(end)
	} else if len(nodes) > 0 {
		_ = out.WriteByte('\n')
	}
	return out.Flush()
}

// lines returns the nodes to write, in order, and what stands between them.
func lines(state *turnstone.State, part []byte) ([]turnstone.Node, map[int]string, error) {
	set := head.Revision(0) // when the part was set; 0: in an ancestor
	for _, p := range state.Parts {
		if p.Name == LayoutPart {
			set = p.Set
		}
	}
	if part == nil || set == 0 {
		return state.Nodes, nil, nil
	}
	var l layout
	if err := json.Unmarshal(part, &l); err != nil {
		return nil, nil, fmt.Errorf("checkpoint part %s: %w", LayoutPart, err)
	}
	var out, file, since []turnstone.Node
	for _, n := range state.Nodes {
		switch {
		case n.Inherited:
			out = append(out, n)
		case n.Revision <= set:
			file = append(file, n)
		default:
			since = append(since, n)
		}
	}
	if len(file) != l.Nodes { // nodes were tombstoned since: the positions no longer fit
		return state.Nodes, nil, nil
	}
	if len(out) > 0 {
		l.Gaps = nil // the file had what is inherited as well
	}
	if l.Order == nil {
		out = append(out, file...)
	}
	for _, at := range slices.Concat(l.Order, l.More) {
		if at < 0 || at >= len(file) {
			return nil, nil, fmt.Errorf("checkpoint part %s: position %d of %d", LayoutPart, at, len(file))
		}
		out = append(out, file[at])
	}
	return append(out, since...), l.Gaps, nil
}
