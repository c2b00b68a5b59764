package turnstone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Scope says what of a history to load. The zero Scope is the active path:
// from the root to the head's leaf.
type Scope struct {
	// At reads the state at an earlier revision: nodes except those tombstoned
	// since, checkpoint and usage as they were. 0 means the head's revision.
	At Revision
	// Leaf reads the path to this node instead of the leaf.
	Leaf NodeID
	// Full reads every node, side branches included, in the order of commits.
	Full bool
	// Last reads the last so many nodes of the path, without reading the rest.
	Last int
	// After reads what the commits after this revision added to the path,
	// without reading the rest. For a fork, its own revisions.
	After Revision
}

func (sc *Scope) check() error {
	n := 0
	for _, set := range []bool{sc.Full, sc.Last != 0, sc.After != 0} {
		if set {
			n++
		}
	}
	switch {
	case n > 1:
		return invalid("scope", "Full, Last and After exclude each other")
	case sc.Full && !sc.Leaf.IsZero():
		return invalid("scope", "Full and Leaf exclude each other")
	case sc.Last < 0:
		return invalid("scope", "Last is %d", sc.Last)
	}
	return nil
}

// A Node is one event as it is read. Its slices are the caller's.
type Node struct {
	ID NodeID
	// Parent is the node before, tombstoned ones skipped; zero for a root.
	Parent      NodeID
	Kind        string
	Key         string
	Payload     []byte
	Attachments []Attachment
	Revision    Revision // of the commit that added it, in the session that did
}

// A Part describes a checkpoint part.
type Part = head.Part

// A State is a session's history, or a part of it, at one revision.
type State struct {
	Revision Revision
	Commit   CommitID
	Leaf     NodeID
	Nodes    []Node
	Parts    []Part  // of the checkpoint, by name; Checkpoint reads them
	Usage    []Usage // totals up to this revision, by model
	Time     time.Time
}

// Load reads what scope says. Every hash is checked; anything missing or
// damaged is a *CorruptError, never a shorter history.
func (s *Session) Load(ctx context.Context, scope Scope) (*State, error) {
	if err := scope.check(); err != nil {
		return nil, err
	}
	return retried(ctx, s, func() (*State, error) { return s.load(ctx, scope) })
}

// retried runs read, again when it fails on something that maintenance may have
// moved meanwhile: what is absent is corrupt only if the lifecycle records of
// the session and its ancestors stand as they stood.
func retried[T any](ctx context.Context, s *Session, read func() (T, error)) (T, error) {
	for {
		before, err := s.epochs(ctx)
		if err != nil {
			var none T
			return none, err
		}
		out, err := read()
		var ce *CorruptError
		if err == nil || !errors.As(err, &ce) {
			return out, err
		}
		after, aerr := s.epochs(ctx)
		if aerr != nil {
			return out, aerr
		}
		if slices.EqualFunc(before, after, bytes.Equal) {
			return out, err
		}
	}
}

// epochs returns the lifecycle records of the session and its ancestors.
func (s *Session) epochs(ctx context.Context) ([][]byte, error) {
	ks := [][]byte{s.lifeKey}
	for _, l := range s.layers(AnyRevision) {
		if l.inc != s.inc {
			ks = append(ks, s.store.space.Life(l.inc))
		}
	}
	vs, err := s.store.engine.Get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	if l, err := head.OpenLife(s.lifeKey, vs[0]); err != nil {
		return nil, codec.Corrupt(err, "lifecycle of session %q", s.id)
	} else if l.State != head.Live {
		return nil, fmt.Errorf("%w: %q", ErrSessionDeleted, s.id)
	}
	return vs, nil
}

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

// A found node is one that was read, with its place.
type found struct {
	graph.Node
	revision Revision
}

func (s *Session) load(ctx context.Context, scope Scope) (*State, error) {
	h, _, err := s.readHead(ctx)
	if err != nil {
		return nil, err
	}
	st := &State{Revision: h.Revision, Commit: h.Commit, Leaf: h.Leaf, Parts: slices.Clone(h.Parts), Usage: slices.Clone(h.Usage), Time: h.Updated}
	if scope.At != 0 && scope.At != h.Revision {
		if err := s.stateAt(ctx, st, scope.At, h); err != nil {
			return nil, err
		}
	}
	dead, err := s.tombstones(ctx)
	if err != nil {
		return nil, err
	}
	leaf := st.Leaf
	if !scope.Leaf.IsZero() {
		if leaf = scope.Leaf; dead.has(leaf) {
			return nil, fmt.Errorf("%w: %s", ErrNodeNotFound, leaf)
		}
		if _, err := s.locate(ctx, st.Revision, leaf); err != nil {
			return nil, err
		}
	}
	var nodes []found
	switch {
	case scope.Full:
		nodes, err = s.full(ctx, st.Revision, st.Commit)
	case scope.Last > 0:
		nodes, err = s.tail(ctx, st.Revision, leaf, scope.Last, dead)
	case scope.After > 0 && scope.After >= st.Revision: // nothing came after
	default:
		nodes, err = s.path(ctx, st.Revision, scope.After, leaf)
	}
	if err != nil {
		return nil, err
	}
	st.Nodes, err = s.present(ctx, st.Revision, nodes, dead)
	return st, err
}

// stateAt makes st the state at revision r.
func (s *Session) stateAt(ctx context.Context, st *State, r Revision, h *head.Head) error {
	if r > h.Revision {
		return fmt.Errorf("%w: %d of session %q, which is at %d", ErrRevisionNotFound, r, s.id, h.Revision)
	}
	life, _, err := s.life(ctx)
	if err != nil {
		return err
	}
	if r < life.Floor {
		return fmt.Errorf("%w: %d of session %q, whose floor is %d", ErrRevisionPruned, r, s.id, life.Floor)
	}
	st.Usage = nil
	err = s.commits(ctx, r, func(c *head.Commit, id CommitID) error {
		st.Usage = head.Sum(st.Usage, c.Usage)
		st.Revision, st.Commit, st.Leaf, st.Time = c.Revision, id, c.Leaf, c.Time
		if c.Revision != r {
			return nil
		}
		var err error
		st.Parts, err = s.partsAt(ctx, c)
		return err
	})
	return err
}

// commits calls f for the session's commits 1 to last, each verified to follow
// the one before.
func (s *Session) commits(ctx context.Context, last Revision, f func(*head.Commit, CommitID) error) error {
	if last == 0 {
		return nil
	}
	previous, next := head.Genesis(s.inc, s.origin), Revision(1)
	r := s.store.space.Of(keys.Commit, s.inc)
	r.Limit = int(min(last, 1<<30))
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

// partsAt returns the checkpoint at commit c, with the blobs of parts that
// carried over.
func (s *Session) partsAt(ctx context.Context, c *head.Commit) ([]head.Part, error) {
	if c.PartsAt == 0 {
		if s.origin != nil {
			return slices.Clone(s.origin.Parts), nil
		}
		return nil, nil
	}
	if c.PartsAt != c.Revision {
		var err error
		if c, _, err = s.commitAt(ctx, c.PartsAt); err != nil {
			return nil, err
		}
	}
	parts := slices.Clone(c.Parts)
	for i := range parts {
		p := &parts[i]
		var from []head.Part
		switch {
		case p.Set == c.Revision:
			continue
		case p.Set == 0 && s.origin != nil:
			from = s.origin.Parts
		default:
			set, _, err := s.commitAt(ctx, p.Set)
			if err != nil {
				return nil, err
			}
			from = set.Parts
		}
		j := slices.IndexFunc(from, func(q head.Part) bool { return q.Name == p.Name && q.Set == p.Set })
		if j < 0 || from[j].Blob.IsZero() {
			return nil, codec.Corrupt(codec.ErrMissing, "checkpoint part %q of revision %d of session %q", p.Name, p.Set, s.id)
		}
		*p = from[j]
	}
	return parts, nil
}

// path reads the nodes of the session's commits after a revision (0: all, with
// the ancestors') and returns those on the path to leaf, root first.
func (s *Session) path(ctx context.Context, last, after Revision, leaf NodeID) ([]found, error) {
	if leaf.IsZero() {
		return nil, nil
	}
	layers := s.layers(last)
	if after > 0 {
		layers = layers[len(layers)-1:]
	}
	var all []found
	for _, l := range layers {
		var err error
		if all, err = s.read(ctx, l, after, all); err != nil {
			return nil, err
		}
	}
	// A parent always comes before its children in the order of commits, so
	// one pass from the end finds the path.
	out := all[:0:0]
	want := leaf
	for i := len(all) - 1; i >= 0 && !want.IsZero(); i-- {
		if all[i].ID == want {
			out, want = append(out, all[i]), all[i].Parent
		}
	}
	if !want.IsZero() { // then the index must say that it is before what was read
		at, err := s.place(ctx, last, want)
		if errors.Is(err, ErrNodeNotFound) || err == nil && (after == 0 || at.layer.inc == s.inc && at.revision > after) {
			err = codec.Corrupt(codec.ErrMissing, "node %s of session %q", want, s.id)
		}
		if err != nil {
			return nil, err
		}
	}
	slices.Reverse(out)
	return out, nil
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
				all = append(all, found{Node: p.Nodes[j], revision: r})
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

// full reads every node up to revision last, and checks them against the
// commits: a side branch has no leaf that vouches for it.
func (s *Session) full(ctx context.Context, last Revision, commit CommitID) ([]found, error) {
	var all []found
	layers := s.layers(last)
	layers[len(layers)-1].commit = commit
	for _, l := range layers {
		start := len(all)
		var err error
		if all, err = s.read(ctx, l, 0, all); err != nil {
			return nil, err
		}
		if err := s.checkLayer(ctx, l, all[start:]); err != nil {
			return nil, err
		}
	}
	return all, nil
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

// tail reads the last n live nodes of the path to leaf, from the end.
func (s *Session) tail(ctx context.Context, last Revision, leaf NodeID, n int, dead tombstones) ([]found, error) {
	var out []found
	for want := leaf; !want.IsZero() && n > 0; {
		l, seg, err := s.segmentOf(ctx, last, want)
		if err != nil {
			return nil, linked(err, want)
		}
		progress := false
		for i := len(seg) - 1; i >= 0 && n > 0; i-- {
			if seg[i].ID != want || seg[i].revision > l.last {
				continue
			}
			if progress = true; !dead.has(want) {
				n--
			}
			out, want = append(out, seg[i]), seg[i].Parent
		}
		if !progress {
			return nil, codec.Corrupt(codec.ErrMissing, "node %s of session %q", want, s.id)
		}
	}
	slices.Reverse(out)
	return out, nil
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
			out = append(out, found{Node: p.Nodes[j], revision: Revision(p.Revision)})
		}
	}
	return out, nil
}

// pack reads the pack of revision r of the session itself.
func (s *Session) pack(ctx context.Context, r Revision) (graph.Pack, error) {
	seg, err := graph.SegmentAt(ctx, s.store.engine, s.store.space, s.inc, uint64(r))
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

// A spot is where a node of the session's graph is.
type spot struct {
	layer    layer
	revision Revision
	position int
}

// place looks a node up in the index; the entry is not verified yet.
func (s *Session) place(ctx context.Context, last Revision, id NodeID) (spot, error) {
	return s.indexed(ctx, last, keys.Node, "node "+id.String(), func(inc head.Incarnation) []byte {
		return s.store.space.Node(inc, id)
	})
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
		l := layers[i]
		if r := Revision(p.Revision); r < l.last || r == l.last && (l.nodes == 0 || p.Position < l.nodes) {
			return spot{layer: l, revision: r, position: p.Position}, nil
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
	if err == nil && n.ID != id {
		err = codec.Corrupt(codec.ErrHash, "node %s of session %q", id, s.id)
	}
	return n, err
}

// find is locate for callers that are not under retried themselves.
func (s *Session) find(ctx context.Context, last Revision, id NodeID) (found, error) {
	return retried(ctx, s, func() (found, error) { return s.locate(ctx, last, id) })
}

// at reads the node at a spot.
func (s *Session) at(ctx context.Context, at spot) (found, error) {
	nodes, err := s.segmentAt(ctx, at.layer, at.revision)
	if err != nil {
		return found{}, err
	}
	for i := range nodes {
		if nodes[i].revision == at.revision {
			if i += at.position; i < len(nodes) && nodes[i].revision == at.revision {
				return nodes[i], nil
			}
			break
		}
	}
	return found{}, codec.Corrupt(codec.ErrMissing, "node %d of revision %d of session %q", at.position, at.revision, s.id)
}

// Node returns one node by its id.
func (s *Session) Node(ctx context.Context, id NodeID) (Node, error) {
	return retried(ctx, s, func() (Node, error) {
		h, _, err := s.readHead(ctx)
		if err != nil {
			return Node{}, err
		}
		n, err := s.locate(ctx, h.Revision, id)
		if err != nil {
			return Node{}, err
		}
		return s.one(ctx, h.Revision, n)
	})
}

// NodeByKey returns the node that was committed with the caller's key.
func (s *Session) NodeByKey(ctx context.Context, key string) (Node, error) {
	return retried(ctx, s, func() (Node, error) {
		h, _, err := s.readHead(ctx)
		if err != nil {
			return Node{}, err
		}
		at, err := s.indexed(ctx, h.Revision, keys.EventKey, fmt.Sprintf("event key %q", key), func(inc head.Incarnation) []byte {
			return s.store.space.EventKey(inc, key)
		})
		if err != nil {
			return Node{}, err
		}
		n, err := s.at(ctx, at)
		if err == nil && n.Key != key {
			err = codec.Corrupt(codec.ErrHash, "event key %q of session %q", key, s.id)
		}
		if err == nil { // no id was asked for that vouches for what was read
			err = s.vouched(ctx, at)
		}
		if err != nil {
			return Node{}, err
		}
		return s.one(ctx, h.Revision, n)
	})
}

// vouched checks the pack at a spot against its commit.
func (s *Session) vouched(ctx context.Context, at spot) error {
	c, _, err := s.store.commitAt(ctx, at.layer.inc, at.revision)
	if err != nil {
		return err
	}
	before, err := s.before(ctx, at.layer, at.revision)
	if err != nil {
		return err
	}
	nodes, err := s.segmentAt(ctx, at.layer, at.revision)
	if err != nil {
		return err
	}
	nodes = slices.DeleteFunc(nodes, func(n found) bool { return n.revision != at.revision })
	return codec.Corrupt(vouch(c, nodes, before, false), "pack of revision %d of session %q", at.revision, s.id)
}

// one makes a Node of n.
func (s *Session) one(ctx context.Context, last Revision, n found) (Node, error) {
	dead, err := s.tombstones(ctx)
	if err != nil {
		return Node{}, err
	}
	if dead.has(n.ID) {
		return Node{}, fmt.Errorf("%w: %s is tombstoned", ErrNodeNotFound, n.ID)
	}
	out, err := s.present(ctx, last, []found{n}, dead)
	if err != nil {
		return Node{}, err
	}
	return out[0], nil
}

// alive returns id, or the nearest node before it that is not tombstoned.
func (s *Session) alive(ctx context.Context, last Revision, id NodeID, dead tombstones) (NodeID, error) {
	for dead.has(id) {
		n, err := s.locate(ctx, last, id)
		if err != nil {
			return NodeID{}, linked(err, id)
		}
		id = n.Parent
	}
	return id, nil
}

// present turns what was read into what is returned: without tombstoned nodes,
// their children linked past them, and with payloads that are blobs.
func (s *Session) present(ctx context.Context, last Revision, nodes []found, dead tombstones) ([]Node, error) {
	past := map[NodeID]NodeID{} // of the tombstoned nodes: the live one before
	out := make([]Node, 0, len(nodes))
	var spilled []int
	for i := range nodes {
		n := &nodes[i]
		parent := n.Parent
		if p, ok := past[parent]; ok {
			parent = p
		} else if dead.has(parent) { // it is before what was read
			var err error
			if parent, err = s.alive(ctx, last, parent, dead); err != nil {
				return nil, err
			}
		}
		if dead.has(n.ID) {
			past[n.ID] = parent
			continue
		}
		if !n.Blob.IsZero() {
			spilled = append(spilled, len(out))
		}
		out = append(out, Node{
			ID: n.ID, Parent: parent, Kind: n.Kind, Key: n.Key,
			Payload: n.Inline, Attachments: n.Attachments, Revision: n.revision,
		})
		if !n.Blob.IsZero() {
			out[len(out)-1].Payload = n.Blob[:] // until it is read
		}
	}
	const atOnce = 64
	for len(spilled) > 0 {
		k := min(atOnce, len(spilled))
		ids := make([]blob.ID, k)
		for i, at := range spilled[:k] {
			ids[i] = blob.ID(out[at].Payload)
		}
		contents, err := s.store.blobs.ReadAll(ctx, ids)
		if err != nil {
			return nil, err
		}
		for i, at := range spilled[:k] {
			out[at].Payload = contents[i]
		}
		spilled = spilled[k:]
	}
	return out, nil
}

// Checkpoint returns the contents of the checkpoint parts at a revision; 0
// means the head's. The result is the caller's.
func (s *Session) Checkpoint(ctx context.Context, at Revision) (map[string][]byte, error) {
	return retried(ctx, s, func() (map[string][]byte, error) {
		h, _, err := s.readHead(ctx)
		if err != nil {
			return nil, err
		}
		st := State{Parts: h.Parts}
		current := at == 0 || at == h.Revision
		if !current {
			if err := s.stateAt(ctx, &st, at, h); err != nil {
				return nil, err
			}
		}
		out := make(map[string][]byte, len(st.Parts))
		for _, p := range st.Parts {
			content, depth, err := s.store.blobs.ReadDepth(ctx, p.Blob)
			if err != nil {
				return nil, err
			}
			if current {
				s.store.bases.put(s.inc, p.Name, blob.Base{ID: p.Blob, Content: content, Depth: depth})
			}
			out[p.Name] = content
		}
		return out, nil
	})
}
