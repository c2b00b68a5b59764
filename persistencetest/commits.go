package persistencetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

var commits = []behaviour{
	{name: "C1_EveryCommitAddsOneRevision", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		for i := range 5 {
			r := s.commit(p, turnstone.Commit{Expected: head.Revision(i), Nodes: texts(fmt.Sprint(i))})
			s.equal("revision", r.Revision, i+1)
			s.equal("ids", len(r.Nodes), 1)
			s.equal("leaf", r.Leaf, r.Nodes[0])
		}
		s.commit(p, turnstone.Commit{Expected: 5}) // an empty turn is a turn
		s.twice(func() {
			info, err := s.session("a").Info(ctx)
			s.must(err)
			s.equal("revision", info.Revision, 6)
			s.equal("nodes", info.Nodes, 5)
		})
	}},
	{name: "C2_AConflictCarriesBothSidesAndStoresNothing", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		s.grow(p, 0, "one", "two")
		before := s.load(p, turnstone.Scope{Full: true})
		for _, expected := range []head.Revision{0, 1, 3, 99} {
			_, err := p.Commit(ctx, turnstone.Commit{Expected: expected, Nodes: texts("lost"), Checkpoint: map[string][]byte{"x": []byte("lost")}})
			s.is(err, turnstone.ErrConflict)
			var ce *turnstone.ConflictError
			if !errors.As(err, &ce) {
				s.Fatalf("%T", err)
			}
			s.equal("conflict", *ce, turnstone.ConflictError{Session: "a", Expected: expected, Revision: 2, Leaf: before.Leaf, Commit: before.Commit})
		}
		s.twice(func() { s.equal("state", s.load(s.session("a"), turnstone.Scope{Full: true}), before) })
	}},
	{name: "C3_OneOfConcurrentCommitsWins", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		const n = 16
		var want []string
		for rev := range 5 {
			var wg sync.WaitGroup
			errs := make([]error, n)
			for i := range n {
				p := s.session("a")
				wg.Go(func() {
					_, errs[i] = p.Commit(ctx, turnstone.Commit{Expected: head.Revision(rev), Nodes: texts(fmt.Sprint(rev, i), "x")})
				})
			}
			wg.Wait()
			winners := 0
			for i, err := range errs {
				if err == nil {
					winners++
					want = append(want, fmt.Sprint(rev, i), "x")
				} else {
					s.is(err, turnstone.ErrConflict)
				}
			}
			s.equal("winners", winners, 1)
		}
		s.twice(func() { s.reads(s.session("a"), turnstone.Scope{Full: true}, want...) })
	}},
	{name: "C4_SessionsDoNotConflict", test: func(s *suite) {
		const sessions, turns = 12, 10
		var wg sync.WaitGroup
		errs := make([]error, sessions)
		shared := string(pattern(9000, 3)) // one blob that all commits refer to
		for i := range sessions {
			p := s.create(turnstone.Request{ID: fmt.Sprint("s", i)})
			wg.Go(func() {
				for j := range turns {
					_, err := p.Commit(ctx, turnstone.Commit{Expected: head.Revision(j), Nodes: texts(shared, fmt.Sprint(i, j))})
					errs[i] = errors.Join(errs[i], err)
				}
			})
		}
		wg.Wait()
		s.must(errors.Join(errs...))
	}},
	{name: "C5_ACommittedTurnReturnsItsResult", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		root := s.grow(p, 0, "root")
		turn := turnstone.Commit{
			Expected: 1, Turn: "t1", Nodes: append(texts("q", string(pattern(20000, 1))), turnstone.NewNode{Kind: "side", Parent: turnstone.RefTo(root[0])}),
			Leaf: turnstone.RefNew(1), Checkpoint: map[string][]byte{"p": pattern(3000, 2), "q": nil}, Drop: []string{"never"},
			Usage: []head.Usage{{Model: "m", Input: 1, Output: 2, CachedInput: 3, CacheWrite: 4, Reasoning: 5, Cost: 6}},
		}
		first := s.commit(p, turn)
		if first.Replayed {
			s.Fatal("the first commit is called a replay")
		}
		first.Replayed = true
		check := func() {
			s.Helper()
			p := s.session("a")
			before := s.load(p, turnstone.Scope{Full: true})
			for _, expected := range []head.Revision{1, 2, 0, turnstone.AnyRevision} {
				again := turn
				again.Expected = expected
				s.equal("replay", s.commit(p, again), first)
			}
			s.equal("state", s.load(p, turnstone.Scope{Full: true}), before)
		}
		s.twice(check)
		p = s.session("a")
		for i := range 30 { // a retry is recognized however far the head has moved
			s.commit(p, turnstone.Commit{Expected: turnstone.AnyRevision, Turn: fmt.Sprint("later", i), Nodes: texts("x"), Checkpoint: map[string][]byte{"p": pattern(3000, byte(i))}})
		}
		if sealer, ok := p.(interface{ Seal(context.Context) error }); ok {
			s.must(sealer.Seal(ctx))
		}
		s.twice(check)
	}},
	{name: "C6_TheSameTurnWithOtherContentIsATurnConflict", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		turn := turnstone.Commit{Turn: "t", Nodes: texts("hello"), Checkpoint: map[string][]byte{"p": []byte("1")}, Usage: []head.Usage{{Model: "m", Input: 1}}}
		s.commit(p, turn)
		for name, change := range map[string]func(*turnstone.Commit){
			"payload":    func(c *turnstone.Commit) { c.Nodes = texts("hullo") },
			"kind":       func(c *turnstone.Commit) { c.Nodes[0].Kind = "other" },
			"key":        func(c *turnstone.Commit) { c.Nodes[0].Key = "k" },
			"more":       func(c *turnstone.Commit) { c.Nodes = texts("hello", "you") },
			"fewer":      func(c *turnstone.Commit) { c.Nodes = nil },
			"leaf":       func(c *turnstone.Commit) { c.Leaf = turnstone.RefNone() },
			"checkpoint": func(c *turnstone.Commit) { c.Checkpoint = map[string][]byte{"p": []byte("2")} },
			"usage":      func(c *turnstone.Commit) { c.Usage = []head.Usage{{Model: "m", Input: 2}} },
		} {
			for _, expected := range []head.Revision{0, 1, turnstone.AnyRevision} {
				c := turn
				c.Nodes, c.Expected = slices.Clone(turn.Nodes), expected
				change(&c)
				_, err := p.Commit(ctx, c)
				var te *turnstone.TurnConflictError
				if !errors.Is(err, turnstone.ErrTurnConflict) || !errors.As(err, &te) || te.Turn != "t" || te.Revision != 1 {
					s.Fatalf("other %s at %d: %v", name, expected, err)
				}
			}
		}
		s.reads(p, turnstone.Scope{}, "hello")
	}},
	{name: "C7_AnyRevisionAppendsToWhateverTheHeadIs", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			p := s.session("a")
			wg.Go(func() {
				for range 5 {
					_, err := p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: texts(fmt.Sprint(i))})
					errs[i] = errors.Join(errs[i], err)
				}
			})
		}
		wg.Wait()
		s.must(errors.Join(errs...))
		s.twice(func() {
			st := s.load(s.session("a"), turnstone.Scope{})
			s.equal("revision and path", fmt.Sprint(st.Revision, len(st.Nodes)), "40 40")
		})
	}},
	{name: "C8_ParentsAndLeafExistInThisSession", test: func(s *suite) {
		p, other := s.create(turnstone.Request{ID: "a"}), s.create(turnstone.Request{ID: "b"})
		mine := s.grow(p, 0, "mine", "more")
		theirs := s.grow(other, 0, "theirs")
		unknown := graph.ID{1, 2, 3}
		for name, c := range map[string]turnstone.Commit{
			"dangling parent":    {Nodes: []turnstone.NewNode{{Kind: "k", Parent: turnstone.RefTo(unknown)}}},
			"foreign parent":     {Nodes: []turnstone.NewNode{{Kind: "k", Parent: turnstone.RefTo(theirs[0])}}},
			"parent of itself":   {Nodes: []turnstone.NewNode{{Kind: "k", Parent: turnstone.RefNew(0)}}},
			"later parent":       {Nodes: []turnstone.NewNode{{Kind: "k", Parent: turnstone.RefNew(1)}, {Kind: "k"}}},
			"negative parent":    {Nodes: []turnstone.NewNode{{Kind: "k"}, {Kind: "k", Parent: turnstone.RefNew(-1)}}},
			"zero parent":        {Nodes: []turnstone.NewNode{{Kind: "k", Parent: turnstone.RefTo(graph.ID{})}}},
			"dangling leaf":      {Leaf: turnstone.RefTo(unknown)},
			"foreign leaf":       {Leaf: turnstone.RefTo(theirs[0])},
			"leaf beyond nodes":  {Leaf: turnstone.RefNew(0)},
			"key twice":          {Nodes: []turnstone.NewNode{{Kind: "k", Key: "x"}, {Kind: "k", Key: "x"}}},
			"part set and drops": {Checkpoint: map[string][]byte{"x": nil}, Drop: []string{"x"}},
		} {
			c.Expected = 2
			_, err := p.Commit(ctx, c)
			if !errors.Is(err, turnstone.ErrInvalid) {
				s.Fatalf("%s: %v", name, err)
			}
		}
		r := s.commit(p, turnstone.Commit{Expected: 2, Nodes: []turnstone.NewNode{{Kind: "k", Key: "once", Parent: turnstone.RefTo(mine[0])}}})
		_, err := p.Commit(ctx, turnstone.Commit{Expected: 3, Nodes: []turnstone.NewNode{{Kind: "k", Key: "once"}}})
		s.refused(err, turnstone.ErrInvalid, "once")
		s.commit(other, turnstone.Commit{Expected: 1, Nodes: []turnstone.NewNode{{Kind: "k", Key: "once"}}}) // another session may use the same key
		s.equal("leaf", s.load(p, turnstone.Scope{}).Leaf, r.Leaf)
		// A fork finds the keys of the nodes that it inherited, and no other keys of its parent.
		named := func(key string) turnstone.Commit {
			return turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k"}, {Kind: "k", Key: key}}}
		}
		f := s.create(turnstone.Request{ID: "f", Parent: "a"})
		s.commit(p, named("later in the parent"))
		s.commit(f, named("of f"))
		g := s.create(turnstone.Request{ID: "g", Parent: "f"})
		s.create(turnstone.Request{ID: "early", Parent: "f", ForkNode: mine[0]})
		for _, taken := range []struct {
			by       turnstone.Persistence
			key      string
			revision int
		}{{f, "once", 3}, {g, "once", 3}, {g, "of f", 1}} {
			before := s.load(taken.by, turnstone.Scope{Full: true})
			_, err := taken.by.Commit(ctx, named(taken.key))
			s.refused(err, turnstone.ErrInvalid, fmt.Sprintf("node 1: event key %q belongs to a node of revision %d", taken.key, taken.revision))
			s.equal("state", s.load(taken.by, turnstone.Scope{Full: true}), before)
		}
		// A node on another branch may have the key, as an edited message does: also in a commit that makes its fork.
		edited := s.create(turnstone.Request{ID: "edited"})
		of := func(key, text string, parent turnstone.Ref) turnstone.Commit {
			return turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k", Parent: parent, Key: key, Payload: []byte(text)}}}
		}
		root := s.commit(edited, of("root", "root", turnstone.Ref{})).Nodes[0]
		s.commit(edited, of("m", "first", turnstone.Ref{}))
		s.commit(edited, of("answer", "to the first", turnstone.Ref{}))
		second := s.commit(edited, of("m", "second", turnstone.RefTo(root))).Nodes[0]
		s.commit(edited, of("answer", "to the second", turnstone.Ref{}))
		s.commit(edited, of("m", "third", turnstone.RefTo(root)))
		for _, c := range []turnstone.Commit{
			of("m", "lost", turnstone.Ref{}), of("root", "lost", turnstone.Ref{}), of("m", "lost", turnstone.RefTo(second)), of("root", "lost", turnstone.RefTo(root)),
			{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k", Parent: turnstone.RefNone(), Key: "fine"}, {Kind: "k", Parent: turnstone.RefTo(second), Key: "fine too"}, {Kind: "k", Key: "m", Parent: turnstone.RefNew(1)}}},
		} {
			_, err := edited.Commit(ctx, c)
			s.refused(err, turnstone.ErrInvalid, "event key")
		}
		// Also in one commit, and where another path has the key already.
		s.commit(edited, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{
			{Kind: "k", Parent: turnstone.RefNone(), Key: "both", Payload: []byte("root of both")},
			{Kind: "k", Key: "m", Payload: []byte("left")},
			{Kind: "k", Key: "m", Parent: turnstone.RefNew(0), Payload: []byte("right")},
		}, Leaf: turnstone.RefTo(second)})
		_, err = edited.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{
			{Kind: "k", Key: "twice"}, {Kind: "k"}, {Kind: "k", Parent: turnstone.RefNew(0)}, {Kind: "k", Key: "twice"},
		}})
		s.refused(err, turnstone.ErrInvalid, "node 3: has the event key of node 0")
		s.commit(edited, of("m", "third", turnstone.RefTo(root)))
		_, err = edited.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k", Parent: turnstone.RefTo(graph.ID{1}), Key: "m"}, {Kind: "k", Parent: turnstone.RefTo(root)}}})
		s.refused(err, turnstone.ErrInvalid, "is not in the graph")
		keyed := func(want map[string]string) {
			s.Helper()
			s.twice(func() {
				s.Helper()
				p := s.session("edited")
				all, err := p.NodesByKey(ctx, "root", "m", "answer", "nobody")
				s.must(err)
				s.equal("nodes by key", len(all), len(want))
				for key, text := range want {
					n, err := p.NodeByKey(ctx, key)
					s.must(err)
					s.equal("node of "+key, []any{string(n.Payload), string(all[key].Payload)}, []any{text, text})
				}
			})
		}
		keyed(map[string]string{"root": "root", "m": "third", "answer": "to the second"}) // of no active path: the newest
		s.commit(s.session("edited"), turnstone.Commit{Expected: turnstone.AnyRevision, Leaf: turnstone.RefTo(second)})
		keyed(map[string]string{"root": "root", "m": "second", "answer": "to the second"})
		s.commit(s.session("edited"), of("m", "of no other", turnstone.RefNone()))
		keyed(map[string]string{"root": "root", "m": "of no other", "answer": "to the second"})
		create := turnstone.SessionCommit{Create: &turnstone.Request{ID: "edited fork", Parent: "edited", ForkNode: second}, Commit: of("m", "lost", turnstone.Ref{})}
		_, err = s.Factory.CommitAll(ctx, create)
		s.refused(err, turnstone.ErrInvalid, "event key")
		create.Commit = of("answer", "in the fork", turnstone.Ref{})
		_, err = s.Factory.CommitAll(ctx, create)
		s.must(err)
		answer, err := s.session("edited fork").NodeByKey(ctx, "answer")
		s.must(err)
		s.equal("answer in the fork", string(answer.Payload), "in the fork")
		f, g = s.session("f"), s.session("g")
		early := s.session("early")
		s.commit(f, named("later in the parent"))
		s.commit(g, named("later in the parent"))
		turn := named("once")
		turn.Turn = "again"
		r = s.commit(early, turn) // this fork shares neither
		s.commit(early, named("of f"))
		r.Replayed = true
		s.equal("replay", s.commit(early, turn), r)
	}},
	{name: "C9_RewindAndBranch", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		ids := s.grow(p, 0, "1", "2", "3", "4")
		s.commit(p, turnstone.Commit{Expected: 4, Leaf: turnstone.RefTo(ids[1])})
		s.reads(p, turnstone.Scope{}, "1", "2")
		s.grow(p, 5, "3b", "4b")
		s.twice(func() {
			p := s.session("a")
			s.reads(p, turnstone.Scope{}, "1", "2", "3b", "4b")
			s.reads(p, turnstone.Scope{Leaf: ids[3]}, "1", "2", "3", "4")
			s.reads(p, turnstone.Scope{Leaf: ids[3], Last: 2}, "3", "4")
			s.reads(p, turnstone.Scope{Last: 3}, "2", "3b", "4b")
			s.reads(p, turnstone.Scope{Full: true}, "1", "2", "3", "4", "3b", "4b")
			s.reads(p, turnstone.Scope{At: 5}, "1", "2")
			s.reads(p, turnstone.Scope{After: 2}, "3b", "4b")
		})
		p = s.session("a")
		s.commit(p, turnstone.Commit{Expected: 7, Leaf: turnstone.RefNone()}) // an empty conversation
		s.reads(p, turnstone.Scope{})
		s.commit(p, turnstone.Commit{Expected: 8, Nodes: texts("new root")})
		s.reads(p, turnstone.Scope{}, "new root")
		// Two branches and a leaf that is not the last node, in one commit.
		r := s.commit(p, turnstone.Commit{Expected: 9, Nodes: []turnstone.NewNode{
			{Kind: "k", Payload: []byte("x")}, {Kind: "k", Payload: []byte("y"), Parent: turnstone.RefTo(ids[0])}, {Kind: "k", Payload: []byte("z"), Parent: turnstone.RefNew(0)},
		}, Leaf: turnstone.RefNew(1)})
		s.reads(p, turnstone.Scope{}, "1", "y")
		s.grow(p, 10, "after y")
		s.twice(func() {
			p := s.session("a")
			s.reads(p, turnstone.Scope{}, "1", "y", "after y")
			s.reads(p, turnstone.Scope{Leaf: r.Nodes[2]}, "new root", "x", "z")
			s.reads(p, turnstone.Scope{Last: 1}, "after y")
		})
	}},
	{name: "C10_LimitsAreRefusedByName", test: limits},
	{name: "C11_ACancelledCommitLeavesNothing", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		turn := turnstone.Commit{Turn: "t", Nodes: texts("x")}
		_, err := p.Commit(cancelled, turn)
		s.is(err, context.Canceled)
		s.reads(p, turnstone.Scope{})
		// A commit that is cancelled at any moment stands or does not. A retry tells which.
		for i := range 40 {
			c, cancel := context.WithCancel(ctx)
			turn := turnstone.Commit{Expected: turnstone.AnyRevision, Turn: fmt.Sprint("t", i), Nodes: texts(fmt.Sprint(i))}
			go cancel()
			r, err := p.Commit(c, turn)
			again := s.commit(p, turn)
			if err == nil {
				s.equal("retry", fmt.Sprint(again.Revision, again.Commit, again.Replayed), fmt.Sprint(r.Revision, r.Commit, true))
			} else if !errors.Is(err, context.Canceled) {
				s.Fatal(err)
			}
		}
		s.twice(func() {
			st := s.load(s.session("a"), turnstone.Scope{})
			s.equal("nodes", len(st.Nodes), 40)
		})
	}},
	{
		name: "C12_TheValidatorRefuses",
		validator: func(_ context.Context, session string, c *turnstone.Commit) error {
			calls := 0
			for _, n := range c.Nodes {
				switch n.Kind {
				case "tool_call":
					calls++
				case "tool_result":
					calls--
				}
			}
			if calls != 0 {
				return errHalf
			}
			return nil
		},
		test: func(s *suite) {
			p := s.create(turnstone.Request{ID: "a"})
			_, err := p.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "tool_call"}}})
			s.is(err, turnstone.ErrRejected)
			if !strings.Contains(err.Error(), errHalf.Error()) { // It may have come through a wire.
				s.Fatalf("error %q does not say %q", err, errHalf)
			}
			s.reads(p, turnstone.Scope{})
			s.commit(p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "tool_call"}, {Kind: "tool_result"}}})
			// A refusal is not taken for what the validator has met elsewhere.
			s.validator = func(context.Context, string, *turnstone.Commit) error {
				return fmt.Errorf("elsewhere: %w", errors.Join(turnstone.ErrConflict, turnstone.ErrOutcomeUnknown, turnstone.ErrSessionDeleted))
			}
			_, err = p.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: []turnstone.NewNode{{Kind: "user"}}})
			s.is(err, turnstone.ErrRejected)
			for _, other := range []error{turnstone.ErrConflict, turnstone.ErrOutcomeUnknown, turnstone.ErrSessionDeleted} {
				if errors.Is(err, other) {
					s.Errorf("%v is taken for %v", err, other)
				}
			}
			s.validator = func(context.Context, string, *turnstone.Commit) error { return errHalf }
			s.change(p, set("k", "no commit")...) // The validator is not asked.
		},
	},
	{
		name: "C12_WhatTheValidatorDoesToTheCommitHasNoEffect",
		validator: func(_ context.Context, _ string, c *turnstone.Commit) error {
			if c.Turn == "spoiled" {
				spoil(c)
			}
			return nil
		},
		test: func(s *suite) {
			p := s.create(turnstone.Request{ID: "a"})
			s.commit(p, turnstone.Commit{Checkpoint: map[string][]byte{"kept": []byte("1"), "gone": []byte("2")}})
			ref, err := p.PutAttachment(ctx, strings.NewReader("attached"), -1, "", "")
			s.must(err)
			large := string(pattern(9000, 1))
			turn := func() turnstone.Commit {
				return turnstone.Commit{
					Expected: 1, Turn: "spoiled",
					Nodes: []turnstone.NewNode{{Kind: "k", Key: "x", Payload: []byte("small"), Attachments: []blob.Attachment{ref}}, {Kind: "k", Payload: []byte(large)}},
					Leaf:  turnstone.RefNew(1), Usage: []head.Usage{{Model: "m", Input: 1}}, Drop: []string{"gone"},
					Checkpoint: map[string][]byte{"p": []byte("value")}, Records: set("k", "value"),
				}
			}
			in := turn()
			r := s.commit(p, in)
			s.equal("the caller's commit", in, turn())
			s.twice(func() {
				p := s.session("a")
				s.reads(p, turnstone.Scope{}, "small", large)
				st := s.load(p, turnstone.Scope{})
				s.equal("nodes", []any{st.Revision, st.Leaf, st.Usage, st.Nodes[0].Kind, st.Nodes[0].Key, st.Nodes[0].Attachments, st.Nodes[1].Kind},
					[]any{2, r.Leaf, turn().Usage, "k", "x", []blob.Attachment{ref}, "k"})
				parts, err := p.Checkpoint(ctx, 0)
				s.must(err)
				s.equal("checkpoint", parts, map[string][]byte{"kept": []byte("1"), "p": []byte("value")})
				s.hasRecords(p, "k", "value")
				r.Replayed = true
				s.equal("replay", s.commit(p, turn()), r)
			})
		},
	},
}

// spoil changes everything that a validator is given. The commit must not see it.
func spoil(c *turnstone.Commit) {
	for i := range c.Nodes {
		n := &c.Nodes[i]
		n.Kind, n.Key, n.Parent = strings.Repeat("k", turnstone.MaxKind+1), "taken", turnstone.RefTo(graph.ID{1})
		for j := range n.Payload {
			n.Payload[j]++
		}
		for j := range n.Attachments {
			n.Attachments[j].Size++
		}
	}
	for i := range c.Usage {
		c.Usage[i].Input = turnstone.MaxTokens + 1
	}
	for i := range c.Drop {
		c.Drop[i] = "kept"
	}
	for _, content := range c.Checkpoint {
		for i := range content {
			content[i]++
		}
	}
	for i := range c.Records {
		c.Records[i].Key = "other"
		for j := range c.Records[i].Value {
			c.Records[i].Value[j]++
		}
	}
	c.Checkpoint["more"], c.Turn, c.Leaf, c.Expected = []byte("more"), "other", turnstone.RefNone(), 7
	c.Nodes = append(c.Nodes[:1], turnstone.NewNode{})
}

var errHalf = errors.New("a tool call has no result")

// limits checks that what exceeds a limit is refused with an error that names the
// limit, and that the largest values are stored.
func limits(s *suite) {
	_, _, err := s.Factory.Create(ctx, turnstone.Request{ID: strings.Repeat("x", turnstone.MaxSessionID+1)})
	s.refused(err, turnstone.ErrLimit, "session id")
	_, _, err = s.Factory.Create(ctx, turnstone.Request{})
	s.refused(err, turnstone.ErrInvalid, "session id")
	_, _, err = s.Factory.Create(ctx, turnstone.Request{ID: "\xff"})
	s.refused(err, turnstone.ErrInvalid, "UTF-8")

	p := s.create(turnstone.Request{ID: strings.Repeat("x", turnstone.MaxSessionID)})
	for what, c := range tooLarge() {
		_, err := p.Commit(ctx, c)
		s.refused(err, turnstone.ErrLimit, what)
		s.reads(p, turnstone.Scope{})
	}
	s.commitLargest(p)
	s.must(p.SaveMetadata(ctx, head.Metadata{Name: strings.Repeat("n", turnstone.MaxText)}))
	s.is(p.SaveMetadata(ctx, head.Metadata{Name: strings.Repeat("n", turnstone.MaxText+1)}), turnstone.ErrLimit)
}

// tooLarge returns commits that exceed one limit each, by the name of the limit.
func tooLarge() map[string]turnstone.Commit {
	node := func(n turnstone.NewNode) turnstone.Commit { return turnstone.Commit{Nodes: []turnstone.NewNode{n}} }
	return map[string]turnstone.Commit{
		"kind":             node(turnstone.NewNode{Kind: strings.Repeat("k", turnstone.MaxKind+1)}),
		"event key":        node(turnstone.NewNode{Kind: "k", Key: strings.Repeat("k", turnstone.MaxEventKey+1)}),
		"payload":          node(turnstone.NewNode{Kind: "k", Payload: make([]byte, turnstone.MaxPayload+1)}),
		"turn id":          {Turn: strings.Repeat("t", turnstone.MaxTurnID+1)},
		"nodes":            {Nodes: make([]turnstone.NewNode, turnstone.MaxNodes+1)},
		"part name":        {Checkpoint: map[string][]byte{strings.Repeat("p", turnstone.MaxPartName+1): nil}},
		"checkpoint part":  {Checkpoint: map[string][]byte{"p": make([]byte, turnstone.MaxPart+1)}},
		"checkpoint parts": {Checkpoint: many(turnstone.MaxParts + 1)},
		"usage":            {Usage: make([]head.Usage, turnstone.MaxModels+1)},
		"tokens":           {Usage: []head.Usage{{Input: turnstone.MaxTokens + 1}}},
		"cost":             {Usage: []head.Usage{{Cost: turnstone.MaxCost + 1}}},
		"attachments":      node(turnstone.NewNode{Kind: "k", Attachments: make([]blob.Attachment, turnstone.MaxAttachments+1)}),
	}
}

// commitLargest commits turns to the empty session p that just meet the limits.
func (s *suite) commitLargest(p turnstone.Persistence) {
	s.Helper()
	s.commit(p, turnstone.Commit{
		Turn:       strings.Repeat("t", turnstone.MaxTurnID),
		Nodes:      []turnstone.NewNode{{Kind: strings.Repeat("k", turnstone.MaxKind), Key: strings.Repeat("k", turnstone.MaxEventKey), Payload: make([]byte, 9<<20)}},
		Checkpoint: many(turnstone.MaxParts),
		Usage:      []head.Usage{{Model: strings.Repeat("m", turnstone.MaxModel), Input: turnstone.MaxTokens}},
	})
	_, err := p.Commit(ctx, turnstone.Commit{Expected: 1, Checkpoint: map[string][]byte{"one more": nil}})
	s.refused(err, turnstone.ErrLimit, "checkpoint parts")
	most := turnstone.Commit{Expected: 1, Nodes: make([]turnstone.NewNode, turnstone.MaxNodes)}
	for i := range most.Nodes {
		most.Nodes[i] = turnstone.NewNode{Kind: "k", Payload: fmt.Append(nil, i)}
	}
	s.commit(p, most)
	s.equal("nodes", len(s.load(p, turnstone.Scope{}).Nodes), turnstone.MaxNodes+1)
}

// many returns n checkpoint parts of a byte each.
func many(n int) map[string][]byte {
	parts := map[string][]byte{}
	for i := range n {
		parts[fmt.Sprint("part", i)] = []byte{byte(i)}
	}
	return parts
}
