package persistencetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// A shown is a model of a session: what reads of it must show. Its method fork is the table of docs/contract.md.
type shown struct {
	nodes     []shownNode         // the full graph, in the order of commits
	inherited int                 // how many of them the session has from its parent
	states    []shownState        // by revision, from 0
	ids       map[string]graph.ID // of the nodes by their keys
}

type shownNode struct {
	key, parent string        // parent is "" for a root
	revision    head.Revision // 0 if it is inherited
}

type shownState struct{ leaf, checkpoint string }

func (h *shown) head() shownState { return h.states[len(h.states)-1] }

func (h *shown) index(key string) int {
	return slices.IndexFunc(h.nodes, func(n shownNode) bool { return n.key == key })
}

// path returns the keys of the nodes from the root to a node.
func (h *shown) path(leaf string) (out []string) {
	for leaf != "" {
		out = append(out, leaf)
		leaf = h.nodes[h.index(leaf)].parent
	}
	slices.Reverse(out)
	return out
}

func (h *shown) keys() (out []string) {
	for _, n := range h.nodes {
		out = append(out, n.key)
	}
	return out
}

// commit adds a random turn to the session and to h: a chain of up to three nodes, whose first one is a root or has a
// node that exists as its parent.
func (h *shown) commit(s *suite, p turnstone.Persistence, rnd *rand.Rand, name string) {
	c := turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"p": []byte(name)}}
	now, parent := head.Revision(len(h.states)), ""
	if len(h.nodes) > 0 && rnd.IntN(6) > 0 {
		parent = h.nodes[rnd.IntN(len(h.nodes))].key
	}
	leaf := parent
	for i := range rnd.IntN(4) {
		key := fmt.Sprint(name, "-", i)
		n := turnstone.NewNode{Kind: "user", Key: key}
		switch {
		case i > 0:
		case parent == "":
			n.Parent = turnstone.RefNone()
		default:
			n.Parent = turnstone.RefTo(h.ids[parent])
		}
		c.Nodes = append(c.Nodes, n)
		h.nodes = append(h.nodes, shownNode{key, leaf, now})
		leaf = key
	}
	if len(c.Nodes) == 0 && leaf != "" {
		c.Leaf = turnstone.RefTo(h.ids[leaf])
	} else if len(c.Nodes) == 0 {
		c.Leaf = turnstone.RefNone()
	}
	r := s.commit(p, c)
	for i, id := range r.Nodes {
		h.ids[c.Nodes[i].Key] = id
	}
	h.states = append(h.states, shownState{leaf, name})
}

// fork returns what a fork is to show that names a node, a revision, both or neither. It does not know the checkpoint
// of a fork that names no revision, at a node that is inherited.
func (h *shown) fork(node string, at *head.Revision) (f *shown, checkpoint string, known bool) {
	revision := head.Revision(len(h.states) - 1)
	if at != nil {
		revision = *at
	}
	from := h.states[revision]
	if node == "" {
		node = from.leaf
	}
	f = &shown{ids: h.ids}
	checkpoint, known = from.checkpoint, at != nil || node == from.leaf
	switch i := h.index(node); {
	case node == from.leaf: // all that was there at the revision
		for _, n := range h.nodes {
			if n.revision <= revision {
				f.nodes = append(f.nodes, n)
			}
		}
	case node == h.states[0].leaf: // all that the session began with
		f.nodes = slices.Clone(h.nodes[:h.inherited])
	default: // all that was committed before the node, and the node
		f.nodes = slices.Clone(h.nodes[:i+1])
	}
	if i := h.index(node); !known && i >= h.inherited {
		known = true
		checkpoint = h.states[h.nodes[i].revision-1].checkpoint
		for _, st := range h.states[1:] {
			if st.leaf == node {
				checkpoint = st.checkpoint
			}
		}
	}
	for i := range f.nodes {
		f.nodes[i].revision = 0
	}
	f.inherited = len(f.nodes)
	f.states = []shownState{{node, checkpoint}}
	return f, checkpoint, known
}

// forksShow makes forks of every kind of random histories, and compares them with what they are to show.
func forksShow(s *suite) {
	rnd := rand.New(rand.NewPCG(12, 1))
	made := 0
	check := func(of string, h *shown, node string, at *head.Revision) *shown {
		made++
		r := turnstone.Request{ID: fmt.Sprint("fork", made), Parent: of, ForkNode: h.ids[node]}
		if at != nil {
			if r.ForkAt = *at; *at == 0 {
				r.ForkAt = turnstone.RevisionZero
			}
		}
		what := fmt.Sprintf("fork of %s at node %q, revision %v", of, node, r.ForkAt)
		p := s.create(r)
		want, checkpoint, known := h.fork(node, at)
		s.equal(what+": path", keysOf(s.load(p, turnstone.Scope{})), want.path(want.head().leaf))
		s.equal(what+": graph", keysOf(s.load(p, turnstone.Scope{Full: true})), want.keys())
		if parts, err := p.Checkpoint(ctx, 0); known {
			s.must(err)
			s.equal(what+": checkpoint", string(parts["p"]), checkpoint)
		}
		for _, n := range h.nodes { // A key is taken by what the fork shows, and by nothing else.
			_, err := p.NodeByKey(ctx, n.key)
			if found := want.index(n.key) >= 0; found != (err == nil) || !found && !errors.Is(err, turnstone.ErrNodeNotFound) {
				s.Fatalf("%s: node %q: %v", what, n.key, err)
			}
		}
		bare := r
		bare.ID, bare.NoCheckpoint = r.ID+"-bare", true
		if b, _, err := s.Factory.Create(ctx, bare); node != "" && at != nil {
			s.is(err, turnstone.ErrInvalid)
		} else {
			s.must(err)
			s.equal(what+": graph without a checkpoint", keysOf(s.load(b, turnstone.Scope{Full: true})), want.keys())
			parts, err := b.Checkpoint(ctx, 0)
			s.must(err)
			s.equal(what+": parts without a checkpoint", len(parts), 0)
		}
		bare.ID, bare.NoCheckpoint, bare.Detached = r.ID+"-detached", false, true
		s.equal(what+": detached", len(s.load(s.create(bare), turnstone.Scope{Full: true}).Nodes), 0)
		return want
	}
	every := func(of string, h *shown) {
		nodes := append([]string{""}, h.keys()...)
		for _, node := range nodes {
			check(of, h, node, nil)
			r := head.Revision(rnd.IntN(len(h.states)))
			check(of, h, node, &r)
		}
	}
	for i := range 3 {
		h := &shown{states: []shownState{{}}, ids: map[string]graph.ID{}}
		id := fmt.Sprint("s", i)
		p := s.create(turnstone.Request{ID: id})
		for n := range 5 {
			h.commit(s, p, rnd, fmt.Sprint(id, ".", n))
		}
		every(id, h)
		node := ""
		if len(h.nodes) > 0 {
			node = h.nodes[rnd.IntN(len(h.nodes))].key
		}
		r := head.Revision(len(h.states) - 1)
		f := check(id, h, node, &r) // a fork, and forks of it
		of := fmt.Sprint("fork", made)
		for n := range 3 {
			f.commit(s, s.session(of), rnd, fmt.Sprint(of, ".", n))
		}
		every(of, f)
	}
}

func keysOf(st *turnstone.State) (out []string) {
	for _, n := range st.Nodes {
		out = append(out, n.Key)
	}
	return out
}
