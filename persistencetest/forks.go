package persistencetest

import (
	"bytes"
	"cmp"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

var forks = []behaviour{
	{name: "F12_WhatAForkShows", test: forksShow},
	{name: "F11_ACloneHasEveryRevision", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "p"})
		a, err := p.PutAttachment(ctx, bytes.NewReader(pattern(9000, 1)), -1, "image/png", "a")
		s.must(err)
		turn := func(p turnstone.Persistence, c turnstone.Commit) turnstone.Result {
			s.Helper()
			info, err := p.Info(ctx)
			s.must(err)
			c.Expected = info.Revision
			return s.commit(p, c)
		}
		first := turn(p, turnstone.Commit{
			Turn: "t1", Usage: []head.Usage{{Model: "m", Input: 3}}, Labels: map[string]string{"a": "b"}, Keep: "start",
			Nodes:      []turnstone.NewNode{{Kind: "user", Key: "k1", Payload: []byte("1"), Attachments: []blob.Attachment{a}}, {Kind: "text", Payload: pattern(200_000, 2)}},
			Checkpoint: map[string][]byte{"x": pattern(9000, 3), "y": []byte("y")},
		}).Nodes
		turn(p, turnstone.Commit{Nodes: texts("2", "3"), Checkpoint: map[string][]byte{"x": pattern(9000, 4)}})
		turn(p, turnstone.Commit{Leaf: turnstone.RefTo(first[0]), Drop: []string{"y"}})
		side := turn(p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "text", Payload: []byte("4"), Attachments: []blob.Attachment{a}}, {Kind: "text", Parent: turnstone.RefTo(first[1]), Payload: []byte("5")}}, Leaf: turnstone.RefNew(0)}).Nodes
		turn(p, turnstone.Commit{Leaf: turnstone.RefNone()})
		turn(p, turnstone.Commit{Nodes: texts("6"), Checkpoint: map[string][]byte{"z": []byte("z")}})
		gone := turn(p, turnstone.Commit{Leaf: turnstone.RefTo(side[1]), Nodes: texts("secret")}).Nodes
		turn(p, turnstone.Commit{Leaf: turnstone.RefTo(side[1])})
		s.must(p.Tombstone(ctx, gone[0]))
		turn(p, turnstone.Commit{Nodes: texts("7"), Records: set("k", "v")})
		f := s.create(turnstone.Request{ID: "f", Parent: "p", ForkAt: 2})
		turn(f, turnstone.Commit{Nodes: texts("own")})
		turn(f, turnstone.Commit{Leaf: turnstone.RefTo(first[1]), Checkpoint: map[string][]byte{"x": []byte("own")}})
		turn(f, turnstone.Commit{Nodes: texts("more")})

		// What a session is at each of its revisions, without what a clone has of its own.
		all := func(id string) (out []string) {
			s.Helper()
			p := s.session(id)
			revisions := []head.Revision{turnstone.RevisionZero}
			for e, err := range p.Log(ctx, 0) {
				s.must(err)
				out = append(out, fmt.Sprint(e.Revision, e.Turn, e.Usage, e.Labels))
				revisions = append(revisions, e.Revision)
			}
			for _, r := range revisions {
				for _, sc := range []turnstone.Scope{{At: r}, {At: r, Full: true}} {
					st := s.load(p, sc)
					at := map[graph.ID]int{}
					line := fmt.Sprint(r, st.Usage)
					for i, n := range st.Nodes {
						at[n.ID] = i + 1
						line += fmt.Sprintf("\n%d %s %s %.30q %v %v", at[n.Parent], n.Kind, n.Key, n.Payload, n.Attachments, n.Inherited)
					}
					out = append(out, line)
				}
				parts, err := p.Checkpoint(ctx, r)
				s.must(err)
				out = append(out, fmt.Sprint(r, parts))
			}
			kept, err := p.Kept(ctx)
			s.must(err)
			return append(out, fmt.Sprint(kept))
		}
		want := map[string][]string{}
		for _, id := range []string{"p", "f"} {
			want[id] = all(id)
			clone, err := turnstone.Clone(ctx, s.Factory, id, turnstone.Request{ID: "clone of " + id})
			s.must(err)
			s.equal("id", clone.ID(), "clone of "+id)
			s.hasRecords(clone)
		}
		s.twice(func() {
			for id, want := range want {
				have := all("clone of " + id)
				for i := range want {
					s.equal("of the clone of "+id, have[i], want[i])
				}
				s.equal("number", len(have), len(want))
			}
		})
		_, err = turnstone.Clone(ctx, s.Factory, "p", turnstone.Request{ID: "f"})
		s.is(err, turnstone.ErrExists)
		_, err = turnstone.Clone(ctx, s.Factory, "none", turnstone.Request{ID: "new"})
		s.is(err, turnstone.ErrSessionNotFound)
		_, err = turnstone.Clone(ctx, s.Factory, "p", turnstone.Request{ID: "new", ForkAt: 1})
		s.is(err, turnstone.ErrInvalid)
		// It lives by itself.
		for _, id := range []string{"p", "f"} {
			s.must(s.Factory.Delete(ctx, id, turnstone.KeepChildren))
		}
		for range 2 {
			_, err = s.Factory.Vacuum(ctx, gc.VacuumOptions{})
			s.must(err)
		}
		s.twice(func() {
			for id, want := range want {
				s.equal("the clone of "+id, all("clone of "+id), want)
			}
		})
	}},
	{name: "F10_AForkHasTheCheckpointThatItsRequestNames", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "p"})
		body := pattern(20_000, 1)
		var ids []graph.ID
		version := func(r head.Revision) string { return fmt.Sprint(r, " ", string(body[r:])) }
		for r := range head.Revision(4) { // The versions of the part are deltas.
			ids = append(ids, s.commit(p, turnstone.Commit{Expected: r, Nodes: texts(fmt.Sprint(r + 1)), Checkpoint: map[string][]byte{"x": []byte(version(r + 1))}}).Nodes...)
		}
		s.commit(p, turnstone.Commit{Expected: 4, Leaf: turnstone.RefTo(ids[0]), Nodes: nil, Checkpoint: map[string][]byte{"x": []byte(version(5))}})
		s.commit(p, turnstone.Commit{Expected: 5, Leaf: turnstone.RefNone(), Drop: []string{"x"}})
		forked := 0
		var after []func()
		fork := func(r turnstone.Request, part string, want ...string) {
			s.Helper()
			forked++
			r.ID, r.Parent = fmt.Sprint("f", forked), cmp.Or(r.Parent, "p")
			f := s.create(r)
			check := func() {
				s.Helper()
				f := s.session(r.ID)
				s.reads(f, turnstone.Scope{At: turnstone.RevisionZero}, want...)
				parts, err := f.Checkpoint(ctx, turnstone.RevisionZero)
				s.must(err)
				wanted := map[string][]byte{}
				if part != "" {
					wanted["x"] = []byte(part)
				}
				s.equal("checkpoint", parts, wanted)
			}
			check()
			s.commit(f, turnstone.Commit{Nodes: texts("own")})
			s.reads(f, turnstone.Scope{}, append(want, "own")...)
			after = append(after, check)
		}
		for r := head.Revision(1); r <= 4; r++ { // of a revision: its leaf and its checkpoint
			fork(turnstone.Request{ForkAt: r}, version(r), []string{"1", "2", "3", "4"}[:r]...)
		}
		fork(turnstone.Request{ForkAt: 5}, version(5), "1")
		fork(turnstone.Request{ForkAt: 6}, "")
		fork(turnstone.Request{ForkAt: turnstone.RevisionZero}, "")
		fork(turnstone.Request{ForkAt: 3, ForkNode: ids[1]}, version(3), "1", "2") // of another one than belongs to the node
		fork(turnstone.Request{ForkAt: 2, ForkNode: ids[3]}, version(2), "1", "2", "3", "4")
		fork(turnstone.Request{ForkNode: ids[1], NoCheckpoint: true}, "", "1", "2")
		fork(turnstone.Request{ForkAt: 4, NoCheckpoint: true}, "", "1", "2", "3", "4")
		fork(turnstone.Request{Parent: "f3", ForkAt: turnstone.RevisionZero}, version(3), "1", "2", "3") // of what a fork began with
		fork(turnstone.Request{Parent: "f3", ForkNode: ids[0], ForkAt: 1}, version(3), "1")
		fork(turnstone.Request{Parent: "f3", ForkNode: ids[2], NoCheckpoint: true}, "", "1", "2", "3")
		s.twice(func() {
			for _, check := range after {
				check()
			}
		})
		for _, r := range []turnstone.Request{
			{ID: "n", ForkAt: 1},
			{ID: "n", NoCheckpoint: true},
			{ID: "n", Parent: "p", ForkAt: turnstone.AnyRevision},
			{ID: "n", Parent: "p", Detached: true, NoCheckpoint: true},
			{ID: "n", Parent: "p", ForkNode: ids[0], ForkAt: 1, NoCheckpoint: true},
		} {
			_, _, err := s.Factory.Create(ctx, r)
			s.is(err, turnstone.ErrInvalid)
		}
		_, _, err := s.Factory.Create(ctx, turnstone.Request{ID: "n", Parent: "p", ForkAt: 7})
		s.is(err, turnstone.ErrRevisionNotFound)
		detached := s.create(turnstone.Request{ID: "d", Parent: "p", ForkAt: 2, Detached: true})
		info, err := detached.Info(ctx)
		s.must(err)
		s.equal("fork node", info.ForkNode, ids[1])
		s.must(s.Factory.Delete(ctx, "p", turnstone.KeepChildren))
		for range 2 {
			_, err = s.Factory.Vacuum(ctx, gc.VacuumOptions{})
			s.must(err)
		}
		s.twice(func() {
			for _, check := range after {
				check()
			}
		})
	}},
	{name: "F1_F4_AnAttachedForkSharesItsAncestors", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "p"})
		ids := s.grow(p, 0, "1", "2")
		s.commit(p, turnstone.Commit{Expected: 2, Nodes: texts("3", "4"), Checkpoint: map[string][]byte{"x": []byte("at 3")}})
		s.commit(p, turnstone.Commit{Expected: 3, Nodes: texts("5"), Checkpoint: map[string][]byte{"x": []byte("at 4"), "y": []byte("y")}})
		st := s.load(p, turnstone.Scope{})
		tip := s.create(turnstone.Request{ID: "tip", Parent: "p"})
		mid := s.create(turnstone.Request{ID: "mid", Parent: "p", ForkNode: ids[1]})
		s.create(turnstone.Request{ID: "inner", Parent: "p", ForkNode: st.Nodes[2].ID}) // node "3" is in the middle of a turn
		s.grow(p, 4, "parent goes on")
		s.grow(tip, 0, "tip 1", "tip 2")
		s.commit(mid, turnstone.Commit{Nodes: texts("mid 1"), Checkpoint: map[string][]byte{"z": []byte("mid")}})
		s.twice(func() {
			tip, mid, inner := s.session("tip"), s.session("mid"), s.session("inner")
			s.reads(s.session("p"), turnstone.Scope{}, "1", "2", "3", "4", "5", "parent goes on")
			s.reads(tip, turnstone.Scope{}, "1", "2", "3", "4", "5", "tip 1", "tip 2")
			s.reads(tip, turnstone.Scope{Last: 3}, "5", "tip 1", "tip 2")
			s.reads(tip, turnstone.Scope{At: 1}, "1", "2", "3", "4", "5", "tip 1")
			s.reads(tip, turnstone.Scope{After: 1}, "tip 2")
			s.reads(tip, turnstone.Scope{Leaf: ids[1]}, "1", "2")
			s.reads(tip, turnstone.Scope{Full: true}, "1", "2", "3", "4", "5", "tip 1", "tip 2")
			s.reads(mid, turnstone.Scope{}, "1", "2", "mid 1")
			s.reads(inner, turnstone.Scope{}, "1", "2", "3")
			for p, want := range map[turnstone.Persistence]map[string]string{
				tip: {"x": "at 4", "y": "y"}, mid: {"z": "mid"}, inner: {},
			} {
				parts, err := p.Checkpoint(ctx, 0)
				s.must(err)
				got := map[string]string{}
				for k, v := range parts {
					got[k] = string(v)
				}
				s.equal("checkpoint of "+p.ID(), got, want)
			}
			_, err := mid.Node(ctx, st.Nodes[4].ID)
			s.is(err, turnstone.ErrNodeNotFound)
		})
		// A fork can rewind into the shared history and branch there.
		tip = s.session("tip")
		s.commit(tip, turnstone.Commit{Expected: 2, Leaf: turnstone.RefTo(ids[0]), Nodes: []turnstone.NewNode{{Kind: "k", Payload: []byte("b"), Parent: turnstone.RefTo(ids[0])}}})
		s.reads(tip, turnstone.Scope{}, "1")
		s.grow(tip, 3, "c")
		s.reads(tip, turnstone.Scope{}, "1", "c")
	}},
	{name: "F2_F7_ADetachedForkStartsEmpty", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "p"})
		ids := s.grow(p, 0, "1", "2")
		s.create(turnstone.Request{ID: "d", Parent: "p", ForkNode: ids[0], Detached: true, Summary: true})
		s.create(turnstone.Request{ID: "e", Parent: "p"})
		s.grow(s.session("d"), 0, "own")
		s.twice(func() {
			s.reads(s.session("d"), turnstone.Scope{}, "own")
			i, err := s.session("d").Info(ctx)
			s.must(err)
			s.equal("child", fmt.Sprint(i.Parent, i.ForkNode, i.Detached, i.Summary), fmt.Sprint("p", ids[0], true, true))
			i, err = s.session("e").Info(ctx)
			s.must(err)
			s.equal("child", fmt.Sprint(i.Parent, i.ForkNode, i.Detached, i.Summary), fmt.Sprint("p", ids[1], false, false))
			s.equal("children", s.pages(turnstone.ListOptions{Parent: "p"}), []string{"d", "e"})
		})
		_, _, err := s.Factory.Create(ctx, turnstone.Request{ID: "x", Parent: "missing"})
		s.is(err, turnstone.ErrSessionNotFound)
		_, _, err = s.Factory.Create(ctx, turnstone.Request{ID: "x", Parent: "p", ForkNode: graph.ID{1}})
		s.is(err, turnstone.ErrNodeNotFound)
		for _, r := range []turnstone.Request{{ID: "x", Parent: "x"}, {ID: "x", Detached: true}, {ID: "x", ForkNode: ids[0]}} {
			_, _, err = s.Factory.Create(ctx, r)
			s.is(err, turnstone.ErrInvalid)
		}
		empty := s.create(turnstone.Request{ID: "empty"})
		fork := s.create(turnstone.Request{ID: "of-empty", Parent: empty.ID()})
		s.grow(fork, 0, "first")
		s.reads(fork, turnstone.Scope{}, "first")
	}},
	{name: "F3_ForksOfForks", test: func(s *suite) {
		s.grow(s.create(turnstone.Request{ID: "0"}), 0, "0a", "0b")
		want := []string{"0a", "0b"}
		for i := 1; i <= 12; i++ {
			f := s.create(turnstone.Request{ID: fmt.Sprint(i), Parent: fmt.Sprint(i - 1)})
			s.reads(f, turnstone.Scope{}, want...)
			s.grow(f, 0, fmt.Sprint(i, "a"), fmt.Sprint(i, "b"))
			want = append(want, fmt.Sprint(i, "a"), fmt.Sprint(i, "b"))
		}
		path := s.load(s.session("12"), turnstone.Scope{}).Nodes
		s.create(turnstone.Request{ID: "deep", Parent: "12", ForkNode: path[7].ID}) // a node of the history of session 3
		s.grow(s.session("deep"), 0, "x")
		s.twice(func() {
			s.reads(s.session("12"), turnstone.Scope{}, want...)
			s.reads(s.session("12"), turnstone.Scope{Last: 5}, want[len(want)-5:]...)
			s.reads(s.session("deep"), turnstone.Scope{}, append(append([]string{}, want[:8]...), "x")...)
			s.reads(s.session("deep"), turnstone.Scope{Last: 3}, want[6], want[7], "x")
		})
		s.create(turnstone.Request{ID: "of-deep", Parent: "deep"})
		s.reads(s.session("of-deep"), turnstone.Scope{}, append(append([]string{}, want[:8]...), "x")...)
	}},
	{name: "F9_ForksOfForksHaveNoLimit", large: true, test: func(s *suite) {
		deep := 600
		if testing.Short() {
			deep = 300
		}
		s.grow(s.create(turnstone.Request{ID: "0"}), 0, "0")
		want := []string{"0"}
		for i := 1; i < deep; i++ {
			f := s.create(turnstone.Request{ID: fmt.Sprint(i), Parent: fmt.Sprint(i - 1)})
			key := turnstone.NewNode{Kind: "text", Key: fmt.Sprint("key ", i), Payload: []byte(fmt.Sprint(i))}
			s.commit(f, turnstone.Commit{Nodes: []turnstone.NewNode{key}, Checkpoint: map[string][]byte{"at": key.Payload}})
			want = append(want, fmt.Sprint(i))
		}
		last := fmt.Sprint(deep - 1)
		s.twice(func() {
			p := s.session(last)
			s.reads(p, turnstone.Scope{}, want...)
			s.reads(p, turnstone.Scope{Full: true}, want...)
			s.reads(p, turnstone.Scope{Last: 2}, want[deep-2:]...)
			n, err := p.NodeByKey(ctx, "key 7")
			s.must(err)
			s.equal("node of session 7", string(n.Payload), "7")
			_, err = p.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: []turnstone.NewNode{{Kind: "k", Key: "key 7"}}})
			s.is(err, turnstone.ErrInvalid)
		})
		for i := range deep - 1 {
			s.must(s.Factory.Delete(ctx, fmt.Sprint(i), turnstone.KeepChildren))
		}
		s.twice(func() { s.reads(s.session(last), turnstone.Scope{}, want...) })
	}},
	{name: "F5_DeletingAParentLeavesForksWhole", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "p"})
		s.commit(p, turnstone.Commit{Nodes: texts("1", string(pattern(9000, 1))), Checkpoint: map[string][]byte{"c": pattern(500, 1)}})
		s.create(turnstone.Request{ID: "f", Parent: "p"})
		s.create(turnstone.Request{ID: "g", Parent: "f"})
		s.grow(p, 1, "after")
		s.must(s.Factory.Delete(ctx, "p", turnstone.KeepChildren))
		s.must(s.Factory.Delete(ctx, "f", turnstone.KeepChildren))
		s.twice(func() {
			_, err := s.Factory.Session(ctx, "p")
			s.is(err, turnstone.ErrSessionNotFound)
			g := s.session("g")
			s.reads(g, turnstone.Scope{}, "1", string(pattern(9000, 1)))
			parts, err := g.Checkpoint(ctx, 0)
			s.must(err)
			s.equal("part", bytes.Equal(parts["c"], pattern(500, 1)), true)
		})
		g := s.session("g")
		s.grow(g, 0, "own")
		s.create(turnstone.Request{ID: "h", Parent: "g"})
		s.reads(s.session("h"), turnstone.Scope{}, "1", string(pattern(9000, 1)), "own")
		s.create(turnstone.Request{ID: "p"}) // a new session under the old id is another incarnation
		s.reads(s.session("p"), turnstone.Scope{})
	}},
	{name: "F6_DeleteTakesAPolicyForChildren", test: func(s *suite) {
		for _, detached := range []bool{false, true} {
			s.grow(s.create(turnstone.Request{ID: "p"}), 0, "1")
			s.create(turnstone.Request{ID: "c", Parent: "p", Detached: detached})
			s.create(turnstone.Request{ID: "cc", Parent: "c", Detached: detached})
			s.is(s.Factory.Delete(ctx, "p", turnstone.RefuseChildren), turnstone.ErrHasChildren)
			s.equal("sessions", len(s.pages(turnstone.ListOptions{})), 3)
			s.must(s.Factory.Delete(ctx, "cc", turnstone.RefuseChildren))
			s.create(turnstone.Request{ID: "cc", Parent: "c", Detached: detached})
			s.must(s.Factory.Delete(ctx, "p", turnstone.CascadeChildren))
			s.equal("sessions", s.pages(turnstone.ListOptions{}), []string(nil))
		}
		s.create(turnstone.Request{ID: "p"})
		for _, unknown := range []turnstone.ChildPolicy{-1, 3, 77} {
			s.is(s.Factory.Delete(ctx, "p", unknown), turnstone.ErrInvalid)
			s.is(s.Factory.Delete(ctx, "missing", unknown), turnstone.ErrInvalid)
			s.equal("sessions", s.pages(turnstone.ListOptions{}), []string{"p"})
		}
		s.must(s.Factory.Delete(ctx, "p", turnstone.KeepChildren))
		// Children of an earlier session under the same id are not children of the new one.
		s.create(turnstone.Request{ID: "p"})
		s.create(turnstone.Request{ID: "c", Parent: "p"})
		s.must(s.Factory.Delete(ctx, "p", turnstone.KeepChildren))
		s.create(turnstone.Request{ID: "p"})
		s.must(s.Factory.Delete(ctx, "p", turnstone.RefuseChildren))
		s.equal("sessions", s.pages(turnstone.ListOptions{}), []string{"c"})
	}},
	{name: "F8_AForkBeginsWithTheCheckpointOfTheLastTurnThatEndedThere", test: func(s *suite) {
		save := func(p turnstone.Persistence, value string, leaf turnstone.Ref, nodes ...string) turnstone.Result {
			s.Helper()
			return s.commit(p, turnstone.Commit{
				Expected: turnstone.AnyRevision, Nodes: texts(nodes...), Leaf: leaf, Checkpoint: map[string][]byte{"p": []byte(value)},
			})
		}
		forks := 0
		begins := func(parent string, node graph.ID, want string) {
			s.Helper()
			forks++
			f := s.create(turnstone.Request{ID: fmt.Sprint("fork ", forks), Parent: parent, ForkNode: node})
			parts, err := f.Checkpoint(ctx, 0)
			s.must(err)
			s.equal("checkpoint of a fork of "+parent, string(parts["p"]), want)
		}
		p := s.create(turnstone.Request{ID: "p"})
		first := save(p, "1", turnstone.Ref{}, "a", "b").Nodes
		begins("p", first[0], "") // no turn ended at this node or before it
		save(p, "2", turnstone.Ref{})
		begins("p", first[1], "2") // the leaf
		third := save(p, "3", turnstone.Ref{}, "c", "d").Nodes
		begins("p", first[1], "2")
		begins("p", third[0], "2") // no turn ended at this node: the checkpoint is that of the turn before
		save(p, "4", turnstone.RefTo(first[1]))
		save(p, "5", turnstone.RefTo(third[0]))
		end := save(p, "6", turnstone.RefNone()).Revision
		begins("p", first[1], "4")
		begins("p", third[0], "5")
		begins("p", third[1], "3")
		begins("p", first[0], "")
		s.equal("revision", end, 6)

		// In a fork, its own turns count before the turns that it shares. Turns of the
		// parent after the fork don't count.
		f := s.create(turnstone.Request{ID: "f", Parent: "p", ForkNode: first[1]})
		save(p, "7", turnstone.RefTo(first[1]))
		begins("f", first[1], "4") // the leaf
		own := save(f, "8", turnstone.Ref{}, "own").Nodes
		begins("f", first[1], "4") // the checkpoint that f began with
		begins("f", first[0], "")
		save(f, "9", turnstone.RefTo(first[1]))
		save(f, "10", turnstone.RefTo(first[0]))
		save(f, "11", turnstone.RefNone())
		begins("f", first[1], "9")
		begins("f", first[0], "10")
		begins("f", own[0], "8")
		g := s.create(turnstone.Request{ID: "g", Parent: "f", ForkNode: own[0]})
		save(g, "12", turnstone.Ref{}, "more")
		begins("g", own[0], "8")
		begins("g", first[1], "4") // f had this checkpoint at its fork node; the later turns of f are not shared
		s.twice(func() {
			begins("f", first[0], "10")
			begins("p", first[1], "7")
		})
	}},
}
