package history

import (
	"context"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Tombstones say which nodes a session does not show: those that have a tombstone of the session, or
// one of an ancestor that was set before the session forked from it. They know what was looked for,
// so a caller has to call Look before it asks for a node.
//
// A tombstone that a call set names the nearest node before it that no call had hidden by then. All
// nodes in between are hidden for ever, so a walk towards the root steps over them. A fork that counts
// the tombstone counts theirs as well, as they are not younger.
type Tombstones struct {
	h      *History
	layers []Layer // those that have tombstones
	stones uint64  // how many these have, including those that do not count
	all    bool    // whether all were read
	known  map[[8]byte]*head.Tombstone
	sealed map[head.Incarnation]head.Revision // up to which revision the commits of the layers are sealed
	steps  uint64                             // how many nodes Find had to look for
}

// Tombstones returns the tombstones of the session as the lifecycle records count them, and reads
// nothing yet.
func (l *Lifecycles) Tombstones() (*Tombstones, error) {
	t := &Tombstones{h: &l.Session.History, known: map[[8]byte]*head.Tombstone{}, sealed: map[head.Incarnation]head.Revision{}}
	for _, layer := range t.h.Layers(0) {
		life, _, _, err := l.Of(layer.Inc)
		if err != nil {
			return nil, err
		}
		t.sealed[layer.Inc] = life.Indexed()
		if life.Stones > 0 {
			t.layers, t.stones = append(t.layers, layer), t.stones+life.Stones
		}
	}
	return t, nil
}

// prefix is the part of a node's id that the key of its tombstone has.
func prefix(id graph.ID) [8]byte { return [8]byte(id[:8]) }

// Of returns the tombstone of a node, or nil if the session shows the node.
func (t *Tombstones) Of(id graph.ID) *head.Tombstone { return t.known[prefix(id)] }

// Has reports whether the session does not show a node.
func (t *Tombstones) Has(id graph.ID) bool { return t.Of(id) != nil }

// knows reports whether Look has nothing to read for a node.
func (t *Tombstones) knows(id graph.ID) bool {
	if t.all || len(t.layers) == 0 || id.IsZero() {
		return true
	}
	_, known := t.known[prefix(id)]
	return known
}

// lookAll looks for the tombstones of nodes.
func (t *Tombstones) lookAll(ctx context.Context, nodes []Node) error {
	if t.all || len(t.layers) == 0 {
		return nil
	}
	ids := make([]graph.ID, len(nodes))
	for i := range nodes {
		ids[i] = nodes[i].ID
	}
	return t.Look(ctx, ids...)
}

// mostKeys is how many keys one Get asks for at most: a scan is faster then.
const mostKeys = 4096

// Look looks for the tombstones of nodes, in one call of the engine. If there are fewer tombstones
// than keys to look for, it reads all.
func (t *Tombstones) Look(ctx context.Context, ids ...graph.ID) error {
	if t.all || len(t.layers) == 0 {
		return nil
	}
	var ks [][]byte
	var of [][8]byte
	for _, id := range ids {
		if t.knows(id) {
			continue
		}
		t.known[prefix(id)] = nil
		of = append(of, prefix(id))
		for _, l := range t.layers {
			ks = append(ks, t.h.Space.Tombstone(l.Inc, id))
		}
	}
	if len(ks) == 0 {
		return nil
	}
	if len(ks) > mostKeys || uint64(len(ks)) >= t.stones {
		return t.scan(ctx)
	}
	values, err := t.h.Engine.Get(ctx, ks...)
	for i := 0; err == nil && i < len(values); i++ {
		if values[i] != nil {
			err = t.add(of[i/len(t.layers)], t.layers[i%len(t.layers)], ks[i], values[i])
		}
	}
	return err
}

// scan reads all tombstones.
func (t *Tombstones) scan(ctx context.Context) error {
	for _, l := range t.layers {
		for p, err := range t.h.Engine.Scan(ctx, t.h.Space.Of(keys.Tombstone, l.Inc)) {
			if err != nil {
				return err
			}
			_, fields, ok := t.h.Space.Fields(p.Key)
			if !ok {
				return codec.Corrupt(damage.ErrMalformed, "tombstone at key %x of %s", p.Key, t.h.Name)
			}
			if err := t.add([8]byte(fields[16:]), l, p.Key, p.Value); err != nil {
				return err
			}
		}
	}
	t.all = true
	return nil
}

// add adds the tombstone of a layer, if it counts.
func (t *Tombstones) add(of [8]byte, l Layer, key, value []byte) error {
	stone, err := head.DecodeTombstone(key, value)
	if err != nil {
		return codec.Corrupt(err, "tombstone at key %x of %s", key, t.h.Name)
	}
	if stone.Epoch <= l.Epoch {
		t.known[of] = &stone
	}
	return nil
}

// leaveOut leaves hidden nodes out. Those that follow them follow the nearest nodes before that are
// shown. It changes the slice nodes.
func (t *Tombstones) leaveOut(ctx context.Context, last head.Revision, nodes []Node) ([]Node, error) {
	if err := t.lookAll(ctx, nodes); err != nil {
		return nil, err
	}
	before := map[graph.ID]graph.ID{} // the nearest visible node before each hidden node
	out := nodes[:0]
	for _, n := range nodes {
		if p, ok := before[n.Parent]; ok {
			n.Parent = p
		} else { // The parent is shown, or not among nodes.
			var err error
			if n.Parent, err = t.visible(ctx, last, n.Parent); err != nil {
				return nil, err
			}
		}
		if t.Has(n.ID) {
			before[n.ID] = n.Parent
			continue
		}
		out = append(out, n)
	}
	return out, nil
}

// visible returns id if the session shows that node. Otherwise it returns the nearest node before
// it that the session shows, or the zero id.
func (t *Tombstones) visible(ctx context.Context, last head.Revision, id graph.ID) (graph.ID, error) {
	for {
		stone, err := t.Find(ctx, id)
		switch {
		case err != nil || stone == nil:
			return id, err
		case !stone.Pruned:
			id = stone.Before
		default: // Vacuum hid it, and did not say where to go on.
			n, _, err := t.h.Find(ctx, last, id)
			if err != nil {
				return id, linked(err, id)
			}
			id = n.Parent
		}
	}
}

// scanned is how many tombstones a scan reads in the time of one Get, roughly.
const scanned = 64

// Find returns the tombstone of one node on the way to the root, or nil if the session shows the node.
// If many calls hid the nodes on the way, Find reads all tombstones once that costs no more than its
// reads so far.
func (t *Tombstones) Find(ctx context.Context, id graph.ID) (stone *head.Tombstone, err error) {
	if !t.knows(id) {
		if t.steps++; t.steps*scanned >= t.stones {
			err = t.scan(ctx)
		} else {
			err = t.Look(ctx, id)
		}
	}
	return t.Of(id), err
}
