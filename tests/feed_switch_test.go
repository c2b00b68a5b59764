package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Whatever is done to a session while the feed begins, elsewhere: if a cursor was taken before it took effect, it is
// in the feed.
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
				return session(t, st, "s").SaveMetadata(ctx, head.Metadata{Name: "n"})
			},
			func(st *turnstone.Store) bool { return info(t, st, "s").Name == "n" }, "saved s",
		},
		"tombstone": {
			func(st *turnstone.Store) error { return session(t, st, "s").Tombstone(ctx, node) },
			func(st *turnstone.Store) bool { _, err := session(t, st, "s").Node(ctx, node); return err != nil }, "tombstoned s",
		},
		"rename": {
			func(st *turnstone.Store) error { return rename(ctx, st, "s", "r") },
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
			err := turnFeed(faulty, !ends)
			if (err != nil) != cut {
				t.Fatalf("call %d: %v, %v", n, cut, err)
			}
			verify(t, st)
			for i := range 3 {
				commitTo(t, session(t, st, fmt.Sprint(i)), turnstone.Commit{})
			}
			other := create(t, st, turnstone.Request{ID: fmt.Sprint("other ", n)})
			if err := errors.Join(rename(ctx, st, "2", "r"), other.SaveMetadata(ctx, head.Metadata{Name: "n"})); err != nil {
				t.Fatal(err)
			}
			verify(t, st)
			if n%2 == 0 {
				if err := st.StopFeed(ctx); err != nil {
					t.Fatal(err)
				}
				if l := letters(t, e); l[keys.Change]+l[keys.Pending]+l[keys.FeedEnd] != 0 {
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
	start := func(st *turnstone.Store) error { return st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}) }
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
		func(st *turnstone.Store) error { return st.StartFeed(limited, turnstone.FeedOptions{Keep: time.Hour}) },
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

// A session that is renamed while the feed is begun, from where the sweep has not been to where it has, tells from
// then on.
func TestWA7_ASessionThatIsRenamedPastTheSweepTells(t *testing.T) {
	mem := memory.New()
	st := openStore(t, mem, &turnstone.Options{NoAutoSeal: true})
	var ids []string
	for i := range 1100 { // more than a page of the scan
		ids = append(ids, fmt.Sprint(i))
		create(t, st, turnstone.Request{ID: ids[i]})
	}
	hash := func(id string) string { h := spaceOf(st).Session(id); return string(h[:]) }
	slices.SortFunc(ids, func(a, b string) int { return strings.Compare(hash(a), hash(b)) })
	to := "new 0"
	for i := 1; hash(to) > hash(ids[10]); i++ {
		to = fmt.Sprint("new ", i)
	}
	pair := 0
	begins := openStore(t, &interceptor{Engine: mem, scan: func(engine.Range) func(engine.Pair) error {
		return func(engine.Pair) error {
			if pair++; pair == 500 { // of the first page
				return rename(ctx, st, ids[1099], to)
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
	if err := starting.StartFeed(limited, turnstone.FeedOptions{Keep: time.Hour}); !errors.Is(err, turnstone.ErrOutcomeUnknown) || !errors.Is(err, turnstone.ErrIncomplete) {
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
		if err := turnFeed(cut, !ends); !errors.Is(err, turnstone.ErrIncomplete) {
			t.Fatal(err)
		}
		if _, err := st.Feed(ctx); !errors.Is(err, turnstone.ErrFeedOff) {
			t.Fatal(err)
		}
		collect(t, st, gc.Options{})
		if _, err := st.Feed(ctx); ends != errors.Is(err, turnstone.ErrFeedOff) {
			t.Error(ends, err)
		}
		if l := letters(t, e); ends && l[keys.FeedEnd]+l[keys.Pending]+l[keys.Change] != 0 {
			t.Errorf("%v", l)
		}
		verify(t, st)
	}
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
	if err := turnFeed(st, !ends); !errors.Is(err, turnstone.ErrIncomplete) {
		t.Fatal(err)
	}
}

// turnFeed turns the feed on or off.
func turnFeed(st *turnstone.Store, on bool) error {
	if on {
		return st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour})
	}
	return st.StopFeed(ctx)
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
				cutOff(t, engineOf(st), ends)
			},
			func(st *turnstone.Store) error { _, err := st.GC(ctx, gc.Options{}); return err },
			func(st *turnstone.Store) {
				came = true
				if err := turnFeed(st, ends); err != nil {
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
			if err := errors.Join(st.StopFeed(ctx), st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour})); err != nil {
				t.Error(err)
			}
		},
		func(st *turnstone.Store, _ engine.Engine, err error) error {
			verify(t, st)
			return err
		})
}
