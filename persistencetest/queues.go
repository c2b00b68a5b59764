package persistencetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/lease"
	"github.com/turnstonedb/turnstone/queue"
)

var queues = []behaviour{
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
	{name: "Q5_AMessageWhoseTurnStandsIsSettled", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		s.commit(p, turnstone.Commit{Turn: "m", Nodes: texts("stands")})
		s.change(p, queue.PutAs("in", "m", []byte("again")), queue.PutAs("in", "n", []byte("next")))
		m, err := queue.Claim(ctx, p, "in", lease.Options{})
		s.must(err)
		_, err = m.Commit(ctx, turnstone.Commit{Expected: 1, Turn: "other", Nodes: texts("lost"), Records: []turnstone.RecordChange{{Key: "k", Expect: turnstone.NoRecord, Action: turnstone.CheckRecord}}, Leaf: turnstone.RefTo(graph.ID{1})})
		s.is(err, turnstone.ErrInvalid) // The message stays claimed.
		_, err = m.Commit(ctx, turnstone.Commit{Expected: 1, Turn: m.ID, Nodes: texts("other content")})
		s.is(err, turnstone.ErrTurnConflict)
		s.twice(func() {
			next, err := queue.Claim(ctx, s.session("a"), "in", lease.Options{})
			s.must(err)
			s.equal("next message", next.ID, "n")
			s.must(next.Return(ctx))
			s.reads(s.session("a"), turnstone.Scope{}, "stands")
		})
		// A turn under another id says nothing of the message.
		p = s.session("a")
		s.commit(p, turnstone.Commit{Expected: 1, Turn: "t", Nodes: texts("more")})
		next, err := queue.Claim(ctx, p, "in", lease.Options{})
		s.must(err)
		_, err = next.Commit(ctx, turnstone.Commit{Expected: 2, Turn: "t", Nodes: texts("other content")})
		s.is(err, turnstone.ErrTurnConflict)
		s.must(next.Return(ctx))
		s.twice(func() {
			next, err := queue.Claim(ctx, s.session("a"), "in", lease.Options{})
			s.must(err)
			s.equal("next message", next.ID, "n")
			s.must(next.Return(ctx))
		})
	}},
	{name: "Q6_MessagesAreLookedAtClaimedByIDMovedAndCancelled", test: func(s *suite) {
		var c clock
		p := s.create(turnstone.Request{ID: "a"})
		_, err := queue.Claim(ctx, p, "in", lease.Options{})
		s.is(err, queue.ErrEmpty)
		if errors.Is(err, queue.ErrAllClaimed) {
			s.Fatal(err)
		}
		s.change(p, queue.PutAs("in", "1", []byte("one")), queue.PutAs("in", "2", []byte("two")), queue.PutAs("in", "3", []byte("three")))
		peek := func(want ...string) {
			s.Helper()
			s.twice(func() {
				s.Helper()
				all, _, err := queue.Peek(ctx, s.session("a"), "in", "", 10)
				s.must(err)
				var got []string
				for _, w := range all {
					got = append(got, fmt.Sprint(w.ID, " ", string(w.Value), " ", w.Claim.Holder, " ", w.Claim.Token))
				}
				s.equal("waiting", got, want)
			})
		}
		peek("1 one  0", "2 two  0", "3 three  0")
		var ids []string
		for next := "\x00"; next != ""; {
			page, after, err := queue.Peek(ctx, s.session("a"), "in", strings.TrimLeft(next, "\x00"), 1)
			s.must(err)
			next, ids = after, append(ids, page[0].ID)
		}
		s.equal("pages of one", ids, []string{"1", "2", "3"})
		second, err := queue.ClaimID(ctx, s.session("a"), "in", "2", c.holder("w"))
		s.must(err)
		s.equal("claimed", []any{second.ID, string(second.Value)}, []any{"2", "two"})
		_, err = queue.ClaimID(ctx, s.session("a"), "in", "2", c.holder("x"))
		s.is(err, lease.ErrHeld)
		_, err = queue.ClaimID(ctx, s.session("a"), "in", "nobody", c.holder("x"))
		s.is(err, queue.ErrEmpty)
		peek("1 one  0", "2 two w 1", "3 three  0")
		_, err = queue.Cancel(ctx, s.session("a"), "in", "2", c.holder("x"))
		s.is(err, lease.ErrHeld)
		gone, err := queue.Cancel(ctx, s.session("a"), "in", "nobody", c.holder("x"))
		s.must(err)
		s.equal("cancelled", gone, false)
		// Who steals gets a free message, as long as there is one.
		thief := c.holder("thief")
		thief.Steal = true
		for _, want := range []string{"1", "3", "1"} {
			m, err := queue.Claim(ctx, s.session("a"), "in", thief)
			s.must(err)
			s.equal("claimed", m.ID, want)
		}
		_, err = queue.Claim(ctx, s.session("a"), "in", c.holder("x"))
		s.is(err, queue.ErrAllClaimed)
		s.is(err, queue.ErrEmpty)
		gone, err = queue.Cancel(ctx, s.session("a"), "in", "2", thief)
		s.must(err)
		s.equal("cancelled", gone, true)
		c.pass(time.Hour)
		first, err := queue.Claim(ctx, s.session("a"), "in", c.holder("w"))
		s.must(err)
		s.equal("attempts", []any{first.ID, first.Attempts}, []any{"1", 3})
		s.must(first.Move(ctx, "dead"))
		s.is(first.Ack(ctx), lease.ErrFenced)
		peek("3 three thief 1")
		s.twice(func() {
			dead, _, err := queue.Peek(ctx, s.session("a"), "dead", "", 0)
			s.must(err)
			s.equal("dead", []any{len(dead), dead[0].ID, string(dead[0].Value), dead[0].Claim.Token}, []any{1, "1", "one", 0})
		})
		third, err := queue.Claim(ctx, s.session("a"), "in", c.holder("w"))
		s.must(err)
		s.change(s.session("a"), queue.PutAs("dead", "3", []byte("other")))
		s.is(third.Move(ctx, "dead"), turnstone.ErrRecordConflict)
		s.must(third.Ack(ctx))
		peek()
		for _, err := range []error{
			func() error { _, _, err := queue.Peek(ctx, nil, "in", "", 1); return err }(),
			func() error { _, err := queue.ClaimID(ctx, s.session("a"), "in", "", thief); return err }(),
			func() error { _, err := queue.Cancel(ctx, s.session("a"), "", "1", thief); return err }(),
		} {
			s.is(err, turnstone.ErrInvalid)
		}
	}},
	{name: "Q7_MessagesHavePrioritiesAndCanBeForLater", test: func(s *suite) {
		var c clock
		c.Store(int64(time.Until(time.Unix(1_800_000_000, 0)) * -1)) // It begins as the clock by which messages are put.
		p := s.create(turnstone.Request{ID: "a"})
		put := func(value string, o queue.PutOptions) {
			s.Helper()
			s.change(s.session("a"), queue.PutWith("in", []byte(value), o))
		}
		soon, late := c.now().Add(time.Hour), c.now().Add(2*time.Hour)
		put("low", queue.PutOptions{Priority: queue.Low})
		put("one", queue.PutOptions{})
		put("late", queue.PutOptions{NotBefore: late, Priority: queue.High})
		put("soon", queue.PutOptions{NotBefore: soon})
		put("past", queue.PutOptions{NotBefore: c.now().Add(-time.Hour)})
		s.change(p, queue.Put("in", []byte("two")), queue.PutAs("in", "by id", []byte("by id")))
		put("high", queue.PutOptions{Priority: queue.High})
		next := func(want string) {
			s.Helper()
			m, err := queue.Claim(ctx, s.session("a"), "in", c.holder("w"))
			s.must(err)
			s.equal("next", string(m.Value), want)
			s.must(m.Ack(ctx))
		}
		deferred := func(want time.Time) {
			s.Helper()
			_, err := queue.ClaimAny(ctx, s.Factory, "in", c.holder("w"))
			var d *queue.DeferredError
			if !errors.As(err, &d) || !errors.Is(err, queue.ErrEmpty) || errors.Is(err, queue.ErrAllClaimed) || !d.At.Equal(want) {
				s.Fatalf("%v, want it to be deferred until %v", err, want)
			}
		}
		for _, want := range []string{"high", "one", "past", "two", "low", "by id"} {
			next(want)
		}
		s.twice(func() { deferred(soon) })
		var ids []string
		s.twice(func() {
			waiting, _, err := queue.PeekLater(ctx, s.session("a"), "in", "", 10)
			s.must(err)
			s.equal("for later", []any{len(waiting), string(waiting[0].Value), waiting[0].NotBefore.Equal(soon), string(waiting[1].Value)}, []any{2, "soon", true, "late"})
			ids = []string{waiting[0].ID, waiting[1].ID}
			now, _, err := queue.Peek(ctx, s.session("a"), "in", "", 10)
			s.must(err)
			s.equal("now", len(now), 0)
		})
		c.pass(time.Hour - time.Nanosecond)
		deferred(soon)
		c.pass(time.Nanosecond)
		held, err := queue.ClaimAny(ctx, s.Factory, "in", c.holder("w"))
		s.must(err)
		s.equal("its time has come", []any{string(held.Value), held.ID == ids[0]}, []any{"soon", true})
		_, err = queue.Claim(ctx, s.session("a"), "in", c.holder("x"))
		s.is(err, queue.ErrAllClaimed)
		s.must(held.Return(ctx))
		put("high again", queue.PutOptions{Priority: queue.High})
		next("high again")
		next("soon")
		deferred(late)
		// A message for later is claimed or cancelled by its id.
		early, err := queue.ClaimID(ctx, s.session("a"), "in", ids[1], c.holder("w"))
		s.must(err)
		s.equal("early", string(early.Value), "late")
		s.must(early.Ack(ctx))
		put("never", queue.PutOptions{NotBefore: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)})
		waiting, _, err := queue.PeekLater(ctx, s.session("a"), "in", "", 10)
		s.must(err)
		gone, err := queue.Cancel(ctx, s.session("a"), "in", waiting[0].ID, c.holder("w"))
		s.must(err)
		s.equal("cancelled", gone, true)
		s.twice(func() {
			_, err = queue.Claim(ctx, s.session("a"), "in", c.holder("w"))
			s.is(err, queue.ErrEmpty)
			all, err := s.session("a").Records(ctx, turnstone.RecordQuery{})
			s.must(err)
			s.equal("records", len(all.Records), 0)
		})
		// What is not ours is no message.
		s.change(s.session("a"), turnstone.RecordChange{Key: "queue.later/in/0000000000000000/x"}, turnstone.RecordChange{Key: "queue.later/in/x"},
			turnstone.RecordChange{Key: "queue.later/in/+7fffffffffffffff/!2aaaaaaaaaaaaaaaa+x"}, turnstone.RecordChange{Key: "queue.later/in/0000000000000000/!2aaaaaaaaaaaaaaaa+x"})
		_, err = queue.Claim(ctx, s.session("a"), "in", c.holder("w"))
		s.is(err, queue.ErrEmpty)
		again := queue.PutWith("in", []byte("again"), queue.PutOptions{NotBefore: time.Now().Add(24 * time.Hour)})
		s.change(s.session("a"), again)
		c.pass(48 * time.Hour)
		first, err := queue.Claim(ctx, s.session("a"), "in", c.holder("w"))
		s.must(err)
		s.equal("beside what is not ours", string(first.Value), "again")
		s.change(s.session("a"), again) // As somebody does who does not know whether it was put.
		_, err = queue.Claim(ctx, s.session("a"), "in", c.holder("x"))
		s.is(err, queue.ErrAllClaimed)
		s.must(first.Ack(ctx))
		_, err = queue.Claim(ctx, s.session("a"), "in", c.holder("x"))
		s.is(err, queue.ErrEmpty)
		_, err = s.session("a").ChangeRecords(ctx, queue.PutWith("in", nil, queue.PutOptions{Priority: 9}))
		s.is(err, turnstone.ErrInvalid)
	}},
}
