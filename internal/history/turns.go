// A commit and the nodes that it adds are a [Turn]. A commit writes its turn as one record, a
// loose segment. Sealing puts many turns into one segment, which is compressed as a whole and says
// where the session stood at its end. So a reader can enter at each segment:
//
//	revision   1         …         412  413       …        777  778  779  780
//	stored     [ sealed             ──▶ ][ sealed           ──▶ ][ ] [ ] [ ]
//	           header, turns 1 to 412    header, turns to 777    loose
//
// Nothing of a segment is taken on trust. The ids of nodes and commits are computed from what is
// stored, and those that a segment records besides have to be the same: see [Segment].
//
// An [Index] finds the revision of a node, an event key, a turn id or a former leaf. Of what is
// sealed it is stored in runs, of what is loose it is kept in memory.

package history

import (
	"fmt"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// A Turn is a commit with the nodes that it added.
type Turn struct {
	head.Commit
	ID   head.CommitID
	Pack graph.Pack // resolved
}

// StateAfter returns where a session stands after turns that follow a state. name is what errors call the
// session.
func StateAfter(s head.State, of []Turn, name string) (head.State, error) {
	for i := range of {
		next, err := s.Then(&of[i].Commit, of[i].ID)
		if err != nil {
			return s, codec.Corrupt(err, "commit %d of %s", of[i].Revision, name)
		}
		s = next
	}
	return s, nil
}

// check compares the nodes of a turn with what its commit says of them. before is the node that
// was appended last before the turn, or zero if that is not known.
func (t *Turn) check(before graph.ID) error {
	if len(t.Pack.Nodes) != t.Nodes {
		return fmt.Errorf("%w: %d of %d nodes", damage.ErrMissing, len(t.Pack.Nodes), t.Nodes)
	}
	last := before
	if t.Nodes > 0 {
		last = t.Pack.Nodes[t.Nodes-1].ID
	} else if before.IsZero() {
		last = t.Last
	}
	linear := t.NodeDigest == [32]byte{}
	if last != t.Last || linear != t.Pack.Linear(t.Leaf) || !linear && t.Pack.Digest() != t.NodeDigest {
		return damage.ErrHash
	}
	return nil
}
