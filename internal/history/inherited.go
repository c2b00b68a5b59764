package history

import (
	"context"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// An Inherited reads what a fork shares of its ancestors, to copy it.
type Inherited struct {
	Store
	Ancestors []head.Ancestor // the oldest one first

	layer  int        // how many of the ancestors are read
	source head.State // where the next one stood after the last turn that was read
}

// Turns calls f for the turns that are shared, ancestor by ancestor, with the checkpoint after each. If cut is not 0,
// only so many nodes of the turn are shared, and neither its leaf nor its checkpoint. After an error, Turns goes on
// with the turn after the last one that f has taken.
func (in *Inherited) Turns(ctx context.Context, f func(ctx context.Context, t *Turn, parts []head.Part, cut int) error) error {
	for ; in.layer < len(in.Ancestors); in.layer++ {
		if err := in.turnsOf(ctx, &in.Ancestors[in.layer], f); err != nil {
			return err
		}
		in.source = head.State{}
	}
	return nil
}

// turnsOf is Turns for one ancestor.
func (in *Inherited) turnsOf(ctx context.Context, a *head.Ancestor, f func(context.Context, *Turn, []head.Part, int) error) error {
	h, err := in.Open(ctx, a.Incarnation)
	if err != nil || a.Revision == 0 {
		return err
	}
	if in.source.Commit.IsZero() {
		in.source = head.Begin(h.Inc, h.Origin)
	}
	of := Revisions{Inc: h.Inc, Name: h.Name, After: in.source.Revision, Last: a.Revision, Previous: in.source.Commit}
	return h.Reader.Turns(ctx, of, func(t *Turn) error {
		source, err := in.source.Then(&t.Commit, t.ID)
		if err != nil {
			return codec.Corrupt(err, "commit %d of %s", t.Revision, h.Name)
		}
		cut := 0
		if t.Revision == a.Revision {
			cut = a.Nodes
		}
		if err := f(ctx, t, source.Parts, cut); err != nil {
			return err
		}
		in.source = source
		return nil
	})
}

// Tombstones returns those tombstones of the ancestors that hide nodes from the fork.
func (in *Inherited) Tombstones(ctx context.Context) (map[[8]byte]head.Tombstone, error) {
	stones := map[[8]byte]head.Tombstone{}
	for _, a := range in.Ancestors {
		for p, err := range in.Engine.Scan(ctx, in.Space.Of(keys.Tombstone, a.Incarnation)) {
			if err != nil {
				return nil, err
			}
			id, t, err := DecodeStone(in.Space, p)
			if err != nil {
				return nil, err
			}
			if t.Epoch <= a.Epoch && !stones[id].Pruned {
				stones[id] = t
			}
		}
	}
	return stones, nil
}

// DecodeStone decodes a tombstone, and returns what its key has of the node's id.
func DecodeStone(space *keys.Space, p engine.Pair) (id [8]byte, t head.Tombstone, err error) {
	_, fields, ok := space.Fields(p.Key)
	if t, err = head.DecodeTombstone(p.Key, p.Value); err == nil && !ok {
		err = damage.ErrMalformed
	}
	if err != nil {
		return id, t, codec.Corrupt(err, "tombstone at key %x", p.Key)
	}
	return [8]byte(fields[16:]), t, nil
}

// Copied returns a turn as the copy of what a fork inherits has it: with the same nodes, leaf, time and checkpoint, but
// without usage and turn id, which are the ancestor's own. Its commit follows the one with which end ends. cut and parts
// are as Inherited.Turns tells them. The nodes that hidden reports lose their content. No checkpoint of a copy can be
// read. It lists the parts all the same: so a fork at a node whose checkpoint was not empty is refused, and does not
// begin with an empty one.
func Copied(t *Turn, parts []head.Part, cut int, end *head.State, hidden func(graph.ID) bool) Turn {
	out := Turn{Pack: t.Pack}
	out.Leaf, out.Depth, out.Time = t.Leaf, t.Depth, t.Time
	if cut > 0 {
		out.Pack.Cut(cut)
		out.Leaf, out.Depth, parts = [32]byte{}, 0, end.Parts
	}
	for i := range out.Pack.Nodes {
		if hidden(out.Pack.Nodes[i].ID) {
			out.Pack.Erase(i)
		}
	}
	out.Revision, out.Previous = end.Revision+1, end.Commit
	out.Pack.Revision = uint64(out.Revision)
	out.PartsAt = end.PartsAt
	if !slices.EqualFunc(parts, end.Parts, func(p, q head.Part) bool { return p.Name == q.Name && p.Blob == q.Blob }) {
		out.PartsAt, out.Parts = out.Revision, slices.Clone(parts)
		for i := range out.Parts {
			out.Parts[i].Set, out.Parts[i].Whole = out.Revision, out.Revision
		}
	}
	out.Complete(&out.Pack, end.Last)
	out.ID = out.Commit.ID()
	return out
}
