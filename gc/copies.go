package gc

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
)

// This file finds copies of nodes. A fork that would have too many ancestors is flattened: its first
// ancestor is a copy of all that its parent inherits. The nodes have the same ids there, and the
// parent's origin says whose they were.

// firstNodes returns the first node of each incarnation that has any. Who shares something of an
// incarnation, or has a copy of it, has this node.
func (s Eraser) firstNodes(ctx context.Context, incs []head.Incarnation) (ids []graph.ID, err error) {
	found := errors.New("found")
	for _, inc := range incs {
		h, err := s.Open(ctx, inc)
		if err != nil {
			return nil, err
		}
		of := history.Revisions{Inc: inc, Name: h.Name, Last: history.Unsealed}
		err = h.Reader.Turns(ctx, of, func(t *history.Turn) error {
			if t.Nodes == 0 {
				return nil
			}
			ids = append(ids, t.Pack.Nodes[0].ID)
			return found
		})
		if err != nil && !errors.Is(err, found) {
			return nil, err
		}
	}
	return ids, nil
}

// copies reports whether the graph of a session has one of the nodes.
func copies(ctx context.Context, s *history.Session, ids []graph.ID) (bool, error) {
	for _, id := range ids {
		_, _, err := s.NodeNow(ctx, id)
		if !errors.Is(err, history.ErrNodeNotFound) {
			return err == nil, err
		}
	}
	return false, nil
}

// owners returns the incarnation in which a history has a node and, if that is a copy, the one that the
// copy was made of, as far as it is still there.
func (s Eraser) owners(ctx context.Context, h *history.History, in head.Incarnation, id graph.ID) ([]head.Incarnation, error) {
	out := []head.Incarnation{in}
	if h.Origin == nil || len(h.Origin.Ancestors) < 2 || h.Origin.Ancestors[0].Incarnation != in {
		return out, nil
	}
	parent, err := s.Open(ctx, h.Origin.Ancestors[1].Incarnation)
	if err != nil || parent.Origin == nil || len(parent.Origin.Ancestors) == 0 || parent.Origin.Ancestors[0].Incarnation == in {
		return out, err
	}
	for _, a := range parent.Origin.Ancestors {
		has, err := s.has(ctx, a, id)
		if err != nil {
			return nil, err
		}
		if !has {
			continue
		}
		more, err := s.owners(ctx, parent, a.Incarnation, id)
		return append(out, more...), err
	}
	return out, nil
}

// has reports whether an ancestor itself added a node that it shares, and still has it.
func (s Eraser) has(ctx context.Context, a head.Ancestor, id graph.ID) (bool, error) {
	life, err := s.Life(ctx, a.Incarnation)
	if err != nil || life == nil || a.Revision == 0 || life.State == head.Deleted && life.Floor <= a.Revision {
		return false, err
	}
	h := history.History{Store: s.Store, Inc: a.Incarnation, Name: "ancestor"}
	_, _, err = h.Find(ctx, a.Revision, id)
	if errors.Is(err, history.ErrNodeNotFound) {
		return false, nil
	}
	return err == nil, err
}
