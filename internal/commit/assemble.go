package commit

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A built is a commit that was assembled.
type built struct {
	turn  history.Turn
	body  []byte // of the commit
	ids   []graph.ID
	parts []head.Part
	bytes uint64 // the size of all payloads
}

// assemble returns the commit that a request makes on top of b. b is the state of the head or, for a
// repeated turn, the state before the first commit of that turn. It is a pure function: the same
// request on top of the same state has the same commit id. inherited is what writer.inherited returns.
func assemble(in *Request, payloads []payload, parts map[string]*version, b *head.State, inherited uint64, salt graph.Salt, now time.Time) (*built, error) {
	revision := b.Revision + 1
	out := &built{ids: make([]graph.ID, len(in.Nodes))}
	out.turn.Pack = graph.Pack{Revision: uint64(revision), Salt: salt, Nodes: make([]graph.Node, len(in.Nodes))}
	end, err := out.addNodes(in, payloads, b)
	if err != nil {
		return nil, err
	}
	leaf, err := out.resolve("leaf after %d nodes", len(in.Nodes), in.Leaf, end)
	if err != nil {
		return nil, err
	}
	last := b.Last
	if len(out.ids) > 0 {
		last = out.ids[len(out.ids)-1]
	}
	if last.IsZero() { // As in a fork, which begins with its leaf as the last node.
		last = leaf
	}
	var changed bool
	out.parts, changed = mergeParts(b.Parts, parts, in.Drop, revision)
	if now.Before(b.Time) { // The times of a session's commits don't go back, whatever clocks do.
		now = b.Time
	}
	c := &out.turn.Commit
	*c = head.Commit{
		Revision: revision, Previous: b.Commit, Leaf: leaf, Last: last, Depth: out.depth(b, inherited, leaf), Nodes: len(out.ids),
		PartsAt: b.PartsAt, Usage: in.Usage, Turn: in.Turn, Labels: in.Labels, Time: now,
	}
	if changed {
		c.PartsAt, c.Parts = revision, out.parts
	}
	if !out.turn.Pack.Linear(leaf) {
		c.NodeDigest = out.turn.Pack.Digest()
	}
	out.body = c.Body()
	out.turn.ID = head.IDOf(out.body)
	return out, nil
}

// depth returns how many nodes the path to the leaf has. inherited is that of the part before new nodes, if it does not
// end at the leaf of the base.
func (out *built) depth(b *head.State, inherited uint64, leaf graph.ID) (n uint64) {
	id := leaf
	for i := len(out.ids) - 1; i >= 0; i-- {
		if out.ids[i] == id {
			id, n = out.turn.Pack.Nodes[i].Parent, n+1
		}
	}
	switch {
	case id.IsZero():
		return n
	case id == b.Leaf:
		return n + b.Depth
	}
	return n + inherited
}

// end returns the node that the path to the leaf of the request has before new ones, or zero. leaf is that of the base.
func (r *Request) end(leaf graph.ID) graph.ID {
	older := r.older(leaf)
	switch ref := r.Leaf; ref.Kind {
	case RefNone:
		return graph.ID{}
	case RefExisting:
		return ref.ID
	case RefNew:
		if ref.Index >= 0 && ref.Index < len(older) {
			return older[ref.Index]
		}
		return graph.ID{} // assemble refuses it
	}
	if n := len(older); n > 0 {
		return older[n-1]
	}
	return leaf
}

// older returns, for each new node, the last node on the path to it that is not new, or zero. leaf is that of the base.
func (r *Request) older(leaf graph.ID) []graph.ID {
	out := make([]graph.ID, len(r.Nodes))
	before := leaf
	for i := range r.Nodes {
		switch ref := r.Nodes[i].Parent; ref.Kind {
		case RefNone:
			before = graph.ID{}
		case RefExisting:
			before = ref.ID
		case RefNew:
			before = graph.ID{}
			if ref.Index >= 0 && ref.Index < i { // else assemble refuses it
				before = out[ref.Index]
			}
		}
		out[i] = before
	}
	return out
}

// named returns the nodes that a request names, except new ones and one leaf.
func (r *Request) named(leaf graph.ID) (ids []graph.ID) {
	add := func(ref Ref) {
		if ref.Kind == RefExisting && ref.ID != leaf && !ref.ID.IsZero() {
			ids = append(ids, ref.ID)
		}
	}
	for i := range r.Nodes {
		add(r.Nodes[i].Parent)
	}
	add(r.Leaf)
	return ids
}

// inherited returns how many nodes the path to the leaf of the request has before new ones, if it goes on from another
// node than the leaf of the base, which is where the session stood at a revision. The error is a *history.InvalidError
// if the session's graph does not have that node.
func (w *writer) inherited(ctx context.Context, b *head.Base) (uint64, error) {
	named := w.in.named(b.Leaf)
	if len(named) == 0 {
		return 0, nil
	}
	if w.born != nil {
		return 0, w.onlyFromLeaf(named[0])
	}
	id := w.in.end(b.Leaf)
	if id.IsZero() || id == b.Leaf {
		return 0, nil
	}
	n, err := history.Try(ctx, w.s, func() (uint64, error) { return w.s.Depth(ctx, b.Revision, id) })
	return n, notInGraph(err, w.s, id)
}

// addNodes makes the nodes of a request, and returns the last one or, if there are none, the leaf
// of the base.
func (out *built) addNodes(in *Request, payloads []payload, b *head.State) (last graph.ID, err error) {
	last = b.Leaf
	var scratch []byte
	for i := range in.Nodes {
		n, stored := &in.Nodes[i], &out.turn.Pack.Nodes[i]
		parent, err := out.resolve("parent of node %d", i, n.Parent, last)
		if err != nil {
			return graph.ID{}, err
		}
		*stored = graph.Node{Parent: parent, Kind: n.Kind, Key: n.Key, Size: int64(len(n.Payload)), Attachments: n.Attachments}
		if p := &payloads[i]; p.apart != nil {
			stored.Blob = p.sum
		} else {
			stored.Inline, stored.Sum = n.Payload, p.sum
		}
		scratch = stored.Derive(out.turn.Pack.Salt, i, scratch)
		out.ids[i], last = stored.ID, stored.ID
		out.bytes += uint64(len(n.Payload))
	}
	return last, nil
}

// resolve returns the node that r refers to, or fallback if r is zero. of is the number of new
// nodes that r can refer to, and what says, with that number, what r is for.
func (out *built) resolve(what string, of int, r Ref, fallback graph.ID) (graph.ID, error) {
	switch r.Kind {
	case RefNone:
		return graph.ID{}, nil
	case RefExisting:
		if r.ID.IsZero() {
			return graph.ID{}, history.NewInvalid(fmt.Sprintf(what, of), "names the zero node id")
		}
		return r.ID, nil
	case RefNew:
		if r.Index < 0 || r.Index >= of {
			return graph.ID{}, history.NewInvalid(fmt.Sprintf(what, of), "names new node %d of %d before it", r.Index, of)
		}
		return out.ids[r.Index], nil
	}
	return fallback, nil
}

// mergeParts returns the checkpoint after a commit, in the order of the names of its parts, and
// whether it differs from the checkpoint before. It is no change if a part is set to the
// content that it has.
func mergeParts(old []head.Part, set map[string]*version, drop []string, revision head.Revision) (parts []head.Part, changed bool) {
	if len(set) == 0 && len(drop) == 0 {
		return old, false
	}
	for _, p := range old {
		if slices.Contains(drop, p.Name) {
			changed = true
			continue
		}
		if v := set[p.Name]; v != nil && v.id != p.Blob {
			parts = append(parts, v.part(p.Name, revision, p.Whole))
			changed = true
			continue
		}
		parts = append(parts, p)
	}
	for name, v := range set {
		if !slices.ContainsFunc(parts, func(p head.Part) bool { return p.Name == name }) {
			parts = append(parts, v.part(name, revision, revision))
			changed = true
		}
	}
	slices.SortFunc(parts, func(a, b head.Part) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return parts, changed
}

// A payload is what is known of a node's payload before the node is made.
type payload struct {
	sum   blob.ID     // of a payload of more than graph.MaxPlain bytes
	apart *blob.Draft // of one that is stored as a blob
}

// A version is what a commit sets a checkpoint part to.
type version struct {
	id    blob.ID
	size  int64
	delta bool // whether it is stored as a delta

	// A version that is stored whole has a draft, and a delta has data and a base. A part that
	// keeps its content has only a base. A version that is only compared with a stored commit
	// has none of them.

	draft  *blob.Draft
	data   []byte
	base   *blob.Base
	stored bool // of Request.Stored: the content is not at hand
}

// part returns the checkpoint part that the commit of a revision sets to v. If v is a delta, it
// continues the chain that began with the version of revision whole. Otherwise v begins a new
// chain.
func (v *version) part(name string, revision, whole head.Revision) head.Part {
	if !v.delta {
		whole = revision
	}
	return head.Part{Name: name, Blob: v.id, Size: v.size, Set: revision, Whole: whole}
}
