package persistencetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/lease"
	"github.com/turnstonedb/turnstone/queue"
)

// claims returns a function that checks which messages were claimed together, and returns the first.
func (s *suite) claims(m *queue.Message, err error) func(want ...string) *queue.Message {
	s.Helper()
	s.must(err)
	got := []string{m.ID}
	for _, of := range m.Joined {
		got = append(got, of.ID)
	}
	return func(want ...string) *queue.Message {
		s.Helper()
		s.equal("claimed", got, want)
		return m
	}
}

// under returns options of a lease under another one.
func (c *clock) under(l *lease.Lease) lease.Options {
	return lease.Options{Holder: "under " + l.Key(), Under: l, Now: c.now}
}

var lanes = []behaviour{
	{name: "L6_ALeaseUnderAnotherLastsAsLongAsThatOne", test: func(s *suite) {
		var c clock
		s.create(turnstone.Request{ID: "a"})
		s.create(turnstone.Request{ID: "b"})
		lane := s.acquire("a", "lane", c.holder("one"))
		work := s.acquire("a", "work", c.under(lane))
		// It does not expire by itself: to renew the lane is enough, and to renew it renews the lane.
		for range 3 {
			c.pass(50 * time.Second)
			s.must(lane.Renew(ctx))
			c.pass(50 * time.Second)
			s.must(work.Renew(ctx))
			s.heldBy("a", "work", "under lane", c.holder("two"))
			s.heldBy("a", "lane", "one", c.holder("two"))
			st, err := lease.Read(ctx, s.session("a"), "work")
			s.must(err)
			s.equal("state", []any{st.Holder, st.Token, st.Expires.Equal(c.now().Add(time.Minute))}, []any{"under lane", 1, true})
		}
		// Another holder of the lane ends it, at once; until somebody takes it its commits stand.
		thief := c.holder("two")
		thief.Steal = true
		next := s.acquire("a", "lane", thief)
		s.must(second(work.Commit(ctx, turnstone.Commit{Nodes: texts("nobody has taken it")})))
		_, err := lease.Acquire(ctx, s.session("a"), "other", c.under(lane))
		s.is(err, lease.ErrFenced)
		s.is(work.Renew(ctx), lease.ErrFenced)
		taken := s.acquire("a", "work", c.under(next))
		before, had := taken.Displaced()
		s.equal("displaced", []any{before.Holder, had, taken.Token()}, []any{"under lane", true, 2})
		_, err = work.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: texts("late")})
		s.is(err, lease.ErrFenced)
		s.must(second(taken.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: texts("in time")})))
		// So does its release, and so does its end.
		s.must(next.Release(ctx))
		taken = s.acquire("a", "work", c.holder("three"))
		s.must(taken.Release(ctx))
		lane = s.acquire("a", "lane", c.holder("four"))
		s.acquire("a", "work", c.under(lane))
		c.pass(time.Minute)
		taken = s.acquire("a", "work", c.holder("five"))
		s.must(taken.Renew(ctx))
		s.is(taken.Err(nil), nil)
		c.pass(59 * time.Second)
		s.heldBy("a", "work", "five", c.holder("six"))
		s.must(second(s.session("a").ChangeRecords(ctx, taken.Remove()...)))
		// What can't be is refused.
		lane = s.acquire("a", "lane", thief)
		work = s.acquire("a", "work", c.under(lane))
		for _, o := range []lease.Options{c.under(work), {Under: s.acquire("b", "lane", c.holder("one"))}, {Also: []string{"x"}}} {
			_, err = lease.Acquire(ctx, s.session("a"), "x", o)
			s.is(err, turnstone.ErrInvalid)
		}
		many := make([]string, lease.MaxAlso+1)
		for i := range many {
			many[i] = fmt.Sprint("many ", i)
		}
		_, err = lease.Acquire(ctx, s.session("a"), "x", lease.Options{Also: many})
		s.is(err, turnstone.ErrLimit)
	}},
	{name: "L7_LeasesAreAcquiredTogetherAndAwaited", test: func(s *suite) {
		var c clock
		p := s.create(turnstone.Request{ID: "a"})
		with := c.holder("one")
		with.Also = []string{"x", "y"}
		l := s.acquire("a", "first", with)
		for _, key := range []string{"first", "x", "y"} {
			s.heldBy("a", key, "one", c.holder("two"))
		}
		// All or none.
		other := c.holder("two")
		other.Also = []string{"free", "y"}
		_, err := lease.Acquire(ctx, p, "second", other)
		var held *lease.HeldError
		if !errors.As(err, &held) || held.Key != "y" {
			s.Fatal(err)
		}
		s.must(s.acquire("a", "free", c.holder("two")).Release(ctx))
		// Each can be removed by itself, and they are renewed together.
		x, y := l.Also()[0], l.Also()[1]
		s.change(p, x.Remove()...)
		s.must(s.acquire("a", "x", c.holder("two")).Release(ctx))
		c.pass(59 * time.Second)
		s.must(y.Renew(ctx))
		c.pass(59 * time.Second)
		s.heldBy("a", "first", "one", c.holder("two"))
		// A worker that takes over the first lease gets the leases that still stand under it.
		c.pass(time.Second)
		taken := s.acquire("a", "first", c.holder("three"))
		var keys []string
		for _, of := range taken.Also() {
			keys = append(keys, fmt.Sprint(of.Key(), " ", of.Token()))
		}
		s.equal("also", keys, []string{"y 2"})
		s.heldBy("a", "y", "three", c.holder("four"))
		s.is(y.Renew(ctx), lease.ErrFenced)
		s.must(taken.Release(ctx))
		s.acquire("a", "y", c.holder("five"))
		// Those that belong together are not mixed with others.
		batch := c.holder("six")
		batch.Also = []string{"b2", "b3"}
		s.acquire("a", "b1", batch)
		c.pass(time.Minute)
		for _, o := range []struct {
			key  string
			also []string
		}{{"9", []string{"b1"}}, {"9", []string{"b2"}}, {"b1", []string{"b2", "9"}}, {"b2", nil}} {
			_, err := lease.Acquire(ctx, s.session("a"), o.key, lease.Options{Also: o.also, Now: c.now})
			s.is(err, lease.ErrHeld)
		}
		s.equal("also", len(s.acquire("a", "b1", c.holder("seven")).Also()), 2)
		// One who waits gets it when it is released, when it expires, or not.
		l = s.acquire("a", "run", lease.Options{Holder: "one"})
		got := make(chan *lease.Lease)
		go func() {
			next, err := lease.Await(ctx, s.session("a"), "run", lease.Options{Holder: "two", TTL: 50 * time.Millisecond})
			if err != nil {
				s.Error(err)
			}
			got <- next
		}()
		time.Sleep(20 * time.Millisecond)
		s.must(l.Release(ctx))
		s.equal("token", (<-got).Token(), 2)
		l, err = lease.Await(ctx, s.session("a"), "run", lease.Options{Holder: "three"})
		s.must(err)
		s.equal("token", l.Token(), 3)
		soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		_, err = lease.Await(soon, s.session("a"), "run", lease.Options{})
		s.is(err, context.DeadlineExceeded)
	}},
	{name: "Q8_ClaimsEndWithTheLeaseOfTheirLane", test: func(s *suite) {
		var c clock
		p := s.create(turnstone.Request{ID: "a"})
		s.change(p, queue.PutAs("in", "1", []byte("one")), queue.PutAs("in", "2", []byte("two")), queue.PutAs("in", "3", nil))
		lane := s.acquire("a", "run", c.holder("host"))
		one := s.claims(queue.Claim(ctx, s.session("a"), "in", c.under(lane)))("1")
		two := s.claims(queue.Claim(ctx, s.session("a"), "in", c.under(lane)))("2")
		// Workers of one lane do not rob each other, however long it takes, also when the lane is renewed late.
		for range 3 {
			c.pass(59 * time.Second)
			s.must(lane.Renew(ctx))
		}
		c.pass(2 * time.Minute)
		three := s.claims(queue.Claim(ctx, s.session("a"), "in", c.under(lane)))("3")
		_, err := queue.Claim(ctx, s.session("a"), "in", c.under(lane))
		s.is(err, queue.ErrAllClaimed)
		s.must(three.Return(ctx))
		s.must(second(two.Commit(ctx, turnstone.Commit{Turn: two.ID, Nodes: texts("two")})))
		// A successor does not wait for them, and gets what nobody has first.
		thief := c.holder("successor")
		thief.Steal = true
		next := s.acquire("a", "run", thief)
		_, err = queue.Claim(ctx, s.session("a"), "in", c.under(lane))
		s.is(err, lease.ErrFenced)
		s.must(s.claims(queue.Claim(ctx, s.session("a"), "in", c.under(next)))("1").Return(ctx))
		s.claims(queue.ClaimID(ctx, s.session("a"), "in", "3", c.under(next)))("3")
		_, err = queue.ClaimID(ctx, s.session("a"), "in", "3", c.under(lane)) // Its successor has it.
		s.is(err, lease.ErrFenced)
		again := s.claims(queue.Claim(ctx, s.session("a"), "in", c.under(next)))("1")
		s.equal("attempts", again.Attempts, 3)
		_, err = one.Commit(ctx, turnstone.Commit{Expected: 1, Turn: one.ID, Nodes: texts("late")})
		s.is(err, lease.ErrFenced)
		s.must(second(again.Commit(ctx, turnstone.Commit{Expected: 1, Turn: again.ID, Nodes: texts("one")})))
		s.reads(p, turnstone.Scope{}, "two", "one")
	}},
	{name: "Q9_MessagesThatGoTogetherAreClaimedTogether", test: func(s *suite) {
		var c clock
		p := s.create(turnstone.Request{ID: "a"})
		put := func(ids ...string) {
			for _, id := range ids {
				s.change(p, queue.PutAs("in", id, []byte("value of "+id)))
			}
		}
		// The first letter of an id is its number, the second one the key by which it is joined.
		same := queue.Join{Same: func(first, next queue.Waiting) bool { return first.ID[1] == next.ID[1] }}
		claim := func(who string, j queue.Join) func(want ...string) *queue.Message {
			return s.claims(queue.ClaimJoined(ctx, s.session("a"), "in", c.holder(who), j))
		}
		put("1x", "2x", "3y", "4x", "5x", "6x")
		first := claim("one", same)("1x", "2x") // Nothing overtakes 3y.
		s.equal("value", string(first.Joined[0].Value), "value of 2x")
		claim("two", same)("3y")
		rest := claim("three", same)("4x", "5x", "6x")
		_, err := queue.ClaimJoined(ctx, s.session("a"), "in", c.holder("four"), same)
		s.is(err, queue.ErrAllClaimed)
		// Given back, each is by itself again; what is claimed is passed over.
		s.must(rest.Return(ctx))
		s.claims(queue.ClaimID(ctx, s.session("a"), "in", "5x", c.holder("five")))("5x")
		rest = claim("three", same)("4x", "6x")
		s.equal("attempts", []uint64{rest.Attempts, rest.Joined[0].Attempts}, []uint64{2, 2})
		// One commit acknowledges all.
		r, err := first.Commit(ctx, turnstone.Commit{Turn: first.ID, Nodes: texts("answer"), Records: set("mine", "1")})
		s.must(err)
		s.equal("records", len(r.Records), 1)
		s.claims(queue.Claim(ctx, s.session("a"), "in", stealing(c.holder("six"))))("3y")
		// A batch is run again as it was, whoever does it, with whatever limit, also one by one: but for what is gone.
		put("0x", "1x", "2x")
		claim("one", queue.Join{Limit: 2})("0x", "1x")
		c.pass(time.Minute)
		claim("two", queue.Join{Limit: 1})("0x", "1x")
		c.pass(time.Minute)
		put("0a")
		claim("three", queue.Join{Limit: 1})("0a")
		s.claims(queue.Claim(ctx, s.session("a"), "in", c.holder("four")))("0x", "1x")
		gone, err := queue.Cancel(ctx, s.session("a"), "in", "1x", stealing(c.holder("who cancels")))
		s.must(err)
		s.equal("cancelled", gone, true)
		c.pass(time.Minute)
		s.claims(queue.ClaimID(ctx, s.session("a"), "in", "0x", c.holder("five")))("0x")
		// Who cancels the first one leaves the others.
		s.change(p, queue.PutAs("cancel", "1", nil), queue.PutAs("cancel", "2", nil), queue.PutAs("cancel", "3", nil))
		batch := s.claims(queue.ClaimJoined(ctx, s.session("a"), "cancel", c.holder("six"), queue.Join{Limit: 3}))("1", "2", "3")
		gone, err = queue.Cancel(ctx, s.session("a"), "cancel", "1", stealing(c.holder("who cancels")))
		s.must(err)
		s.equal("cancelled", gone, true)
		_, err = batch.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: texts("late")})
		s.is(err, lease.ErrFenced)
		s.must(s.claims(queue.ClaimJoined(ctx, s.session("a"), "cancel", c.holder("seven"), queue.Join{Limit: 2}))("2", "3").Move(ctx, "dead"))
		dead, _, err := queue.Peek(ctx, p, "dead", "", 10)
		s.must(err)
		s.equal("moved", len(dead), 2)
		st, err := queue.Count(ctx, p, "in")
		s.must(err)
		s.equal("left", []int{st.Free + st.Claimed, st.Later}, []int{7, 0}) // 0a, 0x and 2x to 6x, whatever clock counts
		// One that was claimed alone stays alone, what comes before a batch does not tear it, and nobody gets a part of it.
		again := func(want ...string) {
			s.Helper()
			c.pass(time.Minute)
			s.claims(queue.ClaimJoined(ctx, s.session("a"), "again", c.holder("again"), queue.Join{Limit: 3}))(want...)
		}
		s.change(p, queue.PutAs("again", "5", nil))
		again("5")
		s.change(p, queue.PutAs("again", "6", nil), queue.PutAs("again", "7", nil))
		again("5")
		s.claims(queue.ClaimJoined(ctx, s.session("a"), "again", c.holder("one"), queue.Join{Limit: 2}))("6", "7")
		s.change(p, queue.PutAs("again", "4", nil), queue.PutAs("again", "8", nil))
		again("4") // 8 does not overtake those that are to be claimed again.
		_, err = queue.ClaimID(ctx, s.session("a"), "again", "7", c.holder("two"))
		var with *lease.HeldError
		if !errors.As(err, &with) || with.With == "" {
			s.Fatal(err)
		}
		again("4")
		s.claims(queue.Claim(ctx, s.session("a"), "again", c.holder("two")))("5")
		s.claims(queue.ClaimJoined(ctx, s.session("a"), "again", stealing(c.holder("three")), queue.Join{Limit: 1}))("6", "7")
		s.claims(queue.Claim(ctx, s.session("a"), "again", c.holder("two")))("8")
		s.claims(queue.ClaimJoined(ctx, s.session("a"), "again", stealing(c.holder("thief")), queue.Join{}))("4") // and nothing of others
		// If the first of a batch is removed by who does not know of queues, the others are free.
		c.pass(time.Minute)
		s.change(p, turnstone.RecordChange{Key: "queue/again/6", Action: turnstone.DeleteRecord})
		s.claims(queue.ClaimID(ctx, s.session("a"), "again", "7", c.holder("four")))("7")
		_, err = queue.Claim(ctx, p, "again", lease.Options{Also: []string{"gpu"}})
		s.is(err, turnstone.ErrInvalid)
		_, err = queue.ClaimAny(ctx, s.Factory, "again", lease.Options{Under: s.acquire("a", "lane of it", c.holder("one"))})
		s.is(err, turnstone.ErrInvalid)
		// Those that are chosen, all or none.
		s.change(p, queue.PutAs("chosen", "1", nil), queue.PutAs("chosen", "2", nil), queue.PutAs("chosen", "3", nil))
		s.claims(queue.ClaimIDs(ctx, s.session("a"), "chosen", c.holder("one"), "3", "1"))("3", "1")
		_, err = queue.ClaimIDs(ctx, s.session("a"), "chosen", c.holder("two"), "2", "1")
		s.is(err, lease.ErrHeld)
		_, err = queue.ClaimIDs(ctx, s.session("a"), "chosen", c.holder("two"), "2", "4")
		s.is(err, queue.ErrEmpty)
		_, err = queue.ClaimIDs(ctx, s.session("a"), "chosen", c.holder("two"))
		s.is(err, turnstone.ErrInvalid)
		long := strings.Repeat("x", turnstone.MaxRecordKey-len("queue/chosen/"))
		s.change(p, queue.PutAs("chosen", long, nil))
		for _, ids := range [][]string{{"2", long}, {long, "2"}} {
			_, err = queue.ClaimIDs(ctx, s.session("a"), "chosen", c.holder("two"), ids...)
			s.is(err, turnstone.ErrLimit)
		}
		s.claims(queue.ClaimIDs(ctx, s.session("a"), "chosen", c.holder("two"), long))(long)
		s.claims(queue.Claim(ctx, s.session("a"), "chosen", c.holder("two")))("2")
		for _, limit := range []int{-1, queue.MaxJoined + 1} {
			_, err := queue.ClaimJoined(ctx, p, "in", c.holder("x"), queue.Join{Limit: limit})
			s.is(err, turnstone.ErrLimit)
		}
		// If the turn of the first one stands without the others, they are not lost.
		s.change(p, queue.PutAs("lost", "1", nil))
		alone := s.claims(queue.Claim(ctx, s.session("a"), "lost", c.holder("one")))("1")
		s.must(second(alone.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Turn: "1", Nodes: texts("to 1")})))
		s.change(p, queue.PutAs("lost", "1", nil), queue.PutAs("lost", "2", nil)) // It was sent again.
		both := s.claims(queue.ClaimJoined(ctx, s.session("a"), "lost", c.holder("one"), queue.Join{}))("1", "2")
		_, err = both.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Turn: "1", Nodes: texts("to 1 and 2")})
		s.is(err, turnstone.ErrTurnConflict)
		s.claims(queue.ClaimJoined(ctx, s.session("a"), "lost", c.holder("two"), queue.Join{}))("2")
		// As many as can be.
		for i := range queue.MaxJoined + 5 {
			s.change(p, queue.PutAs("many", fmt.Sprintf("%03d", i), nil))
		}
		all, err := queue.ClaimJoined(ctx, p, "many", c.holder("one"), queue.Join{})
		s.must(err)
		s.equal("joined", len(all.Joined), queue.MaxJoined-1)
		c.pass(time.Minute)
		all, err = queue.ClaimJoined(ctx, p, "many", c.holder("one"), queue.Join{})
		s.must(err)
		s.equal("joined", len(all.Joined), queue.MaxJoined-1)
		all.Remember = time.Hour
		s.must(second(all.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: texts("many")})))
		s.claims(queue.Claim(ctx, p, "many", c.holder("one")))(fmt.Sprintf("%03d", queue.MaxJoined))
	}},
	{name: "Q10_IDsAreRememberedAfterTheirMessages", test: func(s *suite) {
		var c clock
		s.create(turnstone.Request{ID: "a"})
		once := func(id string) error {
			_, err := s.session("a").ChangeRecords(ctx, queue.PutOnce("in", id, []byte("value"))...)
			return err
		}
		consume := func(remember time.Duration) {
			s.Helper()
			m, err := queue.Claim(ctx, s.session("a"), "in", c.holder("one"))
			s.must(err)
			m.Remember = remember
			s.must(m.Ack(ctx))
		}
		s.must(once("1"))
		s.is(once("1"), turnstone.ErrRecordConflict)
		consume(time.Hour)
		s.twice(func() { s.is(once("1"), turnstone.ErrRecordConflict) })
		s.must(once("2"))
		consume(0)
		s.must(once("2")) // Nobody asked to remember it.
		consume(2 * time.Hour)
		c.pass(time.Hour)
		s.is(once("2"), turnstone.ErrRecordConflict)
		s.must(once("3"))
		consume(time.Minute) // It forgets what is due.
		s.must(once("1"))
		s.is(once("2"), turnstone.ErrRecordConflict)
		s.is(once("3"), turnstone.ErrRecordConflict)
		c.pass(time.Hour)
		consume(time.Minute)
		s.must(once("2"))
		consume(0)
		// An id that was acknowledged again is remembered as long as was said last, one of any length, and for ever.
		for range 2 {
			s.change(s.session("a"), queue.PutAs("in", "4", nil))
			consume(time.Hour)
			c.pass(50 * time.Minute)
		}
		long := strings.Repeat("x", turnstone.MaxRecordKey-len("queue/in/"))
		s.must(once(long))
		consume(math.MaxInt64)
		for range 2 {
			s.change(s.session("a"), queue.PutAs("in", "5", nil))
			consume(time.Second)
			c.pass(9 * time.Minute)
		}
		s.is(once("4"), turnstone.ErrRecordConflict)
		s.is(once(long), turnstone.ErrRecordConflict)
		s.must(once("6"))
		consume(time.Second) // It forgets "5".
		s.must(once("5"))
		consume(time.Second)
		n, err := queue.Forget(ctx, s.session("a"), "in") // by the real clock, which is behind
		s.must(err)
		s.equal("forgotten", n, 0)
		_, err = s.session("a").ChangeRecords(ctx, queue.PutOnce("in", "", nil)...)
		s.is(err, turnstone.ErrInvalid)
	}},
	{name: "Q11_AWorkerWaitsForAMessage", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		s.create(turnstone.Request{ID: "b"})
		got := make(chan string)
		wait := func(f func() (*queue.Message, error)) {
			go func() {
				m, err := f()
				if err != nil {
					s.Error(err)
					close(got)
					return
				}
				got <- m.Session.ID() + " " + m.ID
			}()
			time.Sleep(20 * time.Millisecond)
		}
		one := func() (*queue.Message, error) {
			return queue.Wait(ctx, s.session("a"), "in", lease.Options{TTL: 200 * time.Millisecond})
		}
		wait(one)
		s.change(s.session("b"), queue.PutAs("in", "1", nil))
		s.change(s.session("a"), queue.PutAs("in", "2", nil))
		s.equal("got", <-got, "a 2")
		wait(one) // until the claim has expired
		s.equal("got", <-got, "a 2")
		wait(func() (*queue.Message, error) { return queue.WaitAny(ctx, s.Factory, "any", lease.Options{}) })
		s.change(s.session("b"), queue.PutAs("any", "3", nil))
		s.equal("got", <-got, "b 3")
		soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		_, err := queue.Wait(soon, s.session("a"), "empty", lease.Options{})
		s.is(err, context.DeadlineExceeded)
		_, err = queue.Wait(ctx, nil, "in", lease.Options{})
		s.is(err, turnstone.ErrInvalid)
		later := time.Now().Add(time.Hour)
		s.change(s.session("a"), queue.PutWith("count", nil, queue.PutOptions{NotBefore: later}), queue.PutAs("count", "1", nil), queue.PutAs("count", "2", nil))
		s.must(second(queue.Claim(ctx, s.session("a"), "count", lease.Options{})))
		st, err := queue.Count(ctx, s.session("a"), "count")
		s.must(err)
		s.equal("count", []any{st.Free, st.Claimed, st.Later, st.Next.Equal(later)}, []any{1, 1, 1, true})
	}},
}

func stealing(o lease.Options) lease.Options {
	o.Steal = true
	return o
}
