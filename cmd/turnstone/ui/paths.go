package ui

import (
	"context"
	"slices"
	"sync"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
)

// maxIDs is how many ids of nodes are remembered in all.
const maxIDs = 2 << 20

// paths remembers the ids of the nodes of the path of each session that was shown last, so that any part of a long
// conversation can be loaded without what is before it.
type paths struct {
	mu    sync.Mutex
	known map[string][]graph.ID // by the incarnations of sessions
	order []string              // of known, the one that was put there last at the end
	total int
}

// get returns the ids of the path to a leaf.
func (p *paths) get(ctx context.Context, s turnstone.Persistence, incarnation string, leaf graph.ID) ([]graph.ID, error) {
	p.mu.Lock()
	known := p.known[incarnation]
	p.mu.Unlock()
	if to := lastIndex(known, leaf); to >= 0 {
		return known[:to+1], nil
	}
	path, err := goOn(ctx, s, known, leaf)
	if err != nil {
		return nil, err
	}
	p.put(incarnation, path)
	return path, nil
}

// goOn returns the path to a leaf that is not on a known path, from which it may go on.
func goOn(ctx context.Context, s turnstone.Persistence, known []graph.ID, leaf graph.ID) ([]graph.ID, error) {
	if len(known) > 0 {
		state, err := s.Load(ctx, turnstone.Scope{Leaf: leaf, Last: 200})
		if err != nil {
			return nil, err
		}
		if len(state.Nodes) == 0 {
			return nil, nil
		}
		if to := lastIndex(known, state.Nodes[0].Parent); to >= 0 {
			path := slices.Clip(known[:to+1]) // Others read the rest of the array.
			for i := range state.Nodes {
				path = append(path, state.Nodes[i].ID)
			}
			return path, nil
		}
	}
	var path []graph.ID
	for n, err := range s.Nodes(ctx, turnstone.Scope{Leaf: leaf}) {
		if err != nil {
			return nil, err
		}
		path = append(path, n.ID)
	}
	return path, nil
}

func lastIndex(path []graph.ID, id graph.ID) int {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == id {
			return i
		}
	}
	return -1
}

// put remembers a path.
func (p *paths) put(incarnation string, path []graph.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[string][]graph.ID{}
	}
	p.drop(incarnation)
	for len(p.order) > 0 && p.total+len(path) > maxIDs {
		p.drop(p.order[0])
	}
	p.known[incarnation] = path
	p.order = append(p.order, incarnation)
	p.total += len(path)
}

// forget forgets a path: nodes of it may be hidden by now.
func (p *paths) forget(incarnation string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(incarnation)
}

// drop forgets a path. The caller holds p.mu.
func (p *paths) drop(incarnation string) {
	if i := slices.Index(p.order, incarnation); i >= 0 {
		p.order = slices.Delete(p.order, i, i+1)
		p.total -= len(p.known[incarnation])
		delete(p.known, incarnation)
	}
}
