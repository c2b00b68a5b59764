package tests

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/lease"
	"github.com/turnstonedb/turnstone/queue"
)

// leased returns a session on an engine that fails as its plan says, and a handle of it on the engine beneath.
func leased(t *testing.T) (*enginetest.Faulty, *turnstone.Session, *turnstone.Session) {
	f := &enginetest.Faulty{Engine: memory.New()}
	s := create(t, openStore(t, f, &turnstone.Options{NoAutoSeal: true}), turnstone.Request{ID: "a"})
	return f, s, session(t, openStore(t, f.Engine, &turnstone.Options{NoAutoSeal: true}), "a")
}

// beforeApply makes f call do once, before its next Apply.
func beforeApply(f *enginetest.Faulty, do func()) {
	f.Plan = func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" {
			f.Plan = nil
			do()
		}
		return enginetest.Fault{}
	}
}

func acquire(t *testing.T, s *turnstone.Session, o lease.Options) *lease.Lease {
	t.Helper()
	l, err := lease.Acquire(ctx, s, "run", o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Somebody acquires the lease, gives it back or renews it, between the look at it and the attempt to take it.
func TestL1_WhatHappensWhileALeaseIsAcquired(t *testing.T) {
	t.Run("acquired and released", func(t *testing.T) {
		f, s, other := leased(t)
		beforeApply(f, func() {
			if err := acquire(t, other, lease.Options{}).Release(ctx); err != nil {
				t.Error(err)
			}
		})
		if l := acquire(t, s, lease.Options{}); l.Token() != 2 {
			t.Errorf("token %d is that of another holder", l.Token())
		}
	})
	t.Run("renewed", func(t *testing.T) {
		f, s, other := leased(t)
		now := time.Unix(1_800_000_000, 0)
		clock := func() time.Time { return now }
		first := acquire(t, other, lease.Options{TTL: time.Minute, Now: clock})
		now = now.Add(time.Minute)
		beforeApply(f, func() {
			if err := first.Renew(ctx); err != nil {
				t.Error(err)
			}
		})
		if _, err := lease.Acquire(ctx, s, "run", lease.Options{Now: clock}); !errors.Is(err, lease.ErrHeld) {
			t.Error(err)
		}
		if err := first.Renew(ctx); err != nil {
			t.Error(err)
		}
	})
}

// After an unknown outcome the lease is held once: by the attempt that stands.
func TestL1_AnUnknownOutcomeOfAnAcquisition(t *testing.T) {
	for _, applied := range []bool{false, true} {
		f, s, other := leased(t)
		applies, failed := 0, false
		f.Plan = func(c enginetest.Call) enginetest.Fault {
			switch {
			case c.Op == "Apply":
				if applies++; applies == 1 {
					return enginetest.Fault{Err: engine.ErrUnknown, Applied: applied}
				}
			case applies > 0 && !failed: // Nor can it read what stands.
				failed = true
				return enginetest.Fault{Err: engine.ErrUnavailable}
			}
			return enginetest.Fault{}
		}
		f.Done = func(c enginetest.Call, _ error) {
			if c.Op != "Apply" {
				return
			}
			f.Done = nil // The record that says until when is another one, so that the call can't tell by itself.
			if err := other.Seal(ctx); err != nil {
				t.Error(err)
			}
			change(t, other, turnstone.RecordChange{Key: ".run", Action: turnstone.DeleteRecord})
		}
		l := acquire(t, s, lease.Options{Holder: "one"})
		if l.Token() != 1 {
			t.Errorf("applied %v: token %d", applied, l.Token())
		}
		if _, err := l.Commit(ctx, turnstone.Commit{Nodes: saying([]byte("x"))}); err != nil {
			t.Errorf("applied %v: %v", applied, err)
		}
	}
}

// A lease that is kept lives through failures that last less than its TTL, ends with the first that lasts longer,
// and at once when somebody else has it.
func TestL4_AKeptLeaseAndAFailingEngine(t *testing.T) {
	testkit.Seldom(t)
	t.Parallel()
	f, s, other := leased(t)
	const ttl = 3 * time.Second // A machine that stands still for longer fails the test.
	var fails atomic.Bool
	var calls, renewals atomic.Int64
	f.Plan = func(c enginetest.Call) enginetest.Fault {
		calls.Add(1)
		if c.Op != "Apply" {
			return enginetest.Fault{}
		}
		renewals.Add(1)
		if fails.Load() {
			return enginetest.Fault{Err: engine.ErrUnavailable}
		}
		return enginetest.Fault{}
	}
	until := func(n int64) {
		from := renewals.Load()
		testkit.Until(t, "the lease is renewed", func() bool { return renewals.Load() >= from+n })
	}
	held, stop := acquire(t, s, lease.Options{TTL: ttl}).Keep(ctx)
	defer stop()
	until(4) // longer than the TTL
	fails.Store(true)
	until(1)
	fails.Store(false)
	until(1)
	if held.Err() != nil {
		t.Fatalf("one failure ended it: %v", context.Cause(held))
	}
	fails.Store(true)
	<-held.Done()
	if err := context.Cause(held); !errors.Is(err, engine.ErrUnavailable) {
		t.Error(err)
	}
	fails.Store(false)
	held, stop2 := acquire(t, s, lease.Options{TTL: ttl, Steal: true}).Keep(ctx)
	defer stop2()
	until(1)
	acquire(t, other, lease.Options{Steal: true})
	n := calls.Load()
	<-held.Done()
	if err := context.Cause(held); !errors.Is(err, lease.ErrFenced) || calls.Load() > n+2 { // one renewal, and a read of what stands
		t.Errorf("%v after %d calls", err, calls.Load()-n)
	}
}

// Whatever call of the engine fails or crashes in between, a message that was acknowledged has its turn, and one that
// was not is still there.
func TestQ4_AMessageAndItsTurnStandTogether(t *testing.T) {
	for n := 1; ; n++ {
		e := memory.New()
		st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
		change(t, create(t, st, turnstone.Request{ID: "a"}), queue.PutAs("in", "1", []byte("message")))
		calls := 0
		f := &enginetest.Faulty{Engine: e, Plan: func(enginetest.Call) enginetest.Fault {
			calls++
			return enginetest.Fault{Crash: calls == n}
		}}
		consume := func(e engine.Engine, steal bool) error {
			st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true})
			if err != nil {
				return err
			}
			defer st.Close()
			s, err := st.Session(ctx, "a")
			if err != nil {
				return err
			}
			m, err := queue.Claim(ctx, s, "in", lease.Options{Steal: steal})
			if err != nil {
				return err
			}
			_, err = m.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Turn: m.ID, Nodes: saying(m.Value)})
			return err
		}
		failed := consume(f, false)
		if err := consume(e, true); err != nil && !errors.Is(err, queue.ErrEmpty) {
			t.Fatalf("call %d: %v, then %v", n, failed, err)
		}
		state, err := session(t, st, "a").Load(ctx, turnstone.Scope{})
		if err != nil || len(state.Nodes) != 1 {
			t.Fatalf("call %d: %d turns of one message, %v", n, len(state.Nodes), err)
		}
		if page, err := st.Records(ctx, turnstone.RecordQuery{}); err != nil || len(page.Records) != 0 {
			t.Errorf("call %d: %d records are left, %v", n, len(page.Records), err)
		}
		verify(t, st)
		if calls < n {
			break
		}
	}
}

// Nor does it last when renewals hang: an outcome that stays unknown is asked for again and again.
func TestL4_AKeptLeaseAndAnEngineThatHangs(t *testing.T) {
	f, s, _ := leased(t)
	l := acquire(t, s, lease.Options{TTL: 100 * time.Millisecond})
	f.Plan = func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" {
			return enginetest.Fault{Err: engine.ErrUnknown}
		}
		return enginetest.Fault{}
	}
	held, stop := l.Keep(ctx)
	defer stop()
	<-held.Done()
	if err := context.Cause(held); !errors.Is(err, turnstone.ErrOutcomeUnknown) && !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// What is made with an acquisition is made once, and no error denies it.
func TestL1_WhatIsMadeWithAnAcquisitionIsMadeOnce(t *testing.T) {
	with := lease.Options{Holder: "me", With: []turnstone.RecordChange{{Key: "job", Value: []byte("mine")}}}
	for _, then := range []string{"stolen", "released", "unread"} {
		f, s, other := leased(t)
		applies := 0
		f.Plan = func(c enginetest.Call) enginetest.Fault {
			switch {
			case c.Op == "Apply":
				if applies++; applies == 1 {
					return enginetest.Fault{Err: engine.ErrUnknown, Applied: true}
				}
				if then == "unread" {
					return enginetest.Fault{Err: engine.ErrUnavailable}
				}
			case applies > 0 && then == "unread":
				return enginetest.Fault{Err: engine.ErrUnavailable}
			}
			return enginetest.Fault{}
		}
		want := "mine"
		f.Done = func(c enginetest.Call, _ error) {
			if c.Op != "Apply" {
				return
			}
			f.Done = nil
			if then == "unread" {
				return
			}
			want = "later"
			change(t, other, turnstone.RecordChange{Key: "job", Value: []byte(want)})
			if l := acquire(t, other, lease.Options{Steal: true}); then == "released" {
				if err := l.Release(ctx); err != nil {
					t.Error(err)
				}
			}
		}
		if _, err := lease.Acquire(ctx, s, "run", with); !errors.Is(err, turnstone.ErrOutcomeUnknown) {
			t.Errorf("%s: %v", then, err)
		}
		if r, err := other.Record(ctx, "job"); err != nil || string(r.Value) != want {
			t.Errorf("%s: %q, %v", then, r.Value, err)
		}
	}
}

// A commit that was fenced after a lost reply is known to have had no effect.
func TestL2_AFencedCommitHasNoEffect(t *testing.T) {
	f, s, other := leased(t)
	l := acquire(t, s, lease.Options{})
	beforeApply(f, func() { acquire(t, other, lease.Options{Steal: true}) })
	plan, failed := f.Plan, false
	f.Plan = func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" && !failed {
			failed = true
			plan(c)
			return enginetest.Fault{Err: engine.ErrUnknown}
		}
		return enginetest.Fault{}
	}
	_, err := l.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("x"))})
	if !errors.Is(err, lease.ErrFenced) || errors.Is(err, turnstone.ErrOutcomeUnknown) {
		t.Error(err)
	}
}

// A message whose id is as long as it can be is claimed as any other, and one whose id was a turn before is
// acknowledged.
func TestQ1_IDsThatAreLongOrComeBack(t *testing.T) {
	_, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	a := create(t, st, turnstone.Request{ID: "a"})
	for n := turnstone.MaxRecordKey - 4; n <= turnstone.MaxRecordKey; n++ {
		change(t, a, queue.PutAs("in", text(n-len("queue/in/")), []byte("long")))
		m, err := queue.ClaimAny(ctx, st.Factory(), "in", lease.Options{})
		if err != nil {
			t.Fatalf("key of %d bytes: %v", n, err)
		}
		if err := m.Ack(ctx); err != nil {
			t.Errorf("key of %d bytes: %v", n, err)
		}
	}
	for i := range 2 {
		change(t, a, queue.PutAs("in", "1", []byte("v")))
		m, err := queue.Claim(ctx, a, "in", lease.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := m.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Turn: m.ID, Nodes: saying(m.Value)})
		if err != nil || r.Replayed != (i == 1) {
			t.Errorf("%+v, %v", r, err)
		}
		if _, err := queue.Claim(ctx, a, "in", lease.Options{Steal: true}); !errors.Is(err, queue.ErrEmpty) {
			t.Errorf("the message is still there: %v", err)
		}
	}
	if own, err := a.Records(ctx, turnstone.RecordQuery{}); err != nil || len(own.Records) != 0 {
		t.Errorf("%+v, %v", own, err)
	}
}
