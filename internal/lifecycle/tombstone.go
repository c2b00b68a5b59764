package lifecycle

import (
	"context"
	"fmt"

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
	return c.Alter(ctx, s, func(next *heads.Life, b *engine.Batch) (needed bool, err error) {
		h, _, err := s.Head(ctx)
		if err != nil {
			return false, err
		}
		hidden, err := s.Tombstones(ctx)
		if err != nil {
			return false, err
		}
		found := map[graph.ID]bool{} // the nodes of the graph in the segments that were read
		for _, id := range ids {
			if hidden.Has(id) {
				continue
			}
			if err := findNode(ctx, s, h.Revision, id, found); err != nil {
				return false, err
			}
			key := st.Space.Tombstone(s.Inc, id)
			tombstone := heads.Tombstone{Epoch: next.Epoch}
			b.Set(key, tombstone.Seal(key))
			hidden.Add(id)
		}
		if b.Ops() == 0 {
			return false, nil
		}
		next.Stones += uint64(b.Ops())
		b.Reclaim = true
		b.Set(s.DirtyKey, heads.SealDirty(s.DirtyKey))
		return true, nil
	})
}

// findNode fails with history.ErrNodeNotFound if the session's graph does not have node id.
// It adds the nodes of the graph that are in the same segment to found, and reads nothing if
// found has the node already.
func findNode(ctx context.Context, s *history.Session, last head.Revision, id graph.ID, found map[graph.ID]bool) error {
	if found[id] {
		return nil
	}
	l, nodes, err := s.SegmentOf(ctx, last, id)
	if err != nil {
		return err
	}
	for i := range nodes {
		if l.Has(nodes[i].Position()) {
			found[nodes[i].ID] = true
		}
	}
	if !found[id] {
		return fmt.Errorf("%w: node %s of session %q", history.ErrNodeNotFound, id, s.ID)
	}
	return nil
}
