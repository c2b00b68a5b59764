package turnstone

import (
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
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
		h, _, err := s.session.Head(ctx)
		if err != nil {
			return Node{}, err
		}
		n, _, err := s.session.Node(ctx, h.Revision, id)
		if err != nil {
			return Node{}, err
		}
		return s.one(ctx, h.Revision, n)
	})
}

// NodeByKey returns the node that was committed with the caller's key.
func (s *Session) NodeByKey(ctx context.Context, key string) (Node, error) {
	return s.nodeRead(ctx, func(ctx context.Context) (Node, error) {
		h, _, err := s.session.Head(ctx)
		if err != nil {
			return Node{}, err
		}
		n, err := s.session.NodeByKey(ctx, h.Revision, key)
		if err != nil {
			return Node{}, err
		}
		return s.one(ctx, h.Revision, n)
	})
}

func (s *Session) nodeRead(ctx context.Context, read func(context.Context) (Node, error)) (Node, error) {
	return observed(ctx, s, OpNode, s.ID(), func(ctx context.Context) (Node, error) {
		return history.Retry(ctx, s.session.Session, func() (Node, error) { return read(ctx) })
	}, func(n Node, o *Outcome) { tellNodes([]Node{n}, o) })
}

// one makes a Node of n.
func (s *Session) one(ctx context.Context, last Revision, n history.Node) (Node, error) {
	dead, err := s.session.Tombstones(ctx)
	if err != nil {
		return Node{}, err
	}
	if dead.Has(n.ID) {
		return Node{}, fmt.Errorf("%w: %s is tombstoned", ErrNodeNotFound, n.ID)
	}
	out, err := s.present(ctx, last, []history.Node{n}, dead)
	if err != nil {
		return Node{}, err
	}
	return out[0], nil
}

// present turns what was read into what is returned: without tombstoned nodes,
// their children linked past them, and with payloads that are blobs.
func (s *Session) present(ctx context.Context, last Revision, nodes []history.Node, dead history.Tombstones) ([]Node, error) {
	past := map[NodeID]NodeID{} // of the tombstoned nodes: the live one before
	out := make([]Node, 0, len(nodes))
	var stored []int
	for i := range nodes {
		n := &nodes[i]
		parent := n.Parent
		if p, ok := past[parent]; ok {
			parent = p
		} else if dead.Has(parent) { // it is before what was read
			var err error
			if parent, err = s.session.Visible(ctx, last, parent, dead); err != nil {
				return nil, err
			}
		}
		if dead.Has(n.ID) {
			past[n.ID] = parent
			continue
		}
		if n.Erased {
			return nil, codec.Corrupt(codec.ErrMissing, "tombstone of erased node %s of session %q", n.ID, s.session.ID)
		}
		if !n.Blob.IsZero() {
			stored = append(stored, len(out))
		}
		out = append(out, Node{
			ID: n.ID, Parent: parent, Kind: n.Kind, Key: n.Key,
			Payload: n.Inline, Attachments: n.Attachments, Revision: n.Revision, Inherited: n.Inherited,
		})
		if !n.Blob.IsZero() {
			out[len(out)-1].Payload = n.Blob[:] // until it is read
		}
	}
	const atOnce = 64
	for len(stored) > 0 {
		k := min(atOnce, len(stored))
		ids := make([]blob.ID, k)
		for i, at := range stored[:k] {
			ids[i] = blob.ID(out[at].Payload)
		}
		contents, err := s.store.blobs.ReadAll(ctx, ids)
		if err != nil {
			return nil, err
		}
		for i, at := range stored[:k] {
			out[at].Payload = contents[i]
		}
		stored = stored[k:]
	}
	return out, nil
}
