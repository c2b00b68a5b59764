package persistencetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

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
	{name: "WA4_TheFeedHasEveryChangeOnceInOrder", test: func(s *suite) {
		_, err := s.Factory.Feed(ctx)
		s.is(err, turnstone.ErrFeedOff)
		for _, err := range s.Factory.Watch(ctx, turnstone.Cursor(strings.Repeat("0", 48))) {
			s.is(err, turnstone.ErrFeedOff)
		}
		old := s.create(turnstone.Request{ID: "old"})
		ids := s.grow(old, 0, "before", "hidden")
		s.is(s.Factory.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Millisecond}), turnstone.ErrInvalid)
		s.must(s.Factory.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}))
		f, err := s.Factory.Feed(ctx)
		s.must(err)
		s.equal("feed", []any{f.Begin, f.Keep}, []any{f.End, time.Hour})
		begin := f.End
		var want []string
		round := 0
		s.twice(func() {
			round++
			old := s.session("old")
			id := func(name string) string { return fmt.Sprint(name, round) }
			info, err := old.Info(ctx)
			s.must(err)
			r := info.Revision
			s.commit(old, turnstone.Commit{Expected: r, Nodes: texts("one")})
			s.commit(old, turnstone.Commit{Expected: r + 1, Leaf: turnstone.RefTo(ids[0])}) // which moves the leaf only
			_, err = old.Commit(ctx, turnstone.Commit{Expected: r, Nodes: texts("refused")})
			s.is(err, turnstone.ErrConflict)
			s.must(old.SaveMetadata(ctx, head.Metadata{Name: id("name")}))
			s.change(old, set("k", "no change of the feed")...)
			n := s.create(turnstone.Request{ID: id("new")})
			turn := turnstone.Commit{Turn: "t", Nodes: texts("x", "y")}
			done := s.commit(n, turn)
			_, err = n.Commit(ctx, turn) // a replay
			s.must(err)
			s.must(n.Tombstone(ctx, done.Nodes[0]))
			s.must(n.Tombstone(ctx, done.Nodes[0])) // nothing
			_, err = s.Factory.CommitAll(ctx,
				turnstone.SessionCommit{Session: old, Commit: turnstone.Commit{Expected: r + 2}},
				turnstone.SessionCommit{Create: &turnstone.Request{ID: id("fork"), Parent: id("new")}, Commit: turnstone.Commit{Nodes: texts("f")}})
			s.must(err)
			s.commit(n, turnstone.Commit{Expected: 1, Tombstone: done.Nodes[1:], Nodes: texts("z")})
			s.must(s.Factory.Delete(ctx, id("new"), turnstone.KeepChildren))
			s.must(s.Factory.Delete(ctx, id("new"), turnstone.KeepChildren)) // nothing
			s.create(turnstone.Request{ID: id("new")})
			want = append(want,
				fmt.Sprint("committed old ", r+1), fmt.Sprint("committed old ", r+2), "saved old 0", "created "+id("new")+" 0", "committed "+id("new")+" 1",
				"tombstoned "+id("new")+" 0", fmt.Sprint("committed old ", r+3), "created "+id("fork")+" 0", "committed "+id("fork")+" 1",
				"committed "+id("new")+" 2", "tombstoned "+id("new")+" 0", "deleted "+id("new")+" 0", "created "+id("new")+" 0")
			// Whoever begins at any place sees what follows it.
			cursors, of := []turnstone.Cursor{begin}, map[string]string{}
			for i := 0; i < len(want); i++ {
				n := i
				for c, err := range s.Factory.Watch(ctx, cursors[i]) {
					s.must(err)
					got := fmt.Sprint(c.Kind, " ", c.Session, " ", c.Revision)
					if i == 0 {
						cursors = append(cursors, c.Cursor)
						of[got+fmt.Sprint(n)] = c.Incarnation
					} else if c.Cursor != cursors[n+1] {
						s.Fatalf("change %d has another cursor than before", n)
					}
					if n == 6+13*(round-1) || n == 7+13*(round-1) || n == 8+13*(round-1) { // of one batch: in an order of their own
						if !slices.Contains(want[6+13*(round-1):9+13*(round-1)], got) {
							s.Fatalf("change %d is %s", n, got)
						}
					} else if n >= 13*(round-1) && got != want[n] {
						s.Fatalf("change %d is %s, want %s", n, got, want[n])
					}
					if n++; n == len(want) {
						break
					}
				}
			}
			last := 13 * round
			if a, b := of[want[last-2]+fmt.Sprint(last-2)], of[want[last-1]+fmt.Sprint(last-1)]; a == "" || a == b || a != of[want[last-10]+fmt.Sprint(last-10)] {
				s.Fatalf("the deleted session is %s, that of the same id is %s", a, b)
			}
			f, err := s.Factory.Feed(ctx)
			s.must(err)
			s.equal("feed", []any{f.Begin, f.End}, []any{begin, cursors[len(want)]})
		})
		for _, bad := range []turnstone.Cursor{"", "x", begin + "00", turnstone.Cursor(strings.Repeat("z", 48))} {
			for _, err := range s.Factory.Watch(ctx, bad) {
				s.is(err, turnstone.ErrInvalid)
			}
		}
		// It ends, and begins anew as another feed.
		s.must(s.Factory.StopFeed(ctx))
		s.must(s.Factory.StopFeed(ctx))
		s.commit(s.session("old"), turnstone.Commit{Expected: turnstone.AnyRevision})
		_, err = s.Factory.Feed(ctx)
		s.is(err, turnstone.ErrFeedOff)
		s.must(s.Factory.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}))
		s.must(s.Factory.StartFeed(ctx, turnstone.FeedOptions{Keep: 2 * time.Hour}))
		for _, err := range s.Factory.Watch(ctx, begin) {
			s.is(err, turnstone.ErrCursorExpired)
		}
		f, err = s.Factory.Feed(ctx)
		s.must(err)
		r := s.commit(s.session("old"), turnstone.Commit{Expected: turnstone.AnyRevision})
		for c, err := range s.Factory.Watch(ctx, f.End) {
			s.must(err)
			s.equal("first change", []any{c.Kind, c.Session, c.Revision}, []any{turnstone.ChangeCommitted, "old", r.Revision})
			break
		}
	}},
	{name: "WA19_TheFeedHasChangesOfRecordsIfAskedFor", test: func(s *suite) {
		a, b := s.create(turnstone.Request{ID: "a"}), s.create(turnstone.Request{ID: "b"})
		s.change(a, set("before", "v")...)
		s.must(s.Factory.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}))
		f, err := s.Factory.Feed(ctx)
		s.must(err)
		s.change(a, set("not asked for", "v")...)
		s.must(s.Factory.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour, Records: true}))
		now, err := s.Factory.Feed(ctx)
		s.must(err)
		if now.Switches <= f.Switches {
			s.Errorf("the feed was switched %d times and then %d times", f.Switches, now.Switches)
		}
		s.equal("feed", now, turnstone.Feed{Begin: f.Begin, End: f.End, Keep: time.Hour, Records: true, Switches: now.Switches})
		told := make(chan string, 100)
		watch, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			for c, err := range s.Factory.Watch(watch, f.End) {
				if err != nil {
					told <- "ended"
					return
				}
				told <- fmt.Sprint(c.Kind, " ", c.Session, " ", c.Record, c.To)
			}
		}()
		// The changes of one batch come in an order of their own.
		has := func(want ...string) {
			var got []string
			for range want {
				got = append(got, <-told)
			}
			slices.Sort(got)
			slices.Sort(want)
			s.equal("told", got, want)
		}
		v := s.change(a, set("k", "1")...)
		has("record a k")
		s.change(a, turnstone.RecordChange{Key: "k", Expect: v[0], Value: []byte("2")})
		has("record a k")
		_, err = a.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Records: []turnstone.RecordChange{{Key: "k", Expect: v[0], Value: []byte("3")}}})
		s.is(err, turnstone.ErrRecordConflict)
		r := s.commit(a, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: texts("n"), Records: set("l", "1")})
		has("committed a ", "record a l")
		_, err = s.Factory.CommitAll(ctx,
			turnstone.SessionCommit{Session: a, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{
				{Key: "k", Action: turnstone.DeleteRecord}, {Key: "l", Action: turnstone.CheckRecord, Expect: r.Records[0]},
			}}},
			turnstone.SessionCommit{Session: b, RecordsOnly: true, Commit: turnstone.Commit{Records: set("k", "1")}},
			turnstone.SessionCommit{Create: &turnstone.Request{ID: "c"}, RecordsOnly: true, Commit: turnstone.Commit{Records: set("first", "1")}})
		s.must(err)
		has("record a k", "record b k", "created c ", "record c first")
		s.must(s.Factory.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}))
		s.change(b, set("no more", "v")...)
		s.must(s.Factory.Delete(ctx, "c", turnstone.KeepChildren))
		has("deleted c ")
		s.must(s.Factory.StopFeed(ctx))
		has("ended")
		s.change(b, set("off", "v")...)
	}},
	{name: "WA5_TheFeedBesideWritersMissesNothing", test: func(s *suite) {
		const writers, each = 8, 30
		s.must(s.Factory.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}))
		f, err := s.Factory.Feed(ctx)
		s.must(err)
		begin := f.End
		for i := range writers {
			s.create(turnstone.Request{ID: fmt.Sprint("s", i)})
		}
		var wg sync.WaitGroup
		errs := make([]error, writers+1)
		for w := range writers {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(1, uint64(w)))
				for i := 0; errs[w] == nil && i < each; i++ {
					a, err := s.Factory.Session(ctx, fmt.Sprint("s", rng.IntN(writers)))
					b, berr := s.Factory.Session(ctx, fmt.Sprint("s", rng.IntN(writers)))
					if errs[w] = errors.Join(err, berr); errs[w] != nil {
						break
					}
					c := turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: texts("x")}
					switch {
					case a.ID() != b.ID() && i%3 == 0:
						_, errs[w] = s.Factory.CommitAll(ctx, turnstone.SessionCommit{Session: a, Commit: c}, turnstone.SessionCommit{Session: b, Commit: c})
					case i%7 == 0:
						id := fmt.Sprint("short ", w, " ", i)
						_, errs[w] = s.Factory.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: id}, Commit: turnstone.Commit{Nodes: texts("x")}})
						errs[w] = errors.Join(errs[w], s.Factory.Delete(ctx, id, turnstone.KeepChildren))
					default:
						_, errs[w] = a.Commit(ctx, c)
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		wg.Go(func() {
			for i := 0; errs[writers] == nil && i < 3; i++ {
				_, err := s.Factory.GC(ctx, gc.Options{})
				_, verr := s.Factory.Vacuum(ctx, gc.VacuumOptions{})
				errs[writers] = errors.Join(err, verr)
			}
		})
		// Three watchers, each begun anew after every few changes, see the same: the history.
		watched := make([][]string, 3)
		revisions := make([]map[string]head.Revision, 3)
		failed := make([]error, 3)
		var watchers sync.WaitGroup
		for i := range watched {
			watchers.Go(func() {
				at, ended, last := begin, map[string]bool{}, map[string]head.Revision{}
				revisions[i] = last
				for idle := 0; idle < 2; {
					limited, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
					n := 0
					for c, err := range s.Factory.Watch(limited, at) {
						if errors.Is(err, context.DeadlineExceeded) {
							break
						}
						switch {
						case err != nil:
							failed[i] = err
						case ended[c.Incarnation]:
							failed[i] = fmt.Errorf("%s %s after its deletion", c.Kind, c.Session)
						case c.Kind == turnstone.ChangeCommitted && c.Revision != last[c.Session]+1:
							failed[i] = fmt.Errorf("revision %d of %s after %d", c.Revision, c.Session, last[c.Session])
						}
						if failed[i] != nil {
							cancel()
							return
						}
						if c.Kind == turnstone.ChangeCommitted {
							last[c.Session] = c.Revision
						}
						ended[c.Incarnation] = c.Kind == turnstone.ChangeDeleted
						watched[i], at = append(watched[i], fmt.Sprint(c.Kind, c.Incarnation, c.Revision, c.Cursor)), c.Cursor
						if n++; n == 11 {
							break
						}
					}
					cancel()
					select {
					case <-done:
						if n == 0 {
							idle++
						}
					default:
					}
				}
			})
		}
		watchers.Wait()
		wg.Wait()
		s.must(errors.Join(errs...))
		s.must(errors.Join(failed...))
		for i := range watched {
			s.equal("what watchers see", watched[i], watched[0])
			for w := range writers {
				id := fmt.Sprint("s", w)
				s.equal("last revision of "+id, revisions[i][id], s.load(s.session(id), turnstone.Scope{Last: 1}).Revision)
			}
		}
	}},
}
