package turnstone_test

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
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pgtest"
)

func startFeed(t *testing.T, st *turnstone.Store) turnstone.Cursor {
	t.Helper()
	if err := st.StartFeed(ctx, time.Hour); err != nil {
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
	if err := st.StartFeed(ctx, time.Second); err != nil {
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
	if n := letters(t, e); n[keys.Change]+n[keys.Pending]+n[keys.Feed]+n[keys.FeedEnd] != 0 {
		t.Errorf("%v", n)
	}
	verify(t, st)
}

// Whatever is done to a session while the feed begins, elsewhere: if a cursor was taken before it took effect, it is in the feed.
func TestWA7_WhatIsDoneWhileTheFeedBeginsIsInIt(t *testing.T) {
	var node graph.ID
	for name, op := range map[string]struct {
		call func(*turnstone.Store) error
		done func(*turnstone.Store) bool // whether it took effect
		want string
	}{
		"commit": {
			func(st *turnstone.Store) error {
				_, err := session(t, st, "s").Commit(ctx, turnstone.Commit{Expected: 1})
				return err
			},
			func(st *turnstone.Store) bool { return info(t, st, "s").Revision == 2 }, "committed s 2",
		},
		"create": {
			func(st *turnstone.Store) error {
				_, _, err := st.Create(ctx, turnstone.Request{ID: "n"})
				return err
			},
			func(st *turnstone.Store) bool { _, err := st.Session(ctx, "n"); return err == nil }, "created n",
		},
		"create with a commit": {
			func(st *turnstone.Store) error {
				_, err := st.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "n", Parent: "s"}})
				return err
			},
			func(st *turnstone.Store) bool { _, err := st.Session(ctx, "n"); return err == nil }, "committed n 1",
		},
		"metadata": {
			func(st *turnstone.Store) error {
				return session(t, st, "s").SaveMetadata(ctx, turnstone.Metadata{Name: "n"})
			},
			func(st *turnstone.Store) bool { return info(t, st, "s").Name == "n" }, "saved s",
		},
		"tombstone": {
			func(st *turnstone.Store) error { return session(t, st, "s").Tombstone(ctx, node) },
			func(st *turnstone.Store) bool { _, err := session(t, st, "s").Node(ctx, node); return err != nil }, "tombstoned s",
		},
		"rename": {
			func(st *turnstone.Store) error { return st.Rename(ctx, "s", "r") },
			func(st *turnstone.Store) bool { _, err := st.Session(ctx, "r"); return err == nil }, "renamed s r",
		},
		"delete": {
			func(st *turnstone.Store) error { return st.Delete(ctx, "s", turnstone.KeepChildren) },
			func(st *turnstone.Store) bool { _, err := st.Session(ctx, "s"); return err != nil }, "deleted s",
		},
	} {
		var cursor turnstone.Cursor
		var before bool
		in := 0
		besideEachCall(t,
			func(st *turnstone.Store) {
				node = commitTo(t, create(t, st, turnstone.Request{ID: "s"}), turnstone.Commit{Nodes: saying([]byte("x"))}).Nodes[0]
				cursor = ""
			},
			op.call,
			func(st *turnstone.Store) {
				cursor, before = startFeed(t, st), !op.done(st)
			},
			func(st *turnstone.Store, _ engine.Engine, err error) error {
				if err != nil || cursor == "" {
					return err
				}
				if all := toldBy(t, st, cursor); before != slices.Contains(all, op.want) {
					return fmt.Errorf("%s: the feed has %q, took effect after the cursor: %v", name, all, before)
				} else if before {
					in++
				}
				id := "s"
				if name == "rename" {
					id = "r"
				}
				if s, err := st.Session(ctx, id); err == nil { // Commits tell from now on.
					r := commitTo(t, s, turnstone.Commit{})
					if all := toldBy(t, st, cursor); !slices.Contains(all, fmt.Sprint("committed ", id, " ", r.Revision)) {
						return fmt.Errorf("%s: the next commit is not in the feed: %q", name, all)
					}
				}
				verify(t, st)
				return nil
			})
		if in == 0 {
			t.Errorf("%s: it never took effect after the feed was begun", name)
		}
	}
}

// A start or end of the feed that was cut off leaves a whole store, which is used as before, and the next one goes on.
func TestWA8_AStartOrEndThatWasCutOffIsFinishedByTheNext(t *testing.T) {
	for _, ends := range []bool{false, true} {
		for n, cut := 1, true; cut; n++ {
			e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
			for i := range 3 {
				create(t, st, turnstone.Request{ID: fmt.Sprint(i)}, []byte("x"))
			}
			if ends {
				begin := startFeed(t, st)
				commitTo(t, session(t, st, "0"), turnstone.Commit{})
				toldBy(t, st, begin)
				commitTo(t, session(t, st, "1"), turnstone.Commit{})
			}
			at := 0
			f := &enginetest.Faulty{Engine: e}
			faulty := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
			cut = false
			f.Plan = func(enginetest.Call) enginetest.Fault {
				at++
				cut = cut || at == n
				return enginetest.Fault{Crash: at == n}
			}
			var err error
			if ends {
				err = faulty.StopFeed(ctx)
			} else {
				err = faulty.StartFeed(ctx, time.Hour)
			}
			if (err != nil) != cut {
				t.Fatalf("call %d: %v, %v", n, cut, err)
			}
			verify(t, st)
			for i := range 3 {
				commitTo(t, session(t, st, fmt.Sprint(i)), turnstone.Commit{})
			}
			other := create(t, st, turnstone.Request{ID: fmt.Sprint("other ", n)})
			if err := errors.Join(st.Rename(ctx, "2", "r"), other.SaveMetadata(ctx, turnstone.Metadata{Name: "n"})); err != nil {
				t.Fatal(err)
			}
			verify(t, st)
			if n%2 == 0 {
				if err := st.StopFeed(ctx); err != nil {
					t.Fatal(err)
				}
				if l := letters(t, e); l[keys.Change]+l[keys.Pending]+l[keys.Feed]+l[keys.FeedEnd] != 0 {
					t.Errorf("call %d: %v", n, l)
				}
				commitTo(t, other, turnstone.Commit{})
				if l := letters(t, e); l[keys.Pending] != 0 {
					t.Errorf("call %d: a commit tells a feed that is off", n)
				}
			}
			verify(t, st)
			cursor := startFeed(t, st)
			verify(t, st)
			for _, id := range []string{"0", "1", "r", fmt.Sprint("other ", n)} {
				commitTo(t, session(t, st, id), turnstone.Commit{})
			}
			if all := toldBy(t, st, cursor); len(all) != 4 {
				t.Errorf("call %d: %q", n, all)
			}
		}
	}
}

// Of a start and an end at once, one comes last: the feed is on or off, and every session tells accordingly.
func TestWA8_AStartAndAnEndAtOnce(t *testing.T) {
	start := func(st *turnstone.Store) error { return st.StartFeed(ctx, time.Hour) }
	stop := func(st *turnstone.Store) error { return st.StopFeed(ctx) }
	for name, ops := range map[string][2]func(*turnstone.Store) error{
		"start, stop": {start, stop}, "start, start": {start, start}, "stop, start": {stop, start}, "stop, stop": {stop, stop},
	} {
		besideEachCall(t,
			func(st *turnstone.Store) {
				if strings.HasPrefix(name, "stop") {
					startFeed(t, st)
				}
				for i := range 3 {
					create(t, st, turnstone.Request{ID: fmt.Sprint(i)}, []byte("x"))
				}
			},
			ops[0],
			func(st *turnstone.Store) {
				if err := ops[1](st); err != nil {
					t.Error(err)
				}
			},
			func(st *turnstone.Store, e engine.Engine, err error) error {
				if err != nil {
					return err
				}
				verify(t, st)
				for i := range 3 {
					commitTo(t, session(t, st, fmt.Sprint(i)), turnstone.Commit{})
				}
				if _, err := st.Feed(ctx); err == nil {
					if all, err := changes(st, ""); err != nil || len(all) < 3 {
						return fmt.Errorf("%s: the feed has %d changes, %w", name, len(all), err)
					}
				} else if l := letters(t, e); !errors.Is(err, turnstone.ErrFeedOff) || l[keys.Pending]+l[keys.Change] > 0 {
					return fmt.Errorf("%s: %v, %w", name, l, err)
				}
				return nil
			})
	}
}

// A start that is cut off while another call ends the feed leaves no session that tells.
func TestWA8_AStartThatIsCutOffBesideAnEnd(t *testing.T) {
	var limited context.Context
	var cancel context.CancelFunc
	besideEachCall(t,
		func(st *turnstone.Store) {
			limited, cancel = context.WithCancel(ctx)
			for i := range 4 {
				create(t, st, turnstone.Request{ID: fmt.Sprint(i)}, []byte("x"))
			}
		},
		func(st *turnstone.Store) error { return st.StartFeed(limited, time.Hour) },
		func(st *turnstone.Store) {
			defer time.AfterFunc(0, cancel)
			if err := st.StopFeed(ctx); err != nil {
				t.Error(err)
			}
		},
		func(st *turnstone.Store, _ engine.Engine, err error) error {
			cancel()
			verify(t, st)
			if err != nil && !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		})
}

// Clocks that differ do not change the order of a session's commits, nor put anything behind its deletion.
func TestWA9_TheOrderOfASessionDoesNotDependOnClocks(t *testing.T) {
	e, first := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	begin := startFeed(t, first)
	var stores []*turnstone.Store
	for _, apart := range []time.Duration{0, -time.Hour, 20 * time.Minute, -3 * time.Hour} {
		stores = append(stores, openStore(t, e, &turnstone.Options{NoAutoSeal: true, Now: func() time.Time { return time.Now().Add(apart) }}))
	}
	create(t, first, turnstone.Request{ID: "s"})
	want := []string{"created s"}
	for i := range 100 {
		commitTo(t, session(t, stores[i%4], "s"), turnstone.Commit{})
		want = append(want, fmt.Sprint("committed s ", i+1))
	}
	if got := toldBy(t, first, begin); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	middle := feedOf(t, first).End
	commitTo(t, session(t, stores[3], "s"), turnstone.Commit{})
	if err := session(t, stores[2], "s").SaveMetadata(ctx, turnstone.Metadata{Name: "n"}); err != nil {
		t.Fatal(err)
	}
	remove(t, stores[3], "s")
	if got := toldBy(t, first, middle); !slices.Equal(got, []string{"committed s 101", "saved s", "deleted s"}) {
		t.Errorf("%q", got)
	}
}

// The ids of erased sessions go from the feed, whether they have a number or not; the changes stay.
func TestWA10_ErasureForgetsIDs(t *testing.T) {
	mem := memory.New()
	st := openStore(t, mem, &turnstone.Options{NoAutoSeal: true})
	begin := startFeed(t, st)
	for _, id := range []string{"secret", "other"} {
		create(t, st, turnstone.Request{ID: id}, []byte("x"))
	}
	if err := st.Rename(ctx, "secret", "hidden name"); err != nil {
		t.Fatal(err)
	}
	toldBy(t, st, begin)
	commitTo(t, session(t, st, "hidden name"), turnstone.Commit{})
	if _, err := st.Erase(ctx, "hidden name", turnstone.KeepChildren, turnstone.EraseOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range pairs(t, mem) {
		if s := string(p.Key) + string(p.Value); strings.Contains(s, "secret") || strings.Contains(s, "hidden") {
			t.Errorf("%x has the id", p.Key)
		}
	}
	want := []string{"created ", "committed  1", "created other", "committed other 1", "renamed ", "committed  2", "deleted "}
	if got := toldBy(t, st, begin); !slices.Equal(got, want) {
		t.Errorf("%q", got)
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

// Whoever else reads the feed, or erases a session, while changes get their numbers: each gets one, and no erased id is left.
func TestWA13_ChangesGetOneNumberWhoeverIsAtIt(t *testing.T) {
	for name, other := range map[string]func(*turnstone.Store) error{
		"read": func(st *turnstone.Store) error {
			if _, err := changes(st, ""); err != nil {
				return err
			}
			commitTo(t, session(t, st, "secret"), turnstone.Commit{})
			return nil
		},
		"erase": func(st *turnstone.Store) error {
			_, err := st.Erase(ctx, "secret", turnstone.KeepChildren, turnstone.EraseOptions{})
			return err
		},
	} {
		besideEachCall(t,
			func(st *turnstone.Store) {
				startFeed(t, st)
				s := create(t, st, turnstone.Request{ID: "secret"})
				for range 5 {
					commitTo(t, s, turnstone.Commit{})
				}
			},
			func(st *turnstone.Store) error {
				_, err := st.Feed(ctx)
				return err
			},
			func(st *turnstone.Store) {
				if err := other(st); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			},
			func(st *turnstone.Store, e engine.Engine, err error) error {
				if err != nil {
					return err
				}
				all, err := changes(st, "")
				last := head.Revision(0)
				for _, c := range all {
					if c.Kind == turnstone.ChangeCommitted {
						if last++; c.Revision != last {
							return fmt.Errorf("%s: revision %d is told in place of %d", name, c.Revision, last)
						}
					}
				}
				if last < 5 || err != nil {
					return fmt.Errorf("%s: %d commits are told, %w", name, last, err)
				}
				for _, p := range pairs(t, e) {
					if _, gone := st.Session(ctx, "secret"); gone != nil && strings.Contains(string(p.Value), "secret") {
						return fmt.Errorf("the record at %x has the id of the erased session", p.Key)
					}
				}
				verify(t, st)
				return nil
			})
	}
}

// A session that is renamed while the feed is begun, from where the sweep has not been to where it has, tells from then on.
func TestWA7_ASessionThatIsRenamedPastTheSweepTells(t *testing.T) {
	mem := memory.New()
	st := openStore(t, mem, &turnstone.Options{NoAutoSeal: true})
	var ids []string
	for i := range 1100 { // more than a page of the scan
		ids = append(ids, fmt.Sprint(i))
		create(t, st, turnstone.Request{ID: ids[i]})
	}
	hash := func(id string) string { h := turnstone.SpaceOf(st).Session(id); return string(h[:]) }
	slices.SortFunc(ids, func(a, b string) int { return strings.Compare(hash(a), hash(b)) })
	to := "new 0"
	for i := 1; hash(to) > hash(ids[10]); i++ {
		to = fmt.Sprint("new ", i)
	}
	pair := 0
	begins := openStore(t, &interceptor{Engine: mem, scan: func(engine.Range) func(engine.Pair) error {
		return func(engine.Pair) error {
			if pair++; pair == 500 { // of the first page
				return st.Rename(ctx, ids[1099], to)
			}
			return nil
		}
	}}, &turnstone.Options{NoAutoSeal: true})
	pair = 0
	cursor := startFeed(t, begins)
	commitTo(t, session(t, st, to), turnstone.Commit{})
	if got := toldBy(t, st, cursor); !slices.Equal(got, []string{"committed " + to + " 1"}) {
		t.Errorf("%q", got)
	}
}

// A head never recurs when the feed is begun and ended, so no commit whose outcome was unknown can come late.
func TestWA14_NoHeadRecurs(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true, Now: func() time.Time { return now }})
	create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
	seen := map[string]bool{}
	for i := range 5 {
		for _, p := range pairs(t, e) {
			if p.Key[4] == keys.Head && seen[string(p.Value)] {
				t.Fatalf("a head was there before, at step %d", i)
			} else if p.Key[4] == keys.Head {
				seen[string(p.Value)] = true
			}
		}
		if i%2 == 0 {
			startFeed(t, st)
		} else if err := st.StopFeed(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// On PostgreSQL, watches hear of what other processes do, long before they look by themselves, also after their connection was lost.
func TestWA15_OnPostgreSQLWatchesHearOfOtherProcesses(t *testing.T) {
	oneEngine(t, "postgres")
	open := engines["postgres"](t)
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
	begin := startFeed(t, watching)
	s := create(t, committing, turnstone.Request{ID: "s"})
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	heard := make(chan string)
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
	expect := func(want ...string) {
		t.Helper()
		for range want {
			if got := <-heard; !slices.Contains(want, got) {
				t.Fatalf("%q, want one of %q", got, want)
			}
		}
	}
	expect("store created0<nil>")
	for i := range 3 {
		commitTo(t, s, turnstone.Commit{})
		expect(fmt.Sprintf("session %d<nil>", i+1), fmt.Sprintf("store committed%d<nil>", i+1))
	}
	if err := s.SaveMetadata(ctx, turnstone.Metadata{Name: "n"}); err != nil {
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

// Renames and changes of metadata by a clock that is behind the last commit's are told each, in their order.
func TestWA9_NothingIsLostByAClockThatIsBehind(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ahead := now.Add(time.Second)
	e, st := onMemory(t, at(&now))
	begin := startFeed(t, st)
	nodes := commitTo(t, create(t, st, turnstone.Request{ID: "a"}), turnstone.Commit{Nodes: slices.Repeat(saying(nil), 3)}).Nodes
	commitTo(t, session(t, openStore(t, e, at(&ahead)), "a"), turnstone.Commit{})
	for _, r := range [][2]string{{"a", "b"}, {"b", "c"}, {"c", "d"}} {
		if err := st.Rename(ctx, r[0], r[1]); err != nil {
			t.Fatal(err)
		}
	}
	commitTo(t, session(t, st, "d"), turnstone.Commit{})
	want := []string{"created a", "committed a 1", "committed a 2", "renamed a b", "renamed b c", "renamed c d", "committed d 3"}
	for i, node := range nodes {
		if err := errors.Join(session(t, st, "d").SaveMetadata(ctx, turnstone.Metadata{Name: fmt.Sprint(i)}), session(t, st, "d").Tombstone(ctx, node)); err != nil {
			t.Fatal(err)
		}
		want = append(want, "saved d")
	}
	want = append(want, "tombstoned d", "tombstoned d", "tombstoned d")
	if got := toldBy(t, st, begin); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// A deletion comes after what was told of its session by a clock that is ahead, also when more than a page waits.
func TestWA9_NothingFollowsADeletionHoweverMuchWaits(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ahead := now.Add(time.Minute)
	e, st := onMemory(t, at(&now))
	begin := startFeed(t, st)
	create(t, st, turnstone.Request{ID: "a"})
	other := create(t, st, turnstone.Request{ID: "o"})
	if err := session(t, openStore(t, e, at(&ahead)), "a").SaveMetadata(ctx, turnstone.Metadata{Name: "n"}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Millisecond)
	remove(t, st, "a")
	for range 200 {
		now = now.Add(time.Millisecond)
		commitTo(t, other, turnstone.Commit{})
	}
	got := toldBy(t, st, begin)
	if d, s := slices.Index(got, "deleted a"), slices.Index(got, "saved a"); s < 0 || d < s || len(got) != 204 {
		t.Errorf("%d changes, deleted at %d, saved at %d", len(got), d, s)
	}
}

// Who starts the feed with a clock that is ahead does not put the commits of all sessions out of their order.
func TestWA9_TheClockOfWhoStartsTheFeedDoesNotCount(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ahead := now.Add(time.Hour)
	e, st := onMemory(t, at(&now))
	a, b := create(t, st, turnstone.Request{ID: "a"}), create(t, st, turnstone.Request{ID: "b"})
	begin := startFeed(t, openStore(t, e, at(&ahead)))
	for _, s := range []*turnstone.Session{a, a, a, b} {
		now = now.Add(time.Minute)
		commitTo(t, s, turnstone.Commit{})
	}
	if got := toldBy(t, st, begin); !slices.Equal(got, []string{"committed a 1", "committed a 2", "committed a 3", "committed b 1"}) {
		t.Errorf("%q", got)
	}
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
		func() error { return s.SaveMetadata(ctx, turnstone.Metadata{Name: "n"}) },
		func() error { return st.Rename(ctx, "s", "r") },
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

// The batch of a start that comes late, after the feed was ended, makes no session tell.
func TestWA8_AStartThatComesLateDoesNothing(t *testing.T) {
	e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
	f := &enginetest.Faulty{Engine: e}
	starting := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
	limited, cancel := context.WithCancel(ctx)
	applies := 0
	f.Plan = func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" {
			if applies++; applies == 2 {
				cancel()
				return enginetest.Fault{Err: engine.ErrUnknown, Late: true}
			}
		}
		return enginetest.Fault{}
	}
	if err := starting.StartFeed(limited, time.Hour); !errors.Is(err, turnstone.ErrOutcomeUnknown) || !errors.Is(err, turnstone.ErrIncomplete) {
		t.Error(err)
	}
	f.Plan = nil
	if err := st.StopFeed(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := starting.Stats(ctx); err != nil { // The late batch lands.
		t.Fatal(err)
	}
	commitTo(t, session(t, st, "s"), turnstone.Commit{})
	if n := letters(t, e)[keys.Pending]; n != 0 {
		t.Errorf("the feed is off, and commits have told %d changes", n)
	}
	verify(t, st)
}

// A collection finishes a start and an end that were cut off.
func TestWA8_ACollectionFinishesWhatWasCutOff(t *testing.T) {
	for _, ends := range []bool{false, true} {
		e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
		create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
		if ends {
			startFeed(t, st)
		}
		applies := 0
		f := &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
			if c.Op == "Apply" {
				applies++
			}
			return enginetest.Fault{Crash: applies == 2}
		}}
		cut := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
		err := cut.StopFeed(ctx)
		if !ends {
			err = cut.StartFeed(ctx, time.Hour)
		}
		if !errors.Is(err, turnstone.ErrIncomplete) {
			t.Fatal(err)
		}
		if _, err := st.Feed(ctx); !errors.Is(err, turnstone.ErrFeedOff) {
			t.Fatal(err)
		}
		collect(t, st, gc.Options{})
		if _, err := st.Feed(ctx); ends != errors.Is(err, turnstone.ErrFeedOff) {
			t.Error(ends, err)
		}
		if l := letters(t, e); ends && l[keys.Feed]+l[keys.FeedEnd]+l[keys.Pending]+l[keys.Change] != 0 {
			t.Errorf("%v", l)
		}
		verify(t, st)
	}
}

// Erasing an id takes it from the feed for all deleted sessions that had it, and for children that were made meanwhile.
func TestWA10_ErasureForgetsEarlierSessionsAndLateChildren(t *testing.T) {
	mem := memory.New()
	st := openStore(t, mem, &turnstone.Options{NoAutoSeal: true})
	startFeed(t, st)
	for range 2 {
		create(t, st, turnstone.Request{ID: "secret"}, []byte("x"))
		remove(t, st, "secret")
	}
	create(t, st, turnstone.Request{ID: "secret"}, []byte("x"))
	once := false
	erasing := openStore(t, &enginetest.Faulty{Engine: mem, Plan: func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" && !once {
			once = true
			create(t, st, turnstone.Request{ID: "child of a secret", Parent: "secret"}, []byte("y"))
		}
		return enginetest.Fault{}
	}}, &turnstone.Options{NoAutoSeal: true})
	if _, err := erasing.Erase(ctx, "secret", turnstone.CascadeChildren, turnstone.EraseOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range pairs(t, mem) {
		if strings.Contains(string(p.Value), "secret") {
			t.Errorf("the record at %x has an erased id", p.Key)
		}
	}
	verify(t, st)
}

// cutOff leaves a start or an end of the feed half done.
func cutOff(t *testing.T, e engine.Engine, ends bool) {
	t.Helper()
	applies := 0
	f := &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" {
			applies++
		}
		return enginetest.Fault{Crash: applies == 2}
	}}
	st := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
	err := st.StopFeed(ctx)
	if !ends {
		err = st.StartFeed(ctx, time.Hour)
	}
	if !errors.Is(err, turnstone.ErrIncomplete) {
		t.Fatal(err)
	}
}

// A collection that finishes what was cut off does not touch what was begun or ended since.
func TestWA8_ACollectionMindsTheFeedThatWasCutOffAlone(t *testing.T) {
	for _, ends := range []bool{false, true} {
		came := false
		besideEachCall(t,
			func(st *turnstone.Store) {
				came = false
				if create(t, st, turnstone.Request{ID: "s"}, []byte("x")); ends {
					startFeed(t, st)
				}
				cutOff(t, turnstone.EngineOf(st), ends)
			},
			func(st *turnstone.Store) error { _, err := st.GC(ctx, gc.Options{}); return err },
			func(st *turnstone.Store) {
				came = true
				err := st.StopFeed(ctx)
				if ends {
					err = st.StartFeed(ctx, time.Hour)
				}
				if err != nil {
					t.Error(err)
				}
			},
			func(st *turnstone.Store, _ engine.Engine, err error) error {
				_, ferr := st.Feed(ctx)
				if err != nil || came && ends == errors.Is(ferr, turnstone.ErrFeedOff) {
					return errors.Join(err, fmt.Errorf("ends %v: %w", ends, ferr))
				}
				verify(t, st)
				return nil
			})
	}
}

func TestWA8_ACollectionBesideAnEndAndABeginWorks(t *testing.T) {
	besideEachCall(t,
		func(st *turnstone.Store) {
			s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
			startFeed(t, st)
			commitTo(t, s, turnstone.Commit{})
		},
		func(st *turnstone.Store) error { _, err := st.GC(ctx, gc.Options{}); return err },
		func(st *turnstone.Store) {
			if err := errors.Join(st.StopFeed(ctx), st.StartFeed(ctx, time.Hour)); err != nil {
				t.Error(err)
			}
		},
		func(st *turnstone.Store, _ engine.Engine, err error) error {
			verify(t, st)
			return err
		})
}

// A tombstone of a commit and one of a call are two changes, also by a clock that is behind.
func TestWA9_TombstonesOfCommitsAndCallsAreToldEach(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ahead := now.Add(time.Minute)
	e, st := onMemory(t, at(&now))
	begin := startFeed(t, st)
	nodes := commitTo(t, create(t, st, turnstone.Request{ID: "a"}), turnstone.Commit{Nodes: slices.Repeat(saying(nil), 3)}).Nodes
	commitTo(t, session(t, openStore(t, e, at(&ahead)), "a"), turnstone.Commit{Tombstone: nodes[:1]})
	if err := session(t, st, "a").Tombstone(ctx, nodes[1]); err != nil {
		t.Fatal(err)
	}
	if got := toldBy(t, st, begin); !slices.Equal(got, []string{"created a", "committed a 1", "committed a 2", "tombstoned a", "tombstoned a"}) {
		t.Errorf("%q", got)
	}
}

func TestWA9_NothingFollowsADeletionOfMoreThanABatch(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ahead := now.Add(time.Hour)
	e, st := onMemory(t, at(&now))
	begin := startFeed(t, st)
	create(t, st, turnstone.Request{ID: "a"})
	s := session(t, openStore(t, e, at(&ahead)), "a")
	for i := range 1200 {
		ahead = ahead.Add(time.Millisecond)
		if err := s.SaveMetadata(ctx, turnstone.Metadata{Name: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(time.Millisecond)
	remove(t, st, "a")
	if got := toldBy(t, st, begin); len(got) != 1202 || got[1201] != "deleted a" {
		t.Errorf("%d changes, deleted at %d", len(got), slices.Index(got, "deleted a"))
	}
}

// A session is erased while the feed is begun, and somebody else gives numbers at any moment: no id is left.
func TestWA10_ErasureForgetsBesideABeginAndAReader(t *testing.T) {
	for k, began := 1, true; began; k++ {
		for j := 1; j < 5; j++ {
			e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
			create(t, st, turnstone.Request{ID: "other"}, []byte("x"))
			cutOff(t, e, false)
			create(t, st, turnstone.Request{ID: "secret"}, []byte("x")) // It is told, and nobody gives numbers yet.
			g, h := &enginetest.Faulty{Engine: e}, &enginetest.Faulty{Engine: e}
			eraser, reader := openStore(t, g, &turnstone.Options{NoAutoSeal: true}), openStore(t, h, &turnstone.Options{NoAutoSeal: true})
			n, m := 0, 0
			resume, stopped, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
			h.Plan = func(enginetest.Call) enginetest.Fault { // The reader waits before its j-th call until the erasure is done.
				if m++; m == j {
					close(stopped)
					<-resume
				}
				return enginetest.Fault{}
			}
			began = false
			g.Plan = func(enginetest.Call) enginetest.Fault { // At the k-th call of the erasure the feed comes on.
				if n++; n == k {
					if err := st.StartFeed(ctx, time.Hour); err != nil {
						t.Error(err)
					}
					began = true
					go func() { defer close(done); _, _ = reader.Feed(ctx) }()
					select {
					case <-stopped:
					case <-done:
					}
				}
				return enginetest.Fault{}
			}
			_, err := eraser.Erase(ctx, "secret", turnstone.KeepChildren, turnstone.EraseOptions{})
			g.Plan = nil
			close(resume)
			if !began {
				break
			}
			<-done
			if got := fmt.Sprint(toldBy(t, st, "")); err != nil || strings.Contains(got, "secret") {
				t.Errorf("at call %d, the reader at %d: %v, %s", k, j, err, got)
			}
		}
	}
}
