package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// telling makes a store on memory whose feed tells of everything, and a target.
func telling(t *testing.T) (*memory.Engine, *turnstone.Store, backup.Target, string) {
	t.Helper()
	e, st := onMemory(t, nil)
	must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour, Records: true}))
	dir := t.TempDir() + "/backup"
	return e, st, backup.Directory(dir), dir
}

// crowd makes sessions with something in them, so that a run has several pages.
func crowd(t *testing.T, st *turnstone.Store, n int) {
	t.Helper()
	for i := range n {
		create(t, st, turnstone.Request{ID: fmt.Sprint("many", i)}, random(100, uint64(i)))
	}
}

// Commits, forks and maintenance go on beside a backup that follows, and what was there before a run began is in it.
func TestBK6_ABackupFollowsWhileOthersWork(t *testing.T) {
	to := backup.Directory(t.TempDir() + "/backup")
	_, st := onMemory(t, nil)
	must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour, Records: true}))
	for i := range 4 {
		create(t, st, turnstone.Request{ID: fmt.Sprint("w", i)}, []byte("first"))
	}
	following, stop := context.WithCancel(ctx)
	var others sync.WaitGroup
	others.Go(func() {
		err := backup.Follow(following, st, to, backup.Options{Every: time.Millisecond, Report: func(r *backup.Report, err error) {
			if err == nil {
				err = r.Err()
			}
			if err != nil {
				t.Error(err)
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	defer others.Wait()
	defer stop()
	p := newPast(t, st, 11)
	for range testkit.Pick(600, 300, 100) {
		p.step()
		commitTo(t, session(t, st, fmt.Sprint("w", p.r.IntN(4))), turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying(random(300, p.r.Uint64()))})
	}
	stop()
	others.Wait()
	r := backedUp(t, st, to, backup.Options{})
	if r.All {
		t.Error("the feed was not followed")
	}
	verified(t, to)
	got, _ := restored(t, to, backup.RestoreOptions{})
	sameAlive(t, aliveIn(t, st), aliveIn(t, got))
}

// Who makes a backup to a target that another process goes on with meanwhile is told, and goes on from that.
func TestBK6_TwoProcessesAreToldOfEachOther(t *testing.T) {
	to := backup.Directory(t.TempDir() + "/backup")
	_, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("text"))
	backedUp(t, st, to, backup.Options{})
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("more"))})
	inside := true
	other := &fickle{Target: to, before: func(what string) error {
		if inside && what == "put" {
			inside = false
			backedUp(t, st, to, backup.Options{})
		}
		return nil
	}}
	if _, err := backup.Run(ctx, st, other, backup.Options{}); !errors.Is(err, backup.ErrOther) {
		t.Fatal(err)
	}
	if r := backedUp(t, st, to, backup.Options{}); r.Sessions > 0 || r.Run != 2 {
		t.Errorf("%+v", r)
	}
	verified(t, to)
}

// Sessions that are renamed, deleted, or that hand their ids on while a run is made: no run is unreadable, a session that
// was there when the run began and still is is in it, and the next run has all as it stands.
func TestBK6_WhatIsRenamedOrDeletedMeanwhileSpoilsNothing(t *testing.T) {
	for name, do := range map[string]func(t *testing.T, st *turnstone.Store){
		"renamed": func(t *testing.T, st *turnstone.Store) { must(t, rename(ctx, st, "a", "b")) },
		"handed on": func(t *testing.T, st *turnstone.Store) {
			remove(t, st, "c")
			must(t, rename(ctx, st, "a", "c"))
		},
		"another one": func(t *testing.T, st *turnstone.Store) {
			remove(t, st, "a")
			create(t, st, turnstone.Request{ID: "a"}, []byte("1"), []byte("2"), []byte("3"))
		},
		"swapped": func(t *testing.T, st *turnstone.Store) {
			must(t, rename(ctx, st, "a", "x"))
			must(t, rename(ctx, st, "c", "a"))
			must(t, rename(ctx, st, "x", "c"))
		},
		"parent gone": func(t *testing.T, st *turnstone.Store) { remove(t, st, "p") },
		"parent renamed": func(t *testing.T, st *turnstone.Store) {
			must(t, rename(ctx, st, "p", "q"))
		},
	} {
		for _, first := range testkit.Pick([]bool{false, true}, []bool{false, true}, []bool{false}) {
			t.Run(fmt.Sprint(name, " first ", first), func(t *testing.T) {
				_, st, to, _ := telling(t)
				for _, id := range []string{"a", "c", "p"} {
					create(t, st, turnstone.Request{ID: id}, []byte(id))
				}
				if !first {
					backedUp(t, st, to, backup.Options{})
				}
				create(t, st, turnstone.Request{ID: "f", Parent: "p"}, []byte("fork"))
				n := 30
				if !first {
					n = testkit.Pick(510, 30, 30) // more than a page
				}
				crowd(t, st, n)
				for _, id := range []string{"c", "a", "p"} {
					commitTo(t, session(t, st, id), turnstone.Commit{Nodes: saying([]byte("more"))})
				}
				backedUp(t, st, &meanwhile{Target: to, after: 3000, do: func() { do(t, st) }}, backup.Options{})
				verified(t, to)
				if name == "renamed" {
					got, _ := restored(t, to, backup.RestoreOptions{})
					if have := ids(t, got); !slices.Contains(have, "a") && !slices.Contains(have, "b") {
						t.Error("the session is missing")
					}
				}
				backedUp(t, st, to, backup.Options{})
				asItStands(t, st, to)
				commitTo(t, session(t, st, "f"), turnstone.Commit{Nodes: saying([]byte("on"))})
				backedUp(t, st, to, backup.Options{})
				asItStands(t, st, to)
			})
		}
	}
}

// What the feed of a store tells is all that a run has to look at: also that a revision is kept by name or no longer.
// Where it did not tell of records before, all sessions are compared.
func TestBK6_TheFeedTellsAllThatChanges(t *testing.T) {
	_, st, to, _ := telling(t)
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("text"))
	backedUp(t, st, to, backup.Options{})
	for what, do := range map[string]func(){
		"keep":    func() { must(t, s.Keep(ctx, "kept", 1)) },
		"records": func() { change(t, s, turnstone.RecordChange{Key: "r", Value: []byte("v")}) },
	} {
		do()
		if r := backedUp(t, st, to, backup.Options{}); r.Sessions != 1 || r.All {
			t.Errorf("%s: %+v", what, r)
		}
		asItStands(t, st, to)
	}
	must(t, s.Release(ctx, "kept"))
	if r := backedUp(t, st, to, backup.Options{}); r.Sessions != 1 || r.All {
		t.Errorf("%+v", r)
	}
	must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}))
	change(t, s, turnstone.RecordChange{Key: "unheard", Value: []byte("v")})
	must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour, Records: true}))
	if r := backedUp(t, st, to, backup.Options{}); r.Sessions != 1 || !r.All {
		t.Errorf("%+v", r)
	}
}

// What follows looks at the target before each run: another generation, or one that is gone, is not gone on with.
func TestBK6_WhoFollowsSeesWhatOthersDoToTheTarget(t *testing.T) {
	for _, what := range []string{"another generation", "removed"} {
		t.Run(what, func(t *testing.T) {
			_, st, to, dir := telling(t)
			s := create(t, st, turnstone.Request{ID: "s"}, []byte("text"))
			following, stop := context.WithCancel(ctx)
			runs := 0
			err := backup.Follow(following, st, to, backup.Options{Every: time.Millisecond, Report: func(_ *backup.Report, err error) {
				runs++
				switch {
				case err != nil:
					t.Error(err)
				case runs == 1 && what == "removed":
					must(t, os.RemoveAll(dir))
				case runs == 1:
					backedUp(t, st, to, backup.Options{NewGeneration: true})
				case runs > 3:
					stop()
				}
				commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("more"))})
			}})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			stop()
			backedUp(t, st, to, backup.Options{})
			asItStands(t, st, to)
		})
	}
}

// A run that ends in a generation which is no longer the newest one is told so.
func TestBK6_ARunOfAnOlderGenerationIsToldSo(t *testing.T) {
	_, st, to, _ := telling(t)
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("text"))
	backedUp(t, st, to, backup.Options{})
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("more"))})
	beside := &meanwhile{Target: to, do: func() { backedUp(t, st, to, backup.Options{NewGeneration: true}) }}
	if r, err := backup.Run(ctx, st, beside, backup.Options{}); !errors.Is(err, backup.ErrOther) {
		t.Errorf("%+v, %v", r, err)
	}
	backedUp(t, st, to, backup.Options{})
	asItStands(t, st, to)
}

// Runs leave nothing running, and read nothing of the backup but where it stands, when nothing has changed.
func TestBK6_ARunWithoutAChangeCostsNothing(t *testing.T) {
	e, st, to, _ := telling(t)
	crowd(t, st, 100)
	backedUp(t, st, to, backup.Options{})
	must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: 2 * time.Hour, Records: true}))
	backedUp(t, st, to, backup.Options{})
	if r := backedUp(t, st, to, backup.Options{}); r.All {
		t.Error("all sessions are compared again and again")
	}
	counted := &counting{Target: to}
	following, stop := context.WithCancel(ctx)
	runs := 0
	err := backup.Follow(following, st, counted, backup.Options{Every: time.Millisecond, Report: func(_ *backup.Report, err error) {
		must(t, err)
		if runs++; runs == 1 {
			counted.n = 0
		} else if runs == 11 {
			stop()
		}
	}})
	stop()
	if !errors.Is(err, context.Canceled) || counted.n > 10*64<<10 {
		t.Errorf("%d bytes were read in ten runs: %v", counted.n, err)
	}
	commitTo(t, session(t, st, "many1"), turnstone.Commit{Nodes: saying(random(100, 1))})
	spoil(t, e, commitsOf(t, st, "many1"))
	st = openStore(t, e, nil)
	before := runtime.NumGoroutine()
	for range 5 {
		_, err := backup.Run(ctx, st, to, backup.Options{})
		must(t, err)
	}
	for n := 0; runtime.NumGoroutine() > before+1; n++ {
		if n == 100 {
			t.Fatalf("%d goroutines, and %d before", runtime.NumGoroutine(), before)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A session that is renamed while the first run reads the list is in it, under its new id.
func TestBK6_ASessionThatIsRenamedInTheFirstRunIsInIt(t *testing.T) {
	_, st, to, _ := telling(t)
	crowd(t, st, 510) // more than a page
	create(t, st, turnstone.Request{ID: "late"}, []byte("text"))
	backedUp(t, st, &meanwhile{Target: to, after: 3000, do: func() { must(t, rename(ctx, st, "late", "later")) }}, backup.Options{})
	got, _ := restored(t, to, backup.RestoreOptions{Sessions: []string{"later"}})
	if have := ids(t, got); !slices.Equal(have, []string{"later"}) {
		t.Error(have)
	}
	all, err := backup.Generations(ctx, to)
	if err != nil || len(all) != 1 || all[0].Complete == 0 {
		t.Error(fmt.Sprint(all), err)
	}
}
