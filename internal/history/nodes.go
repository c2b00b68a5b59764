package history

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
)

// A Node is a node that was read, with its position.
type Node struct {
	pack.Node
	Revision  head.Revision
	Index     int  // The index among the nodes of its commit.
	Inherited bool // Whether an ancestor added it.
}

// Position returns the position of the node in its incarnation.
func (n *Node) Position() pack.Position {
	return pack.Position{Revision: uint64(n.Revision), Index: n.Index}
}

// AppendNodes appends to all the nodes of a layer that were committed after a revision.
func (h *History) AppendNodes(ctx context.Context, l Layer, after head.Revision, all []Node) ([]Node, error) {
	if l.Last == 0 {
		return all, nil
	}
	before, err := h.LastBefore(ctx, l, after+1)
	if err != nil {
		return nil, err
	}
	err = h.Packs(ctx, l.Inc, after, l.Last, func(p *pack.Pack) error {
		var err error
		if before, err = h.resolve(p, before); err != nil {
			return err
		}
		shared := p.Nodes
		if head.Revision(p.Revision) == l.Last && l.Nodes > 0 {
			shared = shared[:min(l.Nodes, len(shared))]
		}
		all = h.appendNodes(all, l, p.Revision, shared)
		return nil
	})
	return all, err
}

// resolve computes the ids of the nodes of a pack, and returns the last id. before is the id of
// the node before them.
func (h *History) resolve(p *pack.Pack, before graph.ID) (last graph.ID, err error) {
	if last, err = p.Resolve(before); err != nil {
		err = codec.Corrupt(err, "pack of revision %d of %s", p.Revision, h.Name)
	}
	return last, err
}

// appendNodes appends to all the nodes of one commit of a layer.
func (h *History) appendNodes(all []Node, l Layer, revision uint64, nodes []pack.Node) []Node {
	for i := range nodes {
		all = append(all, Node{Node: nodes[i], Revision: head.Revision(revision), Index: i, Inherited: l.Inc != h.Inc})
	}
	return all
}

// LastBefore returns the id of the last node of a layer before revision r.
func (h *History) LastBefore(ctx context.Context, l Layer, r head.Revision) (graph.ID, error) {
	if r <= 1 {
		return l.First, nil
	}
	c, _, err := h.Store.CommitAt(ctx, l.Inc, r-1)
	if err != nil {
		return graph.ID{}, err
	}
	return c.Last, nil
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
	var all []Node
	for _, l := range layers {
		var err error
		if all, err = h.AppendNodes(ctx, l, after, all); err != nil {
			return nil, err
		}
	}
	// A parent always comes before its children in the order of commits, so one pass
	// from the end finds the path.
	out := all[:0:0]
	want := leaf
	for i := len(all) - 1; i >= 0 && !want.IsZero(); i-- {
		if all[i].ID == want {
			out, want = append(out, all[i]), all[i].Parent
		}
	}
	if !want.IsZero() { // The index must have the node, at a position before the nodes that were read.
		at, err := h.Find(ctx, last, want)
		if errors.Is(err, ErrNodeNotFound) || err == nil && (after == 0 || at.Layer.Inc == h.Inc && head.Revision(at.Revision) > after) {
			err = codec.Corrupt(record.ErrMissing, "node %s of %s", want, h.Name)
		}
		if err != nil {
			return nil, err
		}
	}
	slices.Reverse(out)
	return out, nil
}

// Tail returns the end of the path to leaf, oldest node first: as much of it as has n nodes that
// are not hidden, or the whole path. Hidden nodes in between are included. It reads backwards
// from the leaf, one segment at a time.
//
// In most cases the leaf is in the last commit, and the path goes on in the segment before. Tail
// looks there first, and reads the index only if the node is elsewhere.
func (h *History) Tail(ctx context.Context, last head.Revision, leaf graph.ID, n int, hidden Tombstones) ([]Node, error) {
	var out []Node
	l, next := h.Own(last), last
	for want := leaf; !want.IsZero() && n > 0; {
		segment, err := h.segmentAt(ctx, l, next)
		if errors.Is(err, record.ErrMissing) || err == nil && !slices.ContainsFunc(segment, func(f Node) bool { return f.ID == want }) {
			l, segment, err = h.SegmentOf(ctx, last, want)
		}
		if err != nil {
			return nil, linked(err, want)
		}
		next = segment[0].Revision - 1
		progress := false
		for i := len(segment) - 1; i >= 0 && n > 0; i-- {
			if segment[i].ID != want || segment[i].Revision > l.Last {
				continue
			}
			if progress = true; !hidden.Has(want) {
				n--
			}
			out, want = append(out, segment[i]), segment[i].Parent
		}
		if !progress {
			return nil, codec.Corrupt(record.ErrMissing, "node %s of %s", want, h.Name)
		}
	}
	slices.Reverse(out)
	return out, nil
}

// linked turns ErrNodeNotFound into damage: something refers to the node, so it must exist.
func linked(err error, id graph.ID) error {
	if errors.Is(err, ErrNodeNotFound) {
		return codec.Corrupt(record.ErrMissing, "index entry of node %s", id)
	}
	return err
}

// All returns every node of the session up to revision last, whose commit has this id. It compares
// the nodes with the commits, because the id of a leaf covers only its own path.
func (h *History) All(ctx context.Context, last head.Revision, commit head.CommitID) ([]Node, error) {
	var all []Node
	layers := h.Layers(last)
	layers[len(layers)-1].Commit = commit
	for _, l := range layers {
		start := len(all)
		var err error
		if all, err = h.AppendNodes(ctx, l, 0, all); err != nil {
			return nil, err
		}
		if err := h.VerifyLayer(ctx, l, all[start:]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// VerifyLayer checks that nodes are exactly those that the commits of a layer added, and that
// these commits are a chain that ends with l.Commit, if that is set.
func (h *History) VerifyLayer(ctx context.Context, l Layer, nodes []Node) error {
	before := l.First
	err := h.Store.Commits(ctx, Range{Inc: l.Inc, Name: h.Name, Last: l.Last}, func(c *heads.Commit, id head.CommitID) error {
		if c.Revision == l.Last && !l.Commit.IsZero() && id != l.Commit {
			return codec.Corrupt(record.ErrHash, "commit %d of %s", c.Revision, h.Name)
		}
		n := 0
		for n < len(nodes) && nodes[n].Revision == c.Revision {
			n++
		}
		// If only a part of the last commit is shared, the commit can't be compared with it. The
		// part ends with the fork node, whose id covers it.
		if shared := c.Revision == l.Last && l.Nodes > 0; !shared {
			if err := vouch(c, nodes[:n], before); err != nil {
				return codec.Corrupt(err, "pack of revision %d of %s", c.Revision, h.Name)
			}
		}
		nodes, before = nodes[n:], c.Last
		return nil
	})
	if err == nil && len(nodes) > 0 && l.Last > 0 {
		err = codec.Corrupt(record.ErrMissing, "commit %d of %s", l.Last+1, h.Name)
	}
	return err
}

// vouch compares the nodes of one commit with the commit. before is the last node before them.
func vouch(c *heads.Commit, nodes []Node, before graph.ID) error {
	if len(nodes) != c.Nodes {
		return fmt.Errorf("%w: %d of %d nodes", record.ErrMissing, len(nodes), c.Nodes)
	}
	pack := pack.Pack{Nodes: make([]pack.Node, len(nodes))}
	for i := range nodes {
		pack.Nodes[i] = nodes[i].Node
		before = nodes[i].ID
	}
	linear := c.NodeDigest == [32]byte{}
	if before != c.Last || linear != pack.Linear(c.Leaf) || !linear && pack.Digest() != c.NodeDigest {
		return record.ErrHash
	}
	return nil
}

// SegmentOf returns the layer that has node id, and the nodes of the segment that the node is in.
func (h *History) SegmentOf(ctx context.Context, last head.Revision, id graph.ID) (Layer, []Node, error) {
	at, err := h.Find(ctx, last, id)
	if err != nil {
		return Layer{}, nil, err
	}
	nodes, err := h.segmentAt(ctx, at.Layer, head.Revision(at.Revision))
	return at.Layer, nodes, err
}

// segmentAt returns the nodes of the segment that has revision r of a layer.
func (h *History) segmentAt(ctx context.Context, l Layer, r head.Revision) ([]Node, error) {
	segment, err := pack.SegmentAt(ctx, h.Engine, h.Space, l.Inc, uint64(r))
	if errors.Is(err, pack.ErrNoSegment) {
		err = codec.Corrupt(record.ErrMissing, "pack of revision %d of %s", r, h.Name)
	}
	if err != nil {
		return nil, err
	}
	before, err := h.LastBefore(ctx, l, head.Revision(segment.Packs[0].Revision))
	if err != nil {
		return nil, err
	}
	var out []Node
	for i := range segment.Packs {
		p := &segment.Packs[i]
		if before, err = h.resolve(p, before); err != nil {
			return nil, err
		}
		out = h.appendNodes(out, l, p.Revision, p.Nodes)
	}
	return out, nil
}

// Pack returns the pack of revision r of an incarnation. Its nodes have no ids yet.
func (h *History) Pack(ctx context.Context, inc heads.Incarnation, r head.Revision) (pack.Pack, error) {
	segment, err := pack.SegmentAt(ctx, h.Engine, h.Space, inc, uint64(r))
	if err == nil {
		for _, p := range segment.Packs {
			if p.Revision == uint64(r) {
				return p, nil
			}
		}
	}
	if err == nil || errors.Is(err, pack.ErrNoSegment) {
		err = codec.Corrupt(record.ErrMissing, "pack of revision %d of %s", r, h.Name)
	}
	return pack.Pack{}, err
}

// commitNodes returns the nodes of revision r of a layer, and the id of the node before
// them.
func (h *History) commitNodes(ctx context.Context, l Layer, r head.Revision) (nodes []Node, before graph.ID, err error) {
	p, err := h.Pack(ctx, l.Inc, r)
	if err != nil {
		return nil, before, err
	}
	if before, err = h.LastBefore(ctx, l, r); err != nil {
		return nil, before, err
	}
	if _, err := h.resolve(&p, before); err != nil {
		return nil, before, err
	}
	return h.appendNodes(nil, l, p.Revision, p.Nodes), before, nil
}
