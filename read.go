package turnstone

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A layer is an incarnation whose history the session reads: an ancestor, or
// the session itself, which is the last one.
type layer struct {
	inc   head.Incarnation
	last  Revision // up to here
	nodes int      // so many of the last revision; 0: all
	first NodeID   // the node before its first one: where it forked from
	epoch uint64   // tombstones up to here count
	// commit is the id of the last revision's, if that is known.
	commit CommitID
}

func (s *Session) layers(last Revision) []layer {
	var out []layer
	var first NodeID
	if s.origin != nil {
		for _, a := range s.origin.Ancestors {
			out = append(out, layer{inc: a.Incarnation, last: a.Revision, nodes: a.Nodes, first: first, epoch: a.Epoch, commit: a.Commit})
			first = a.Node
		}
	}
	return append(out, layer{inc: s.inc, last: last, first: first, epoch: ^uint64(0)})
}

// has reports whether a place is within what the layer shares.
func (l *layer) has(p graph.Place) bool {
	r := Revision(p.Revision)
	return r < l.last || r == l.last && (l.nodes == 0 || p.Position < l.nodes)
}

// A found node is one that was read, with its place.
type found struct {
	graph.Node
	revision  Revision
	inherited bool // from an ancestor
}

// commits calls f for the session's commits after a revision up to last, each
// verified to follow the one before.
func (s *Session) commits(ctx context.Context, after, last Revision, f func(*head.Commit, CommitID) error) error {
	if last <= after {
		return nil
	}
	previous, next := head.Genesis(s.inc, s.origin), after+1
	r := s.store.space.Of(keys.Commit, s.inc)
	r.Limit = int(min(last-after, 1<<30))
	if after > 0 {
		_, id, err := s.commitAt(ctx, after)
		if err != nil {
			return err
		}
		previous, r.Start = id, s.commitKey(next)
	}
	for p, err := range s.store.engine.Scan(ctx, r) {
		if err != nil {
			return err
		}
		c, id, err := head.OpenCommit(p.Key, p.Value)
		if err == nil && c.Revision != next {
			err = codec.ErrMissing
		} else if err == nil && c.Previous != previous {
			err = fmt.Errorf("%w: it does not follow commit %d", codec.ErrHash, next-1)
		}
		if err != nil {
			return codec.Corrupt(err, "commit %d of session %q", next, s.id)
		}
		if err := f(c, id); err != nil {
			return err
		}
		previous, next = id, next+1
	}
	if next != last+1 {
		return codec.Corrupt(codec.ErrMissing, "commit %d of session %q", next, s.id)
	}
	return nil
}

// read appends the nodes of layer l after a revision to all, with their ids.
func (s *Session) read(ctx context.Context, l layer, after Revision, all []found) ([]found, error) {
	if l.last == 0 {
		return all, nil // an ancestor of which only tombstones count
	}
	before := l.first
	if after > 0 {
		c, _, err := s.store.commitAt(ctx, l.inc, after)
		if err != nil {
			return nil, err
		}
		before = c.Last
	}
	done := after
	for seg, err := range graph.Segments(ctx, s.store.engine, s.store.space, l.inc, uint64(after+1), uint64(l.last)) {
		if err != nil {
			return nil, err
		}
		// A segment can begin before what was asked for, or, when sealing runs
		// meanwhile, with packs that were read already.
		if first := Revision(seg.Packs[0].Revision); first <= done {
			if before, err = s.before(ctx, l, first); err != nil {
				return nil, err
			}
		}
		for i := range seg.Packs {
			p := &seg.Packs[i]
			if before, err = p.Resolve(before); err != nil {
				return nil, codec.Corrupt(err, "pack of revision %d of session %q", p.Revision, s.id)
			}
			r := Revision(p.Revision)
			if r <= done || r > l.last {
				continue
			}
			for j := range p.Nodes {
				if r == l.last && l.nodes > 0 && j >= l.nodes {
					break
				}
				all = append(all, found{Node: p.Nodes[j], revision: r, inherited: l.inc != s.inc})
			}
			done = r
		}
	}
	return all, nil
}

// before returns the id of the last node of l before revision r.
func (s *Session) before(ctx context.Context, l layer, r Revision) (NodeID, error) {
	if r <= 1 {
		return l.first, nil
	}
	c, _, err := s.store.commitAt(ctx, l.inc, r-1)
	if err != nil {
		return NodeID{}, err
	}
	return c.Last, nil
}

// checkLayer verifies that nodes are exactly what the commits of l added, and
// that these are a chain that ends in l.commit.
func (s *Session) checkLayer(ctx context.Context, l layer, nodes []found) error {
	if l.last == 0 {
		return nil
	}
	r := s.store.space.Of(keys.Commit, l.inc)
	r.Limit = int(min(l.last, 1<<30))
	next, before, previous := Revision(1), l.first, CommitID{}
	for p, err := range s.store.engine.Scan(ctx, r) {
		if err != nil {
			return err
		}
		c, id, err := head.OpenCommit(p.Key, p.Value)
		switch {
		case err != nil:
		case c.Revision != next:
			err = codec.ErrMissing
		case next > 1 && c.Previous != previous, next == l.last && l.commit != CommitID{} && id != l.commit:
			err = codec.ErrHash
		}
		if err != nil {
			return codec.Corrupt(err, "commit %d of session %q", next, s.id)
		}
		n := 0
		for n < len(nodes) && nodes[n].revision == next {
			n++
		}
		if err := vouch(c, nodes[:n], before, next == l.last && l.nodes > 0); err != nil {
			return codec.Corrupt(err, "pack of revision %d of session %q", next, s.id)
		}
		nodes, next, before, previous = nodes[n:], next+1, c.Last, id
	}
	if next != l.last+1 || len(nodes) > 0 {
		return codec.Corrupt(codec.ErrMissing, "commit %d of session %q", next, s.id)
	}
	return nil
}

// vouch checks the nodes of one commit against it; before is the last node
// before them. Of a commit that is shared in part only the beginning is there,
// and the fork node, which is its end, vouches for that.
func vouch(c *head.Commit, nodes []found, before NodeID, part bool) error {
	if part {
		return nil
	}
	if len(nodes) != c.Nodes {
		return fmt.Errorf("%w: %d of %d nodes", codec.ErrMissing, len(nodes), c.Nodes)
	}
	pack := graph.Pack{Nodes: make([]graph.Node, len(nodes))}
	for i := range nodes {
		pack.Nodes[i] = nodes[i].Node
		before = nodes[i].ID
	}
	linear := c.NodeDigest == [32]byte{}
	if before != c.Last || linear != pack.Linear(c.Leaf) || !linear && pack.Digest() != c.NodeDigest {
		return codec.ErrHash
	}
	return nil
}

// linked makes damage of the absence of a node that something refers to.
func linked(err error, id NodeID) error {
	if errors.Is(err, ErrNodeNotFound) {
		return codec.Corrupt(codec.ErrMissing, "index entry of node %s", id)
	}
	return err
}

// segmentOf reads the segment that holds node id, with ids.
func (s *Session) segmentOf(ctx context.Context, last Revision, id NodeID) (layer, []found, error) {
	at, err := s.place(ctx, last, id)
	if err != nil {
		return layer{}, nil, err
	}
	nodes, err := s.segmentAt(ctx, at.layer, at.revision)
	return at.layer, nodes, err
}

// segmentAt reads the segment of l that holds revision r, with ids.
func (s *Session) segmentAt(ctx context.Context, l layer, r Revision) ([]found, error) {
	seg, err := graph.SegmentAt(ctx, s.store.engine, s.store.space, l.inc, uint64(r))
	if errors.Is(err, graph.ErrNoSegment) {
		err = codec.Corrupt(codec.ErrMissing, "pack of revision %d of session %q", r, s.id)
	}
	if err != nil {
		return nil, err
	}
	before, err := s.before(ctx, l, Revision(seg.Packs[0].Revision))
	if err != nil {
		return nil, err
	}
	var out []found
	for i := range seg.Packs {
		p := &seg.Packs[i]
		if before, err = p.Resolve(before); err != nil {
			return nil, codec.Corrupt(err, "pack of revision %d of session %q", p.Revision, s.id)
		}
		for j := range p.Nodes {
			out = append(out, found{Node: p.Nodes[j], revision: Revision(p.Revision), inherited: l.inc != s.inc})
		}
	}
	return out, nil
}

// pack reads the pack of revision r of an incarnation; its nodes have no ids yet.
func (s *Session) pack(ctx context.Context, inc head.Incarnation, r Revision) (graph.Pack, error) {
	seg, err := graph.SegmentAt(ctx, s.store.engine, s.store.space, inc, uint64(r))
	if err == nil {
		for _, p := range seg.Packs {
			if p.Revision == uint64(r) {
				return p, nil
			}
		}
	}
	if err == nil || errors.Is(err, graph.ErrNoSegment) {
		err = codec.Corrupt(codec.ErrMissing, "pack of revision %d of session %q", r, s.id)
	}
	return graph.Pack{}, err
}

// packAt reads the nodes of revision r of l, with ids, and the id of the node
// before them.
func (s *Session) packAt(ctx context.Context, l layer, r Revision) (nodes []found, before NodeID, err error) {
	p, err := s.pack(ctx, l.inc, r)
	if err != nil {
		return nil, before, err
	}
	if before, err = s.before(ctx, l, r); err != nil {
		return nil, before, err
	}
	if _, err := p.Resolve(before); err != nil {
		return nil, before, codec.Corrupt(err, "pack of revision %d of session %q", r, s.id)
	}
	nodes = make([]found, len(p.Nodes))
	for i := range p.Nodes {
		nodes[i] = found{Node: p.Nodes[i], revision: r, inherited: l.inc != s.inc}
	}
	return nodes, before, nil
}

// A spot is where a node of the session's graph is.
type spot struct {
	layer    layer
	revision Revision
	position int
}

// place looks a node up in the index; the entry is not verified yet.
func (s *Session) place(ctx context.Context, last Revision, id NodeID) (spot, error) {
	missing := fmt.Errorf("%w: node %s of session %q", ErrNodeNotFound, id, s.id)
	layers := s.layers(last)
	slices.Reverse(layers)
	var spots []spot
	for _, l := range layers {
		for e, err := range graph.Index(ctx, s.store.engine, s.store.space, l.inc) {
			if err != nil {
				return spot{}, err // damage is named by then; an engine that does not answer is none
			}
			if e.Prefix == graph.PrefixOf(id) && l.has(e.Place) {
				spots = append(spots, spot{layer: l, revision: Revision(e.Place.Revision), position: e.Place.Position})
			}
		}
	}
	switch len(spots) {
	case 0:
		return spot{}, missing
	case 1:
		return spots[0], nil
	}
	for _, at := range spots { // their ids begin alike
		if n, err := s.at(ctx, at); err != nil || n.ID == id {
			return at, err
		}
	}
	return spot{}, missing
}

// indexed looks up an index entry in the session and its ancestors, nearest first.
func (s *Session) indexed(ctx context.Context, last Revision, letter byte, what string, key func(head.Incarnation) []byte) (spot, error) {
	layers := s.layers(last)
	slices.Reverse(layers)
	ks := make([][]byte, len(layers))
	for i, l := range layers {
		ks[i] = key(l.inc)
	}
	vs, err := s.store.engine.Get(ctx, ks...)
	if err != nil {
		return spot{}, err
	}
	for i, v := range vs {
		if v == nil {
			continue
		}
		p, err := graph.OpenPlace(ks[i], v, letter)
		if err != nil {
			return spot{}, codec.Corrupt(err, "index entry of %s of session %q", what, s.id)
		}
		if l := layers[i]; l.has(p) {
			return spot{layer: l, revision: Revision(p.Revision), position: p.Position}, nil
		}
	}
	return spot{}, fmt.Errorf("%w: %s of session %q", ErrNodeNotFound, what, s.id)
}

// locate finds a node of the session's graph and verifies it.
func (s *Session) locate(ctx context.Context, last Revision, id NodeID) (found, error) {
	at, err := s.place(ctx, last, id)
	if err != nil {
		return found{}, err
	}
	n, err := s.at(ctx, at)
	switch {
	case err != nil:
	case graph.PrefixOf(n.ID) != graph.PrefixOf(id):
		err = codec.Corrupt(codec.ErrHash, "node %s of session %q", id, s.id)
	case n.ID != id: // it only begins alike
		err = fmt.Errorf("%w: node %s of session %q", ErrNodeNotFound, id, s.id)
	}
	return n, err
}

// find is locate for callers that are not under retried themselves.
func (s *Session) find(ctx context.Context, last Revision, id NodeID) (found, error) {
	return retried(ctx, s, func() (found, error) { return s.locate(ctx, last, id) })
}

// at reads the node at a spot.
func (s *Session) at(ctx context.Context, at spot) (found, error) {
	nodes, _, err := s.packAt(ctx, at.layer, at.revision)
	if err != nil {
		return found{}, err
	}
	if at.position >= len(nodes) {
		return found{}, codec.Corrupt(codec.ErrMissing, "node %d of revision %d of session %q", at.position, at.revision, s.id)
	}
	return nodes[at.position], nil
}

// vouched checks the pack at a spot against its commit.
func (s *Session) vouched(ctx context.Context, at spot) error {
	c, _, err := s.store.commitAt(ctx, at.layer.inc, at.revision)
	if err != nil {
		return err
	}
	nodes, before, err := s.packAt(ctx, at.layer, at.revision)
	if err != nil {
		return err
	}
	return codec.Corrupt(vouch(c, nodes, before, false), "pack of revision %d of session %q", at.revision, s.id)
}
