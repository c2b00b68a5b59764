package lifecycle

import (
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
)

// Tombstone soft-deletes nodes in a session. If the session's graph does not have one of
// them, the error is history.ErrNodeNotFound, and nothing is changed.
func (st *Store) Tombstone(ctx context.Context, s *commit.Session, ids []graph.ID) error {
	return change.Settle(ctx, st.Engine, func(c *change.Change) error { return st.tombstone(ctx, c, s, ids) })
}

// tombstone is one attempt of Tombstone.
func (st *Store) tombstone(ctx context.Context, c *change.Change, s *commit.Session, ids []graph.ID) error {
	return c.Alter(ctx, s.Session, func(next *heads.Life, b *engine.Batch) (needed bool, err error) {
		h, _, err := s.Head(ctx)
		if err != nil {
			return false, err
		}
		hidden, err := s.Tombstones(ctx)
		if err != nil {
			return false, err
		}
		shared := map[graph.ID]bool{} // nodes of the graph, of the segments that were read
		for _, id := range ids {
			if hidden.Has(id) {
				continue
			}
			if !shared[id] {
				if err := shares(ctx, s, h.Revision, id, shared); err != nil {
					return false, err
				}
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

// shares adds to shared the nodes of the session's graph that are in one segment with
// id, and fails if id is not among them.
func shares(ctx context.Context, s *commit.Session, last head.Revision, id graph.ID, shared map[graph.ID]bool) error {
	l, nodes, err := s.SegmentOf(ctx, last, id)
	if err != nil {
		return err
	}
	for i := range nodes {
		if l.Has(nodes[i].Position()) {
			shared[nodes[i].ID] = true
		}
	}
	if !shared[id] {
		return fmt.Errorf("%w: node %s of session %q", history.ErrNodeNotFound, id, s.ID)
	}
	return nil
}
