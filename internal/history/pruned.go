package history

import (
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// NotPruned returns ErrRevisionPruned if no commit and no fork can go on from a node,
// because vacuum pruned it with the revisions that led to it.
func (l *Lifecycles) NotPruned(ctx context.Context, last head.Revision, id graph.ID) error {
	hidden, err := l.Tombstones()
	if err != nil {
		return err
	}
	pruned, err := hidden.pruned(ctx, last, id)
	if err == nil && !pruned.IsZero() {
		err = fmt.Errorf("%w: node %s of %s", ErrRevisionPruned, pruned, l.Session.Name)
	}
	return err
}

// pruned returns the nearest pruned node that makes it impossible to commit or fork after node
// id, or the zero id. It looks at id and, as long as nodes are erased, at the nodes before it: a
// commit may follow a tombstoned node, but not one whose parent vacuum pruned. Vacuum prunes
// nodes of side branches that no retained revision leads to.
func (t *Tombstones) pruned(ctx context.Context, last head.Revision, id graph.ID) (graph.ID, error) {
	for at := id; !at.IsZero(); {
		stone, err := t.Find(ctx, at)
		if err != nil {
			return graph.ID{}, err
		}
		if stone != nil && stone.Pruned {
			return at, nil
		}
		n, _, err := t.h.Find(ctx, last, at)
		if err != nil || !n.Erased {
			return graph.ID{}, err
		}
		if at = n.Parent; stone != nil {
			at = stone.Before // No node in between is pruned.
		}
	}
	return graph.ID{}, nil
}
