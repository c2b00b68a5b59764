package tests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

func startFeed(t *testing.T, st *turnstone.Store) turnstone.Cursor {
	t.Helper()
	if err := st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}); err != nil {
		t.Fatal(err)
	}
	return feedOf(t, st).End
}

func feedOf(t *testing.T, st *turnstone.Store) turnstone.Feed {
	t.Helper()
	f, err := st.Feed(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// changes returns what the feed has after a cursor, or all that it has after the empty one, up to now.
func changes(st *turnstone.Store, after turnstone.Cursor) (out []turnstone.Change, err error) {
	f, err := st.Feed(ctx)
	if after = cmp.Or(after, f.Begin); err != nil || after == f.End {
		return nil, err
	}
	for c, err := range st.Watch(ctx, after) {
		if err != nil {
			return out, err
		}
		if out = append(out, c); c.Cursor == f.End {
			break
		}
	}
	return out, nil
}

// toldBy returns changes as text.
func toldBy(t *testing.T, st *turnstone.Store, after turnstone.Cursor) (out []string) {
	t.Helper()
	all, err := changes(st, after)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		text := fmt.Sprint(c.Kind, " ", c.Session)
		if c.Revision > 0 {
			text += fmt.Sprint(" ", c.Revision)
		}
		if c.To != "" {
			text += " " + c.To
		}
		out = append(out, text)
	}
	return out
}

func TestWA6_ChangesAreKeptForAsLongAsTheFeedSays(t *testing.T) {
	var c clock
	e, st := onMemory(t, c.options())
	begin := startFeed(t, st)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 200 { // more than a page
		commitAt(t, s, turnstone.Commit{Expected: head.Revision(i)})
		feedOf(t, st) // which gives it its number
		c.now = c.now.Add(time.Second)
	}
	all, err := changes(st, begin)
	if err != nil || len(all) != 201 {
		t.Fatal(len(all), err)
	}
	c.now = c.now.Add(time.Hour - 100*time.Second)
	collect(t, st, gc.Options{})
	for _, at := range []turnstone.Cursor{begin, all[0].Cursor, all[98].Cursor} {
		if _, err := changes(st, at); !errors.Is(err, turnstone.ErrCursorExpired) {
			t.Errorf("%v", err)
		}
	}
	for at, want := range map[turnstone.Cursor]int{"": 100, all[100].Cursor: 100, all[150].Cursor: 50, all[200].Cursor: 0} {
		if got, err := changes(st, at); err != nil || len(got) != want {
			t.Errorf("%d changes, %v, want %d", len(got), err, want)
		}
	}
	if n := letters(t, e); n[keys.Change] != 100 || n[keys.Pending] != 0 {
		t.Errorf("%v", n)
	}
	verify(t, st)
	// A shorter time holds from then on.
	if err := st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Second}); err != nil {
		t.Fatal(err)
	}
	c.now = c.now.Add(2 * time.Second)
	collect(t, st, gc.Options{})
	if got, err := changes(st, ""); err != nil || len(got) > 1 {
		t.Errorf("%d changes, %v", len(got), err)
	}
	if err := st.StopFeed(ctx); err != nil {
		t.Fatal(err)
	}
	if n := letters(t, e); n[keys.Change]+n[keys.Pending]+n[keys.FeedEnd] != 0 {
		t.Errorf("%v", n)
	}
	verify(t, st)
}

// A copy has the feed: cursors are good for it, and what comes is told there.
func TestWA11_ACopyHasTheFeed(t *testing.T) {
	from, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	begin := startFeed(t, st)
	create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
	toldBy(t, st, begin)
	commitTo(t, session(t, st, "s"), turnstone.Commit{})
	to := memory.New()
	if _, err := turnstone.Copy(ctx, from, to, turnstone.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	copied := openStore(t, to, &turnstone.Options{NoAutoSeal: true})
	commitTo(t, session(t, copied, "s"), turnstone.Commit{})
	if got := toldBy(t, copied, begin); !slices.Equal(got, []string{"created s", "committed s 1", "committed s 2", "committed s 3"}) {
		t.Errorf("%q", got)
	}
	verify(t, copied)
}

// With the feed, a plain commit writes one value more, and guards and reads nothing more.
func TestWA12_ACommitTellsInItsBatch(t *testing.T) {
	var batches []*engine.Batch
	reads := 0
	e := &enginetest.Faulty{Engine: memory.New(), Plan: func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" {
			batches = append(batches, c.Batch)
		} else {
			reads++
		}
		return enginetest.Fault{}
	}}
	now := time.Unix(1_700_000_000, 0)
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, Now: func() time.Time { return now }})
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
	cost := func() (sets, guards int) {
		commitTo(t, s, turnstone.Commit{}) // The handle sees the head.
		batches, reads = nil, 0
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("y"))})
		if len(batches) != 1 || reads > 1 {
			t.Fatalf("%d batches, %d reads", len(batches), reads)
		}
		return len(batches[0].Sets), len(batches[0].Guards)
	}
	sets, guards := cost()
	startFeed(t, st)
	if n, m := cost(); n != sets+1 || m != guards {
		t.Errorf("%d sets and %d guards, without the feed %d and %d", n, m, sets, guards)
	}
	if err := st.StopFeed(ctx); err != nil {
		t.Fatal(err)
	}
	if n, m := cost(); n != sets || m != guards {
		t.Errorf("%d sets and %d guards, before %d and %d", n, m, sets, guards)
	}
}

func info(t *testing.T, st *turnstone.Store, id string) turnstone.Info {
	t.Helper()
	i, err := session(t, st, id).Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// On PostgreSQL, watches hear of what other processes do, long before they look by themselves, also after their
// connection was lost.
func TestWA15_OnPostgreSQLWatchesHearOfOtherProcesses(t *testing.T) {
	storetest.Some(t, "postgres")
	open := storetest.Engines["postgres"](t)
	var stores []*turnstone.Store
	for range 2 {
		e, err := open()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		stores = append(stores, openStore(t, e, &turnstone.Options{PollEvery: time.Hour}))
	}
	watching, committing := stores[0], stores[1]
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	heard := make(chan string)
	expect := func(want ...string) {
		t.Helper()
		for range want {
			if got := <-heard; !slices.Contains(want, got) {
				t.Fatalf("%q, want one of %q", got, want)
			}
		}
	}
	// Watches of records need no feed.
	create(t, watching, turnstone.Request{ID: "s"})
	s := session(t, committing, "s")
	for kind, w := range map[string]turnstone.RecordWatcher{"session": session(t, watching, "s"), "store": watching} {
		go func() {
			for u, err := range w.WatchRecords(limited, "r") {
				if err != nil {
					return
				}
				heard <- fmt.Sprint(kind, " has set ", len(u.Records))
			}
		}()
	}
	expect("session has set 0", "store has set 0")
	for i := range 3 {
		if _, err := s.ChangeRecords(ctx, turnstone.RecordChange{Key: fmt.Sprint("r", i)}); err != nil {
			t.Fatal(err)
		}
		expect("session has set 1", "store has set 1")
	}
	begin := startFeed(t, watching)
	go func() {
		for e, err := range session(t, watching, "s").Watch(limited, 0) {
			heard <- fmt.Sprintf("session %d%v", e.Revision, err)
		}
	}()
	go func() {
		for c, err := range watching.Watch(limited, begin) {
			heard <- fmt.Sprintf("store %s%d%v", c.Kind, c.Revision, err)
		}
	}()
	for i := range 3 {
		commitTo(t, s, turnstone.Commit{})
		expect(fmt.Sprintf("session %d<nil>", i+1), fmt.Sprintf("store committed%d<nil>", i+1))
	}
	if err := s.SaveMetadata(ctx, head.Metadata{Name: "n"}); err != nil {
		t.Fatal(err)
	}
	expect("store saved0<nil>")
	c, err := pgx.Connect(ctx, pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	var ended int
	if err := c.QueryRow(ctx, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'").Scan(&ended); err != nil || ended == 0 {
		t.Fatal(ended, err)
	}
	commitTo(t, s, turnstone.Commit{})
	expect("session 4<nil>", "store committed4<nil>")
}

// at returns options of a store whose clock a test sets.
func at(now *time.Time) *turnstone.Options {
	return &turnstone.Options{NoAutoSeal: true, Now: func() time.Time { return *now }}
}

func TestWA6_AClockThatIsAheadKeepsNothingLonger(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ahead := now.Add(10 * 365 * 24 * time.Hour)
	e, st := onMemory(t, at(&now))
	startFeed(t, st) // an hour
	other := create(t, st, turnstone.Request{ID: "o"})
	create(t, st, turnstone.Request{ID: "a"})
	commitTo(t, session(t, openStore(t, e, at(&ahead)), "a"), turnstone.Commit{})
	for range 20 {
		now = now.Add(24 * time.Hour)
		commitTo(t, other, turnstone.Commit{})
		collect(t, st, gc.Options{})
	}
	if n := letters(t, e)[keys.Change]; n > 2 {
		t.Errorf("%d changes are kept of 20 days, and the feed keeps an hour", n)
	}
}

// A watch reads a page while the feed ends and another one begins: it sees nothing of that one.
func TestWA4_AWatchBesideAnEndAndABeginSeesOneFeed(t *testing.T) {
	for _, fill := range []int{0, 1, 5} {
		e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
		begin := startFeed(t, st)
		s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"), []byte("y"))
		last := feedOf(t, st).End
		between := func() {
			if err := st.StopFeed(ctx); err != nil {
				t.Error(err)
			}
			startFeed(t, st)
			for range fill {
				commitTo(t, s, turnstone.Commit{})
			}
			feedOf(t, st)
		}
		reads := 0
		reading := openStore(t, &interceptor{Engine: e, scan: func(r engine.Range) func(engine.Pair) error {
			if len(r.Start) > 4 && r.Start[4] == keys.Change {
				if reads++; reads == 1 {
					between()
				}
			}
			return nil
		}}, &turnstone.Options{NoAutoSeal: true})
		for c, err := range reading.Watch(ctx, begin) {
			if err == nil {
				t.Errorf("%d: %s %d, of the feed before %s", fill, c.Kind, c.Revision, last)
				break
			}
			if !errors.Is(err, turnstone.ErrCursorExpired) {
				t.Errorf("%d: %v", fill, err)
			}
		}
		verify(t, st)
	}
}

func TestWA4_AChangeWhoseReplyWasLostIsToldOnce(t *testing.T) {
	f := &enginetest.Faulty{Engine: memory.New()}
	st := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s"})
	begin := startFeed(t, st)
	for _, call := range []func() error{
		func() error { return s.SaveMetadata(ctx, head.Metadata{Name: "n"}) },
		func() error { return rename(ctx, st, "s", "r") },
		func() error { return st.Delete(ctx, "r", turnstone.KeepChildren) },
		func() error { _, _, err := st.Create(ctx, turnstone.Request{ID: "t"}); return err },
	} {
		loseOutcome(f, func() {})
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	if got := toldBy(t, st, begin); !slices.Equal(got, []string{"saved s", "renamed s r", "deleted r", "created t"}) {
		t.Errorf("%q", got)
	}
}

// A call whose context ends does not wait for another one that is at the feed.
func TestWA4_NoCallWaitsLongerThanItsContext(t *testing.T) {
	f := &enginetest.Faulty{Engine: memory.New()}
	st := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
	startFeed(t, st)
	create(t, st, turnstone.Request{ID: "s"})
	applied := make(chan struct{}, 1000)
	f.Plan = func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" {
			select {
			case applied <- struct{}{}:
			default:
			}
			return enginetest.Fault{Err: engine.ErrUnknown}
		}
		return enginetest.Fault{}
	}
	first, end := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = st.Feed(first)
	}()
	<-applied // It is at the feed.
	for name, call := range map[string]func(context.Context) error{
		"Feed": func(ctx context.Context) error { _, err := st.Feed(ctx); return err },
		"GC":   func(ctx context.Context) error { _, err := st.GC(ctx, gc.Options{}); return err },
		"Watch": func(ctx context.Context) error {
			for _, err := range st.Watch(ctx, turnstone.Cursor(strings.Repeat("0", 48))) {
				return err
			}
			return nil
		},
	} {
		limited, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		if err := call(limited); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	end()
	<-ended
}
