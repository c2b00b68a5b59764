package history

import (
	"context"
	"fmt"
	"iter"
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
	for f, err := range h.named(ctx, last, Name{Kind: NodeEntry, ID: id}) {
		if err != nil || f.ID == id {
			return f.Node, f.at, err
		}
	}
	return Node{}, Position{}, fmt.Errorf("%w: node %s of %s", ErrNodeNotFound, id, h.Name)
}

// NodeByKey is NodesByKey for one key. The error is ErrNodeNotFound if no node of the session's graph has the key.
func (s *Session) NodeByKey(ctx context.Context, last head.Revision, leaf graph.ID, key string) (Node, error) {
	found, err := s.NodesByKey(ctx, last, leaf, key)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%w: event key %q of %s", ErrNodeNotFound, key, s.Name)
	}
	if err != nil {
		return Node{}, err
	}
	return found[0], nil
}

// NodesByKey returns the nodes that were committed with event keys, for each key the one on the path to a leaf of the
// state at revision last, or else the newest. It reads what was committed since the nodes of those keys that several
// nodes have, once for all keys.
func (s *Session) NodesByKey(ctx context.Context, last head.Revision, leaf graph.ID, keys ...string) (out []Node, err error) {
	var several []Node
	at := map[string]int{} // of those keys, the index in out
	for _, key := range keys {
		all, err := s.withKey(ctx, last, key)
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			continue
		}
		if len(all) > 1 {
			at[key], several = len(out), append(several, all...)
		}
		out = append(out, all[0])
	}
	if len(several) == 0 {
		return out, nil
	}
	left := len(at)
	err = s.walkTo(ctx, last, leaf, several, func(n *Node) bool {
		out[at[n.Key]] = *n // A path has one node of a key.
		left--
		return left > 0
	})
	return out, err
}

// KeyOnPath returns a node that has one of some event keys and is on the path to a leaf, and reports whether there is
// one. Of several nodes it returns the nearest to the leaf. It reads what was committed since the nodes that have one
// of the keys.
func (s *Session) KeyOnPath(ctx context.Context, last head.Revision, leaf graph.ID, keys ...string) (n Node, found bool, err error) {
	var all []Node
	for _, key := range keys {
		of, err := s.withKey(ctx, last, key)
		if err != nil {
			return n, false, err
		}
		all = append(all, of...)
	}
	err = s.walkTo(ctx, last, leaf, all, func(of *Node) bool {
		n, found = *of, true
		return false
	})
	return n, found, err
}

// withKey returns the nodes that were committed with an event key: those of the session first, then those of its
// ancestors, the nearest one first, and of each the newest first.
func (h *History) withKey(ctx context.Context, last head.Revision, key string) (all []Node, err error) {
	for f, err := range h.named(ctx, last, Name{Kind: KeyEntry, Text: key}) {
		if err != nil {
			return nil, err
		}
		if f.Key == key {
			all = append(all, f.Node)
		}
	}
	return all, nil
}

// A foundNode is a node, and where it was found.
type foundNode struct {
	Node
	at Position
}

// named goes through the nodes that indexes have for a name: that of the session first, that of its oldest ancestor
// last. An index may have nodes of other names, too, so the caller has to compare. An error is the last element.
func (h *History) named(ctx context.Context, last head.Revision, name Name) iter.Seq2[foundNode, error] {
	return func(yield func(foundNode, error) bool) {
		for _, l := range slices.Backward(h.Layers(last)) {
			places, err := h.places(ctx, l, name)
			if err != nil {
				yield(foundNode{}, err)
				return
			}
			for _, p := range places {
				f := foundNode{at: Position{l, p}}
				f.Node, err = h.NodeAt(ctx, f.at)
				if !yield(f, err) || err != nil {
					return
				}
			}
		}
	}
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
	_, err = Read(ctx, s, func(*Lifecycles) (_ struct{}, err error) {
		h, _, _, err := s.ReadHead(ctx, 0)
		if err == nil {
			n, at, err = s.Find(ctx, h.Revision, id)
		}
		return struct{}{}, err
	})
	return n, at, err
}
