// Package history reads what was committed: the commits and nodes of an incarnation and,
// for a fork, those that it shares of its ancestors. Commits, loads, verification, sealing,
// erasure and collection read histories through it. It writes nothing.
//
//	ancestor   o──o──o──o──o          commits 1 to 3 are shared: layer 1
//	                 └─ fork node
//	session             o──o──o       its own commits 1 to 3:    layer 2
//
// # Layers
//
// A fork copies nothing. Its origin names, for each ancestor, the last commit and how
// many nodes of that commit the fork shares. The part of one incarnation's history that a
// session reads is a [Layer]. The layers of a session go from its oldest ancestor to the
// session itself.
//
// # Verification
//
// A commit's id is a hash that covers the id of the commit before it, and a node's id is a hash
// that covers the id of its parent. Readers compute the ids from what is stored. A reader that
// computes the ids of all commits, and arrives at the id that the head has, has verified all of
// them. The same is true of the nodes on the path to a leaf. A reader that starts elsewhere compares
// the id itself: see [Store.CommitAt] and [History.NodeAt].
//
// No hash covers the indexes by which nodes are found by id, event key and attachment. The node
// at a position decides whether an index is right. The nodes of a pack have no ids before
// pack.Pack.Resolve computes them.
//
// # Changes meanwhile
//
// Sealing moves records, and vacuum moves and removes them. So a reader may miss a record that
// was moved while it read, and report it as missing. Callers compare the lifecycle records
// before and after, and read again if they have changed: see [Lifecycles].
package history

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
)

// ErrNodeNotFound says that the session's graph has no such node.
var ErrNodeNotFound = errors.New("turnstone: node not found")

// A Store is a store that histories are read from.
type Store struct {
	Engine engine.Engine
	Space  *keys.Space
	Blobs  *blobs.Store // payloads, attachments and checkpoint parts
}

// A History is the history of one incarnation, which may be deleted. It holds no state
// of its own and is safe for concurrent use.
type History struct {
	Store
	Inc heads.Incarnation
	// Origin says what a fork shares of its ancestors. It is nil for other sessions.
	Origin *heads.Origin
	// Name is what errors call the history, for example `session "a"`.
	Name string
}

// Open returns the history of an incarnation. It reads the incarnation's origin, and
// does not check whether the incarnation exists.
func (s Store) Open(ctx context.Context, inc heads.Incarnation) (*History, error) {
	origin, err := s.Origin(ctx, inc)
	if err != nil {
		return nil, err
	}
	return &History{Store: s, Inc: inc, Origin: origin, Name: nameOf(inc)}, nil
}

// nameOf is what errors call an incarnation.
func nameOf(inc heads.Incarnation) string { return fmt.Sprintf("incarnation %x", inc) }

// Origin returns the origin of an incarnation, or nil if it is not an attached fork.
func (s Store) Origin(ctx context.Context, inc heads.Incarnation) (*heads.Origin, error) {
	key := s.Space.Origin(inc)
	values, err := s.Engine.Get(ctx, key)
	if err != nil || values[0] == nil {
		return nil, err
	}
	origin, err := heads.OpenOrigin(key, values[0])
	return origin, codec.Corrupt(err, "origin of %s", nameOf(inc))
}

// A Layer is the part of one incarnation's history that a session reads.
type Layer struct {
	Inc heads.Incarnation
	// Last is the last commit that is shared. If it is 0, only tombstones are.
	Last head.Revision
	// Nodes is how many nodes of the last commit are shared. 0 stands for all.
	Nodes int
	// First is the node before the first node of the layer. It is zero unless the
	// incarnation is a fork; then it is the fork node.
	First graph.ID
	// Epoch is the epoch of the lifecycle record up to which tombstones are shared.
	Epoch uint64
	// Commit is the id of the last commit, or zero if it is unknown.
	Commit head.CommitID
}

// Has reports whether the session shares the node at position p of the layer's incarnation.
func (l *Layer) Has(p pack.Position) bool {
	r := head.Revision(p.Revision)
	return r < l.Last || r == l.Last && (l.Nodes == 0 || p.Index < l.Nodes)
}

// Layers returns the layers of the session up to revision last, the oldest ancestor first.
func (h *History) Layers(last head.Revision) []Layer {
	var out []Layer
	var first graph.ID
	if h.Origin != nil {
		for _, a := range h.Origin.Ancestors {
			out = append(out, Layer{Inc: a.Incarnation, Last: a.Revision, Nodes: a.Nodes, First: first, Epoch: a.Epoch, Commit: a.Commit})
			first = a.Node
		}
	}
	return append(out, Layer{Inc: h.Inc, Last: last, First: first, Epoch: ^uint64(0)})
}

// Own returns the last of the session's layers, which is its own history.
func (h *History) Own(last head.Revision) Layer {
	layers := h.Layers(last)
	return layers[len(layers)-1]
}

// CommitAt returns the commit of revision r of an incarnation, and its id, which is computed from
// the commit. A caller that expects a certain id has to compare it; without that, the commit is
// not verified against the chain.
func (s Store) CommitAt(ctx context.Context, inc heads.Incarnation, r head.Revision) (*heads.Commit, head.CommitID, error) {
	key := s.Space.Commit(inc, uint64(r))
	values, err := s.Engine.Get(ctx, key)
	if err != nil {
		return nil, head.CommitID{}, err
	}
	c, id, err := heads.OpenCommit(key, values[0])
	if err == nil && c.Revision != r {
		err = fmt.Errorf("%w: it is of revision %d", record.ErrHash, c.Revision)
	}
	return c, id, codec.Corrupt(err, "commit %d of %s", r, nameOf(inc))
}

// CommitAt returns the commit of revision r of the session itself, and its id.
func (h *History) CommitAt(ctx context.Context, r head.Revision) (*heads.Commit, head.CommitID, error) {
	return h.Store.CommitAt(ctx, h.Inc, r)
}

// Commits calls f for the session's own commits after revision after up to revision last, in
// order. It verifies that each commit follows the one before it.
func (h *History) Commits(ctx context.Context, after, last head.Revision, f func(*heads.Commit, head.CommitID) error) error {
	if last <= after {
		return nil
	}
	previous := heads.Genesis(h.Inc, h.Origin)
	if after > 0 {
		var err error
		if _, previous, err = h.CommitAt(ctx, after); err != nil {
			return err
		}
	}
	return h.Store.Commits(ctx, Range{Inc: h.Inc, Name: h.Name, After: after, Last: last, Previous: previous}, f)
}

// A Range is a range of an incarnation's commits.
type Range struct {
	Inc   heads.Incarnation
	Name  string        // what errors call the history
	After head.Revision // the range begins after this commit
	Last  head.Revision // the range ends with this commit
	// Previous is the id of the commit of revision After, which the first commit of the
	// range has to follow. If Previous is zero, the first commit may follow any commit.
	Previous head.CommitID
}

// Commits calls f for the commits of a range in order. It verifies that none is missing and that
// each follows the one before it.
func (s Store) Commits(ctx context.Context, of Range, f func(*heads.Commit, head.CommitID) error) error {
	if of.Last <= of.After {
		return nil // A scan with a limit of 0 has no limit.
	}
	next, previous := of.After+1, of.Previous
	scan := s.Space.Of(keys.Commit, of.Inc)
	scan.Limit = int(min(of.Last-of.After, 1<<30))
	if of.After > 0 {
		scan.Start = s.Space.Commit(of.Inc, uint64(next))
	}
	for p, err := range s.Engine.Scan(ctx, scan) {
		if err != nil {
			return err
		}
		c, id, err := heads.OpenCommit(p.Key, p.Value)
		switch {
		case err != nil:
		case c.Revision != next:
			err = record.ErrMissing
		case c.Previous != previous && !previous.IsZero():
			err = fmt.Errorf("%w: it does not follow commit %d", record.ErrHash, next-1)
		}
		if err != nil {
			return codec.Corrupt(err, "commit %d of %s", next, of.Name)
		}
		if err := f(c, id); err != nil {
			return err
		}
		previous, next = id, next+1
	}
	if next != of.Last+1 {
		return codec.Corrupt(record.ErrMissing, "commit %d of %s", next, of.Name)
	}
	return nil
}

// Packs calls f for the packs of an incarnation after revision after up to revision last, in
// order. A commit without nodes has no pack. The nodes have no ids yet: see pack.Pack.Resolve.
func (s Store) Packs(ctx context.Context, inc heads.Incarnation, after, last head.Revision, f func(*pack.Pack) error) error {
	done := uint64(after)
	for segment, err := range pack.Segments(ctx, s.Engine, s.Space, inc, uint64(after+1), uint64(last)) {
		if err != nil {
			return err
		}
		for i := range segment.Packs {
			p := &segment.Packs[i]
			// A segment can begin before the range. If it was sealed meanwhile, it can
			// begin with packs that f was called for already.
			if p.Revision <= done || p.Revision > uint64(last) {
				continue
			}
			if err := f(p); err != nil {
				return err
			}
			done = p.Revision
		}
	}
	return nil
}
