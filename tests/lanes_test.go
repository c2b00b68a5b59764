package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/draft"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/lease"
	"github.com/turnstonedb/turnstone/queue"
)

// A between is a session that something else happens to between the calls of one operation.
type between struct {
	turnstone.Persistence
	reads   func(key string) error // before a record is read
	changes func() error           // before records are changed; an error is returned in place of the change
	changed func() error           // after that
}

func (b *between) Record(ctx context.Context, key string) (turnstone.Record, error) {
	if b.reads != nil {
		if err := b.reads(key); err != nil {
			return turnstone.Record{}, err
		}
	}
	return b.Persistence.Record(ctx, key)
}

func (b *between) ChangeRecords(ctx context.Context, changes ...turnstone.RecordChange) ([]turnstone.RecordVersion, error) {
	if b.changes != nil {
		if err := b.changes(); err != nil {
			return nil, err
		}
	}
	v, err := b.Persistence.ChangeRecords(ctx, changes...)
	if b.changed != nil && err == nil {
		if err := b.changed(); err != nil {
			return nil, err
		}
	}
	return v, err
}

// once returns a function that calls f the first time.
func once(f func() error) func() error {
	done := false
	return func() error {
		if done {
			return nil
		}
		done = true
		return f()
	}
}

// A lanes is a session with a queue, whose clock a test sets.
type lanes struct {
	*host
	p   turnstone.Persistence
	now time.Time
}

func newLanes(t *testing.T) *lanes {
	st := openStore(t, memory.New(), &turnstone.Options{PollEvery: time.Hour})
	return &lanes{&host{T: t, Store: st}, create(t, st, turnstone.Request{ID: "s"}), time.Unix(1_800_000_000, 0)}
}

func (l *lanes) options(o lease.Options) lease.Options {
	o.Now = func() time.Time { return l.now }
	return o
}

func (l *lanes) acquire(key string, o lease.Options) *lease.Lease {
	l.Helper()
	got, err := lease.Acquire(ctx, l.p, key, l.options(o))
	l.must(err)
	return got
}

func (l *lanes) change(changes ...turnstone.RecordChange) {
	l.Helper()
	_, err := l.p.ChangeRecords(ctx, changes...)
	l.must(err)
}

func (l *lanes) put(ids ...string) {
	l.Helper()
	for _, id := range ids {
		l.change(queue.PutAs("in", id, nil))
	}
}

func (l *lanes) is(err, want error) {
	l.Helper()
	if !errors.Is(err, want) {
		l.Fatalf("%v, want %v", err, want)
	}
}

// What was read before a renewal takes nothing over.
func TestL6_AClaimIsNotTakenWhileItsLaneIsRenewed(t *testing.T) {
	l := newLanes(t)
	lane := l.acquire("lane", lease.Options{Holder: "host"})
	l.acquire("work", lease.Options{Under: lane, Also: []string{"more"}})
	for _, key := range []string{"work", "lane"} {
		l.now = l.now.Add(time.Minute) // It has expired.
		renews := &between{Persistence: l.p, changes: once(func() error { return lane.Renew(ctx) })}
		_, err := lease.Acquire(ctx, renews, key, l.options(lease.Options{}))
		l.is(err, lease.ErrHeld)
	}
}

// A claim of one that is cancelled does not last as long as its lane.
func TestQ8_AClaimThatNobodyGotIsGivenBack(t *testing.T) {
	l := newLanes(t)
	l.put("1", "2")
	lane := l.acquire("lane", lease.Options{})
	under := l.options(lease.Options{Under: lane})
	cancelled, cancel := context.WithCancel(ctx)
	cut := &between{Persistence: l.p, changed: once(func() error {
		cancel()
		return context.Canceled
	})}
	_, err := queue.Claim(cancelled, cut, "in", under)
	l.is(err, context.Canceled)
	// Nor that of one whose answer was lost, and who can't look.
	broken, fail := errors.New("broken"), false
	lost := &between{Persistence: l.p, changed: once(func() error {
		fail = true
		return turnstone.ErrOutcomeUnknown
	}), reads: func(string) error {
		if fail {
			fail = false
			return broken
		}
		return nil
	}}
	_, err = queue.Claim(ctx, lost, "in", under)
	l.is(err, turnstone.ErrOutcomeUnknown)
	fails := &between{Persistence: l.p, reads: func(key string) error {
		if key == "queue/in/2" { // of a joined message, which is claimed by then
			return broken
		}
		return nil
	}}
	_, err = queue.ClaimJoined(ctx, fails, "in", under, queue.Join{})
	l.is(err, broken)
	m, err := queue.ClaimJoined(ctx, l.p, "in", under, queue.Join{})
	l.must(err)
	l.equal(len(m.Joined), 1)
}

// Nobody gets a part of a batch that ends while he looks, and none is claimed that is gone.
func TestQ9_ABatchIsNotTorn(t *testing.T) {
	l := newLanes(t)
	l.put("1", "2", "3")
	lane := l.acquire("lane", lease.Options{})
	m, err := queue.ClaimJoined(ctx, l.p, "in", l.options(lease.Options{Under: lane}), queue.Join{Limit: 2})
	l.must(err)
	steals := once(func() error { // a successor
		l.acquire("lane", lease.Options{Steal: true})
		return nil
	})
	walks := &between{Persistence: l.p, reads: func(key string) error {
		if key == ".queue/in/2" {
			return steals()
		}
		return nil
	}}
	got, err := queue.Claim(ctx, walks, "in", l.options(lease.Options{}))
	l.must(err)
	l.equal(got.ID, "3")
	got, err = queue.Claim(ctx, l.p, "in", l.options(lease.Options{}))
	l.must(err)
	l.equal(fmt.Sprint(got.ID, len(got.Joined)), "11")
	_, err = m.Commit(ctx, turnstone.Commit{})
	l.is(err, lease.ErrFenced)
	l.put("4", "5")
	gone := &between{Persistence: l.p, changes: once(func() error {
		_, err := queue.Cancel(ctx, l.p, "in", "5", l.options(lease.Options{}))
		return err
	})}
	got, err = queue.ClaimJoined(ctx, gone, "in", l.options(lease.Options{}), queue.Join{})
	l.must(err)
	l.equal(fmt.Sprint(got.ID, len(got.Joined)), "40")
	l.equal(len(l.records("s", ".queue/in/5")), 0)
}

// Records of leases that are not as this package writes them are no reason to hang or to panic.
func TestL6_ForeignRecordsOfALeaseDoNoHarm(t *testing.T) {
	l := newLanes(t)
	l.put("1", "2")
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// What is no lease can be stolen, and keeps nobody from the messages behind it.
	for i, value := range []string{`garbage`, `{"nonce":"n","also":[""]}`, `{"nonce":"n","under":{"key":"","nonce":"n"}}`, `{"nonce":"n","under":{"key":"run","nonce":"n"}}`, `{"nonce":"n","also":["run"]}`} {
		l.change(turnstone.RecordChange{Key: "run", Value: []byte(value)}, turnstone.RecordChange{Key: ".run", Value: []byte(`{}`)})
		_, err := lease.Acquire(limited, l.p, "run", l.options(lease.Options{}))
		l.is(err, lease.ErrForeign)
		_, err = lease.Acquire(limited, l.p, "run", l.options(lease.Options{Steal: true}))
		l.must(err)
		if id := fmt.Sprint("0", i); i < 3 { // The others are of the lease itself.
			l.put(id)
			l.change(turnstone.RecordChange{Key: ".queue/in/" + id, Value: []byte(value)})
		}
	}
	l.change(
		turnstone.RecordChange{Key: "z", Value: []byte(`{"nonce":"n"}`)}, turnstone.RecordChange{Key: ".z", Value: []byte(`{"expires":"2100-01-01T00:00:00Z"}`)},
		turnstone.RecordChange{Key: ".queue/in/2", Value: []byte(`{"nonce":"n","under":{"key":"z","nonce":"n","with":true}}`)},
		turnstone.RecordChange{Key: "a", Value: []byte(`{"nonce":"n","under":{"key":"b","nonce":"n","with":true},"also":["b"]}`)},
		turnstone.RecordChange{Key: "b", Value: []byte(`{"nonce":"n","under":{"key":"a","nonce":"n","with":true},"also":["a"]}`)},
		turnstone.RecordChange{Key: ".queue/in/1", Value: []byte(`{"nonce":"n","also":["x"]}`)}, turnstone.RecordChange{Key: "x", Value: []byte(`{"nonce":"n","under":{"key":".queue/in/1","nonce":"n","with":true}}`)},
	)
	_, err := lease.Acquire(limited, l.p, "a", l.options(lease.Options{}))
	l.is(err, lease.ErrForeign)
	_, err = lease.Acquire(limited, l.p, "a", l.options(lease.Options{Steal: true}))
	l.must(err)
	m, err := queue.ClaimJoined(limited, l.p, "in", l.options(lease.Options{}), queue.Join{})
	l.must(err)
	l.equal(fmt.Sprint(m.ID, len(m.Joined)), "10")
	l.must(m.Ack(ctx))
	m, err = queue.ClaimJoined(limited, l.p, "in", l.options(lease.Options{}), queue.Join{})
	l.must(err)
	l.equal(fmt.Sprint(m.ID, len(m.Joined)), "20")
	for i := range 3 {
		gone, err := queue.Cancel(limited, l.p, "in", fmt.Sprint("0", i), l.options(lease.Options{Steal: true}))
		l.must(err)
		l.equal(gone, true)
	}
}

// What the caller expects of other records is not taken for what others do to the queue.
func TestQ9_AConflictOfTheCallersIsTheCallers(t *testing.T) {
	l := newLanes(t)
	l.put("1", "2", "next")
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	o := l.options(lease.Options{With: []turnstone.RecordChange{queue.PutAs("in", "next", nil)}})
	_, err := queue.ClaimIDs(limited, l.p, "in", o, "1", "2")
	l.is(err, turnstone.ErrRecordConflict)
	_, err = queue.ClaimJoined(limited, l.p, "in", o, queue.Join{Limit: 2})
	l.is(err, turnstone.ErrRecordConflict)
}

// Who waits for what can't be taken over by itself looks now and then, and not all the time.
func TestL7_AwaitLooksNowAndThen(t *testing.T) {
	l := newLanes(t)
	l.acquire("first", lease.Options{Also: []string{"member"}})
	l.now = l.now.Add(time.Hour)
	reads := 0
	counted := &between{Persistence: l.p, reads: func(string) error {
		reads++
		return nil
	}}
	limited, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, err := lease.Await(limited, counted, "member", l.options(lease.Options{}))
	l.is(err, context.DeadlineExceeded)
	if reads > 30 {
		t.Errorf("%d reads", reads)
	}
}

// What comes after the acknowledgement does not make it fail.
func TestQ10_ATurnStandsAlsoIfItsQueueCanNotForget(t *testing.T) {
	l := newLanes(t)
	l.put("1")
	m, err := queue.Claim(ctx, l.p, "in", l.options(lease.Options{}))
	l.must(err)
	m.Remember, m.Session = time.Hour, unlisted{l.p}
	r, err := m.Commit(ctx, turnstone.Commit{})
	l.must(err)
	l.equal(r.Revision, 1)
}

type unlisted struct{ turnstone.Persistence }

func (unlisted) Records(context.Context, turnstone.RecordQuery) (turnstone.RecordPage, error) {
	return turnstone.RecordPage{}, engine.ErrUnavailable
}

// Who waits for records of its own store does not wait until the store looks at what others do.
func TestWA16_WhatThisStoreChangesIsSeenAtOnce(t *testing.T) {
	l := newLanes(t)
	limited, cancel := context.WithTimeout(ctx, 20*time.Minute) // The store looks after an hour.
	defer cancel()
	seen := make(chan string, 10)
	go func() {
		for u, err := range l.p.WatchRecords(limited, "r") {
			if err != nil {
				return
			}
			seen <- fmt.Sprint(len(u.Records))
		}
	}()
	go func() {
		for u, err := range l.WatchRecords(limited, "r") {
			if err != nil {
				return
			}
			seen <- fmt.Sprint("all ", len(u.Records))
		}
	}()
	both := func(want ...string) {
		t.Helper()
		got := map[string]bool{<-seen: true, <-seen: true}
		for _, w := range want {
			if !got[w] {
				t.Fatalf("%v, want %v", got, want)
			}
		}
	}
	both("0", "all 0")
	l.change(turnstone.RecordChange{Key: "r1"})
	both("1", "all 1")
	commitTo(t, session(t, l.Store, "s"), turnstone.Commit{Records: []turnstone.RecordChange{{Key: "r2"}}})
	both("1", "all 1")
	l.all(turnstone.SessionCommit{Create: &turnstone.Request{ID: "new"}, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{{Key: "r3"}}}})
	l.equal(<-seen, "all 1")
	l.must(l.Delete(ctx, "new", turnstone.KeepChildren))
	l.equal(<-seen, "all 1")
	followed := make(chan draft.Kind, 10)
	go func() {
		for p, err := range draft.Follow(limited, l.p, "t", "") {
			if err != nil {
				return
			}
			followed <- p.Kind
		}
		close(followed)
	}()
	d, err := draft.Open(ctx, l.p, "t")
	l.must(err)
	l.must(d.Set(ctx, []byte("one")))
	l.equal(<-followed, draft.Anew)
	l.must(d.Append(ctx, []byte("two")))
	l.equal(<-followed, draft.Grown)
	l.must(d.Set(ctx, nil))
	l.equal(<-followed, draft.Ended)
	if _, more := <-followed; more {
		t.Error("something follows the end")
	}
}

// What another store changes is seen by looking.
func TestWA16_WhatAnotherStoreChangesIsSeenByLooking(t *testing.T) {
	e := memory.New()
	one, two := openStore(t, e, &turnstone.Options{PollEvery: 5 * time.Millisecond}), openStore(t, e, nil)
	s := create(t, two, turnstone.Request{ID: "s"})
	seen := make(chan int)
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	go func() {
		for u, err := range session(t, one, "s").WatchRecords(limited, "r") {
			if err != nil {
				return
			}
			seen <- len(u.Records)
		}
	}()
	for i, want := range []int{0, 1, 1} {
		if n := <-seen; n != want {
			t.Fatalf("%d records, want %d", n, want)
		}
		if i < 2 {
			change(t, s, turnstone.RecordChange{Key: "r"})
		}
	}
}

// A waiting call goes on if there is more than a watch takes.
func TestL7_AwaitDoesNotDependOnHowManyRecordsThereAre(t *testing.T) {
	l := newLanes(t)
	for i := range turnstone.MaxWatchedRecords/turnstone.MaxRecords + 1 {
		var changes []turnstone.RecordChange
		for j := range turnstone.MaxRecords {
			changes = append(changes, turnstone.RecordChange{Key: fmt.Sprintf("run/%04d/%03d", i, j)})
		}
		l.change(changes...)
	}
	held := l.acquire("run", lease.Options{})
	time.AfterFunc(10*time.Millisecond, func() { _ = held.Release(ctx) })
	got, err := lease.Await(ctx, l.p, "run", l.options(lease.Options{}))
	l.must(err)
	l.equal(got.Token(), 2)
}

// Who had the lease is told also if the answer to the acquisition was lost.
func TestL5_WhoWasDisplacedIsToldAfterALostReply(t *testing.T) {
	l := newLanes(t)
	l.acquire("run", lease.Options{Holder: "one"})
	lost := &between{Persistence: l.p, changed: once(func() error { return turnstone.ErrOutcomeUnknown })}
	got, err := lease.Acquire(ctx, lost, "run", l.options(lease.Options{Steal: true}))
	l.must(err)
	before, had := got.Displaced()
	l.equal(fmt.Sprint(before.Holder, had), "onetrue")
}
