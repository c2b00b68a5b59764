package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A meanwhile does something while a pack is written, once.
type meanwhile struct {
	backup.Target
	after int // bytes of the pack
	do    func()
}

func (m *meanwhile) Put(ctx context.Context, name string, r io.Reader) error {
	if m.do != nil && strings.Contains(name, "/packs/") {
		r = &hooked{r: r, of: m}
	}
	return m.Target.Put(ctx, name, r)
}

type hooked struct {
	r  io.Reader
	of *meanwhile
	n  int
}

func (h *hooked) Read(b []byte) (int, error) {
	n, err := h.r.Read(b)
	if h.n += n; h.of.do != nil && h.n > h.of.after {
		do := h.of.do
		h.of.do = nil
		do()
	}
	return n, err
}

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

// asItStands fails the test unless the last run has what the store has, and the backup is whole.
func asItStands(t *testing.T, st *turnstone.Store, to backup.Target) {
	t.Helper()
	verified(t, to)
	got, _ := restored(t, to, backup.RestoreOptions{})
	sameAlive(t, aliveIn(t, st), aliveIn(t, got))
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
		for _, first := range []bool{false, true} {
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
				_, err := session(t, st, "a").Info(ctx)
				must(t, err)
				inc := incarnationOf(session(t, st, "a"))
				backedUp(t, st, &meanwhile{Target: to, after: 3000, do: func() { do(t, st) }}, backup.Options{})
				v, err := backup.Verify(ctx, to, backup.VerifyOptions{})
				if err != nil || v.Err() != nil {
					t.Fatal(err, v.Err())
				}
				if name == "renamed" {
					got, _ := restored(t, to, backup.RestoreOptions{})
					if have := ids(t, got); !slices.Contains(have, "a") && !slices.Contains(have, "b") {
						t.Errorf("session %x is missing", inc)
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

// A new fork that gets the id of the session that another fork was made of is not taken for it.
func TestBK1_AnIDThatIsHandedOnIsAnotherSession(t *testing.T) {
	_, st, to, _ := telling(t)
	create(t, st, turnstone.Request{ID: "p"}, []byte("p"))
	create(t, st, turnstone.Request{ID: "f"}, []byte("f"))
	backedUp(t, st, to, backup.Options{})
	create(t, st, turnstone.Request{ID: "g", Parent: "f"}, []byte("g"))
	backedUp(t, st, to, backup.Options{})
	remove(t, st, "f")
	create(t, st, turnstone.Request{ID: "f", Parent: "p"}, []byte("other"))
	backedUp(t, st, to, backup.Options{})
	asItStands(t, st, to)
	remove(t, st, "f")
	create(t, st, turnstone.Request{ID: "c"}, []byte("c"))
	create(t, st, turnstone.Request{ID: "f", Parent: "c"}, []byte("third"))
	backedUp(t, st, to, backup.Options{})
	asItStands(t, st, to)
	remove(t, st, "f")
	backedUp(t, st, to, backup.Options{})
	asItStands(t, st, to)
}

// A session of an earlier time that takes the place of the one that went on is backed up as it is.
func TestBK1_ASessionThatWasPutBackIsAnotherOne(t *testing.T) {
	_, st, to, _ := telling(t)
	s := create(t, st, turnstone.Request{ID: "trip"}, []byte("text"))
	node := commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("shown"))}).Nodes[0]
	change(t, s, turnstone.RecordChange{Key: "r", Value: []byte("v")})
	first := backedUp(t, st, to, backup.Options{})
	must(t, s.Tombstone(ctx, node))
	change(t, s, turnstone.RecordChange{Key: "later", Value: []byte("v")})
	must(t, s.Keep(ctx, "kept", 1))
	backedUp(t, st, to, backup.Options{})
	_, err := backup.Restore(ctx, to, st, backup.RestoreOptions{At: first.Time, Sessions: []string{"trip"}, As: "trip2"})
	must(t, err)
	remove(t, st, "trip")
	must(t, rename(ctx, st, "trip2", "trip"))
	backedUp(t, st, to, backup.Options{})
	asItStands(t, st, to)
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
		if r := backedUp(t, st, to, backup.Options{}); r.Sessions != 1 || r.AllOfThem {
			t.Errorf("%s: %+v", what, r)
		}
		asItStands(t, st, to)
	}
	must(t, s.Release(ctx, "kept"))
	if r := backedUp(t, st, to, backup.Options{}); r.Sessions != 1 || r.AllOfThem {
		t.Errorf("%+v", r)
	}
	must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}))
	change(t, s, turnstone.RecordChange{Key: "unheard", Value: []byte("v")})
	must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour, Records: true}))
	if r := backedUp(t, st, to, backup.Options{}); r.Sessions != 1 || !r.AllOfThem {
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

// A session that could not be read is looked at again by each run, until it can.
func TestBK7_ADamagedSessionIsLookedAtAgain(t *testing.T) {
	e, st, to, _ := telling(t)
	create(t, st, turnstone.Request{ID: "a"}, random(500, 1))
	backedUp(t, st, to, backup.Options{})
	commitTo(t, session(t, st, "a"), turnstone.Commit{Nodes: saying(random(500, 2))})
	inc := incarnationOf(session(t, st, "a"))
	var whole engine.Batch
	for _, p := range pairs(t, e) {
		if p.Key[4] == 'p' && bytes.Equal(p.Key[5:21], inc[:]) {
			whole.Set(p.Key, p.Value)
			value := bytes.Clone(p.Value)
			value[len(value)/2]++
			must(t, e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: value}}}))
		}
	}
	for range 3 {
		r, err := backup.Run(ctx, openStore(t, e, nil), to, backup.Options{})
		must(t, err)
		if len(r.Failed) != 1 || !errors.Is(r.Err(), damage.ErrDamaged) {
			t.Fatalf("%+v", r)
		}
	}
	must(t, e.Apply(ctx, &whole))
	st = openStore(t, e, nil)
	backedUp(t, st, to, backup.Options{})
	asItStands(t, st, to)
}

// What is erased while a run has it already does not come back from that run.
func TestBK4_WhatIsErasedMeanwhileStaysSo(t *testing.T) {
	for _, whole := range []bool{true, false} {
		_, st, to, _ := telling(t)
		x := create(t, st, turnstone.Request{ID: "x"}, []byte("a secret"), []byte("another one"))
		state, err := x.Load(ctx, turnstone.Scope{})
		must(t, err)
		crowd(t, st, 40)
		r := backedUp(t, st, &meanwhile{Target: to, after: 3000, do: func() {
			if whole {
				_, err = st.Erase(ctx, "x", turnstone.KeepChildren, turnstone.EraseOptions{})
			} else {
				_, err = session(t, st, "x").Erase(ctx, turnstone.EraseOptions{}, state.Nodes[0].ID)
			}
			must(t, err)
		}}, backup.Options{})
		for range 2 {
			e, got := onMemory(t, nil)
			_, err = backup.Restore(ctx, to, got, backup.RestoreOptions{At: r.Time})
			must(t, err)
			if holds(t, e, []byte("a secret")) || whole == slices.Contains(ids(t, got), "x") {
				t.Error("it is back")
			}
			_, err = backup.Restore(ctx, to, st, backup.RestoreOptions{At: r.Time})
			must(t, err)
			if whole == slices.Contains(ids(t, st), "x") {
				t.Error("it is back in the store that erased it")
			}
			backedUp(t, st, to, backup.Options{})
		}
	}
}

// A session that was restored and erased then does not come back as the one that it was before.
func TestBK4_WhatWasRestoredAndErasedStaysSo(t *testing.T) {
	_, st, to, _ := telling(t)
	create(t, st, turnstone.Request{ID: "x"}, []byte("a secret"))
	first := backedUp(t, st, to, backup.Options{})
	remove(t, st, "x")
	_, err := backup.Restore(ctx, to, st, backup.RestoreOptions{At: first.Time})
	must(t, err)
	if !slices.Contains(ids(t, st), "x") {
		t.Fatal("what was deleted does not come back")
	}
	_, err = st.Erase(ctx, "x", turnstone.KeepChildren, turnstone.EraseOptions{})
	must(t, err)
	for range 2 {
		r, err := backup.Restore(ctx, to, st, backup.RestoreOptions{At: first.Time})
		must(t, err)
		if !slices.Equal(r.Erased, []string{"x"}) || slices.Contains(ids(t, st), "x") {
			t.Errorf("%+v", r)
		}
		backedUp(t, st, to, backup.Options{})
	}
}

// Runs before one that is damaged can be restored, and a run that expands to too much is refused.
func TestBK3_EarlierRunsStandWhateverALaterOneIs(t *testing.T) {
	_, st, to, dir := telling(t)
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("text"))
	var times []time.Time
	for range 6 {
		times = append(times, backedUp(t, st, to, backup.Options{}).Time)
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("more"))})
	}
	var bomb bytes.Buffer
	z, err := zstd.NewWriter(&bomb)
	must(t, err)
	fmt.Fprintf(z, "{\"format\":1,\"run\":4,\"time\":%q,\"complete\":4,\"store\":\"\",\"before\":%q,\"entries\":100000000}\n", time.Now().Format(time.RFC3339Nano), strings.Repeat("0", 64))
	for i := range 100_000 {
		fmt.Fprintf(z, "{\"session\":\"%032x\",\"id\":%q,\"run\":4,\"bundle\":{\"pack\":\"00000004-00000000\",\"offset\":0,\"size\":1,\"sum\":%q}}\n", i, strings.Repeat("x", 500), strings.Repeat("0", 64))
	}
	must(t, z.Close())
	files, err := filepath.Glob(dir + "/*/runs/00000004")
	must(t, err)
	for _, content := range [][]byte{[]byte("no run"), bomb.Bytes()} {
		must(t, os.WriteFile(files[0], content, 0o600))
		for i, at := range times[:3] {
			_, got := onMemory(t, nil)
			r, err := backup.Restore(ctx, to, got, backup.RestoreOptions{At: at})
			if info, ierr := session(t, got, "s").Info(ctx); !r.Time.Equal(at) || ierr != nil || info.Revision != head.Revision(i+1) {
				t.Errorf("run %d: %+v %v %v", i+1, r, err, ierr)
			}
		}
		_, got := onMemory(t, nil)
		r, err := backup.Restore(ctx, to, got, backup.RestoreOptions{})
		if r.Run != 3 || !errors.Is(err, backup.ErrTarget) || len(content) > 100 && !strings.Contains(err.Error(), "expands to more than") {
			t.Errorf("%+v, %v", r, err)
		}
		all, err := backup.Generations(ctx, to)
		if err != nil || len(all) != 1 {
			t.Error(all, err)
		}
	}
	// The next backup begins a generation, and says why.
	r, err := backup.Run(ctx, st, to, backup.Options{})
	if err != nil || !errors.Is(r.Damaged, backup.ErrTarget) || !r.New || len(r.Failed) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	got, err := restoredAnyway(t, to)
	if !errors.Is(err, backup.ErrTarget) && err != nil {
		t.Error(err)
	}
	sameAlive(t, aliveIn(t, st), aliveIn(t, got))
}

func restoredAnyway(t *testing.T, from backup.Target) (*turnstone.Store, error) {
	t.Helper()
	_, to := onMemory(t, nil)
	_, err := backup.Restore(ctx, from, to, backup.RestoreOptions{})
	return to, err
}

// A bundle that is damaged costs the sessions that need it, whatever ids they have got since.
func TestBK3_ADamagedBundleCostsItsSessionsAlone(t *testing.T) {
	_, st, to, dir := telling(t)
	create(t, st, turnstone.Request{ID: "a"}, random(3000, 1))
	for i := range 4 {
		create(t, st, turnstone.Request{ID: fmt.Sprint("z", i)}, []byte("text"))
	}
	backedUp(t, st, to, backup.Options{})
	must(t, rename(ctx, st, "a", "b"))
	create(t, st, turnstone.Request{ID: "fork", Parent: "b"}, []byte("of b"))
	backedUp(t, st, to, backup.Options{})
	packs, err := filepath.Glob(dir + "/*/packs/00000001-*")
	must(t, err)
	whole, err := os.ReadFile(packs[0])
	must(t, err)
	whole[1000]++ // within a, which is the oldest
	must(t, os.WriteFile(packs[0], whole, 0o600))
	got, err := restoredAnyway(t, to)
	if !errors.Is(err, backup.ErrTarget) || !strings.Contains(err.Error(), `"b"`) || !strings.Contains(err.Error(), `"fork"`) || strings.Contains(err.Error(), `"z1"`) {
		t.Error(err)
	}
	if have := ids(t, got); len(have) != 4 {
		t.Error(have)
	}
	v, err := backup.Verify(ctx, to, backup.VerifyOptions{})
	if err != nil || len(v.Problems) != 3 {
		t.Error(err, v.Problems)
	}
}

// What a backup that was killed has left in a directory goes with its generation.
func TestBK5_WhatWasLeftOfAKilledBackupGoesAsWell(t *testing.T) {
	_, st, to, dir := telling(t)
	create(t, st, turnstone.Request{ID: "s"}, []byte("text"))
	backedUp(t, st, to, backup.Options{})
	generations, err := os.ReadDir(dir)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, generations[0].Name(), "packs", ".writing-0123"), []byte("half a pack"), 0o600))
	must(t, os.MkdirAll(filepath.Join(dir, "20200101T000000.000000000Z-00000000", "packs"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "20200101T000000.000000000Z-00000000", "packs", ".writing-0123"), []byte("half a pack"), 0o600))
	last := backedUp(t, st, to, backup.Options{NewGeneration: true})
	n, err := backup.Expire(ctx, to, last.Time)
	must(t, err)
	left, err := os.ReadDir(dir)
	must(t, err)
	if n != 2 || len(left) != 1 || left[0].Name() != last.Generation {
		t.Error(n, left)
	}
	if n, err := backup.Expire(ctx, to, last.Time); n != 0 || err != nil {
		t.Error(n, err)
	}
	asItStands(t, st, to)
}

// Where nothing was backed up, nothing is verified.
func TestBK3_NothingIsNoBackup(t *testing.T) {
	if _, err := backup.Verify(ctx, backup.Directory(t.TempDir()+"/nowhere"), backup.VerifyOptions{}); !errors.Is(err, backup.ErrNoBackup) {
		t.Error(err)
	}
}

// An altering target stores other bytes than it is given.
type altering struct {
	backup.Target
	of string
}

func (a *altering) Put(ctx context.Context, name string, r io.Reader) error {
	content, err := io.ReadAll(r)
	if err == nil && strings.Contains(name, a.of) {
		content[len(content)/2]++
	}
	if err != nil {
		return err
	}
	return a.Target.Put(ctx, name, bytes.NewReader(content))
}

// What a target stores otherwise than it was told is noticed by the run that wrote it.
func TestBK2_WhatIsStoredOtherwiseIsNoticed(t *testing.T) {
	for _, of := range []string{"/packs/", "/runs/"} {
		_, st, to, _ := telling(t)
		create(t, st, turnstone.Request{ID: "s"}, random(1000, 1))
		if r, err := backup.Run(ctx, st, &altering{to, of}, backup.Options{}); !errors.Is(err, backup.ErrTarget) {
			t.Errorf("%s: %+v, %v", of, r, err)
		}
		backedUp(t, st, to, backup.Options{})
		got, _ := restoredAnyway(t, to)
		sameAlive(t, aliveIn(t, st), aliveIn(t, got))
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
