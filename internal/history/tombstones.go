package history

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// Tombstones are the nodes that a session does not show. The keys of the records have only the
// first 8 bytes of the nodes' ids.
type Tombstones map[[8]byte]struct{}

// Has reports whether the session does not show node id.
func (t Tombstones) Has(id graph.ID) bool {
	_, dead := t[[8]byte(id[:8])]
	return dead
}

// Add adds a node.
func (t Tombstones) Add(id graph.ID) { t[[8]byte(id[:8])] = struct{}{} }

// Tombstones returns the tombstones of the session, and those of its ancestors that were
// set before the session forked from them.
func (h *History) Tombstones(ctx context.Context) (Tombstones, error) {
	out := Tombstones{}
	for _, l := range h.Layers(0) {
		for p, err := range h.Engine.Scan(ctx, h.Space.Of(keys.Tombstone, l.Inc)) {
			if err != nil {
				return nil, err
			}
			_, fields, ok := h.Space.Fields(p.Key)
			t, err := heads.OpenTombstone(p.Key, p.Value)
			if err == nil && !ok {
				err = fmt.Errorf("%w: tombstone", record.ErrMalformed)
			}
			if err != nil {
				return nil, codec.Corrupt(err, "tombstone at key %x of %s", p.Key, h.Name)
			}
			if t.Epoch <= l.Epoch {
				out[[8]byte(fields[16:])] = struct{}{}
			}
		}
	}
	return out, nil
}

// visible returns id if the session shows that node. Otherwise it returns the nearest node before
// it that the session shows, or the zero id.
func (h *History) visible(ctx context.Context, last head.Revision, id graph.ID, hidden Tombstones) (graph.ID, error) {
	for hidden.Has(id) {
		n, _, err := h.Node(ctx, last, id)
		if err != nil {
			return graph.ID{}, linked(err, id)
		}
		id = n.Parent
	}
	return id, nil
}

// pruned returns the node that keeps a commit from going on from node id, because vacuum pruned
// it, or the zero id if there is none. It is id itself or, if id is erased, a node before it:
// a commit can go on from a node that a host has tombstoned, but not from one whose parent is
// pruned. Vacuum prunes nodes of side branches that no retained revision leads to.
func (h *History) pruned(ctx context.Context, last head.Revision, id graph.ID) (graph.ID, error) {
	for at := id; !at.IsZero(); {
		pruned, err := h.hasPruned(ctx, at)
		if err != nil || pruned {
			return at, err
		}
		n, _, err := h.Node(ctx, last, at)
		if err != nil || !n.Erased {
			return graph.ID{}, err
		}
		at = n.Parent
	}
	return graph.ID{}, nil
}

// hasPruned reports whether vacuum pruned node id, in the session or in an ancestor.
func (h *History) hasPruned(ctx context.Context, id graph.ID) (bool, error) {
	layers := h.Layers(0)
	ks := make([][]byte, len(layers))
	for i, l := range layers {
		ks[i] = h.Space.Tombstone(l.Inc, id)
	}
	values, err := h.Engine.Get(ctx, ks...)
	if err != nil {
		return false, err
	}
	for i, value := range values {
		if value == nil {
			continue
		}
		t, err := heads.OpenTombstone(ks[i], value)
		if err != nil {
			return false, codec.Corrupt(err, "tombstone of node %s of %s", id, h.Name)
		}
		if t.Pruned && t.Epoch <= layers[i].Epoch {
			return true, nil
		}
	}
	return false, nil
}

// Shows reports whether the session shows a node: the node is in its graph and is not
// tombstoned.
func (s *Session) Shows(ctx context.Context, id graph.ID) (bool, error) {
	shown, err := Retry(ctx, s, func() (bool, error) {
		h, _, _, err := s.ReadHead(ctx, 0)
		if err != nil {
			return false, err
		}
		if _, _, err := s.Node(ctx, h.Revision, id); err != nil {
			return false, err
		}
		hidden, err := s.Tombstones(ctx)
		return !hidden.Has(id), err
	})
	if errors.Is(err, ErrNodeNotFound) {
		err = nil
	}
	return shown, err
}

// NotPruned returns ErrRevisionPruned if no commit and no fork can go on from a node,
// because vacuum pruned it with the revisions that led to it.
func (h *History) NotPruned(ctx context.Context, last head.Revision, id graph.ID) error {
	pruned, err := h.pruned(ctx, last, id)
	if err == nil && !pruned.IsZero() {
		err = fmt.Errorf("%w: node %s of %s", ErrRevisionPruned, pruned, h.Name)
	}
	return err
}
