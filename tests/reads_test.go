package tests

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A meter is an engine that counts what is read from it.
type meter struct {
	engine.Engine
	reads, applies, records, bytes atomic.Int64
}

// A cost is what a call reads, and how often it applies a batch.
type cost struct{ reads, applies, records, bytes int64 }

func (m *meter) Get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	m.reads.Add(1)
	values, err := m.Engine.Get(ctx, ks...)
	for i, v := range values {
		if bytes.Equal(ks[i], keys.StoreKey("")) { // It comes with every read.
			continue
		}
		m.records.Add(1) // An absent record has to be looked for as well.
		m.bytes.Add(int64(len(v)))
	}
	return values, err
}

func (m *meter) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		m.reads.Add(1)
		for p, err := range m.Engine.Scan(ctx, r) {
			m.records.Add(1)
			m.bytes.Add(int64(len(p.Value)))
			if !yield(p, err) {
				return
			}
		}
	}
}

func (m *meter) Apply(ctx context.Context, b *engine.Batch) error {
	m.applies.Add(1)
	return m.Engine.Apply(ctx, b)
}

// of returns what f costs.
func (m *meter) of(f func()) cost {
	m.reads.Store(0)
	m.applies.Store(0)
	m.records.Store(0)
	m.bytes.Store(0)
	f()
	return cost{m.reads.Load(), m.applies.Load(), m.records.Load(), m.bytes.Load()}
}

// A longSession has a long history, in which many turns ended at one node, and one node of 16 is
// tombstoned.
type longSession struct {
	*meter
	last   head.Revision
	nodes  []graph.ID // the last node of each revision, or the zero id
	ended  graph.ID   // the node that many turns ended at
	runs   int64      // of the index
	commit cost       // of the last commit
}

const oldRevision = 40 // a revision near the beginning

// turnOf returns the commit of a revision.
func (l *longSession) turnOf(r head.Revision) turnstone.Commit {
	c := turnstone.Commit{
		Expected: r - 1, Turn: fmt.Sprint("turn", r), Usage: []head.Usage{{Model: "m", Input: 1}},
		Checkpoint: map[string][]byte{"p": fmt.Appendf(nil, "%s at %d", strings.Repeat("state ", 40), r)},
	}
	if r > 64 && r%64 == 50 {
		c.Leaf = turnstone.RefTo(l.ended)
		return c
	}
	for i := range 2 {
		c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "u", Key: fmt.Sprint("key", r, ".", i), Payload: fmt.Append(nil, "words of turn ", r)})
	}
	if r > 64 && r%64 == 51 {
		c.Nodes[0].Parent = turnstone.RefTo(l.nodes[r-2])
	}
	return c
}

// newLong makes a session of so many sealed segments, and some commits that are not sealed.
func newLong(t *testing.T, segments int) *longSession {
	t.Helper()
	l := &longSession{meter: &meter{Engine: memory.New()}, last: head.Revision(segments*256 + 100), nodes: make([]graph.ID, 1)}
	st := openStore(t, l, &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s"})
	for r := head.Revision(1); r <= l.last; r++ {
		var result turnstone.Result
		c := l.turnOf(r)
		l.commit = l.of(func() { result = commitAt(t, s, c) })
		last := graph.ID{}
		if len(result.Nodes) > 0 {
			last = result.Nodes[1]
		}
		if l.nodes = append(l.nodes, last); r == oldRevision+5 {
			l.ended = last
		}
		if r%256 == 0 {
			if err := sealFast(ctx, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	var stones []graph.ID
	for r := head.Revision(3); r < l.last-50; r += 8 {
		stones = append(stones, l.nodes[r])
	}
	for few := range slices.Chunk(stones, 1000) {
		if err := s.Tombstone(ctx, few...); err != nil {
			t.Fatal(err)
		}
	}
	life, err := historiesOf(st).Life(ctx, incarnationOf(s))
	if err != nil || life.Sealed != head.Revision(segments*256) {
		t.Fatalf("sealed up to %d: %v", life.Sealed, err)
	}
	l.runs = int64(len(life.Runs))
	return l
}

// A step is a call that is to cost the same whatever the history. It is made twice, with other
// numbers.
type step struct {
	name string
	do   func(st *turnstone.Store, s *turnstone.Session, number int) error
}

// load returns a step that loads a scope and gets so many nodes.
func load(name string, scope turnstone.Scope, want int) step {
	return step{name, func(_ *turnstone.Store, s *turnstone.Session, _ int) error {
		st, err := s.Load(ctx, scope)
		if err == nil && len(st.Nodes) != want {
			err = fmt.Errorf("%d nodes, not %d", len(st.Nodes), want)
		}
		return err
	}}
}

// reads returns the steps that change nothing.
func (l *longSession) reads() []step {
	node := func(name string, r head.Revision) step {
		return step{"node by id, " + name, func(_ *turnstone.Store, s *turnstone.Session, _ int) error {
			_, err := s.Node(ctx, l.nodes[r])
			return err
		}}
	}
	key := func(name string, r head.Revision) step {
		return step{"node by key, " + name, func(_ *turnstone.Store, s *turnstone.Session, _ int) error {
			_, err := s.NodeByKey(ctx, fmt.Sprint("key", r, ".1"))
			return err
		}}
	}
	checkpoint := func(name string, r head.Revision) step {
		return step{"checkpoint, " + name, func(_ *turnstone.Store, s *turnstone.Session, _ int) error {
			parts, err := s.Checkpoint(ctx, r)
			if want := fmt.Sprint(" at ", r); err == nil && !strings.HasSuffix(string(parts["p"]), want) {
				err = fmt.Errorf("the part is %q", parts["p"])
			}
			return err
		}}
	}
	replay := func(name string, r head.Revision) step {
		return step{"replayed turn, " + name, func(_ *turnstone.Store, s *turnstone.Session, _ int) error {
			result, err := s.Commit(ctx, l.turnOf(r))
			if err == nil && (!result.Replayed || result.Revision != r) {
				err = fmt.Errorf("result %+v", result)
			}
			return err
		}}
	}
	middle := l.last/256*128 + oldRevision
	return []step{
		node("old", oldRevision), node("in the middle", middle), node("new", l.last-1),
		key("old", oldRevision), key("in the middle", middle), key("new", l.last-1),
		load("after head-2", turnstone.Scope{After: l.last - 2}, 4),
		load("last 10", turnstone.Scope{Last: 10}, 10),
		load("last 10 at head-1", turnstone.Scope{At: l.last - 1, Last: 10}, 10),
		load("last 10 at an old revision", turnstone.Scope{At: oldRevision, Last: 10}, 10),
		load("last 10 in the middle", turnstone.Scope{At: middle, Last: 10}, 10),
		load("last 10 before an old node", turnstone.Scope{Leaf: l.nodes[oldRevision], Last: 10}, 10),
		checkpoint("head-1", l.last-1), checkpoint("old", oldRevision),
		replay("old", oldRevision), replay("in the middle", middle), replay("new", l.last-1),
	}
}

// changes returns the steps that change the session.
func (l *longSession) changes() []step {
	change := func(name string, edit func(*turnstone.Commit)) step {
		return step{name, func(_ *turnstone.Store, s *turnstone.Session, number int) error {
			c := turnstone.Commit{Expected: turnstone.AnyRevision, Turn: fmt.Sprint(name, number), Nodes: []turnstone.NewNode{
				{Kind: "u", Key: fmt.Sprint(name, number), Payload: []byte("x")},
				{Kind: "a", Key: fmt.Sprint(name, number, "'"), Payload: []byte("y")},
			}}
			edit(&c)
			_, err := s.Commit(ctx, c)
			return err
		}}
	}
	fork := func(name string, node graph.ID) step {
		return step{"fork at " + name, func(st *turnstone.Store, _ *turnstone.Session, number int) error {
			_, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint(name, number), Parent: "s", ForkNode: node})
			return err
		}}
	}
	return []step{
		change("commit", func(*turnstone.Commit) {}),
		change("commit after an old node", func(c *turnstone.Commit) { c.Nodes[0].Parent = turnstone.RefTo(l.nodes[oldRevision]) }),
		change("rewind to an old node", func(c *turnstone.Commit) { c.Nodes, c.Leaf = nil, turnstone.RefTo(l.nodes[oldRevision]) }),
		change("rewind to a new node", func(c *turnstone.Commit) { c.Nodes, c.Leaf = nil, turnstone.RefTo(l.nodes[l.last-2]) }),
		fork("head-3", l.nodes[l.last-3]), fork("an old node", l.nodes[oldRevision+1]), fork("a node where turns ended", l.ended),
		{"tombstone", func(_ *turnstone.Store, s *turnstone.Session, number int) error {
			return s.Tombstone(ctx, l.nodes[oldRevision+12+number])
		}},
		{"tombstone of a new node", func(_ *turnstone.Store, s *turnstone.Session, number int) error {
			return s.Tombstone(ctx, l.nodes[int(l.last)-10-number])
		}},
		load("last 10 after all that", turnstone.Scope{Last: 10}, 10),
	}
}

// costs returns what each step costs: with a cold handle, of a store that was just opened, and with
// the same handle when it is warm.
func (l *longSession) costs(t *testing.T, steps []step) map[string]cost {
	t.Helper()
	out := map[string]cost{}
	for _, step := range steps {
		st := openStore(t, l, &turnstone.Options{NoAutoSeal: true})
		s := session(t, st, "s")
		for i, handle := range []string{"cold", "warm"} {
			out[step.name+", "+handle] = l.of(func() {
				if err := step.do(st, s, i); err != nil {
					t.Fatalf("%s, %s, of %d revisions: %v", step.name, handle, l.last, err)
				}
			})
		}
	}
	return out
}

// A read or a small change reads as much of a long history as of a short one, but for the runs of
// the index that a long one has more: each is a page.
func TestR17_ReadsAndSmallChangesCostTheSameWhateverTheHistory(t *testing.T) {
	const page = 16 << 10
	const names = 4 // A call looks for so many at most: a commit for its turn id, two keys and a parent.
	var short map[string]cost
	for _, segments := range testkit.Pick([]int{2, 16, 64}, []int{2, 16, 64}, []int{2, 16}) {
		l := newLong(t, segments)
		costs := l.costs(t, l.reads())
		maps.Copy(costs, l.costs(t, l.changes()))
		if short == nil {
			short = costs
		}
		for _, name := range slices.Sorted(maps.Keys(costs)) {
			got, least := costs[name], short[name]
			t.Logf("%d revisions, %d runs: %s: %+v", l.last, l.runs, name, got)
			more := names * l.runs
			if strings.Contains(name, "checkpoint") || strings.Contains(name, "fork") {
				more += blob.MaxDeltas // It depends on the revision how many deltas a version has before it.
			}
			if got.reads > least.reads+3 || got.applies != least.applies || got.records > least.records+more || got.bytes > least.bytes+(names*l.runs+1)*page {
				t.Errorf("%s costs %+v with %d revisions, and %+v with fewer", name, got, l.last, least)
			}
		}
		if got := l.commit; got != (cost{applies: 1}) {
			t.Errorf("a commit by the handle that made %d revisions costs %+v", l.last, got)
		}
	}
}
