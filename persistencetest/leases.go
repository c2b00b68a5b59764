package persistencetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/lease"
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

var leases = []behaviour{
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
	{name: "L5_WhoHoldsALeaseIsRead", test: func(s *suite) {
		var c clock
		s.create(turnstone.Request{ID: "a"})
		reads := func(want lease.State) {
			s.Helper()
			s.twice(func() {
				s.Helper()
				got, err := lease.Read(ctx, s.session("a"), "run")
				s.must(err)
				s.equal("lease", []any{got.Key, got.Holder, got.Token, got.Expires.UTC()}, []any{want.Key, want.Holder, want.Token, want.Expires.UTC()})
			})
		}
		displaced := func(l *lease.Lease, want string) {
			s.Helper()
			st, ok := l.Displaced()
			s.equal("displaced", []any{st.Holder, ok}, []any{want, want != ""})
		}
		reads(lease.State{Key: "run"})
		l := s.acquire("a", "run", c.holder("one"))
		displaced(l, "")
		reads(lease.State{Key: "run", Holder: "one", Token: 1, Expires: c.now().Add(time.Minute)})
		c.pass(2 * time.Minute)
		l = s.acquire("a", "run", c.holder("two"))
		displaced(l, "one")
		o := c.holder("three")
		o.Steal = true
		displaced(s.acquire("a", "run", o), "two")
		l = s.acquire("a", "run", o)
		s.must(l.Release(ctx))
		reads(lease.State{Key: "run", Token: 4})
		l = s.acquire("a", "run", c.holder("five"))
		displaced(l, "")
		_, err := s.session("a").ChangeRecords(ctx, l.Remove()...)
		s.must(err)
		reads(lease.State{Key: "run"})
		_, err = lease.Read(ctx, nil, "run")
		s.is(err, turnstone.ErrInvalid)
	}},
}

func second[T any](_ T, err error) error { return err }
