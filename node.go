package turnstone

import (
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Node is one event as it is read. Its slices are the caller's.
type Node struct {
	ID NodeID
	// Parent is the node before, tombstoned ones skipped; zero for a root.
	Parent      NodeID
	Kind        string
	Key         string
	Payload     []byte
	Attachments []Attachment
	Revision    Revision // of the commit that added it, in the session that did
	Inherited   bool     // added by an ancestor, before this session forked from it
}

// Node returns one node by its id.
func (s *Session) Node(ctx context.Context, id NodeID) (Node, error) {
	return s.nodeRead(ctx, func(ctx context.Context) (Node, error) {
		h, _, err := s.readHead(ctx)
		if err != nil {
			return Node{}, err
		}
		n, err := s.locate(ctx, h.Revision, id)
		if err != nil {
			return Node{}, err
		}
		return s.one(ctx, h.Revision, n)
	})
}

// NodeByKey returns the node that was committed with the caller's key.
func (s *Session) NodeByKey(ctx context.Context, key string) (Node, error) {
	return s.nodeRead(ctx, func(ctx context.Context) (Node, error) {
		h, _, err := s.readHead(ctx)
		if err != nil {
			return Node{}, err
		}
		at, err := s.indexed(ctx, h.Revision, keys.EventKey, fmt.Sprintf("event key %q", key), func(inc head.Incarnation) []byte {
			return s.store.space.EventKey(inc, key)
		})
		if err != nil {
			return Node{}, err
		}
		n, err := s.at(ctx, at)
		if err == nil && n.Key != key {
			err = codec.Corrupt(codec.ErrHash, "event key %q of session %q", key, s.id)
		}
		if err == nil { // no id was asked for that vouches for what was read
			err = s.vouched(ctx, at)
		}
		if err != nil {
			return Node{}, err
		}
		return s.one(ctx, h.Revision, n)
	})
}

func (s *Session) nodeRead(ctx context.Context, read func(context.Context) (Node, error)) (Node, error) {
	return observed(ctx, s, OpNode, s.ID(), func(ctx context.Context) (Node, error) {
		return retried(ctx, s, func() (Node, error) { return read(ctx) })
	}, func(n Node, o *Outcome) { tellNodes([]Node{n}, o) })
}

// one makes a Node of n.
func (s *Session) one(ctx context.Context, last Revision, n found) (Node, error) {
	dead, err := s.tombstones(ctx)
	if err != nil {
		return Node{}, err
	}
	if dead.has(n.ID) {
		return Node{}, fmt.Errorf("%w: %s is tombstoned", ErrNodeNotFound, n.ID)
	}
	out, err := s.present(ctx, last, []found{n}, dead)
	if err != nil {
		return Node{}, err
	}
	return out[0], nil
}

// alive returns id, or the nearest node before it that is not tombstoned.
func (s *Session) alive(ctx context.Context, last Revision, id NodeID, dead tombstones) (NodeID, error) {
	for dead.has(id) {
		n, err := s.locate(ctx, last, id)
		if err != nil {
			return NodeID{}, linked(err, id)
		}
		id = n.Parent
	}
	return id, nil
}

// present turns what was read into what is returned: without tombstoned nodes,
// their children linked past them, and with payloads that are blobs.
func (s *Session) present(ctx context.Context, last Revision, nodes []found, dead tombstones) ([]Node, error) {
	past := map[NodeID]NodeID{} // of the tombstoned nodes: the live one before
	out := make([]Node, 0, len(nodes))
	var spilled []int
	for i := range nodes {
		n := &nodes[i]
		parent := n.Parent
		if p, ok := past[parent]; ok {
			parent = p
		} else if dead.has(parent) { // it is before what was read
			var err error
			if parent, err = s.alive(ctx, last, parent, dead); err != nil {
				return nil, err
			}
		}
		if dead.has(n.ID) {
			past[n.ID] = parent
			continue
		}
		if n.Erased {
			return nil, codec.Corrupt(codec.ErrMissing, "tombstone of erased node %s of session %q", n.ID, s.id)
		}
		if !n.Blob.IsZero() {
			spilled = append(spilled, len(out))
		}
		out = append(out, Node{
			ID: n.ID, Parent: parent, Kind: n.Kind, Key: n.Key,
			Payload: n.Inline, Attachments: n.Attachments, Revision: n.revision, Inherited: n.inherited,
		})
		if !n.Blob.IsZero() {
			out[len(out)-1].Payload = n.Blob[:] // until it is read
		}
	}
	const atOnce = 64
	for len(spilled) > 0 {
		k := min(atOnce, len(spilled))
		ids := make([]blob.ID, k)
		for i, at := range spilled[:k] {
			ids[i] = blob.ID(out[at].Payload)
		}
		contents, err := s.store.blobs.ReadAll(ctx, ids)
		if err != nil {
			return nil, err
		}
		for i, at := range spilled[:k] {
			out[at].Payload = contents[i]
		}
		spilled = spilled[k:]
	}
	return out, nil
}
