package persistencetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// kept fails if the revisions that a session keeps by name are others.
func (s *suite) kept(p turnstone.Persistence, want ...head.Kept) {
	s.Helper()
	have, err := p.Kept(ctx)
	s.must(err)
	s.equal("kept revisions", have, want)
}

var turns = []behaviour{
	{name: "C18_ACommitHasLabels", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		labels := []map[string]string{
			{"source": "loop", "empty": "", strings.Repeat("n", turnstone.MaxLabel): strings.Repeat("v", turnstone.MaxCommitLabel)},
			nil,
			{"source": "input"},
		}
		for i, l := range labels {
			c := turnstone.Commit{Expected: head.Revision(i), Turn: fmt.Sprint("t", i), Nodes: texts("x"), Labels: l}
			r := s.commit(p, c)
			again, err := p.Commit(ctx, c)
			s.must(err)
			s.equal("replay", []any{again.Replayed, again.Commit}, []any{true, r.Commit})
			c.Labels = map[string]string{"source": "other"}
			_, err = p.Commit(ctx, c)
			s.is(err, turnstone.ErrTurnConflict)
		}
		check := func() {
			p := s.session("a")
			i := 0
			for e, err := range p.Log(ctx, 0) {
				s.must(err)
				s.equal("labels", e.Labels, labels[i])
				i++
			}
			s.equal("commits", i, len(labels))
		}
		s.twice(check)
		_, err := s.session("a").Vacuum(ctx, gc.VacuumOptions{})
		s.must(err)
		s.twice(check)
		for _, e := range []map[string]string{{"": "x"}, {"a": "\xff"}, {"\xff": "a"}} {
			_, err := s.session("a").Commit(ctx, turnstone.Commit{Expected: 3, Labels: e})
			s.is(err, turnstone.ErrInvalid)
		}
	}},
	{name: "C19_ACommitHidesNodes", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		ids := s.grow(p, 0, "secret", "answer", "draft")
		for _, c := range []turnstone.Commit{
			{Expected: 2, Tombstone: ids[:1], Nodes: texts("lost")},                 // it is elsewhere
			{Expected: 3, Tombstone: []graph.ID{ids[0], {1}}, Nodes: texts("lost")}, // a node that is not there
			{Expected: 3, Tombstone: ids[:1], Nodes: texts("lost"), Records: []turnstone.RecordChange{{Key: "k", Action: turnstone.CheckRecord, Expect: turnstone.RecordVersion(strings.Repeat("a", 32))}}}, // a record that is not as expected
		} {
			if _, err := p.Commit(ctx, c); err == nil {
				s.Fatalf("%+v is accepted", c)
			}
		}
		s.reads(p, turnstone.Scope{}, "secret", "answer", "draft")
		c := turnstone.Commit{Expected: 3, Turn: "t", Tombstone: []graph.ID{ids[0], ids[2], ids[2]}, Nodes: texts("final")}
		r := s.commit(p, c)
		s.equal("revision", r.Revision, 4)
		check := func() {
			p := s.session("a")
			s.reads(p, turnstone.Scope{}, "answer", "final")
			s.reads(p, turnstone.Scope{Full: true}, "answer", "final")
			s.reads(p, turnstone.Scope{Last: 2}, "answer", "final")
			_, err := p.Node(ctx, ids[2])
			s.is(err, turnstone.ErrNodeNotFound)
		}
		s.twice(check)
		p = s.session("a")
		// What is hidden already is no error, and a turn that is repeated hides nothing.
		s.commit(p, turnstone.Commit{Expected: 4, Tombstone: ids[:1], Leaf: turnstone.RefTo(r.Leaf)})
		c.Tombstone = []graph.ID{r.Leaf}
		again, err := p.Commit(ctx, c)
		s.must(err)
		s.equal("replay", []any{again.Replayed, again.Revision}, []any{true, 4})
		check()
		report, err := p.Vacuum(ctx, gc.VacuumOptions{})
		s.must(err)
		s.equal("erased nodes", report.Nodes, 2)
		s.twice(check)

		// Together with commits of others, all or none; and not with what makes a fork of the session.
		p = s.session("a")
		s.create(turnstone.Request{ID: "b"})
		hide := turnstone.SessionCommit{Session: p, Commit: turnstone.Commit{Expected: 5, Tombstone: ids[1:2]}}
		_, err = s.Factory.CommitAll(ctx, hide, turnstone.SessionCommit{Session: s.session("b"), Commit: turnstone.Commit{Expected: 7}})
		s.is(err, turnstone.ErrConflict)
		_, err = s.Factory.CommitAll(ctx, hide, turnstone.SessionCommit{Create: &turnstone.Request{ID: "f", Parent: "a"}})
		s.is(err, turnstone.ErrInvalid)
		_, err = s.Factory.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "f", Parent: "a"}, Commit: turnstone.Commit{Tombstone: ids[1:2]}})
		s.is(err, turnstone.ErrInvalid)
		_, err = s.Factory.Session(ctx, "f")
		s.is(err, turnstone.ErrSessionNotFound)
		s.reads(p, turnstone.Scope{}, "answer", "final")
		_, err = s.Factory.CommitAll(ctx, hide, turnstone.SessionCommit{Session: s.session("b"), Commit: turnstone.Commit{Nodes: texts("moved")}})
		s.must(err)
		s.reads(p, turnstone.Scope{}, "final")
	}},
	{name: "C20_ANameMovesWithItsCommits", test: func(s *suite) {
		_, err := s.Factory.CommitAll(ctx, turnstone.SessionCommit{
			Create: &turnstone.Request{ID: "a"}, Commit: turnstone.Commit{Nodes: texts("q", "a1"), Keep: "main"},
		})
		s.must(err)
		p := s.session("a")
		first := s.load(p, turnstone.Scope{})
		s.kept(p, head.Kept{Name: "main", Revision: 1})
		// Two branches grow in turns.
		s.commit(p, turnstone.Commit{Expected: 1, Nodes: []turnstone.NewNode{{Kind: "text", Parent: turnstone.RefTo(first.Nodes[0].ID), Payload: []byte("a2")}}, Keep: "other"})
		c := turnstone.Commit{Expected: 2, Turn: "t", Nodes: []turnstone.NewNode{{Kind: "text", Parent: turnstone.RefTo(first.Leaf), Payload: []byte("more")}}, Keep: "main"}
		s.commit(p, c)
		s.commit(p, turnstone.Commit{Expected: 3, Checkpoint: map[string][]byte{"p": []byte("4")}, Leaf: turnstone.RefNone()})
		check := func() {
			p := s.session("a")
			s.kept(p, head.Kept{Name: "other", Revision: 2}, head.Kept{Name: "main", Revision: 3})
			s.reads(p, turnstone.Scope{At: 2}, "q", "a2")
			s.reads(p, turnstone.Scope{At: 3}, "q", "a1", "more")
		}
		check()
		// A refused commit moves no name, and neither does a turn that is repeated.
		_, err = p.Commit(ctx, turnstone.Commit{Expected: 3, Keep: "main"})
		s.is(err, turnstone.ErrConflict)
		c.Keep = "other"
		_, err = p.Commit(ctx, c)
		s.must(err)
		s.twice(check)
		for range 2 {
			_, err = s.Factory.GC(ctx, gc.Options{})
			s.must(err)
			_, err = s.session("a").Vacuum(ctx, gc.VacuumOptions{})
			s.must(err)
		}
		s.twice(check)
		p = s.session("a")
		s.is(p.Keep(ctx, "main", 1), turnstone.ErrExists)
		s.must(p.Release(ctx, "other"))
		s.commit(p, turnstone.Commit{Expected: 4, Keep: "other"})
		s.kept(p, head.Kept{Name: "main", Revision: 3}, head.Kept{Name: "other", Revision: 5})
		_, err = p.Commit(ctx, turnstone.Commit{Expected: 5, Keep: "\xff"})
		s.is(err, turnstone.ErrInvalid)
	}},
	{name: "C21_ACommitGoesOnFromANodeOfTheActivePath", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		ids := s.grow(p, 0, "one", "two", "three", "four")
		on := func(id graph.ID, text string) turnstone.Commit {
			return turnstone.Commit{Expected: turnstone.AnyRevision, OnPath: id, Nodes: texts(text)}
		}
		check := func() {
			p := s.session("a")
			at := s.load(p, turnstone.Scope{})
			for _, id := range ids[:2] {
				s.commit(p, on(id, "more"))
			}
			s.equal("path", len(s.load(p, turnstone.Scope{}).Nodes), len(at.Nodes)+2)
		}
		s.twice(check)
		p = s.session("a")
		fork := s.create(turnstone.Request{ID: "fork", Parent: "a", ForkNode: ids[2]})
		for _, id := range ids[:3] { // what it inherits
			s.commit(fork, on(id, "mine"))
		}
		// Who went on from a node that others have left is told so.
		s.commit(p, turnstone.Commit{Expected: turnstone.AnyRevision, Leaf: turnstone.RefTo(ids[1])})
		s.commit(p, on(ids[1], "instead"))
		for _, h := range []turnstone.Persistence{p, s.session("a")} {
			_, err := h.Commit(ctx, on(ids[2], "lost"))
			var ce *turnstone.ConflictError
			if !errors.Is(err, turnstone.ErrConflict) || !errors.As(err, &ce) || ce.Node != ids[2] || ce.Session != "a" || !strings.Contains(err.Error(), ids[2].String()[:12]) {
				s.Fatalf("%v", err)
			}
		}
		s.reads(p, turnstone.Scope{}, "one", "two", "instead")
		_, err := fork.Commit(ctx, on(ids[3], "lost")) // a node of the parent that it does not share
		s.is(err, turnstone.ErrInvalid)
		_, err = p.Commit(ctx, on(graph.ID{1}, "lost"))
		s.is(err, turnstone.ErrInvalid)
		_, err = p.Commit(ctx, turnstone.Commit{Expected: 1, OnPath: ids[0]}) // A revision that is expected as well has to be the head's.
		s.is(err, turnstone.ErrConflict)
		c := on(ids[0], "again")
		c.Turn = "t"
		r := s.commit(p, c)
		s.commit(p, turnstone.Commit{Expected: turnstone.AnyRevision, Leaf: turnstone.RefNone()})
		again, err := p.Commit(ctx, c)
		s.must(err)
		s.equal("replay", []any{again.Replayed, again.Revision}, []any{true, r.Revision})

		_, err = turnstone.Update(ctx, p, turnstone.Scope{}, func(*turnstone.State) (turnstone.Commit, error) { // It would be refused again.
			return turnstone.Commit{OnPath: ids[2]}, nil
		})
		s.is(err, turnstone.ErrConflict)

		// Beside a writer who rewinds, nothing is ever appended behind what was left.
		q := s.create(turnstone.Request{ID: "b"})
		root := s.grow(q, 0, "root")[0]
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			q := s.session("b")
			wg.Go(func() {
				for range 10 {
					st, err := q.Load(ctx, turnstone.Scope{})
					if err == nil {
						_, err = q.Commit(ctx, on(st.Leaf, "on "+st.Leaf.String()))
					}
					if err != nil && !errors.Is(err, turnstone.ErrConflict) {
						errs[i] = err
					}
					if i == 0 {
						if _, err := q.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Leaf: turnstone.RefTo(root)}); err != nil {
							errs[i] = err
						}
					}
				}
			})
		}
		wg.Wait()
		s.must(errors.Join(errs...))
		all := s.load(s.session("b"), turnstone.Scope{Full: true}).Nodes
		for _, leaf := range all {
			path := s.load(s.session("b"), turnstone.Scope{Leaf: leaf.ID}).Nodes
			if on, ok := strings.CutPrefix(string(leaf.Payload), "on "); ok && !slices.ContainsFunc(path, func(n turnstone.Node) bool { return n.ID.String() == on }) {
				s.Fatalf("node %s was to go on from %s, which is not on its path", leaf.ID, on)
			}
		}
	}},
	{name: "R20_LeavesAreTheEndsOfBranches", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		leaves := func(want ...graph.ID) {
			s.Helper()
			s.twice(func() {
				have, err := s.session("a").Leaves(ctx)
				s.must(err)
				ids := []graph.ID{}
				for _, n := range have {
					ids = append(ids, n.ID)
					one, err := s.session("a").Node(ctx, n.ID)
					s.must(err)
					one.Payload = nil
					s.equal("leaf", n, one)
				}
				s.equal("leaves", ids, want)
			})
		}
		leaves()
		p := s.session("a")
		ids := s.grow(p, 0, "one", "two", string(pattern(200<<10, 1)))
		leaves(ids[2])
		p = s.session("a")
		b := s.commit(p, turnstone.Commit{Expected: 3, Nodes: []turnstone.NewNode{
			{Kind: "k", Parent: turnstone.RefTo(ids[0])}, {Kind: "k", Parent: turnstone.RefNew(0)}, {Kind: "k", Parent: turnstone.RefNew(0)}, {Kind: "k", Parent: turnstone.RefNone()},
		}, Leaf: turnstone.RefTo(ids[1])}).Nodes
		leaves(ids[2], b[1], b[2], b[3])
		p = s.session("a")
		s.must(p.Tombstone(ctx, b[1], b[2], ids[2])) // Now the nodes before them are leaves.
		leaves(ids[1], b[0], b[3])
		p = s.session("a")
		last := s.commit(p, turnstone.Commit{Expected: 4, Nodes: texts("three")}).Leaf
		leaves(b[0], b[3], last)
		_, err := s.session("a").Vacuum(ctx, gc.VacuumOptions{})
		s.must(err)
		leaves(b[0], b[3], last)
		p = s.session("a")
		fork := s.create(turnstone.Request{ID: "fork", Parent: "a", ForkNode: ids[0]})
		f := s.grow(fork, 0, "mine")
		have, err := fork.Leaves(ctx)
		s.must(err)
		full := s.load(fork, turnstone.Scope{Full: true}).Nodes
		for _, n := range have {
			if slices.ContainsFunc(full, func(m turnstone.Node) bool { return m.Parent == n.ID }) || !slices.ContainsFunc(full, func(m turnstone.Node) bool { return m.ID == n.ID }) {
				s.Errorf("%s is no leaf", n.ID)
			}
		}
		s.equal("last leaf", have[len(have)-1].ID, f[0])
		s.must(s.Factory.Delete(ctx, "a", turnstone.KeepChildren))
		_, err = p.Leaves(ctx)
		s.is(err, turnstone.ErrSessionDeleted)
	}},
}
