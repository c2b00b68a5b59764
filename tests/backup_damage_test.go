package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// spoil alters the records of a store that a function names, and returns how to put them back.
func spoil(t *testing.T, e *memory.Engine, which func(p engine.Pair) bool) (mend func()) {
	t.Helper()
	var whole engine.Batch
	for _, p := range pairs(t, e) {
		if which(p) {
			whole.Set(p.Key, p.Value)
			value := bytes.Clone(p.Value)
			value[len(value)/2]++
			must(t, e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: value}}}))
		}
	}
	if len(whole.Sets) == 0 {
		t.Fatal("there is no such record")
	}
	return func() { must(t, e.Apply(ctx, &whole)) }
}

// commitsOf names the commits of a session.
func commitsOf(t *testing.T, st *turnstone.Store, id string) func(engine.Pair) bool {
	t.Helper()
	inc := incarnationOf(session(t, st, id))
	return func(p engine.Pair) bool { return p.Key[4] == 'p' && bytes.Equal(p.Key[5:21], inc[:]) }
}

// Whichever record of a store is damaged, a backup has the sessions that can be read, says what can't, and has all when
// it is mended.
func TestBK7_WhateverIsDamagedTheOthersAreCopied(t *testing.T) {
	e, st, _, _ := telling(t)
	for _, id := range []string{"a", "b", "c"} {
		commitTo(t, create(t, st, turnstone.Request{ID: id}, random(400, 1)), turnstone.Commit{Checkpoint: map[string][]byte{"p": random(300, 2)}})
		change(t, session(t, st, id), turnstone.RecordChange{Key: "r", Value: []byte("v")})
	}
	create(t, st, turnstone.Request{ID: "erased"}, []byte("text"))
	_, err := st.Erase(ctx, "erased", turnstone.KeepChildren, turnstone.EraseOptions{})
	must(t, err)
	for n, p := range pairs(t, e) {
		if p.Key[4] == 'A' { // Without it nobody opens the store.
			continue
		}
		for _, first := range []bool{true, false} {
			e := cloned(t, e)
			to := backup.Directory(t.TempDir() + "/backup")
			if !first {
				backedUp(t, openStore(t, cloned(t, e), nil), to, backup.Options{})
			}
			mend := spoil(t, e, func(q engine.Pair) bool { return bytes.Equal(p.Key, q.Key) })
			r, err := backup.Run(ctx, openStore(t, e, nil), to, backup.Options{NewGeneration: !first && n%2 == 0})
			if err != nil || r.Err() != nil && !errors.Is(r.Err(), damage.ErrDamaged) {
				t.Errorf("%c: %+v, %v", p.Key[4], r, err)
			}
			mend()
			st := openStore(t, e, nil)
			backedUp(t, st, to, backup.Options{})
			asItStands(t, st, to)
		}
	}
}

// A generation that lacks a session because it was damaged does not make the one before go, which has it, and says so.
func TestBK7_AGenerationThatLacksASessionDoesNotStandForTheOneBefore(t *testing.T) {
	e, st, to, _ := telling(t)
	create(t, st, turnstone.Request{ID: "a"}, random(400, 1))
	create(t, st, turnstone.Request{ID: "z"}, random(400, 2))
	first := backedUp(t, st, to, backup.Options{})
	spoil(t, e, commitsOf(t, st, "a"))
	st = openStore(t, e, nil)
	for range 2 {
		r, err := backup.Run(ctx, st, to, backup.Options{NewGeneration: true, Keep: time.Nanosecond})
		if err != nil || len(r.Failed) != 1 || r.Expired > 0 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	_, got := onMemory(t, nil)
	if _, err := backup.Restore(ctx, to, got, backup.RestoreOptions{}); !errors.Is(err, backup.ErrTarget) || !slices.Equal(ids(t, got), []string{"z"}) {
		t.Error(err, ids(t, got))
	}
	if _, err := backup.Restore(ctx, to, got, backup.RestoreOptions{At: first.Time}); err != nil || len(ids(t, got)) != 2 {
		t.Error(err, ids(t, got))
	}
}

// What was erased stays so, also if its session, or its twin, can't be read when the backup learns of it, and if nothing
// else is left.
func TestBK4_WhatWasErasedStaysSoWhateverIsDamaged(t *testing.T) {
	t.Run("nothing else", func(t *testing.T) {
		_, st, to, _ := telling(t)
		create(t, st, turnstone.Request{ID: "x"}, []byte("a secret"))
		first := backedUp(t, st, to, backup.Options{})
		remove(t, st, "x")
		_, err := backup.Restore(ctx, to, st, backup.RestoreOptions{At: first.Time})
		must(t, err)
		_, err = st.Erase(ctx, "x", turnstone.KeepChildren, turnstone.EraseOptions{})
		must(t, err)
		backedUp(t, st, to, backup.Options{NewGeneration: true})
		got, r := restored(t, to, backup.RestoreOptions{At: first.Time})
		if len(ids(t, got)) > 0 || !slices.Equal(r.Erased, []string{"x"}) {
			t.Error(ids(t, got), r.Erased)
		}
	})
	t.Run("node", func(t *testing.T) {
		e, st, to, _ := telling(t)
		x := create(t, st, turnstone.Request{ID: "x"}, []byte("a secret"), []byte("keep me"))
		state, err := x.Load(ctx, turnstone.Scope{})
		must(t, err)
		backedUp(t, st, to, backup.Options{})
		_, err = x.Erase(ctx, turnstone.EraseOptions{}, state.Nodes[0].ID)
		must(t, err)
		commitTo(t, x, turnstone.Commit{Nodes: saying(random(300, 1))})
		spoil(t, e, commitsOf(t, st, "x"))
		st = openStore(t, e, nil)
		r, err := backup.Run(ctx, st, to, backup.Options{})
		if err != nil || len(r.Failed) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		there, got := onMemory(t, nil)
		_, err = backup.Restore(ctx, to, got, backup.RestoreOptions{})
		must(t, err)
		if holds(t, there, []byte("a secret")) || !holds(t, there, []byte("keep me")) {
			t.Error("it is back, or more is gone")
		}
	})
	t.Run("twin", func(t *testing.T) {
		e, st, to, _ := telling(t)
		create(t, st, turnstone.Request{ID: "a"}, random(400, 1))
		create(t, st, turnstone.Request{ID: "z"}, random(400, 2))
		_, err := st.Unbundle(ctx, bytes.NewReader(bundleOf(t, st, turnstone.Bundled{ID: "a"})), turnstone.UnbundleOptions{As: "b"})
		must(t, err)
		first := backedUp(t, st, to, backup.Options{})
		_, err = st.Erase(ctx, "b", turnstone.KeepChildren, turnstone.EraseOptions{})
		must(t, err)
		spoil(t, e, commitsOf(t, st, "a"))
		st = openStore(t, e, nil)
		_, err = backup.Run(ctx, st, to, backup.Options{NewGeneration: true})
		must(t, err)
		got, r := restored(t, to, backup.RestoreOptions{At: first.Time})
		if have := ids(t, got); len(have) != 2 || slices.Contains(have, "b") || !slices.Equal(r.Erased, []string{"b"}) {
			t.Error(have, r.Erased)
		}
	})
}

// Runs leave nothing running, and read nothing of the backup but where it stands, when nothing has changed.
func TestBK6_ARunWithoutAChangeCostsNothing(t *testing.T) {
	e, st, to, _ := telling(t)
	crowd(t, st, 100)
	backedUp(t, st, to, backup.Options{})
	must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: 2 * time.Hour, Records: true}))
	backedUp(t, st, to, backup.Options{})
	if r := backedUp(t, st, to, backup.Options{}); r.AllOfThem {
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

// A counting target counts what is read.
type counting struct {
	backup.Target
	n int
}

func (c *counting) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	r, err := c.Target.Get(ctx, name, offset, length)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.TeeReader(r, c), r}, nil
}

func (c *counting) Write(b []byte) (int, error) {
	c.n += len(b)
	return len(b), nil
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
