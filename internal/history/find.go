package history

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
)

// A Position says where a node of the session's graph is.
type Position struct {
	Layer Layer
	pack.Position
}

// Find looks for the first bytes of a node's id in the index of the session and then of each
// ancestor, all of which it reads, and returns the position of the node. The error is
// ErrNodeNotFound if the session's graph does not have the node. Find reads nodes only if several
// ids begin alike; otherwise the position is right only if the index is: see Node.
func (h *History) Find(ctx context.Context, last head.Revision, id graph.ID) (Position, error) {
	missing := fmt.Errorf("%w: node %s of %s", ErrNodeNotFound, id, h.Name)
	layers := h.Layers(last)
	slices.Reverse(layers)
	var found []Position
	for _, l := range layers {
		for e, err := range pack.Index(ctx, h.Engine, h.Space, l.Inc) {
			if err != nil {
				return Position{}, err
			}
			if e.Prefix == pack.PrefixOf(id) && l.Has(e.Position) {
				found = append(found, Position{l, e.Position})
			}
		}
	}
	switch len(found) {
	case 0:
		return Position{}, missing
	case 1:
		return found[0], nil
	}
	for _, at := range found { // The index has only the beginning of each id.
		if n, err := h.NodeAt(ctx, at); err != nil || n.ID == id {
			return at, err
		}
	}
	return Position{}, missing
}

// findKey returns the position of the node that was committed with an event key. It looks in the
// session first, and in the oldest ancestor last. The error is ErrNodeNotFound if no node has the
// key.
func (h *History) findKey(ctx context.Context, last head.Revision, key string) (Position, error) {
	return h.find(ctx, last, keys.EventKey, fmt.Sprintf("event key %q", key), func(inc heads.Incarnation) []byte {
		return h.Space.EventKey(inc, key)
	})
}

// FindAttachment returns the position of the first node that has an attachment. It looks in the
// session first, and in the oldest ancestor last. The error is ErrBlobNotFound if no node has the
// attachment.
func (h *History) FindAttachment(ctx context.Context, last head.Revision, id blob.ID) (Position, error) {
	hash := h.Space.BlobHash(id)
	at, err := h.find(ctx, last, keys.Attachment, "attachment "+id.String(), func(inc heads.Incarnation) []byte {
		return h.Space.Attachment(inc, hash)
	})
	if errors.Is(err, ErrNodeNotFound) {
		err = fmt.Errorf("%w: %s in %s", ErrBlobNotFound, id, h.Name)
	}
	return at, err
}

// find returns the position in an index record of the session or of an ancestor. letter is that
// of the record, key returns the record's key in an incarnation, and errors say what the record
// is about.
func (h *History) find(ctx context.Context, last head.Revision, letter byte, what string, key func(heads.Incarnation) []byte) (Position, error) {
	layers := h.Layers(last)
	slices.Reverse(layers)
	ks := make([][]byte, len(layers))
	for i, l := range layers {
		ks[i] = key(l.Inc)
	}
	values, err := h.Engine.Get(ctx, ks...)
	if err != nil {
		return Position{}, err
	}
	for i, value := range values {
		if value == nil {
			continue
		}
		p, err := pack.OpenPosition(ks[i], value, letter)
		if err != nil {
			return Position{}, codec.Corrupt(err, "index entry of %s of %s", what, h.Name)
		}
		if l := layers[i]; l.Has(p) {
			return Position{l, p}, nil
		}
	}
	return Position{}, fmt.Errorf("%w: %s of %s", ErrNodeNotFound, what, h.Name)
}

// Node returns the node with an id, verified, and its position. The error is ErrNodeNotFound if
// the session's graph does not have it.
func (h *History) Node(ctx context.Context, last head.Revision, id graph.ID) (Node, Position, error) {
	at, err := h.Find(ctx, last, id)
	if err != nil {
		return Node{}, at, err
	}
	n, err := h.NodeAt(ctx, at)
	switch {
	case err != nil:
	case pack.PrefixOf(n.ID) != pack.PrefixOf(id):
		err = codec.Corrupt(record.ErrHash, "node %s of %s", id, h.Name)
	case n.ID != id: // It is another node whose id has the same beginning.
		err = fmt.Errorf("%w: node %s of %s", ErrNodeNotFound, id, h.Name)
	}
	return n, at, err
}

// NodeByKey returns the node that was committed with an event key, verified. The error is
// ErrNodeNotFound if no node of the session's graph has the key.
func (h *History) NodeByKey(ctx context.Context, last head.Revision, key string) (Node, error) {
	at, err := h.findKey(ctx, last, key)
	if err != nil {
		return Node{}, err
	}
	n, err := h.NodeAt(ctx, at)
	if err == nil && n.Key != key {
		err = codec.Corrupt(record.ErrHash, "event key %q of %s", key, h.Name)
	}
	if err == nil { // There is no id to compare the node with.
		err = h.verifyCommit(ctx, at)
	}
	return n, err
}

// NodeAt returns the node at a position. Its id is computed from its content. The caller has to
// compare it with the id that it expects.
func (h *History) NodeAt(ctx context.Context, at Position) (Node, error) {
	nodes, _, err := h.commitNodes(ctx, at.Layer, head.Revision(at.Revision))
	if err != nil {
		return Node{}, err
	}
	if at.Index >= len(nodes) {
		return Node{}, codec.Corrupt(record.ErrMissing, "node %d of revision %d of %s", at.Index, at.Revision, h.Name)
	}
	return nodes[at.Index], nil
}

// verifyCommit compares the nodes of the commit at a position with the commit.
func (h *History) verifyCommit(ctx context.Context, at Position) error {
	r := head.Revision(at.Revision)
	c, _, err := h.Store.CommitAt(ctx, at.Layer.Inc, r)
	if err != nil {
		return err
	}
	nodes, before, err := h.commitNodes(ctx, at.Layer, r)
	if err != nil {
		return err
	}
	return codec.Corrupt(vouch(c, nodes, before), "pack of revision %d of %s", r, h.Name)
}

// NodeNow returns the node with an id, and its position, as the session is now. It reads the head
// first, and starts over if maintenance moves something meanwhile. The node may be tombstoned.
func (s *Session) NodeNow(ctx context.Context, id graph.ID) (n Node, at Position, err error) {
	_, err = Retry(ctx, s, func() (_ struct{}, err error) {
		h, _, _, err := s.ReadHead(ctx, 0)
		if err == nil {
			n, at, err = s.Node(ctx, h.Revision, id)
		}
		return struct{}{}, err
	})
	return n, at, err
}
