package persistencetest

import (
	"errors"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

var removals = []behaviour{
	{name: "T1_T2_ATombstonedNodeIsInNoRead", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		r := s.commit(p, turnstone.Commit{Nodes: []turnstone.NewNode{
			{Kind: "k", Payload: []byte("1")}, {Kind: "k", Payload: []byte("2"), Key: "two"}, {Kind: "k", Payload: []byte("3")}, {Kind: "k", Payload: []byte("4")},
		}})
		s.is(p.Tombstone(ctx, r.Nodes[2], graph.ID{7}), turnstone.ErrNodeNotFound)
		s.reads(p, turnstone.Scope{}, "1", "2", "3", "4") // the node that was found before is refused as well
		s.must(p.Tombstone(ctx, r.Nodes[1], r.Nodes[2], r.Nodes[1]))
		s.must(p.Tombstone(ctx, r.Nodes[1]))
		s.must(p.Tombstone(ctx))
		s.twice(func() {
			p := s.session("a")
			s.reads(p, turnstone.Scope{}, "1", "4")
			s.reads(p, turnstone.Scope{Full: true}, "1", "4")
			s.reads(p, turnstone.Scope{Last: 2}, "1", "4")
			s.reads(p, turnstone.Scope{At: 1}, "1", "4")
			n, err := p.Node(ctx, r.Nodes[3])
			s.must(err)
			s.equal("parent", n.Parent, r.Nodes[0])
			last := s.load(p, turnstone.Scope{Last: 1}).Nodes[0]
			s.equal("parent", last.Parent, r.Nodes[0])
			_, err = p.Node(ctx, r.Nodes[1])
			s.is(err, turnstone.ErrNodeNotFound)
			_, err = p.NodeByKey(ctx, "two")
			s.is(err, turnstone.ErrNodeNotFound)
			_, err = p.Load(ctx, turnstone.Scope{Leaf: r.Nodes[2]})
			s.is(err, turnstone.ErrNodeNotFound)
		})
	}},
	{name: "T3_RootLeafAndForks", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		ids := s.grow(p, 0, "1", "2", "3")
		s.create(turnstone.Request{ID: "before", Parent: "a"})
		s.must(p.Tombstone(ctx, ids[0], ids[2]))
		s.equal("leaf", s.load(p, turnstone.Scope{}).Leaf, ids[2])
		s.reads(p, turnstone.Scope{}, "2")
		s.equal("root's parent", s.load(p, turnstone.Scope{}).Nodes[0].Parent, graph.ID{})
		s.grow(p, 3, "4")
		s.create(turnstone.Request{ID: "after", Parent: "a"})
		s.must(s.session("before").Tombstone(ctx, ids[1]))
		s.create(turnstone.Request{ID: "of-before", Parent: "before", ForkNode: ids[2]})
		s.must(s.session("after").Tombstone(ctx, ids[1]))
		s.twice(func() {
			s.reads(s.session("a"), turnstone.Scope{}, "2", "4")
			s.reads(s.session("before"), turnstone.Scope{}, "1", "3")
			s.reads(s.session("of-before"), turnstone.Scope{}, "1", "3")
			s.reads(s.session("after"), turnstone.Scope{}, "4")
		})
	}},
	{name: "D1_DeleteIsIdempotentAndAtOnce", test: func(s *suite) {
		s.must(s.Factory.Delete(ctx, "never", turnstone.KeepChildren))
		p := s.create(turnstone.Request{ID: "a"})
		s.grow(p, 0, "1")
		s.create(turnstone.Request{ID: "b"})
		s.must(s.Factory.Delete(ctx, "a", turnstone.KeepChildren))
		s.must(s.Factory.Delete(ctx, "a", turnstone.KeepChildren))
		s.twice(func() {
			_, err := s.Factory.Session(ctx, "a")
			s.is(err, turnstone.ErrSessionNotFound)
			s.equal("list", s.pages(turnstone.ListOptions{}), []string{"b"})
		})
		for name, op := range map[string]func() error{
			"load":      func() error { _, err := p.Load(ctx, turnstone.Scope{}); return err },
			"info":      func() error { _, err := p.Info(ctx); return err },
			"metadata":  func() error { return p.SaveMetadata(ctx, head.Metadata{Name: "x"}) },
			"tombstone": func() error { return p.Tombstone(ctx, graph.ID{1}) },
			"part":      func() error { _, err := p.Checkpoint(ctx, 0); return err },
		} {
			if s.Reopen != nil {
				break // p belongs to the factory that was closed
			}
			if err := op(); !errors.Is(err, turnstone.ErrSessionDeleted) {
				s.Fatalf("%s on a deleted session: %v", name, err)
			}
		}
	}},
	{name: "D3_DeleteAndRenameActOnTheSessionOfTheHandle", test: func(s *suite) {
		old := s.create(turnstone.Request{ID: "a"})
		s.grow(old, 0, "1")
		s.must(s.session("a").Delete(ctx, turnstone.AnyRevision, turnstone.KeepChildren))
		s.must(old.Delete(ctx, turnstone.AnyRevision, turnstone.KeepChildren)) // It is deleted already.
		again := s.create(turnstone.Request{ID: "a"})
		s.grow(again, 0, "new")
		s.must(old.Delete(ctx, turnstone.AnyRevision, turnstone.CascadeChildren))
		s.is(old.Rename(ctx, "b"), turnstone.ErrSessionDeleted)
		s.is(old.Delete(ctx, turnstone.AnyRevision, turnstone.ChildPolicy(7)), turnstone.ErrInvalid)
		s.reads(s.session("a"), turnstone.Scope{}, "new")

		s.create(turnstone.Request{ID: "child", Parent: "a"})
		s.create(turnstone.Request{ID: "taken"})
		s.is(again.Rename(ctx, "taken"), turnstone.ErrExists)
		s.is(again.Rename(ctx, ""), turnstone.ErrInvalid)
		s.must(again.Rename(ctx, "b"))
		s.is(again.Rename(ctx, "c"), turnstone.ErrSessionDeleted)
		_, err := again.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: texts("late")})
		s.is(err, turnstone.ErrSessionDeleted)
		s.grow(s.create(turnstone.Request{ID: "a"}), 0, "third")
		s.is(again.Delete(ctx, turnstone.AnyRevision, turnstone.RefuseChildren), turnstone.ErrHasChildren)
		s.reads(s.session("b"), turnstone.Scope{}, "new")
		s.must(again.Delete(ctx, turnstone.AnyRevision, turnstone.KeepChildren)) // It is the one that is called b now.
		s.twice(func() {
			_, err = s.Factory.Session(ctx, "b")
			s.is(err, turnstone.ErrSessionNotFound)
			s.reads(s.session("a"), turnstone.Scope{}, "third")
			s.reads(s.session("child"), turnstone.Scope{}, "new")
		})
	}},
	{name: "D6_DeletingAtARevisionTakesNothingCommittedSince", test: func(s *suite) {
		seen := s.create(turnstone.Request{ID: "a"})
		s.create(turnstone.Request{ID: "child", Parent: "a"})
		s.grow(seen, 0, "1", "2")
		for _, expected := range []head.Revision{0, 1, 3, turnstone.RevisionZero} {
			for _, policy := range []turnstone.ChildPolicy{turnstone.KeepChildren, turnstone.RefuseChildren, turnstone.CascadeChildren} {
				err := s.session("a").Delete(ctx, expected, policy)
				s.is(err, turnstone.ErrConflict)
				var conflict *turnstone.ConflictError
				if !errors.As(err, &conflict) || conflict.Session != "a" || conflict.Revision != 2 {
					s.Fatalf("deleting at %d: %v", expected, err)
				}
			}
		}
		s.reads(s.session("a"), turnstone.Scope{}, "1", "2")
		s.reads(s.session("child"), turnstone.Scope{}) // A conflict is found before a child is deleted.
		s.must(s.session("a").SaveMetadata(ctx, head.Metadata{Name: "moves no revision"}))
		s.must(s.session("a").Delete(ctx, 2, turnstone.CascadeChildren))
		s.must(seen.Delete(ctx, 1, turnstone.KeepChildren)) // It is deleted already.
		for _, id := range []string{"a", "child"} {
			_, err := s.Factory.Session(ctx, id)
			s.is(err, turnstone.ErrSessionNotFound)
		}
		empty := s.create(turnstone.Request{ID: "a"})
		s.is(empty.Delete(ctx, 1, turnstone.KeepChildren), turnstone.ErrConflict)
		s.must(empty.Delete(ctx, 0, turnstone.KeepChildren))
		s.must(s.create(turnstone.Request{ID: "a"}).Delete(ctx, turnstone.RevisionZero, turnstone.KeepChildren))
		s.twice(func() {
			_, err := s.Factory.Session(ctx, "a")
			s.is(err, turnstone.ErrSessionNotFound)
		})
	}},
	{name: "D2_ALateCommitToADeletedSessionFails", test: func(s *suite) {
		old := s.create(turnstone.Request{ID: "a"})
		s.grow(old, 0, "1")
		s.must(s.Factory.Delete(ctx, "a", turnstone.KeepChildren))
		_, err := old.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: texts("late")})
		s.is(err, turnstone.ErrSessionDeleted)
		again := s.create(turnstone.Request{ID: "a"})
		for _, expected := range []head.Revision{0, 1, turnstone.AnyRevision} {
			_, err = old.Commit(ctx, turnstone.Commit{Expected: expected, Nodes: texts("late")})
			s.is(err, turnstone.ErrSessionDeleted)
		}
		s.grow(again, 0, "new")
		_, err = old.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: texts("late")})
		s.is(err, turnstone.ErrSessionDeleted)
		_, err = old.Load(ctx, turnstone.Scope{})
		s.is(err, turnstone.ErrSessionDeleted)
		s.reads(again, turnstone.Scope{Full: true}, "new")
	}},
}
