package persistencetest

import (
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
)

var operations = []behaviour{
	{name: "OP1_ASessionIsMaintainedThroughItsInterface", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		var ids []graph.ID
		for i, payload := range []string{"1", "2", "3", "4"} {
			r := s.commit(p, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: texts(payload), Checkpoint: map[string][]byte{"p": []byte(payload)}})
			s.equal("revision", r.Revision, i+1)
			ids = append(ids, r.Nodes...)
		}
		moved, err := p.Prune(ctx, 2)
		s.must(err)
		again, err := p.Prune(ctx, 3)
		s.must(err)
		s.equal("the floor moves, and never back", []bool{moved, again}, []bool{true, false})
		s.must(p.Seal(ctx))
		s.twice(func() {
			_, err := s.session("a").Checkpoint(ctx, 2)
			s.is(err, turnstone.ErrRevisionPruned)
			_, err = s.session("a").Checkpoint(ctx, 3)
			s.must(err)
			s.reads(s.session("a"), turnstone.Scope{}, "1", "2", "3", "4")
		})
		p = s.session("a")
		_, err = p.Erase(ctx, turnstone.EraseOptions{}, graph.ID{1})
		s.is(err, turnstone.ErrNodeNotFound)
		_, err = p.Erase(ctx, turnstone.EraseOptions{Pace: 2}, ids[1])
		s.is(err, turnstone.ErrInvalid)
		s.reads(p, turnstone.Scope{}, "1", "2", "3", "4")
		r, err := p.Erase(ctx, turnstone.EraseOptions{Pace: 1}, ids[1])
		s.must(err)
		s.equal("receipt", []any{r.Vacuum != nil, len(r.HeldBy), r.Uploads}, []any{true, 0, 0})
		s.twice(func() { s.reads(s.session("a"), turnstone.Scope{}, "1", "3", "4") })
		p = s.session("a")
		s.must(s.Factory.Delete(ctx, "a", turnstone.KeepChildren))
		_, err = p.Prune(ctx, 1)
		s.is(err, turnstone.ErrSessionDeleted)
		s.is(p.Seal(ctx), turnstone.ErrSessionDeleted)
		_, err = p.Erase(ctx, turnstone.EraseOptions{}, ids[0])
		s.is(err, turnstone.ErrSessionDeleted)
	}},
	{name: "OP2_AStoreIsMaintainedThroughAnInterface", test: func(s *suite) {
		if _, ok := s.Factory.(turnstone.Operator); !ok {
			s.Skip("the factory is no turnstone.Operator")
		}
		op := func() turnstone.Operator { return s.Factory.(turnstone.Operator) }
		for _, id := range []string{"a", "b", "c"} {
			p := s.create(turnstone.Request{ID: id})
			s.grow(p, 0, "1 of "+id, "2 of "+id, "3 of "+id)
		}
		s.create(turnstone.Request{ID: "child", Parent: "b"})
		s.twice(func() {
			st, err := op().Stats(ctx)
			s.must(err)
			s.equal("stats", []any{st.Sessions, st.Commits, st.Nodes, st.Deleted, st.Format > 0, st.Stored.Records > 0, len(st.ByKind) > 1}, []any{4, 9, 9, 0, true, true, true})
			v, err := op().Verify(ctx, turnstone.VerifyOptions{Progress: func(int) {}})
			s.must(err)
			s.equal("verification", []any{v.OK(), v.Sessions, v.Commits, v.Nodes, v.Records > 0}, []any{true, 4, 9, 9, true})
		})
		_, err := op().Prune(ctx, gc.PruneOptions{Age: -1})
		s.is(err, turnstone.ErrInvalid)
		plan, err := op().Prune(ctx, gc.PruneOptions{Revisions: 1, DryRun: true})
		s.must(err)
		done, err := op().Prune(ctx, gc.PruneOptions{Revisions: 1})
		s.must(err)
		s.equal("prune", []any{plan.Sessions, done.Sessions, done.Revisions, len(done.Deleted)}, []any{3, 3, 9, 0})
		done, err = op().Prune(ctx, gc.PruneOptions{Group: "no/such", Revisions: 1, Inactive: 1})
		s.must(err)
		s.equal("pruned of a group that there is not", [2]int{done.Sessions, len(done.Deleted)}, [2]int{})
		_, err = op().Prune(ctx, gc.PruneOptions{Group: "a//b", Revisions: 1})
		s.is(err, turnstone.ErrInvalid)
		done, err = op().Prune(ctx, gc.PruneOptions{Inactive: time.Hour})
		s.must(err)
		s.equal("inactive for an hour", len(done.Deleted), 0)
		s.must(op().Seal(ctx))
		st, err := op().Stats(ctx)
		s.must(err)
		s.equal("loose", st.Loose, 0)
		up, err := op().Upgrade(ctx)
		s.must(err)
		s.equal("upgrade", []any{up.From == st.Format, up.To >= up.From}, []any{true, true})
		_, err = op().Erase(ctx, "nobody", turnstone.KeepChildren, turnstone.EraseOptions{})
		s.is(err, turnstone.ErrSessionNotFound)
		_, err = op().Erase(ctx, "b", turnstone.KeepChildren, turnstone.EraseOptions{Pace: -1})
		s.is(err, turnstone.ErrInvalid)
		s.reads(s.session("b"), turnstone.Scope{}, "1 of b", "2 of b", "3 of b")
		_, err = op().Erase(ctx, "b", turnstone.ChildPolicy(99), turnstone.EraseOptions{})
		s.is(err, turnstone.ErrInvalid)
		_, err = op().Erase(ctx, "b", turnstone.RefuseChildren, turnstone.EraseOptions{})
		s.is(err, turnstone.ErrHasChildren)
		var phases []string
		r, err := op().Erase(ctx, "a", turnstone.KeepChildren, turnstone.EraseOptions{Progress: func(p gc.Progress) { phases = append(phases, p.Phase) }})
		s.must(err)
		s.equal("receipt", []any{r.Vacuum != nil, len(r.HeldBy)}, []any{true, 0})
		r, err = op().Erase(ctx, "b", turnstone.KeepChildren, turnstone.EraseOptions{})
		s.must(err)
		s.equal("held by", r.HeldBy, []string{"child"})
		_, err = op().Erase(ctx, "c", turnstone.CascadeChildren, turnstone.EraseOptions{})
		s.must(err)
		s.twice(func() {
			for _, id := range []string{"a", "b", "c"} {
				_, err := s.Factory.Session(ctx, id)
				s.is(err, turnstone.ErrSessionNotFound)
			}
			s.reads(s.session("child"), turnstone.Scope{}, "1 of b", "2 of b", "3 of b")
			v, err := op().Verify(ctx, turnstone.VerifyOptions{})
			s.must(err)
			s.equal("whole", v.OK(), true)
		})
	}},
}
