package persistencetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/draft"
	"github.com/turnstonedb/turnstone/lease"
	"github.com/turnstonedb/turnstone/queue"
)

// A clock is one that a test sets.
type clock struct{ atomic.Int64 }

func (c *clock) now() time.Time { return time.Unix(1_800_000_000, c.Load()) }

func (c *clock) pass(d time.Duration) { c.Add(int64(d)) }

// holder returns options of a lease of a minute.
func (c *clock) holder(name string) lease.Options {
	return lease.Options{Holder: name, TTL: time.Minute, Now: c.now}
}

func (s *suite) acquire(id, key string, o lease.Options) *lease.Lease {
	s.Helper()
	l, err := lease.Acquire(ctx, s.session(id), key, o)
	s.must(err)
	return l
}

// heldBy checks that a lease can't be acquired, and who has it.
func (s *suite) heldBy(id, key, holder string, o lease.Options) {
	s.Helper()
	_, err := lease.Acquire(ctx, s.session(id), key, o)
	s.is(err, lease.ErrHeld)
	var held *lease.HeldError
	if !errors.As(err, &held) || held.Holder != holder || held.Key != key || held.Token == 0 {
		s.Fatalf("%v; want it to be held by %s", err, holder)
	}
}

var workers = []behaviour{
	{name: "L1_ALeaseHasOneHolder", test: func(s *suite) {
		var c clock
		s.create(turnstone.Request{ID: "a"})
		s.create(turnstone.Request{ID: "b"})
		l := s.acquire("a", "run", c.holder("one"))
		s.equal("token", l.Token(), 1)
		s.twice(func() {
			s.heldBy("a", "run", "one", c.holder("two"))
			s.heldBy("a", "run", "one", c.holder("one")) // A holder is a call, not a name.
		})
		s.acquire("b", "run", c.holder("two"))
		s.acquire("a", "other", c.holder("two"))
		// It can be taken over when it has expired, and not before.
		l = s.acquire("b", "expires", c.holder("one"))
		c.pass(59 * time.Second)
		s.heldBy("b", "expires", "one", c.holder("two"))
		s.must(l.Renew(ctx))
		c.pass(59 * time.Second)
		s.heldBy("b", "expires", "one", c.holder("two"))
		c.pass(time.Second)
		second := s.acquire("b", "expires", c.holder("two"))
		s.equal("token", second.Token(), 2)
		s.is(l.Renew(ctx), lease.ErrFenced)
		s.is(l.Release(ctx), lease.ErrFenced)
		s.heldBy("b", "expires", "two", c.holder("three"))
		// It can be stolen before, and given back.
		steal := c.holder("three")
		steal.Steal = true
		third := s.acquire("b", "expires", steal)
		s.is(second.Renew(ctx), lease.ErrFenced)
		s.must(third.Release(ctx))
		s.is(third.Release(ctx), lease.ErrFenced)
		s.is(third.Renew(ctx), lease.ErrFenced)
		s.equal("token", s.acquire("b", "expires", c.holder("four")).Token(), 4)
		_, err := lease.Acquire(ctx, nil, "x", c.holder("one"))
		s.is(err, turnstone.ErrInvalid)
		_, err = lease.Acquire(ctx, s.session("a"), "", c.holder("one"))
		s.is(err, turnstone.ErrInvalid)
		s.change(s.session("a"), set("text", "no lease")...)
		if _, err = lease.Acquire(ctx, s.session("a"), "text", c.holder("one")); err == nil {
			s.Error("a record of something else was taken for a lease")
		}
	}},
	{name: "L2_WhoHasLostALeaseCommitsNothing", test: func(s *suite) {
		var c clock
		s.create(turnstone.Request{ID: "a"})
		s.create(turnstone.Request{ID: "b"})
		l := s.acquire("a", "run", c.holder("one"))
		r, err := l.Commit(ctx, turnstone.Commit{Nodes: texts("one"), Records: set("k", "1")})
		s.must(err)
		s.equal("result", []any{r.Revision, len(r.Records)}, []any{1, 1})
		// A renewal is not in the way of a commit that was prepared before.
		prepared := turnstone.Commit{Expected: 1, Nodes: texts("two"), Records: []turnstone.RecordChange{l.Require()}}
		s.must(l.Renew(ctx))
		s.commit(s.session("a"), prepared)
		// Nor does it end by itself: as long as nobody takes it over, the holder has it.
		c.pass(time.Hour)
		_, err = l.Commit(ctx, turnstone.Commit{Expected: 2, Turn: "t", Nodes: texts("three")})
		s.must(err)
		second := s.acquire("a", "run", c.holder("two"))
		_, err = l.Commit(ctx, turnstone.Commit{Expected: 3, Nodes: texts("stale")}) // at the right revision
		s.is(err, lease.ErrFenced)
		s.reads(s.session("a"), turnstone.Scope{}, "one", "two", "three")
		_, err = s.Factory.CommitAll(ctx,
			turnstone.SessionCommit{Session: s.session("b"), Commit: turnstone.Commit{Nodes: texts("stale")}},
			turnstone.SessionCommit{Session: s.session("a"), RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{l.Require()}}})
		s.is(l.Err(err), lease.ErrFenced)
		s.reads(s.session("b"), turnstone.Scope{})
		_, err = s.Factory.CommitAll(ctx,
			turnstone.SessionCommit{Session: s.session("b"), Commit: turnstone.Commit{Nodes: texts("of the second")}},
			turnstone.SessionCommit{Session: s.session("a"), RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{second.Require()}}})
		s.must(err)
		s.twice(func() {
			s.reads(s.session("a"), turnstone.Scope{}, "one", "two", "three")
			s.reads(s.session("b"), turnstone.Scope{}, "of the second")
		})
	}},
	{name: "L2_ARepeatedTurnNeedsNoLease", test: func(s *suite) {
		var c clock
		s.create(turnstone.Request{ID: "a"})
		l := s.acquire("a", "run", c.holder("one"))
		first, err := l.Commit(ctx, turnstone.Commit{Turn: "t", Nodes: texts("one")})
		s.must(err)
		s.must(l.Release(ctx))
		again, err := l.Commit(ctx, turnstone.Commit{Turn: "t", Nodes: texts("one")})
		s.must(err)
		s.equal("replay", []any{again.Replayed, again.Commit}, []any{true, first.Commit})
	}},
	{name: "L3_OfManyWhoAcquireOneDoes", test: func(s *suite) {
		const rounds, n = 6, 8
		var c clock
		s.create(turnstone.Request{ID: "a"})
		for round := range rounds {
			var wg sync.WaitGroup
			ls, errs := make([]*lease.Lease, n), make([]error, n)
			for w := range n {
				wg.Go(func() {
					p, err := s.Factory.Session(ctx, "a")
					if err == nil {
						ls[w], err = lease.Acquire(ctx, p, "run", c.holder(fmt.Sprint(w)))
					}
					errs[w] = err
				})
			}
			wg.Wait()
			holders := 0
			for w := range n {
				if errs[w] == nil {
					holders++
					s.equal("token", ls[w].Token(), round+1)
				} else {
					s.is(errs[w], lease.ErrHeld)
				}
			}
			s.equal("holders", holders, 1)
			c.pass(time.Minute)
		}
	}},
	{name: "L4_AKeptLeaseEndsWhenItIsLost", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		o := lease.Options{Holder: "one", TTL: 3 * time.Second}
		l := s.acquire("a", "run", o)
		first, err := s.session("a").Record(ctx, ".run")
		s.must(err)
		held, stop := l.Keep(ctx)
		for now := first; now.Version == first.Version; { // It is renewed.
			now, err = s.session("a").Record(ctx, ".run")
			s.must(err)
			time.Sleep(10 * time.Millisecond)
		}
		if held.Err() != nil {
			s.Fatal(context.Cause(held))
		}
		o.Steal = true
		s.acquire("a", "run", o)
		<-held.Done()
		s.is(context.Cause(held), lease.ErrFenced)
		stop()
		held, stop = s.acquire("a", "other", o).Keep(ctx)
		stop()
		s.is(held.Err(), context.Canceled)
	}},
	{name: "Q1_MessagesAreClaimedInOrderAndAcknowledgedWithTheirTurn", test: func(s *suite) {
		var c clock
		s.create(turnstone.Request{ID: "a"})
		s.create(turnstone.Request{ID: "b"})
		for i := range 3 {
			s.change(s.session("a"), queue.Put("in", fmt.Append(nil, i)))
		}
		s.change(s.session("a"), queue.Put("in/other", []byte("of another queue")))
		s.commit(s.session("b"), turnstone.Commit{Nodes: texts("sends"), Records: []turnstone.RecordChange{queue.PutAs("in", "id", []byte("with a commit"))}})
		_, err := s.session("b").ChangeRecords(ctx, queue.PutAs("in", "id", []byte("twice")))
		s.is(err, turnstone.ErrRecordConflict)
		for i := range 3 {
			m, err := queue.Claim(ctx, s.session("a"), "in", c.holder("one"))
			s.must(err)
			s.equal("message", []any{string(m.Value), m.Attempts, m.Session.ID()}, []any{fmt.Sprint(i), 1, "a"})
			turn := turnstone.Commit{Expected: turnstone.AnyRevision, Turn: m.ID, Nodes: texts("answer " + string(m.Value)), Records: set("last", string(m.Value))}
			r, err := m.Commit(ctx, turn)
			s.must(err)
			s.equal("records", len(r.Records), 1)
			again, err := m.Commit(ctx, turn)
			s.must(err)
			s.equal("replay", []any{again.Replayed, again.Commit}, []any{true, r.Commit})
			s.is(m.Ack(ctx), lease.ErrFenced)
		}
		s.twice(func() {
			_, err := queue.Claim(ctx, s.session("a"), "in", c.holder("one"))
			s.is(err, queue.ErrEmpty)
			s.reads(s.session("a"), turnstone.Scope{}, "answer 0", "answer 1", "answer 2")
			page, err := s.session("a").Records(ctx, turnstone.RecordQuery{})
			s.must(err)
			s.equal("what is left", len(page.Records), 2) // the last one, and the message of the other queue
		})
		m, err := queue.Claim(ctx, s.session("b"), "in", c.holder("one"))
		s.must(err)
		s.equal("message", []any{string(m.Value), m.ID}, []any{"with a commit", "id"})
		s.must(m.Ack(ctx))
		s.change(s.session("b"), queue.PutAs("in", "id", []byte("again")))
		_, err = queue.Claim(ctx, s.session("a"), "", c.holder("one"))
		s.is(err, turnstone.ErrInvalid)
		_, err = s.session("a").ChangeRecords(ctx, queue.Put("", nil))
		s.is(err, turnstone.ErrInvalid)
		_, err = s.session("a").ChangeRecords(ctx, queue.PutAs("in", "", nil))
		s.is(err, turnstone.ErrInvalid)
		// Names and ids may have slashes: no two queues share a message.
		names := []string{"x", "x/", "x/y", "/", "x%2Fy", "y"}
		for _, name := range names {
			s.change(s.session("b"), queue.PutAs(name, "y/"+name, []byte(name)))
		}
		for _, name := range names {
			m, err := queue.Claim(ctx, s.session("b"), name, c.holder("one"))
			s.must(err)
			s.equal("message", []string{m.ID, string(m.Value)}, []string{"y/" + name, name})
			_, err = queue.Claim(ctx, s.session("b"), name, c.holder("one"))
			s.is(err, queue.ErrEmpty)
		}
	}},
	{name: "Q2_AMessageIsGivenBackWhenItsClaimEnds", test: func(s *suite) {
		var c clock
		s.create(turnstone.Request{ID: "a"})
		s.change(s.session("a"), queue.PutAs("in", "1", []byte("first")), queue.PutAs("in", "2", []byte("second")))
		claim := func(who string) *queue.Message {
			s.Helper()
			m, err := queue.Claim(ctx, s.session("a"), "in", c.holder(who))
			s.must(err)
			return m
		}
		one, two := claim("one"), claim("two")
		s.equal("claimed", []string{one.ID, two.ID}, []string{"1", "2"})
		_, err := queue.Claim(ctx, s.session("a"), "in", c.holder("three"))
		s.is(err, queue.ErrEmpty)
		s.must(two.Return(ctx))
		two = claim("three")
		s.equal("claimed again", []any{two.ID, two.Attempts}, []any{"2", 2})
		c.pass(time.Minute)
		s.must(two.Lease().Renew(ctx))
		again := claim("four")
		s.equal("claimed after the lease", []any{again.ID, again.Attempts}, []any{"1", 2})
		// The first worker comes too late, at any revision.
		_, err = one.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: texts("late")})
		s.is(err, lease.ErrFenced)
		s.is(one.Ack(ctx), lease.ErrFenced)
		_, err = again.Commit(ctx, turnstone.Commit{Nodes: texts("in time")})
		s.must(err)
		s.must(two.Ack(ctx))
		s.twice(func() {
			s.reads(s.session("a"), turnstone.Scope{}, "in time")
			s.hasRecords(s.session("a"))
		})
	}},
	{name: "Q3_AQueueOverManySessions", test: func(s *suite) {
		var c clock
		for i := range 5 {
			p := s.create(turnstone.Request{ID: fmt.Sprint("s", i)})
			s.change(p, queue.PutAs("jobs", fmt.Sprint(9-i), []byte(p.ID())), queue.PutAs("jobs", fmt.Sprint("x", i), []byte(p.ID())))
		}
		s.must(s.Factory.Delete(ctx, "s4", turnstone.KeepChildren))
		s.twice(func() {
			for i := range 4 {
				m, err := queue.ClaimAny(ctx, s.Factory, "jobs", c.holder("one"))
				s.must(err)
				s.equal("message", []string{m.ID, m.Session.ID(), string(m.Value)}, []string{fmt.Sprint(6 + i), fmt.Sprint("s", 3-i), fmt.Sprint("s", 3-i)})
				s.must(m.Return(ctx))
				_, err = queue.ClaimAny(ctx, s.Factory, "jobs", c.holder("another")) // the same one
				s.must(err)
			}
			c.pass(time.Hour) // All claims have expired.
		})
	}},
	{name: "Q4_EveryMessageHasOneEffect", test: func(s *suite) {
		const producers, each, consumers = 3, 12, 5
		var c clock
		for i := range producers {
			s.create(turnstone.Request{ID: fmt.Sprint("s", i)})
		}
		var wg sync.WaitGroup
		var done atomic.Int64
		errs := make([]error, producers+consumers)
		for w := range producers {
			wg.Go(func() {
				p, err := s.Factory.Session(ctx, fmt.Sprint("s", w))
				for i := 0; err == nil && i < each; i++ {
					_, err = p.ChangeRecords(ctx, queue.Put("in", fmt.Append(nil, w, "/", i)))
				}
				errs[w] = err
			})
		}
		for w := range consumers {
			wg.Go(func() {
				for i := 0; done.Load() < producers*each; i++ {
					m, err := queue.ClaimAny(ctx, s.Factory, "in", c.holder(fmt.Sprint(w)))
					if errors.Is(err, queue.ErrEmpty) {
						c.pass(time.Second) // Claims that nobody finishes expire.
						continue
					}
					if err != nil {
						errs[producers+w] = err
						return
					}
					if (i+w)%4 == 0 {
						continue // It crashes, and the message waits for its lease to end.
					}
					if (i+w)%4 == 1 {
						c.pass(time.Minute) // It is slow, and others may have claimed the message.
					}
					_, err = m.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: texts(string(m.Value))})
					switch {
					case err == nil:
						done.Add(1)
					case !errors.Is(err, lease.ErrFenced):
						errs[producers+w] = err
						return
					}
				}
			})
		}
		wg.Wait()
		s.must(errors.Join(errs...))
		s.twice(func() {
			seen := map[string]int{}
			for i := range producers {
				for _, n := range s.load(s.session(fmt.Sprint("s", i)), turnstone.Scope{}).Nodes {
					seen[string(n.Payload)]++
				}
				s.hasRecords(s.session(fmt.Sprint("s", i)))
			}
			s.equal("messages", len(seen), producers*each)
			for m, n := range seen {
				s.equal("effects of "+m, n, 1)
			}
		})
	}},
}

var drafts = []behaviour{
	{name: "DR1_ADraftGivesWayToItsTurn", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		open := func(name string, want []byte) *draft.Draft {
			s.Helper()
			d, err := draft.Open(ctx, s.session("a"), name)
			s.must(err)
			s.equal("content is right", bytes.Equal(d.Content(), want), true)
			return d
		}
		names := func(want ...string) {
			s.Helper()
			have, err := draft.Names(ctx, s.session("a"))
			s.must(err)
			s.equal("names", have, want)
		}
		names()
		d := open("t1", nil)
		s.must(d.Set(ctx, nil))
		names()
		text := pattern(draft.Max, 1)
		for at := 0; at < 100_000; at += 7001 {
			s.must(d.Append(ctx, text[at:at+7001]))
		}
		text = text[:15*7001]
		s.must(open("t1/00", nil).Set(ctx, []byte("of another turn"))) // names that look like parts of the other one
		s.must(open("t1/n", nil).Set(ctx, []byte("of another turn")))
		s.must(open("t1-a", nil).Set(ctx, []byte("of another turn")))
		s.twice(func() {
			open("t1", text)
			names("t1", "t1-a", "t1/00", "t1/n")
		})
		// What has not changed is not written again.
		d = open("t1", text)
		before, err := s.session("a").Records(ctx, turnstone.RecordQuery{Prefix: ".draft/t1/"})
		s.must(err)
		s.must(d.Append(ctx, []byte("more")))
		after, err := s.session("a").Records(ctx, turnstone.RecordQuery{Prefix: ".draft/t1/"})
		s.must(err)
		written := 0
		for i, r := range after.Records {
			if r.Version != before.Records[i].Version {
				written++
			}
		}
		s.equal("records written", written, 2) // the last piece, and how many there are
		for _, n := range []int{draft.Max, 16 << 10, 16<<10 + 1, 1, 0, 40_000} {
			text := pattern(n, 2)
			s.must(d.Set(ctx, text))
			open("t1", text)
		}
		text = pattern(40_000, 2)
		var limit *turnstone.LimitError
		if err := d.Set(ctx, make([]byte, draft.Max+1)); !errors.As(err, &limit) || limit.Max != draft.Max {
			s.Fatalf("%v", err)
		}
		// Nothing of it is in the history, and a commit that is refused leaves it.
		p := s.session("a")
		s.reads(p, turnstone.Scope{})
		turn := turnstone.Commit{Expected: 7, Turn: "t1", Nodes: texts("whole"), Records: d.Done()}
		_, err = p.Commit(ctx, turn)
		s.is(err, turnstone.ErrConflict)
		open("t1", text)
		turn.Expected = 0
		s.commit(p, turn)
		s.twice(func() {
			open("t1", nil)
			names("t1-a", "t1/00", "t1/n")
			s.reads(s.session("a"), turnstone.Scope{}, "whole")
		})
		for _, err := range []error{second(draft.Open(ctx, nil, "x")), second(draft.Open(ctx, s.session("a"), "")), second(draft.Names(ctx, nil))} {
			s.is(err, turnstone.ErrInvalid)
		}
	}},
	{name: "DR2_ADraftHasOneWriter", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		one, err := draft.Open(ctx, p, "t")
		s.must(err)
		s.must(one.Set(ctx, pattern(50_000, 1)))
		two, err := draft.Open(ctx, p, "t")
		s.must(err)
		s.must(two.Set(ctx, pattern(60_000, 2))) // It took the turn over.
		s.is(one.Append(ctx, []byte("more")), turnstone.ErrRecordConflict)
		_, err = p.Commit(ctx, turnstone.Commit{Nodes: texts("late"), Records: one.Done()})
		s.is(err, turnstone.ErrRecordConflict)
		again, err := draft.Open(ctx, p, "t")
		s.must(err)
		s.equal("content is right", bytes.Equal(again.Content(), pattern(60_000, 2)), true)
		late, err := draft.Open(ctx, p, "t")
		s.must(err)
		s.commit(p, turnstone.Commit{Nodes: texts("done"), Records: again.Done()})
		s.hasRecords(p)
		s.is(late.Append(ctx, pattern(40_000, 3)), turnstone.ErrRecordConflict) // Its turn was committed.
		s.hasRecords(p)
		// Who opened it before there was anything is no writer either.
		early, err := draft.Open(ctx, p, "u")
		s.must(err)
		begun, err := draft.Open(ctx, p, "u")
		s.must(err)
		s.must(begun.Set(ctx, []byte("begun")))
		_, err = p.Commit(ctx, turnstone.Commit{Expected: 1, Records: early.Done()})
		s.is(err, turnstone.ErrRecordConflict)
		s.is(early.Set(ctx, nil), turnstone.ErrRecordConflict)
		s.commit(p, turnstone.Commit{Expected: 1, Records: begun.Done()})
		s.hasRecords(p)
		// Changes of different pieces exclude each other as well.
		text := pattern(5<<14, 1)
		one, err = draft.Open(ctx, p, "t")
		s.must(err)
		s.must(one.Set(ctx, text))
		two, err = draft.Open(ctx, p, "t")
		s.must(err)
		first := append([]byte("first"), text[5:]...)
		s.must(one.Set(ctx, first))
		s.is(two.Append(ctx, []byte("last")), turnstone.ErrRecordConflict)
		again, err = draft.Open(ctx, p, "t")
		s.must(err)
		s.equal("content is right", bytes.Equal(again.Content(), first), true)
	}},
}

func second[T any](_ T, err error) error { return err }
