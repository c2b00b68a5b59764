package history

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// A Node is a node that was read, with its position.
type Node struct {
	graph.Node
	Revision  head.Revision
	Index     int       // The index among the nodes of its commit.
	Inherited bool      // Whether an ancestor added it.
	Time      time.Time // Of its commit.
}

// Position returns the position of the node in its incarnation.
func (n *Node) Position() graph.Position {
	return graph.Position{Revision: uint64(n.Revision), Index: n.Index}
}

// nodeOf returns a node of a turn of a layer.
func (h *History) nodeOf(l Layer, t *Turn, index int) Node {
	return Node{Node: t.Pack.Nodes[index], Revision: t.Revision, Index: index, Inherited: l.Inc != h.Inc, Time: t.Time}
}

// nodes returns how many nodes of a turn the session shares.
func (l *Layer) nodes(t *Turn) int {
	if t.Revision == l.Last && l.Nodes > 0 {
		return min(len(t.Pack.Nodes), l.Nodes)
	}
	return len(t.Pack.Nodes)
}

// AppendTurn appends to all the nodes of a turn of a layer that the session shares.
func (h *History) AppendTurn(all []Node, l Layer, t *Turn) []Node {
	for i := range l.nodes(t) {
		all = append(all, h.nodeOf(l, t, i))
	}
	return all
}

// A read turn is a turn with the layer that it is of.
type readTurn struct {
	layer *Layer
	*Turn
}

// read returns the turns of layers that were committed after a revision. It verifies that the
// commits of each are a chain, which ends with the layer's Commit if that is set.
func (h *History) read(ctx context.Context, layers []Layer, after head.Revision) (all []readTurn, err error) {
	for i := range layers {
		l := &layers[i]
		of := Revisions{Inc: l.Inc, Name: h.Name, After: after, Last: l.Last}
		err := h.Reader.Turns(ctx, of, func(t *Turn) error {
			if t.Revision == l.Last && !l.Commit.IsZero() && t.ID != l.Commit {
				return codec.Corrupt(damage.ErrHash, "commit %d of %s", t.Revision, h.Name)
			}
			all = append(all, readTurn{l, t})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// NodesOf returns all nodes of layers, in the order of their commits.
func (h *History) NodesOf(ctx context.Context, layers ...Layer) ([]Node, error) {
	read, err := h.read(ctx, layers, 0)
	n := 0
	for _, t := range read {
		n += t.layer.nodes(t.Turn)
	}
	all := make([]Node, 0, n)
	for _, t := range read {
		all = h.AppendTurn(all, *t.layer, t.Turn)
	}
	return all, err
}

// Path returns the nodes on the path to leaf that were committed after revision after up to
// revision last, root first. If after is 0, the path begins with the ancestors' nodes.
func (h *History) Path(ctx context.Context, last, after head.Revision, leaf graph.ID) ([]Node, error) {
	if leaf.IsZero() {
		return nil, nil
	}
	layers := h.Layers(last)
	if after > 0 {
		layers = layers[len(layers)-1:]
	}
	read, err := h.read(ctx, layers, after)
	if err != nil {
		return nil, err
	}
	// A parent always comes before its children in the order of commits, so one pass
	// from the end finds the path.
	type place struct{ turn, index int }
	var path []place
	want := leaf
	for i := len(read) - 1; i >= 0 && !want.IsZero(); i-- {
		nodes := read[i].Pack.Nodes[:read[i].layer.nodes(read[i].Turn)]
		for j := len(nodes) - 1; j >= 0 && !want.IsZero(); j-- {
			if nodes[j].ID == want {
				path, want = append(path, place{i, j}), nodes[j].Parent
			}
		}
	}
	if !want.IsZero() { // The index must have the node, at a position before the nodes that were read.
		_, at, err := h.Find(ctx, last, want)
		if errors.Is(err, ErrNodeNotFound) || err == nil && (after == 0 || at.Layer.Inc == h.Inc && head.Revision(at.Revision) > after) {
			err = codec.Corrupt(damage.ErrMissing, "node %s of %s", want, h.Name)
		}
		if err != nil {
			return nil, err
		}
	}
	out := make([]Node, 0, len(path))
	for _, p := range slices.Backward(path) {
		out = append(out, h.nodeOf(*read[p.turn].layer, read[p.turn].Turn, p.index))
	}
	return out, nil
}

// Depth returns how many nodes the path to a node has. It goes from the node to the next one whose commit ended at it,
// or at a node behind it: for such a leaf the commit says the length of the path.
func (h *History) Depth(ctx context.Context, last head.Revision, id graph.ID) (depth uint64, err error) {
	for !id.IsZero() {
		if h.Origin != nil && id == h.Origin.Node() {
			return depth + h.Origin.Depth, nil
		}
		_, at, err := h.Find(ctx, last, id)
		if err != nil {
			return 0, err
		}
		t, err := h.Store.TurnAt(ctx, at.Layer.Inc, head.Revision(at.Revision))
		if err != nil {
			return 0, err
		}
		if before, ok := t.before(at.Index); ok {
			return depth + t.Depth - before, nil
		}
		for i := at.Index; i >= 0; i-- {
			if n := &t.Pack.Nodes[i]; n.ID == id {
				id, depth = n.Parent, depth+1
			}
		}
	}
	return depth, nil
}

// before returns how many nodes are between the i-th node of a turn and the turn's leaf, if the path to the leaf has
// the node: 0 for the leaf itself.
func (t *Turn) before(i int) (n uint64, ok bool) {
	id := t.Leaf
	for j := len(t.Pack.Nodes) - 1; j >= i; j-- {
		if node := &t.Pack.Nodes[j]; node.ID == id {
			if j == i {
				return n, true
			}
			id, n = node.Parent, n+1
		}
	}
	return 0, false
}

// Tail returns the last n nodes on the path to leaf that are not hidden, or all of them, oldest
// first. It reads backwards from the leaf, one segment at a time, and steps over hidden nodes without
// reading them as far as their tombstones say where to go on.
func (h *History) Tail(ctx context.Context, last head.Revision, leaf graph.ID, n int, hidden *Tombstones) (out []Node, err error) {
	w := walk{h: h, last: last, hidden: hidden, layer: h.Own(last), next: last}
	for want := leaf; !want.IsZero() && n > len(out); {
		path, err := w.from(ctx, want, n-len(out)+1) // one more, as the parent of the first node is looked for as well
		if err != nil {
			return nil, err
		}
		for len(path) > 0 && n > len(out) {
			if !hidden.knows(path[0].ID) {
				if err := hidden.lookAll(ctx, path); err != nil {
					return nil, err
				}
			}
			if !hidden.Has(path[0].ID) {
				out, want, path = append(out, path[0]), path[0].Parent, path[1:]
				continue
			}
			if want, err = hidden.visible(ctx, last, path[0].ID); err != nil {
				return nil, err
			}
			path, w.next = nil, 0 // It is not likely to be in the segment before.
		}
	}
	slices.Reverse(out)
	return out, nil
}

// A walk goes back from a node to its parent, and on to the root.
type walk struct {
	h      *History
	last   head.Revision
	hidden *Tombstones
	layer  Layer         // that was read last
	turns  []*Turn       // of it, in order
	next   head.Revision // that the path goes on at most likely, or 0 if nothing is known
}

// from returns the beginning of the path from a node to the root, the node first: those nodes that are
// in the same segment, but no more than most. In most cases the leaf is in the last commit, and the path
// goes on in the segment before the one that was read. So from looks there first, and asks the index
// only if the node is elsewhere.
func (w *walk) from(ctx context.Context, id graph.ID, most int) ([]Node, error) {
	path := w.path(id, most)
	if len(path) == 0 && w.next > 0 {
		if err := w.read(ctx, most); err != nil {
			return nil, err
		}
		path = w.path(id, most)
	}
	if len(path) > 0 {
		return path, nil
	}
	_, at, err := w.h.Find(ctx, w.last, id)
	if err != nil {
		return nil, linked(err, id)
	}
	w.layer, w.next = at.Layer, head.Revision(at.Revision)
	if err := w.read(ctx, most); err != nil {
		return nil, err
	}
	if path = w.path(id, most); len(path) == 0 {
		return nil, codec.Corrupt(damage.ErrMissing, "node %s of %s", id, w.h.Name)
	}
	return path, nil
}

// path returns those nodes of the turns that are on the path from id to the root, id first, but no
// more than most.
func (w *walk) path(id graph.ID, most int) (path []Node) {
	for i := len(w.turns) - 1; i >= 0; i-- {
		t := w.turns[i]
		for j := w.layer.nodes(t) - 1; j >= 0 && len(path) < most; j-- {
			if n := &t.Pack.Nodes[j]; n.ID == id {
				path, id = append(path, w.h.nodeOf(w.layer, t, j)), n.Parent
			}
		}
	}
	return path
}

// read reads the turns of the segment that has revision w.next. If that segment is loose, read also reads
// loose segments before it, all in one call of the engine. It reads one segment for every two nodes that
// the caller wants, because most turns have two nodes or more. If the node is not in them, the index has
// to say where it is.
func (w *walk) read(ctx context.Context, most int) error {
	w.turns = w.turns[:0]
	sealed, known := w.hidden.sealed[w.layer.Inc]
	if known && w.next > sealed {
		of := Revisions{Inc: w.layer.Inc, Name: w.h.Name, After: w.next - min(w.next-sealed, head.Revision(most+1)/2), Last: w.next}
		w.next = of.After
		return w.h.Reader.Turns(ctx, of, func(t *Turn) error {
			w.turns = append(w.turns, t)
			return nil
		})
	}
	segment, err := w.h.Reader.At(ctx, w.layer.Inc, w.h.Name, w.next)
	if err != nil {
		return err
	}
	for i := range segment.Turns {
		if t := &segment.Turns[i]; t.Revision <= w.layer.Last {
			w.turns = append(w.turns, t)
		}
	}
	w.next = segment.First - 1
	return nil
}

// linked turns ErrNodeNotFound into damage: something refers to the node, so it must exist.
func linked(err error, id graph.ID) error {
	if errors.Is(err, ErrNodeNotFound) {
		return codec.Corrupt(damage.ErrMissing, "index entry of node %s", id)
	}
	return err
}

// All returns every node of the session up to revision last, whose commit has this id.
func (h *History) All(ctx context.Context, last head.Revision, commit head.CommitID) ([]Node, error) {
	layers := h.Layers(last)
	layers[len(layers)-1].Commit = commit
	return h.NodesOf(ctx, layers...)
}

// SegmentOf returns the layer that has node id, and the nodes of the segment that the node is in.
func (h *History) SegmentOf(ctx context.Context, last head.Revision, id graph.ID) (Layer, []Node, error) {
	_, at, err := h.Find(ctx, last, id)
	if err != nil {
		return Layer{}, nil, err
	}
	nodes, _, err := h.segmentAt(ctx, at.Layer, head.Revision(at.Revision))
	return at.Layer, nodes, err
}

// segmentAt returns the nodes of the segment that has revision r of a layer, as far as the session
// shares them, and the first revision of the segment.
func (h *History) segmentAt(ctx context.Context, l Layer, r head.Revision) (nodes []Node, first head.Revision, err error) {
	segment, err := h.Reader.At(ctx, l.Inc, h.Name, r)
	if err != nil {
		return nil, 0, err
	}
	for i := range segment.Turns {
		if t := &segment.Turns[i]; t.Revision <= l.Last {
			nodes = h.AppendTurn(nodes, l, t)
		}
	}
	return nodes, segment.First, nil
}
