// Package history reads what was committed: the commits and nodes of an incarnation and,
// for a fork, those that it shares of its ancestors. Commits, loads, verification, sealing,
// erasure and collection read histories through it. It also adds to batches: seal.go
// makes one segment of many, tombstone.go hides nodes, and keep.go keeps revisions; change.go runs the calls that alter
// a store.
//
//	Store      the histories of a namespace           turns.go, segment.go   how commits are stored
//	Session    one incarnation, and its ancestors     index.go, runs.go      where nodes and turns are
//	History    what a session shows at a revision     lifecycles.go          what may change meanwhile
//
// # Forks
//
//	ancestor   o──o──o──o──o          commits 1 to 3 are shared: layer 1
//	                 └─ fork node
//	session             o──o──o       its own commits 1 to 3:    layer 2
//
// # Layers
//
// A fork copies no history, unless it would have too many ancestors (internal/commit/flatten.go). Its origin names, for
// each ancestor, the last commit and how many nodes of that commit the fork shares. The part of one incarnation's history
// that a session reads is a [Layer]. The layers of a session go from its oldest ancestor to the
// session itself.
//
// # Verification
//
// A commit's id is a hash that covers the id of the commit before it, and a node's id is a hash
// that covers the id of its parent. Readers compute the ids from what is stored. A reader that
// computes the ids of all commits, and arrives at the id that the head has, has verified all of
// them. The same is true of the nodes on the path to a leaf. A reader that starts elsewhere compares
// the id itself: see [Store.TurnAt].
//
// No hash covers the indexes by which nodes are found by id, event key and attachment. The node
// at a position decides whether an index is right.
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

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/cache"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// ErrNodeNotFound says that the session's graph has no such node.
var ErrNodeNotFound = errors.New("turnstone: node not found")

// A Store is a store that histories are read from.
type Store struct {
	Reader
	Blobs *blob.Store // payloads, attachments and checkpoint parts
}

// WithCache returns s with caches within the budgets of b.
func (s Store) WithCache(b *cache.Shares) Store {
	s.Cache, s.Indexes, s.Pages = NewTurnCache(b.Segments), NewIndexes(b.Indexes), NewPages(b.Pages)
	return s
}

// Clear empties the caches.
func (s Store) Clear() {
	s.Cache.Clear()
	s.Indexes.Clear()
	s.Pages.Clear()
}

// Uncached returns s without caches, for who reads everything once.
func (s Store) Uncached() Store {
	s.Cache, s.Indexes, s.Pages = nil, nil, nil
	return s
}

// A History is the history of one incarnation, which may be deleted. It holds no state
// of its own and is safe for concurrent use.
type History struct {
	Store
	Inc head.Incarnation
	// Origin says what a fork shares of its ancestors. It is nil for other sessions.
	Origin *head.Origin
	// Name is what errors call the history, for example `session "a"`.
	Name string
}

// Open returns the history of an incarnation. It reads the incarnation's origin, and
// does not check whether the incarnation exists.
func (s Store) Open(ctx context.Context, inc head.Incarnation) (*History, error) {
	origin, err := s.Origin(ctx, inc)
	if err != nil {
		return nil, err
	}
	return &History{Store: s, Inc: inc, Origin: origin, Name: nameOf(inc)}, nil
}

// nameOf is what errors call an incarnation.
func nameOf(inc head.Incarnation) string { return fmt.Sprintf("incarnation %x", inc) }

// Origin returns the origin of an incarnation, or nil if it is not an attached fork.
func (s Store) Origin(ctx context.Context, inc head.Incarnation) (*head.Origin, error) {
	key := s.Space.Origin(inc)
	values, err := s.Engine.Get(ctx, key)
	if err != nil || values[0] == nil {
		return nil, err
	}
	origin, err := head.DecodeOrigin(key, values[0])
	return origin, codec.Corrupt(err, "origin of %s", nameOf(inc))
}

// A Layer is the part of one incarnation's history that a session reads.
type Layer struct {
	Inc head.Incarnation
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
func (l *Layer) Has(p graph.Position) bool {
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
	return append(out, h.Own(last))
}

// Own returns the last of the session's layers, which is its own history.
func (h *History) Own(last head.Revision) Layer {
	l := Layer{Inc: h.Inc, Last: last, Epoch: ^uint64(0)}
	if h.Origin != nil {
		l.First = h.Origin.Node()
	}
	return l
}

// TurnAt returns the turn of revision r of an incarnation. It is verified against the commits of its
// segment. A caller that expects a certain commit id has to compare it. The caller must not
// change the turn.
func (s Store) TurnAt(ctx context.Context, inc head.Incarnation, r head.Revision) (*Turn, error) {
	segment, err := s.Reader.At(ctx, inc, nameOf(inc), r)
	if err != nil {
		return nil, err
	}
	return segment.Turn(r), nil
}

// TurnAt returns the turn of revision r of the session itself.
func (h *History) TurnAt(ctx context.Context, r head.Revision) (*Turn, error) {
	t, err := h.Store.TurnAt(ctx, h.Inc, r)
	if err == nil || !transient(err) {
		return t, err
	}
	return ReadBeside(ctx, h.Engine, [][]byte{h.Space.Life(h.Inc)}, func([][]byte) (*Turn, error) { return h.Store.TurnAt(ctx, h.Inc, r) })
}

// Turns calls f for the session's own turns after revision after up to revision last, in
// order. It verifies that each commit follows the one before it. f must not change them.
func (h *History) Turns(ctx context.Context, after, last head.Revision, f func(*Turn) error) error {
	of := Revisions{Inc: h.Inc, Name: h.Name, After: after, Last: last}
	if after == 0 {
		of.Previous = head.Genesis(h.Inc, h.Origin)
	}
	return h.Reader.Turns(ctx, of, f)
}

// StateAt returns where the session stood at revision r. It reads the segment with that revision
// and the state at the end of the one before or, if the revision is not sealed yet, the commits
// since the last sealed one.
func (h *History) StateAt(ctx context.Context, r head.Revision) (head.State, error) {
	if r == 0 {
		return head.Begin(h.Inc, h.Origin), nil
	}
	key := h.Space.Life(h.Inc)
	return ReadBeside(ctx, h.Engine, [][]byte{key}, func(values [][]byte) (s head.State, err error) {
		if values[0] == nil {
			return s, codec.Corrupt(damage.ErrMissing, "lifecycle of %s", h.Name)
		}
		life, err := head.DecodeLife(key, values[0])
		if err != nil {
			return s, codec.Corrupt(err, "lifecycle of %s", h.Name)
		}
		return h.stateAt(ctx, life, r)
	})
}

// stateAt is StateAt with the lifecycle record that the session has.
func (h *History) stateAt(ctx context.Context, life *head.Life, r head.Revision) (s head.State, err error) {
	if sealed := life.Indexed(); r > sealed {
		if s, err = h.EndOf(ctx, sealed); err != nil {
			return s, err
		}
		of := Revisions{Inc: h.Inc, Name: h.Name, After: sealed, Last: r, Previous: s.Commit}
		err = h.Reader.Commits(ctx, of, func(c *head.Commit, id head.CommitID) error {
			next, err := s.Then(c, id)
			s = next
			return codec.Corrupt(err, "commit %d of %s", c.Revision, h.Name)
		})
		return s, err
	}
	segment, err := h.Reader.At(ctx, h.Inc, h.Name, r)
	if err != nil {
		return s, err
	}
	if segment.Last == r && !segment.Loose() {
		return segment.End, nil
	}
	if s, err = h.EndOf(ctx, segment.First-1); err != nil {
		return s, err
	}
	return StateAfter(s, segment.Turns[:r-segment.First+1], h.Name)
}

// EndOf returns the state at a revision that is 0 or the last one of a sealed segment.
func (h *History) EndOf(ctx context.Context, r head.Revision) (head.State, error) {
	if r == 0 {
		return head.Begin(h.Inc, h.Origin), nil
	}
	return h.Reader.End(ctx, h.Inc, h.Name, r)
}
