package history

import (
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
)

// pruned returns the nearest pruned node that makes it impossible to commit or fork after node
// id, or the zero id. It looks at id and, as long as nodes are erased, at the nodes before it: a
// commit may follow a tombstoned node, but not one whose parent vacuum pruned. Vacuum prunes
// nodes of side branches that no retained revision leads to.
func (h *History) pruned(ctx context.Context, last head.Revision, id graph.ID) (graph.ID, error) {
	for at := id; !at.IsZero(); {
		pruned, err := h.hasPruned(ctx, at)
		if err != nil || pruned {
			return at, err
		}
		n, _, err := h.Find(ctx, last, at)
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

// NotPruned returns ErrRevisionPruned if no commit and no fork can go on from a node,
// because vacuum pruned it with the revisions that led to it.
func (h *History) NotPruned(ctx context.Context, last head.Revision, id graph.ID) error {
	pruned, err := h.pruned(ctx, last, id)
	if err == nil && !pruned.IsZero() {
		err = fmt.Errorf("%w: node %s of %s", ErrRevisionPruned, pruned, h.Name)
	}
	return err
}
