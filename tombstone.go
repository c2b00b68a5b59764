package turnstone

import (
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
)

// Tombstone soft-deletes nodes in this session: no read shows them from now on,
// their children are linked past them, and the head keeps its leaf. Other
// sessions that hold a node, parents and forks made before, go on showing it.
// A node that the session's graph does not have is ErrNodeNotFound, and then
// nothing is changed; one that is tombstoned already is no error.
//
// A tombstoned node is still a place: a commit may go on from it, rewind to it,
// and fork at it. Its event key stays taken, and its attachments can be read by
// their ids. Vacuum removes payload and attachments once every session that shows
// the node has tombstoned it or is gone.
func (s *Session) Tombstone(ctx context.Context, ids ...NodeID) error {
	if len(ids) > MaxNodes {
		return &LimitError{Limit: "nodes", Where: "tombstone", Have: int64(len(ids)), Max: MaxNodes}
	}
	_, err := observed(ctx, s, OpTombstone, s.ID(), func(ctx context.Context) (int, error) {
		return len(ids), change.Settle(ctx, s.store.engine, func(c *change.Change) error { return s.tombstone(ctx, c, ids) })
	}, func(n int, o *Outcome) { o.Items = n })
	return err
}

func (s *Session) tombstone(ctx context.Context, c *change.Change, ids []NodeID) error {
	return c.Alter(ctx, s.session.Session, func(next *head.Life, b *engine.Batch) (needed bool, err error) {
		h, _, err := s.session.Head(ctx)
		if err != nil {
			return false, err
		}
		dead, err := s.session.Tombstones(ctx)
		if err != nil {
			return false, err
		}
		known := map[NodeID]bool{} // of the segments that were read
		for _, id := range ids {
			if dead.Has(id) {
				continue
			}
			if !known[id] {
				if err := s.know(ctx, h.Revision, id, known); err != nil {
					return false, err
				}
			}
			key := s.store.space.Tombstone(s.session.Inc, id)
			stone := head.Tombstone{Epoch: next.Epoch}
			b.Set(key, stone.Seal(key))
			dead.Add(id)
		}
		if b.Ops() == 0 {
			return false, nil
		}
		next.Stones += uint64(b.Ops())
		b.Reclaim = true
		b.Set(s.session.DirtyKey, head.SealDirty(s.session.DirtyKey))
		return true, nil
	})
}

// know adds to known the nodes of the session's graph that are in one segment with
// id, and fails if id is not among them.
func (s *Session) know(ctx context.Context, last Revision, id NodeID, known map[NodeID]bool) error {
	l, nodes, err := s.session.SegmentOf(ctx, last, id)
	if err != nil {
		return err
	}
	for i := range nodes {
		if l.Has(nodes[i].Position()) {
			known[nodes[i].ID] = true
		}
	}
	if !known[id] {
		return fmt.Errorf("%w: node %s of session %q", ErrNodeNotFound, id, s.session.ID)
	}
	return nil
}

// setDirty makes b say that a session changed since a collector looked.
func (s *Store) setDirty(b *engine.Batch, key []byte) { b.Set(key, head.SealDirty(key)) }
