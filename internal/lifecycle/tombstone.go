package lifecycle

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
)

// Tombstone hides nodes from a session. The error is history.ErrNodeNotFound if the
// session's graph does not have one of them, and then Tombstone changes nothing.
func (st *Store) Tombstone(ctx context.Context, s *history.Session, ids []graph.ID) error {
	return change.Settle(ctx, st.Engine, func(c *change.Change) error { return st.tombstone(ctx, c, s, ids) })
}

// tombstone is one attempt of Tombstone.
func (st *Store) tombstone(ctx context.Context, c *change.Change, s *history.Session, ids []graph.ID) error {
	return c.Alter(ctx, s, func(l *history.Lifecycles, next *heads.Life, b *engine.Batch) (needed bool, err error) {
		h, _, err := s.Head(ctx)
		if err != nil {
			return false, err
		}
		r := run{s: s, last: h.Revision, parents: map[graph.ID]graph.ID{}, before: map[graph.ID]graph.ID{}}
		if r.hidden, err = l.Tombstones(); err != nil {
			return false, err
		}
		fresh, err := r.read(ctx, ids)
		if err != nil || len(fresh) == 0 {
			return false, err
		}
		for _, id := range fresh {
			before, err := r.nearest(ctx, id)
			if err != nil {
				return false, err
			}
			key := st.Space.Tombstone(s.Inc, id)
			tombstone := heads.Tombstone{Epoch: next.Epoch, Before: before}
			b.Set(key, tombstone.Seal(key))
		}
		next.Stones += uint64(len(fresh))
		b.Reclaim = true
		b.Set(s.DirtyKey, heads.SealDirty(s.DirtyKey))
		return true, nil
	})
}

// A run is what one attempt of Tombstone knows of the nodes that it hides.
type run struct {
	s       *history.Session
	last    head.Revision
	hidden  *history.Tombstones
	parents map[graph.ID]graph.ID // of the nodes to hide
	before  map[graph.ID]graph.ID // what nearest found
}

// read reads those of the nodes that the session shows, and returns them, each once. The error is
// history.ErrNodeNotFound if the session's graph does not have one of them.
func (r *run) read(ctx context.Context, ids []graph.ID) (fresh []graph.ID, err error) {
	if err := r.hidden.Look(ctx, ids...); err != nil {
		return nil, err
	}
	found := map[graph.ID]graph.ID{} // the parents of the nodes in the segments that were read
	for _, id := range ids {
		if _, again := r.parents[id]; again || r.hidden.Has(id) {
			continue
		}
		if r.parents[id], err = parentOf(ctx, r.s, r.last, id, found); err != nil {
			return nil, err
		}
		fresh = append(fresh, id)
	}
	parents := slices.Collect(maps.Values(r.parents))
	return fresh, r.hidden.Look(ctx, parents...)
}

// nearest returns the nearest node before id that is not to be hidden, and that no call of Tombstone
// hid before. It goes from a tombstone to the node that the tombstone names.
func (r *run) nearest(ctx context.Context, id graph.ID) (at graph.ID, err error) {
	var way []graph.ID
	for at = id; !at.IsZero(); {
		if before, known := r.before[at]; known {
			at = before
			break
		}
		next, ours := r.parents[at]
		if !ours {
			stone, err := r.hidden.Find(ctx, at)
			if err != nil {
				return at, err
			}
			if stone == nil || stone.Pruned {
				break
			}
			next = stone.Before
		}
		way, at = append(way, at), next
	}
	for _, id := range way {
		r.before[id] = at
	}
	return at, nil
}

// parentOf returns the parent of a node. It fails with history.ErrNodeNotFound if the session's graph
// does not have the node. It adds the nodes of the graph that are in the same segment to found, and
// reads nothing if found has the node already.
func parentOf(ctx context.Context, s *history.Session, last head.Revision, id graph.ID, found map[graph.ID]graph.ID) (graph.ID, error) {
	if parent, ok := found[id]; ok {
		return parent, nil
	}
	l, nodes, err := s.SegmentOf(ctx, last, id)
	if err != nil {
		return graph.ID{}, err
	}
	for i := range nodes {
		if l.Has(nodes[i].Position()) {
			found[nodes[i].ID] = nodes[i].Parent
		}
	}
	parent, ok := found[id]
	if !ok {
		return graph.ID{}, fmt.Errorf("%w: node %s of session %q", history.ErrNodeNotFound, id, s.ID)
	}
	return parent, nil
}
