package persistencetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// A modelNode is what the model of a history knows of a node.
type modelNode struct {
	id, parent graph.ID
	payload    string
	dead       bool // tombstoned
}

// A historyModel is the history of one session as a plain tree in memory. What
// the session reads is compared with it.
type historyModel struct {
	*suite
	rng    *rand.Rand
	nodes  []*modelNode // in the order of commits
	byID   map[graph.ID]*modelNode
	leaves []graph.ID // the leaf at each revision, from revision 0 on
}

// scopes commits random turns with branches, rewinds and tombstones, and compares
// what every kind of scope reads with a model.
func scopes(s *suite) {
	m := &historyModel{
		suite: s, rng: rand.New(rand.NewPCG(11, 12)),
		byID: map[graph.ID]*modelNode{}, leaves: []graph.ID{{}},
	}
	p := s.create(turnstone.Request{ID: "a"})
	for turn := range 120 {
		m.commitTurn(p, turn)
		if m.rng.IntN(12) == 0 && len(m.nodes) > 0 {
			n := m.anyNode()
			s.must(p.Tombstone(ctx, n.id))
			n.dead = true
		}
		if turn%10 == 9 && len(m.nodes) > 0 {
			m.check()
		}
		if sealer, ok := p.(interface{ Seal(context.Context) error }); ok && turn%20 == 19 {
			s.must(sealer.Seal(ctx))
		}
	}
	s.twice(m.check)
}

func (m *historyModel) anyNode() *modelNode { return m.nodes[m.rng.IntN(len(m.nodes))] }

func (m *historyModel) leaf() graph.ID { return m.leaves[len(m.leaves)-1] }

// path returns the payloads that a reader sees from the root to leaf.
func (m *historyModel) path(leaf graph.ID) []string {
	var out []string
	for !leaf.IsZero() {
		n := m.byID[leaf]
		if !n.dead {
			out = append(out, n.payload)
		}
		leaf = n.parent
	}
	slices.Reverse(out)
	return out
}

// commitTurn commits a random turn to p and to the model.
func (m *historyModel) commitTurn(p turnstone.Persistence, turn int) {
	m.Helper()
	c := turnstone.Commit{Expected: head.Revision(turn)}
	var parents []func(created []graph.ID) graph.ID
	for range m.rng.IntN(4) {
		n, parent := m.randomNode(turn, len(c.Nodes))
		c.Nodes, parents = append(c.Nodes, n), append(parents, parent)
	}
	leaf := m.leaf()
	var rewound bool
	if m.rng.IntN(8) == 0 && len(m.nodes) > 0 {
		leaf, rewound = m.anyNode().id, true
		c.Leaf = turnstone.RefTo(leaf)
	}
	r := m.commit(p, c)
	for i, id := range r.Nodes {
		n := &modelNode{id: id, parent: parents[i](r.Nodes), payload: string(c.Nodes[i].Payload)}
		m.nodes, m.byID[id] = append(m.nodes, n), n
	}
	if !rewound && len(r.Nodes) > 0 {
		leaf = r.Nodes[len(r.Nodes)-1]
	}
	m.equal("leaf", r.Leaf, leaf)
	m.leaves = append(m.leaves, leaf)
}

// randomNode returns node i of a turn. The function returns the id of the node's
// parent, given the ids of the nodes that the turn created.
func (m *historyModel) randomNode(turn, i int) (turnstone.NewNode, func(created []graph.ID) graph.ID) {
	n := turnstone.NewNode{Kind: "k", Payload: fmt.Appendf(nil, "%d.%d", turn, i)}
	if m.rng.IntN(20) == 0 {
		n.Payload = append(n.Payload, pattern(7000, byte(turn))...)
	}
	stored := func(id graph.ID) func([]graph.ID) graph.ID {
		return func([]graph.ID) graph.ID { return id }
	}
	ofTurn := func(i int) func([]graph.ID) graph.ID {
		return func(created []graph.ID) graph.ID { return created[i] }
	}
	switch {
	case m.rng.IntN(6) == 0 && len(m.nodes) > 0:
		parent := m.anyNode().id
		n.Parent = turnstone.RefTo(parent)
		return n, stored(parent)
	case m.rng.IntN(20) == 0:
		n.Parent = turnstone.RefNone()
		return n, stored(graph.ID{})
	case i > 1 && m.rng.IntN(4) == 0:
		n.Parent = turnstone.RefNew(i - 2)
		return n, ofTurn(i - 2)
	case i == 0:
		return n, stored(m.leaf())
	}
	return n, ofTurn(i - 1)
}

// check compares the active path, the full history, the path to a random node and
// a random revision with the model.
func (m *historyModel) check() {
	m.Helper()
	p := m.session("a")
	m.reads(p, turnstone.Scope{}, m.path(m.leaf())...)
	var all []string
	for _, n := range m.nodes {
		if !n.dead {
			all = append(all, n.payload)
		}
	}
	m.reads(p, turnstone.Scope{Full: true}, all...)
	m.checkNode(p, m.anyNode())
	at := 1 + m.rng.IntN(len(m.leaves)-1)
	m.reads(p, turnstone.Scope{At: head.Revision(at)}, m.path(m.leaves[at])...)
}

// checkNode checks that a tombstoned node is in no read, and compares the path to
// any other node with the model.
func (m *historyModel) checkNode(p turnstone.Persistence, n *modelNode) {
	m.Helper()
	if n.dead {
		_, err := p.Node(ctx, n.id)
		m.is(err, turnstone.ErrNodeNotFound)
		_, err = p.Load(ctx, turnstone.Scope{Leaf: n.id})
		m.is(err, turnstone.ErrNodeNotFound)
		return
	}
	want := m.path(n.id)
	m.reads(p, turnstone.Scope{Leaf: n.id}, want...)
	k := 1 + m.rng.IntN(6)
	m.reads(p, turnstone.Scope{Leaf: n.id, Last: k}, want[max(0, len(want)-k):]...)
}
