package gc_test

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A view says which of its own nodes and of its ancestors' a session that lives shows.
type view struct {
	inc       head.Incarnation
	ancestors []head.Ancestor
	floor     head.Revision
	last      head.Revision // of the head
	named     head.Revision // the last one that is kept by name
	leaves    []graph.ID    // of the revisions from the floor up
	stones    map[[8]byte]bool
	reached   map[graph.ID]bool // own nodes that retention keeps; nil: all
}

// shows reports whether the session shows a node of an incarnation.
func (v *view) shows(inc head.Incarnation, revision uint64, position int, id graph.ID) bool {
	if v.stones[[8]byte(id[:8])] {
		return false
	}
	if inc == v.inc {
		return v.reached == nil || v.reached[id]
	}
	for _, a := range v.ancestors {
		if a.Incarnation == inc {
			return revision < uint64(a.Revision) || revision == uint64(a.Revision) && (a.Nodes == 0 || position < a.Nodes)
		}
	}
	return false
}

// packsOf returns the nodes of an incarnation, with their ids. Of a deleted one they are
// those below the floor: vacuum removes the others.
func (m *model) packsOf(inc head.Incarnation) ([]graph.Pack, error) {
	if packs, ok := m.packs[inc]; ok {
		return packs, nil
	}
	lifeKey := m.space.Life(inc)
	vs, err := m.e.Get(ctx, lifeKey)
	if err != nil {
		return nil, err
	}
	life, err := head.DecodeLife(lifeKey, vs[0])
	if err != nil {
		return nil, fmt.Errorf("lifecycle of %x: %w", inc[:4], err)
	}
	end := history.Unsealed
	if life.State == head.Deleted {
		end = life.Floor - 1
	}
	packs := []graph.Pack{}
	r := history.Reader{Engine: m.e, Space: m.space}
	err = r.Turns(ctx, history.Revisions{Inc: inc, Last: end}, func(t *history.Turn) error {
		packs = append(packs, t.Pack)
		return nil
	})
	if err != nil {
		return nil, err
	}
	m.packs[inc] = packs
	return packs, nil
}

// contents looks at the content of every node that is stored: what any session shows is
// there; with exact, what none shows is not.
func (m *model) contents(exact bool) error {
	for _, v := range m.views {
		if err := m.lookAt(v); err != nil {
			return err
		}
	}
	done := map[head.Incarnation]bool{}
	return m.each(keys.Segment, func(_ engine.Pair, fields []byte) error {
		inc := head.Incarnation(fields[:16])
		if done[inc] {
			return nil
		}
		done[inc] = true
		packs, err := m.packsOf(inc)
		if err != nil {
			return err
		}
		for i := range packs {
			for j := range packs[i].Nodes {
				if err := m.content(inc, packs[i].Revision, j, &packs[i].Nodes[j], exact); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func (m *model) content(inc head.Incarnation, revision uint64, position int, n *graph.Node, exact bool) error {
	for _, v := range m.views {
		if v.shows(inc, revision, position, n.ID) {
			if n.Erased {
				return fmt.Errorf("node %.8s of revision %d of %x is erased, and session %x shows it", n.ID, revision, inc[:4], v.inc[:4])
			}
			return nil
		}
	}
	if exact && !n.Erased {
		return fmt.Errorf("the content of node %.8s of revision %d of %x is left behind", n.ID, revision, inc[:4])
	}
	return nil
}

// lookAt finds out what the session does not show of its and its ancestors' nodes.
func (m *model) lookAt(v *view) error {
	for _, a := range append(v.ancestors[:len(v.ancestors):len(v.ancestors)], head.Ancestor{Incarnation: v.inc, Epoch: math.MaxUint64}) {
		for p, err := range m.e.Scan(ctx, m.space.Of(keys.Tombstone, a.Incarnation)) {
			if err != nil {
				return err
			}
			t, err := head.DecodeTombstone(p.Key, p.Value)
			if err != nil {
				return err
			}
			if _, fields, _ := m.space.Fields(p.Key); t.Epoch <= a.Epoch {
				v.stones[[8]byte(fields[16:])] = true
			}
		}
	}
	if v.floor == 0 {
		return nil
	}
	packs, err := m.packsOf(v.inc)
	if err != nil {
		return err
	}
	parent := map[graph.ID]graph.ID{}
	tips := v.leaves
	for i := range packs {
		for _, n := range packs[i].Nodes {
			parent[n.ID] = n.Parent
			if r := head.Revision(packs[i].Revision); r >= v.floor || r <= v.named {
				tips = append(tips, n.ID)
			}
		}
	}
	v.reached = map[graph.ID]bool{}
	for _, id := range tips {
		for ; !id.IsZero() && !v.reached[id]; id = parent[id] {
			v.reached[id] = true
		}
	}
	return nil
}

// strayPacks returns an error if a value of a segment belongs to no segment.
func (m *model) strayPacks() error {
	return m.each(keys.Segment, func(_ engine.Pair, fields []byte) error {
		inc, last := head.Incarnation(fields[:16]), binary.BigEndian.Uint64(fields[16:])
		for _, p := range m.packs[inc] {
			if p.Revision == last {
				return nil
			}
		}
		return fmt.Errorf("a pack of revision %d of %x is in no segment", last, inc[:4])
	})
}
