package persistencetest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
)

// watching starts to watch a session, and returns what is yielded, and the error that it ends with.
func (s *suite) watching(ctx context.Context, id string, after head.Revision) (<-chan turnstone.LogEntry, <-chan error) {
	p := s.session(id)
	entries, ended := make(chan turnstone.LogEntry), make(chan error, 1)
	go func() {
		for e, err := range p.Watch(ctx, after) {
			if err != nil {
				ended <- err
				return
			}
			entries <- e
		}
		ended <- nil
	}()
	return entries, ended
}

var watches = []behaviour{
	{name: "WA1_AWatchYieldsEachCommitOnceInOrder", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		ids := s.grow(p, 0, "one", "two")
		s.twice(func() {
			p := s.session("a")
			info, err := p.Info(ctx)
			s.must(err)
			at := info.Revision
			watch, end := context.WithCancel(ctx)
			all, allEnded := s.watching(watch, "a", 0)
			since, sinceEnded := s.watching(watch, "a", at)
			for r := head.Revision(1); r <= at; r++ {
				s.equal("revision", (<-all).Revision, r)
			}
			// What comes is yielded as the log tells it: commits of any handle, and those that only move the leaf.
			for i := range head.Revision(3) {
				c := turnstone.Commit{Expected: at + i, Turn: fmt.Sprint(at, "/", i), Nodes: texts("new")}
				if i == 1 {
					c = turnstone.Commit{Expected: at + i, Leaf: turnstone.RefTo(ids[0])}
				}
				r := s.commit(s.session("a"), c)
				for _, entries := range []<-chan turnstone.LogEntry{all, since} {
					e := <-entries
					s.equal("entry", []any{e.Revision, e.Commit, e.Leaf, e.Turn, e.Nodes}, []any{r.Revision, r.Commit, r.Leaf, c.Turn, len(c.Nodes)})
				}
			}
			end()
			for _, ended := range []<-chan error{allEnded, sinceEnded} {
				s.is(<-ended, context.Canceled)
			}
			n := 0
			for _, err := range p.Watch(ctx, 0) { // A caller that has enough ends it.
				s.must(err)
				if n++; n == 2 {
					break
				}
			}
		})
	}},
	{name: "WA2_AWatchEndsWithItsSession", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		s.grow(p, 0, "one")
		entries, ended := s.watching(ctx, "a", 0)
		<-entries
		s.must(s.Factory.Delete(ctx, "a", turnstone.KeepChildren))
		s.is(<-ended, turnstone.ErrSessionDeleted)
		for _, err := range p.Watch(ctx, turnstone.AnyRevision) {
			s.is(err, turnstone.ErrInvalid)
		}
	}},
	{name: "WA3_AWatchBesideWritersAndMaintenanceMissesNothing", test: func(s *suite) {
		const writers, each = 4, 60
		p := s.create(turnstone.Request{ID: "a"})
		var wg sync.WaitGroup
		errs := make([]error, writers+1)
		for w := range writers {
			wg.Go(func() {
				p, err := s.Factory.Session(ctx, "a")
				for i := 0; err == nil && i < each; i++ {
					_, err = p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: texts(string(pattern(500, byte(i))))})
				}
				errs[w] = err
			})
		}
		wg.Go(func() {
			for i := 0; errs[writers] == nil && i < 5; i++ {
				_, errs[writers] = s.Factory.Vacuum(ctx, gc.VacuumOptions{})
			}
		})
		// It is begun anew after every few commits.
		var seen []head.CommitID
		for len(seen) < writers*each {
			n := 0
			for e, err := range p.Watch(ctx, head.Revision(len(seen))) {
				s.must(err)
				s.equal("revision", e.Revision, len(seen)+1)
				seen = append(seen, e.Commit)
				if n++; n == 7 || len(seen) == writers*each {
					break
				}
			}
		}
		wg.Wait()
		s.must(errors.Join(errs...))
		st := s.load(s.session("a"), turnstone.Scope{})
		s.equal("last commit", seen[len(seen)-1], st.Commit)
	}},
}
