package history

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// TombstoneNodes makes b hide nodes from a session: it sets their tombstones, of the epoch of next, which counts
// them. last is the revision of the session's head. Tombstone reports whether there is anything to do, as some of the
// nodes may be hidden already. The error is ErrNodeNotFound if the session's graph does not have one of them.
func TombstoneNodes(ctx context.Context, l *Lifecycles, last head.Revision, ids []graph.ID, next *head.Life, b *engine.Batch) (needed bool, err error) {
	s := l.Session
	h := hiding{s: s, last: last, parents: map[graph.ID]graph.ID{}, before: map[graph.ID]graph.ID{}}
	if h.hidden, err = l.Tombstones(); err != nil {
		return false, err
	}
	fresh, err := h.read(ctx, ids)
	if err != nil {
		return false, err
	}
	for _, id := range fresh {
		before, err := h.nearest(ctx, id)
		if err != nil {
			return false, err
		}
		key := s.Space.Tombstone(s.Inc, id)
		tombstone := head.Tombstone{Epoch: next.Epoch, Before: before}
		b.Set(key, tombstone.Encode(key))
	}
	next.Stones += uint64(len(fresh))
	return len(fresh) > 0, nil
}

// hiding is what one call of TombstoneNodes has read of the nodes that it hides.
type hiding struct {
	s       *Session
	last    head.Revision
	hidden  *Tombstones
	parents map[graph.ID]graph.ID // of the nodes to hide
	before  map[graph.ID]graph.ID // what nearest found
}

// read reads those of the nodes that the session shows, and returns them, each once. The error is
// ErrNodeNotFound if the session's graph does not have one of them.
func (h *hiding) read(ctx context.Context, ids []graph.ID) (fresh []graph.ID, err error) {
	if err := h.hidden.Look(ctx, ids...); err != nil {
		return nil, err
	}
	found := map[graph.ID]graph.ID{} // the parents of the nodes in the segments that were read
	for _, id := range ids {
		if _, again := h.parents[id]; again || h.hidden.Has(id) {
			continue
		}
		if h.parents[id], err = parentOf(ctx, h.s, h.last, id, found); err != nil {
			return nil, err
		}
		fresh = append(fresh, id)
	}
	parents := slices.Collect(maps.Values(h.parents))
	return fresh, h.hidden.Look(ctx, parents...)
}

// nearest returns the nearest node before id that is not to be hidden, and that no call of Tombstone
// hid before. It goes from a tombstone to the node that the tombstone names.
func (h *hiding) nearest(ctx context.Context, id graph.ID) (at graph.ID, err error) {
	var way []graph.ID
	for at = id; !at.IsZero(); {
		if before, known := h.before[at]; known {
			at = before
			break
		}
		next, ours := h.parents[at]
		if !ours {
			stone, err := h.hidden.Find(ctx, at)
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
		h.before[id] = at
	}
	return at, nil
}

// parentOf returns the parent of a node. It fails with ErrNodeNotFound if the session's graph
// does not have the node. It adds the nodes of the graph that are in the same segment to found, and
// reads nothing if found has the node already.
func parentOf(ctx context.Context, s *Session, last head.Revision, id graph.ID, found map[graph.ID]graph.ID) (graph.ID, error) {
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
		return graph.ID{}, fmt.Errorf("%w: node %s of session %q", ErrNodeNotFound, id, s.ID)
	}
	return parent, nil
}
