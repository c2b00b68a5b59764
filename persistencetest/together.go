package persistencetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

var together = []behaviour{
	{name: "C15_CommitsTogetherAreStoredAllOrNone", test: func(s *suite) {
		names := []string{"a", "b", "c"}
		var parts []turnstone.SessionCommit
		for i, name := range names {
			p := s.create(turnstone.Request{ID: name})
			s.grow(p, 0, before(name, i)...)
			parts = append(parts, turnstone.SessionCommit{Session: p, Commit: turnstone.Commit{
				Expected: head.Revision(i), Nodes: texts("of "+name, string(pattern(9000, 3))), Checkpoint: map[string][]byte{"p": []byte(name)},
			}})
		}
		rs, err := s.Factory.CommitAll(ctx, parts...)
		s.must(err)
		want := map[string]*turnstone.State{}
		s.twice(func() {
			for i, name := range names {
				st := s.load(s.session(name), turnstone.Scope{})
				s.equal("result", []any{rs[i].Revision, rs[i].Commit, rs[i].Leaf, rs[i].Nodes[1]}, []any{head.Revision(i + 1), st.Commit, st.Leaf, st.Leaf})
				s.reads(s.session(name), turnstone.Scope{}, append(before(name, i), "of "+name, string(pattern(9000, 3)))...)
				parts, err := s.session(name).Checkpoint(ctx, 0)
				s.must(err)
				s.equal("checkpoint", parts, map[string][]byte{"p": []byte(name)})
				want[name] = st
			}
		})
		// One of them is elsewhere: the error names it, and nothing of the others is stored.
		for i := range parts {
			for j, name := range names {
				parts[j] = turnstone.SessionCommit{Session: s.session(name), Commit: turnstone.Commit{Expected: head.Revision(j + 1), Nodes: texts("lost")}}
			}
			parts[i].Expected = 99
			_, err := s.Factory.CommitAll(ctx, parts...)
			s.is(err, turnstone.ErrConflict)
			var ce *turnstone.ConflictError
			if !errors.As(err, &ce) || ce.Session != names[i] || ce.Expected != 99 || ce.Revision != head.Revision(i+1) {
				s.Errorf("%v", err)
			}
			parts[i].Commit = turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k", Parent: turnstone.RefTo(graph.ID{1})}}}
			_, err = s.Factory.CommitAll(ctx, parts...)
			s.is(err, turnstone.ErrInvalid)
			if !strings.Contains(fmt.Sprint(err), names[i]) {
				s.Errorf("%v does not name session %s", err, names[i])
			}
		}
		s.twice(func() {
			for _, name := range names {
				s.equal("state", s.load(s.session(name), turnstone.Scope{}), want[name])
			}
		})
	}},
	{name: "C15_OfConcurrentCommitsTogetherOneWins", test: func(s *suite) {
		// Each worker adds one to two of four sessions. Whoever reads both sees no half of it: the
		// numbers that stand are those of a sum.
		const sessions, workers, rounds = 4, 6, 8
		for i := range sessions {
			s.create(turnstone.Request{ID: fmt.Sprint("s", i)})
		}
		var wg sync.WaitGroup
		errs := make([]error, workers)
		for w := range workers {
			wg.Go(func() {
				for round := range rounds {
					a, b := (w+round)%sessions, (w+2*round+1)%sessions
					if a == b {
						b = (b + 1) % sessions
					}
					pair := fmt.Sprint(w, "/", round)
					for {
						var parts []turnstone.SessionCommit
						for _, i := range []int{a, b} { // in any order
							p, err := s.Factory.Session(ctx, fmt.Sprint("s", i))
							if err != nil {
								errs[w] = err
								return
							}
							info, err := p.Info(ctx)
							if err != nil {
								errs[w] = err
								return
							}
							parts = append(parts, turnstone.SessionCommit{Session: p, Commit: turnstone.Commit{Expected: info.Revision, Nodes: texts(pair)}})
						}
						_, err := s.Factory.CommitAll(ctx, parts...)
						if err == nil {
							break
						}
						if !errors.Is(err, turnstone.ErrConflict) {
							errs[w] = err
							return
						}
					}
				}
			})
		}
		wg.Wait()
		s.must(errors.Join(errs...))
		s.twice(func() {
			seen := map[string]int{}
			for i := range sessions {
				for _, n := range s.load(s.session(fmt.Sprint("s", i)), turnstone.Scope{}).Nodes {
					seen[string(n.Payload)]++
				}
			}
			s.equal("pairs", len(seen), workers*rounds)
			for pair, n := range seen {
				s.equal(pair, n, 2)
			}
		})
	}},
	{name: "C16_CommitsTogetherAreReplayedAllOrNone", test: func(s *suite) {
		a, b := s.create(turnstone.Request{ID: "a"}), s.create(turnstone.Request{ID: "b"})
		parts := func(texts_ ...string) []turnstone.SessionCommit {
			return []turnstone.SessionCommit{
				{Session: s.session("a"), Commit: turnstone.Commit{Turn: "t", Nodes: texts(texts_[0])}},
				{Session: s.session("b"), Commit: turnstone.Commit{Turn: "u", Nodes: texts(texts_[1])}},
			}
		}
		first, err := s.Factory.CommitAll(ctx, parts("one", "two")...)
		s.must(err)
		s.grow(a, 1, "more")
		s.grow(b, 1, "more")
		s.twice(func() {
			again, err := s.Factory.CommitAll(ctx, parts("one", "two")...)
			s.must(err)
			for i := range again {
				s.equal("replayed", again[i].Replayed, true)
				again[i].Replayed = false
			}
			s.equal("results", again, first)
			_, err = s.Factory.CommitAll(ctx, parts("one", "other")...)
			s.is(err, turnstone.ErrTurnConflict)
			// One turn stands, the other one does not.
			part := parts("one", "two")
			part[1].Turn = "new"
			part[1].Expected = 2
			_, err = s.Factory.CommitAll(ctx, part...)
			s.is(err, turnstone.ErrTurnConflict)
			var tc *turnstone.TurnConflictError
			if !errors.As(err, &tc) || tc.Session != "a" || tc.Turn != "t" || tc.Revision != 1 || !tc.Alone {
				s.Errorf("%v", err)
			}
			s.reads(s.session("a"), turnstone.Scope{}, "one", "more")
			s.reads(s.session("b"), turnstone.Scope{}, "two", "more")
		})
	}},
	{name: "C17_ACommitCanCreateItsSession", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		s.grow(s.session("a"), 0, "one", "two")
		begin := func(r turnstone.Request, c turnstone.Commit) turnstone.SessionCommit {
			return turnstone.SessionCommit{Create: &r, Commit: c}
		}
		on := func(id string, c turnstone.Commit) turnstone.SessionCommit {
			return turnstone.SessionCommit{Session: s.session(id), Commit: c}
		}
		large := string(pattern(3_000_000, 1))
		about := turnstone.Request{ID: "new", Metadata: head.Metadata{Name: "n", Group: "g/h", Labels: map[string]string{"l": "v"}}}
		rs, err := s.Factory.CommitAll(ctx,
			begin(about, turnstone.Commit{Nodes: texts("first", large), Checkpoint: map[string][]byte{"p": []byte("1")}, Records: set("k", "1")}),
			on("a", turnstone.Commit{Expected: 2, Nodes: texts("three")}),
			begin(turnstone.Request{ID: "f", Parent: "a"}, turnstone.Commit{Nodes: texts("forked")}))
		s.must(err)
		s.equal("created", []bool{rs[0].Created, rs[1].Created, rs[2].Created}, []bool{true, false, true})
		s.twice(func() {
			s.reads(s.session("new"), turnstone.Scope{}, "first", large)
			s.hasRecords(s.session("new"), "k", "1")
			s.reads(s.session("a"), turnstone.Scope{}, "one", "two", "three")
			s.reads(s.session("f"), turnstone.Scope{}, "one", "two", "forked")
			info, err := s.session("new").Info(ctx)
			s.must(err)
			s.equal("metadata", []any{info.Name, info.Group, info.Labels["l"], info.Revision, info.Leaf}, []any{"n", "g/h", "v", 1, rs[0].Leaf})
			for _, q := range []turnstone.ListOptions{{Group: "g"}, {Labels: map[string]string{"l": "v"}}} {
				page, err := s.Factory.List(ctx, q)
				s.must(err)
				s.equal("list", []any{len(page.Sessions), page.Sessions[0].ID}, []any{1, "new"})
			}
			children, err := s.Factory.List(ctx, turnstone.ListOptions{Parent: "a"})
			s.must(err)
			s.equal("children", []any{len(children.Sessions), children.Sessions[0].ID}, []any{1, "f"})
		})
		// What one of them refuses makes no session.
		_, err = s.Factory.CommitAll(ctx, begin(turnstone.Request{ID: "lost"}, turnstone.Commit{}), on("a", turnstone.Commit{Expected: 2}))
		s.is(err, turnstone.ErrConflict)
		_, err = s.Factory.CommitAll(ctx, begin(turnstone.Request{ID: "lost"}, turnstone.Commit{Expected: 1}))
		s.is(err, turnstone.ErrConflict)
		_, err = s.Factory.CommitAll(ctx, begin(turnstone.Request{ID: "lost", Parent: "nobody"}, turnstone.Commit{}))
		s.refused(err, turnstone.ErrSessionNotFound, "nobody")
		_, err = s.Factory.CommitAll(ctx, begin(turnstone.Request{ID: "lost"}, turnstone.Commit{Records: []turnstone.RecordChange{{Key: "k", Expect: rs[0].Records[0]}}}))
		s.recordConflict(err, "lost", "k", rs[0].Records[0], turnstone.NoRecord)
		for what, c := range map[string][]turnstone.SessionCommit{
			"as is commit 0": {on("a", turnstone.Commit{Expected: 3}), begin(turnstone.Request{ID: "a"}, turnstone.Commit{})},
			"has a parent":   {begin(turnstone.Request{ID: "lost", Parent: "a"}, turnstone.Commit{}), begin(turnstone.Request{ID: "lost2", Parent: "a"}, turnstone.Commit{})},
			"session id":     {begin(turnstone.Request{}, turnstone.Commit{})},
			"from its leaf":  {begin(turnstone.Request{ID: "lost"}, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Parent: turnstone.RefTo(graph.ID{1})}, {Kind: "k", Parent: turnstone.RefNone()}}})},
			"and a session":  {{Session: s.session("a"), Create: &turnstone.Request{ID: "lost"}}},
			"records only":   {{RecordsOnly: true, Create: &turnstone.Request{ID: "lost"}, Commit: turnstone.Commit{Nodes: texts("lost")}}},
		} {
			_, err = s.Factory.CommitAll(ctx, c...)
			s.refused(err, turnstone.ErrInvalid, what)
		}
		s.twice(func() {
			for _, id := range []string{"lost", "lost2"} {
				_, err := s.Factory.Session(ctx, id)
				s.is(err, turnstone.ErrSessionNotFound)
			}
			s.reads(s.session("a"), turnstone.Scope{}, "one", "two", "three")
		})
		// A session that exists is committed to as it is.
		again := turnstone.Request{ID: "new", Metadata: head.Metadata{Name: "other"}}
		_, err = s.Factory.CommitAll(ctx, begin(again, turnstone.Commit{Nodes: texts("late")}))
		s.is(err, turnstone.ErrConflict)
		rs, err = s.Factory.CommitAll(ctx, begin(again, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: texts("second")}))
		s.must(err)
		s.equal("result", []any{rs[0].Created, rs[0].Revision}, []any{false, 2})
		info, err := s.session("new").Info(ctx)
		s.must(err)
		s.equal("name", info.Name, "n")
		// Under a turn id it is repeated, and the session is made once.
		turn := begin(turnstone.Request{ID: "turned"}, turnstone.Commit{Turn: "t", Nodes: texts("one")})
		first, err := s.Factory.CommitAll(ctx, turn)
		s.must(err)
		s.twice(func() {
			again, err := s.Factory.CommitAll(ctx, turn)
			s.must(err)
			s.equal("replay", []any{again[0].Created, again[0].Replayed, again[0].Commit}, []any{false, true, first[0].Commit})
			s.reads(s.session("turned"), turnstone.Scope{}, "one")
		})
	}},
	{name: "C17_OfManyWhoCreateASessionOneDoes", test: func(s *suite) {
		const workers = 8
		var wg sync.WaitGroup
		rs, errs := make([][]turnstone.Result, workers), make([]error, workers)
		for w := range workers {
			wg.Go(func() {
				rs[w], errs[w] = s.Factory.CommitAll(ctx, turnstone.SessionCommit{
					Create: &turnstone.Request{ID: "new"}, Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: texts(fmt.Sprint(w))},
				})
			})
		}
		wg.Wait()
		s.must(errors.Join(errs...))
		created := 0
		for _, r := range rs {
			if r[0].Created {
				s.equal("revision", r[0].Revision, 1)
				created++
			}
		}
		s.equal("created", created, 1)
		s.twice(func() { s.equal("nodes", len(s.load(s.session("new"), turnstone.Scope{}).Nodes), workers) })
	}},
}

// before returns the texts of so many turns of a session.
func before(name string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint(name, i))
	}
	return out
}
