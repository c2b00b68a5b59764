package turnstone

import (
	"context"
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
		return len(ids), s.store.lifecycle.Tombstone(ctx, s.session, ids)
	}, func(n int, o *Outcome) { o.Items = n })
	return err
}
