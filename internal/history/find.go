package history

import (
	"context"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// A Position says where a node of the session's graph is.
type Position struct {
	Layer Layer
	graph.Position
}

// Find returns the node with an id, and its position. The error is ErrNodeNotFound if the session's
// graph up to revision last does not have the node.
func (h *History) Find(ctx context.Context, last head.Revision, id graph.ID) (Node, Position, error) {
	n, at, found, err := h.find(ctx, last, Name{Kind: NodeEntry, ID: id}, func(n *Node) bool { return n.ID == id })
	if err == nil && !found {
		err = fmt.Errorf("%w: node %s of %s", ErrNodeNotFound, id, h.Name)
	}
	return n, at, err
}

// NodeByKey returns the node that was committed with an event key. It looks in the session first,
// and in the oldest ancestor last. The error is ErrNodeNotFound if no node of the session's graph
// has the key.
func (h *History) NodeByKey(ctx context.Context, last head.Revision, key string) (Node, error) {
	n, found, err := h.HasKey(ctx, last, key)
	if err == nil && !found {
		err = fmt.Errorf("%w: event key %q of %s", ErrNodeNotFound, key, h.Name)
	}
	return n, err
}

// HasKey is NodeByKey that reports whether a node has the key.
func (h *History) HasKey(ctx context.Context, last head.Revision, key string) (n Node, found bool, err error) {
	n, _, found, err = h.find(ctx, last, Name{Kind: KeyEntry, Text: key}, func(n *Node) bool { return n.Key == key })
	return n, found, err
}

// find returns the first node that an index names and that is the one which is looked for. It asks
// the index of the session first, and that of the oldest ancestor last.
func (h *History) find(ctx context.Context, last head.Revision, name Name, is func(*Node) bool) (n Node, at Position, found bool, err error) {
	if n, at, found, err = h.findIn(ctx, h.Own(last), name, is); found || err != nil || h.Origin == nil {
		return n, at, found, err
	}
	ancestors := h.Layers(last)[:len(h.Origin.Ancestors)]
	for i := len(ancestors) - 1; i >= 0; i-- {
		if n, at, found, err = h.findIn(ctx, ancestors[i], name, is); found || err != nil {
			return n, at, found, err
		}
	}
	return Node{}, Position{}, false, nil
}

// findIn is find for one layer.
func (h *History) findIn(ctx context.Context, l Layer, name Name, is func(*Node) bool) (n Node, at Position, found bool, err error) {
	places, err := h.places(ctx, l, name)
	if err != nil {
		return n, at, false, err
	}
	for _, p := range places {
		at = Position{l, p}
		if n, err = h.NodeAt(ctx, at); err != nil {
			return n, at, false, err
		}
		if is(&n) {
			return n, at, true, nil
		}
	}
	return Node{}, Position{}, false, nil
}

// places returns the positions that the index of a layer has for a name, as far as the layer is
// shared.
func (h *History) places(ctx context.Context, l Layer, name Name) ([]graph.Position, error) {
	if l.Last == 0 {
		return nil, nil
	}
	ix, err := h.Index(ctx, l.Inc, l.Last)
	if err != nil {
		return nil, err
	}
	places, err := h.Reader.Find(ctx, ix, name)
	return slices.DeleteFunc(places, func(p graph.Position) bool { return !l.Has(p) }), err
}

// FindTurn returns the turn that the session itself committed under a turn id up to revision last,
// or nil if there is none.
func (h *History) FindTurn(ctx context.Context, last head.Revision, id string) (*Turn, error) {
	places, err := h.places(ctx, h.Own(last), Name{Kind: TurnEntry, Text: id})
	if err != nil {
		return nil, err
	}
	for _, p := range places {
		t, err := h.TurnAt(ctx, head.Revision(p.Revision))
		if err != nil || t.Turn == id {
			return t, err
		}
	}
	return nil, nil
}

// FindAttachment returns the position of the first node that has an attachment. It looks in the
// session first, and in the oldest ancestor last. The error is ErrBlobNotFound if no node has the
// attachment.
func (h *History) FindAttachment(ctx context.Context, last head.Revision, id blob.ID) (Position, error) {
	hash := h.Space.BlobHash(id)
	layers := h.Layers(last)
	slices.Reverse(layers)
	ks := make([][]byte, len(layers))
	for i, l := range layers {
		ks[i] = h.Space.Attachment(l.Inc, hash)
	}
	values, err := h.Engine.Get(ctx, ks...)
	if err != nil {
		return Position{}, err
	}
	for i, value := range values {
		if value == nil {
			continue
		}
		p, err := graph.DecodeAttachment(ks[i], value)
		if err != nil {
			return Position{}, codec.Corrupt(err, "index entry of attachment %s of %s", id, h.Name)
		}
		if l := layers[i]; l.Has(p) {
			return Position{l, p}, nil
		}
	}
	return Position{}, fmt.Errorf("%w: %s in %s", ErrBlobNotFound, id, h.Name)
}

// NodeAt returns the node at a position. The caller has to compare it with what it expects.
func (h *History) NodeAt(ctx context.Context, at Position) (Node, error) {
	t, err := h.Store.TurnAt(ctx, at.Layer.Inc, head.Revision(at.Revision))
	if err != nil {
		return Node{}, err
	}
	if at.Index >= len(t.Pack.Nodes) {
		return Node{}, codec.Corrupt(damage.ErrMissing, "node %d of revision %d of %s", at.Index, at.Revision, h.Name)
	}
	return h.nodeOf(at.Layer, t, at.Index), nil
}

// NodeNow returns the node with an id, and its position, as the session is now. It reads the head
// first, and starts over if maintenance moves something meanwhile. The node may be tombstoned.
func (s *Session) NodeNow(ctx context.Context, id graph.ID) (n Node, at Position, err error) {
	_, err = Retry(ctx, s, func() (_ struct{}, err error) {
		h, _, _, err := s.ReadHead(ctx, 0)
		if err == nil {
			n, at, err = s.Find(ctx, h.Revision, id)
		}
		return struct{}{}, err
	})
	return n, at, err
}
