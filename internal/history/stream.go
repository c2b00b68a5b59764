package history

import (
	"context"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// This file reads histories of any length one segment at a time. A path is known from its end: each
// node names the one before. So a walk goes backward, and a stream forward takes two walks: the first
// one finds out which runs of nodes are on the path, the second one reads them.
//
//	nodes in the order of commits   a b c x y d e f        x y is a side branch
//	walk back from f                a b c     d e f
//	spans                           [a, c]    [d, f]
//
// Every segment is read by a call of its own, and again if maintenance has moved something
// meanwhile. What a walk is about does not change: it is the history up to a revision.

// A Walk says what of a history to stream.
type Walk struct {
	Last    head.Revision // the state at this revision
	After   head.Revision // what the session's own commits after this one added; 0 for everything
	Leaf    graph.ID      // the path to this node
	All     bool          // all nodes, side branches included, instead of a path
	Reverse bool          // the newest node first
	Bare    bool          // without payloads that are stored apart
}

// Stream calls yield for each node of a walk that the session shows, with its payload, until yield
// returns false. In memory it holds one segment and the keys of the tombstones.
func (s *Session) Stream(ctx context.Context, w Walk, yield func(Node) bool) error {
	hidden, err := s.AllTombstones(ctx)
	if err != nil {
		return err
	}
	st := &stream{s: s, ctx: ctx, w: w, hidden: hidden, yield: yield}
	switch {
	case w.All:
		return st.all()
	case w.Reverse:
		return st.back()
	}
	return st.forward()
}

// AllTombstones reads all tombstones of the session.
func (s *Session) AllTombstones(ctx context.Context) (*Tombstones, error) {
	return Read(ctx, s, func(l *Lifecycles) (*Tombstones, error) {
		t, err := l.Tombstones()
		if err == nil && len(t.layers) > 0 {
			err = t.scan(ctx)
		}
		return t, err
	})
}

// A stream is one call of Stream.
type stream struct {
	s      *Session
	ctx    context.Context
	w      Walk
	hidden *Tombstones // all of them
	yield  func(Node) bool
	ended  bool // yield has reported false
}

// A span is a run of nodes in the order of commits.
type span struct {
	layer       Layer
	first, last graph.Position
}

// layers returns the layers that the walk is about.
func (st *stream) layers() []Layer {
	layers := st.s.Layers(st.w.Last)
	if st.w.After > 0 {
		layers = layers[len(layers)-1:]
	}
	return layers
}

// segment returns the nodes of the segment that has a revision, and its first and last revision.
func (st *stream) segment(l Layer, r head.Revision) (nodes []Node, first, last head.Revision, err error) {
	segment, err := Try(st.ctx, st.s, func() (*Segment, error) {
		return st.s.Reader.At(st.ctx, l.Inc, st.s.Name, r)
	})
	if err != nil {
		return nil, 0, 0, err
	}
	for i := range segment.Turns {
		t := &segment.Turns[i]
		if t.Revision <= l.Last && (t.Revision > st.w.After || l.Inc != st.s.Inc) {
			nodes = st.s.AppendTurn(nodes, l, t)
		}
	}
	return nodes, segment.First, segment.Last, nil
}

// walk calls f for the nodes on the path, the newest first, hidden ones included, until f reports
// false. before is the node that comes before n in the order of commits of its layer, if that is in
// the same segment.
func (st *stream) walk(f func(l Layer, n *Node, before *Node) bool) error {
	l, next := st.s.Own(st.w.Last), st.w.Last
	for want := st.w.Leaf; !want.IsZero(); {
		var nodes []Node
		first := head.Revision(0)
		if next > st.after(l) {
			var err error
			if nodes, first, _, err = st.segment(l, next); err != nil {
				return err
			}
		}
		at := slices.IndexFunc(nodes, func(n Node) bool { return n.ID == want })
		if at < 0 { // The path goes on elsewhere.
			_, p, err := st.s.findNow(st.ctx, st.w.Last, want)
			if err != nil {
				return linked(err, want)
			}
			if p.Layer.Inc == st.s.Inc && head.Revision(p.Revision) <= st.w.After || p.Layer.Inc != st.s.Inc && st.w.After > 0 {
				return nil // The node is older than the part that the walk reads.
			}
			l, next = p.Layer, head.Revision(p.Revision)
			continue
		}
		for i := at; i >= 0; i-- {
			n := &nodes[i]
			if n.ID != want {
				continue
			}
			var before *Node
			if i > 0 {
				before = &nodes[i-1]
			}
			if !f(l, n, before) {
				return nil
			}
			want = n.Parent
		}
		next = first - 1
	}
	return nil
}

// after returns the revision of a layer after which the walk begins.
func (st *stream) after(l Layer) head.Revision {
	if l.Inc == st.s.Inc {
		return st.w.After
	}
	return 0
}

// back streams the path, the newest node first. It hands on a node once it knows the nearest node before it that is not
// hidden.
func (st *stream) back() error {
	var held []Node // The last one waits for its parent.
	var failed error
	err := st.walk(func(_ Layer, n, _ *Node) bool {
		if st.hidden.Has(n.ID) {
			return true
		}
		if len(held) > 0 {
			held[len(held)-1].Parent = n.ID
		}
		if tooMany(held) {
			failed, held = st.hand(held), nil
		}
		held = append(held, *n)
		return failed == nil && !st.ended
	})
	if err = errors.Join(err, failed); err != nil || st.ended || len(held) == 0 {
		return err
	}
	if err := st.setParent(&held[len(held)-1]); err != nil {
		return err
	}
	return st.hand(held)
}

// setParent makes the nearest node before n that is not hidden its parent.
func (st *stream) setParent(n *Node) (err error) {
	if st.hidden.Has(n.Parent) {
		n.Parent, err = Try(st.ctx, st.s, func() (graph.ID, error) { return st.hidden.visible(st.ctx, st.w.Last, n.Parent) })
	}
	return err
}

// tooMany reports whether nodes are enough to be handed on.
func tooMany(nodes []Node) bool {
	const atOnce, bytes = 64, 4 << 20
	size := int64(0)
	for i := range nodes {
		size += nodes[i].Size
	}
	return len(nodes) >= atOnce || size >= bytes
}

// forward streams the path, the oldest node first.
func (st *stream) forward() error {
	var spans []span // the newest first
	contiguous := false
	err := st.walk(func(l Layer, n, before *Node) bool {
		if p := n.Position(); contiguous {
			spans[len(spans)-1].first = p
		} else {
			spans = append(spans, span{l, p, p})
		}
		contiguous = before != nil && before.ID == n.Parent
		return true
	})
	if err != nil {
		return err
	}
	out := &path{stream: st}
	for i := len(spans) - 1; i >= 0 && !st.ended; i-- {
		if err := out.span(spans[i]); err != nil {
			return err
		}
	}
	return st.hand(out.nodes)
}

// A path hands on the nodes of a path, the oldest first.
type path struct {
	*stream
	nodes []Node   // those that are not handed on yet
	last  graph.ID // the last one that was added; it is the parent of the next
}

// span adds the nodes of a run.
func (o *path) span(of span) error {
	for r := head.Revision(of.first.Revision); r <= head.Revision(of.last.Revision) && !o.ended; {
		nodes, _, last, err := o.segment(of.layer, r)
		if err != nil {
			return err
		}
		for i := range nodes {
			p := nodes[i].Position()
			if p.Before(of.first) || of.last.Before(p) || nodes[i].Revision < r || o.hidden.Has(nodes[i].ID) {
				continue
			}
			if err := o.add(nodes[i]); err != nil || o.ended {
				return err
			}
		}
		r = last + 1
	}
	return nil
}

// add adds a node.
func (o *path) add(n Node) error {
	if !o.last.IsZero() {
		n.Parent = o.last
	} else if err := o.setParent(&n); err != nil {
		return err
	}
	o.last, o.nodes = n.ID, append(o.nodes, n)
	if !tooMany(o.nodes) {
		return nil
	}
	err := o.hand(o.nodes)
	o.nodes = nil
	return err
}

// all streams all nodes in the order of commits, or against it.
func (st *stream) all() error {
	layers := st.layers()
	if st.w.Reverse {
		slices.Reverse(layers)
	}
	for _, l := range layers {
		if err := st.layer(l); err != nil || st.ended {
			return err
		}
	}
	return nil
}

// layer streams all nodes of a layer.
func (st *stream) layer(l Layer) error {
	for r := st.begin(l); r > st.after(l) && r <= l.Last && !st.ended; {
		nodes, first, last, err := st.segment(l, r)
		if err != nil {
			return err
		}
		nodes = slices.DeleteFunc(nodes, func(n Node) bool { // what was streamed before the segment was sealed
			return st.hidden.Has(n.ID) || st.w.Reverse && n.Revision > r || !st.w.Reverse && n.Revision < r
		})
		for i := range nodes {
			if err := st.setParent(&nodes[i]); err != nil {
				return err
			}
		}
		if st.w.Reverse {
			slices.Reverse(nodes)
			r = first - 1
		} else {
			r = last + 1
		}
		for len(nodes) > 0 && !st.ended {
			n := 1
			for n < len(nodes) && !tooMany(nodes[:n]) {
				n++
			}
			if err := st.hand(nodes[:n]); err != nil {
				return err
			}
			nodes = nodes[n:]
		}
	}
	return nil
}

// begin returns the revision of a layer with which all nodes are begun.
func (st *stream) begin(l Layer) head.Revision {
	if st.w.Reverse {
		return l.Last
	}
	return st.after(l) + 1
}

// hand reads the payloads of nodes and hands the nodes on.
func (st *stream) hand(nodes []Node) error {
	if len(nodes) == 0 || st.ended {
		return nil
	}
	nodes, err := st.unerased(nodes)
	if err == nil && !st.w.Bare {
		_, err = Try(st.ctx, st.s, func() (struct{}, error) { return struct{}{}, st.s.readPayloads(st.ctx, nodes) })
	}
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if !st.yield(n) {
			st.ended = true
			return nil
		}
	}
	return nil
}

// unerased returns nodes without those that were tombstoned and vacuumed since the stream began.
func (st *stream) unerased(nodes []Node) ([]Node, error) {
	if !slices.ContainsFunc(nodes, func(n Node) bool { return n.Erased }) {
		return nodes, nil
	}
	now, err := st.s.AllTombstones(st.ctx)
	if err != nil {
		return nil, err
	}
	var out []Node
	for _, n := range nodes {
		if !n.Erased {
			out = append(out, n)
		} else if !now.Has(n.ID) {
			return nil, codec.Corrupt(damage.ErrMissing, "tombstone of erased node %s of %s", n.ID, st.s.Name)
		}
	}
	return out, nil
}

// OnPath reports whether a node is on the path to a leaf of the state at revision last, whether the session shows it
// or not. It reads what was committed since the node. The error is ErrNodeNotFound if the graph does not have the node.
func (s *Session) OnPath(ctx context.Context, last head.Revision, leaf, id graph.ID) (found bool, err error) {
	n, _, err := s.findNow(ctx, last, id)
	if err != nil {
		return false, err
	}
	err = s.walkTo(ctx, last, leaf, []Node{n}, func(*Node) bool {
		found = true
		return false
	})
	return found, err
}

// walkTo calls f for those of some nodes that are on the path to a leaf, the nearest to the leaf first, until f reports
// false. It reads what was committed since the oldest of the nodes, or the whole path if one is inherited.
func (s *Session) walkTo(ctx context.Context, last head.Revision, leaf graph.ID, of []Node, f func(*Node) bool) error {
	if len(of) == 0 || leaf.IsZero() {
		return nil
	}
	st := &stream{s: s, ctx: ctx, w: Walk{Last: last, Leaf: leaf}}
	wanted := make(map[graph.ID]bool, len(of))
	for i, n := range of {
		after := n.Revision - 1
		if n.Inherited {
			after = 0
		}
		if wanted[n.ID] = true; i == 0 || after < st.w.After {
			st.w.After = after
		}
	}
	return st.walk(func(_ Layer, n, _ *Node) bool { return !wanted[n.ID] || f(n) })
}

// findNow is Find that starts over if maintenance moves something meanwhile.
func (s *Session) findNow(ctx context.Context, last head.Revision, id graph.ID) (n Node, at Position, err error) {
	_, err = Try(ctx, s, func() (_ struct{}, err error) {
		n, at, err = s.Find(ctx, last, id)
		return struct{}{}, err
	})
	return n, at, err
}
