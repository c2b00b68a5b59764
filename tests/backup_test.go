package tests

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// backedUp makes a run of a backup.
func backedUp(t *testing.T, st *turnstone.Store, to backup.Target, o backup.Options) *backup.Report {
	t.Helper()
	r, err := backup.Run(ctx, st, to, o)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// restored restores what a backup has to a new store.
func restored(t *testing.T, from backup.Target, o backup.RestoreOptions) (*turnstone.Store, *backup.Restored) {
	t.Helper()
	_, to := onMemory(t, nil)
	r, err := backup.Restore(ctx, from, to, o)
	if err != nil {
		t.Fatal(err)
	}
	return to, r
}

// verified verifies a backup.
func verified(t *testing.T, of backup.Target) *backup.Verified {
	t.Helper()
	v, err := backup.Verify(ctx, of, backup.VerifyOptions{})
	if err == nil {
		err = v.Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// aliveIn says what a caller can read of all sessions but their side branches, which a vacuum may have pruned since they were
// copied.
func aliveIn(t *testing.T, st *turnstone.Store) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, id := range ids(t, st) {
		text := withoutBranches(everythingOf(t, st, id, true))
		out[id] = payloadBytes.ReplaceAllString(text, "") // The bytes of nodes that were erased before they were copied are not known.
	}
	return out
}

var payloadBytes = regexp.MustCompile(`,"bytes":[0-9]+`)

// prunedIsNoMatter leaves out the checkpoints of what a caller can read, and what is pruned: that is a matter of each store.
func prunedIsNoMatter(text string) string {
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return strings.HasPrefix(l, "checkpoint ") })
	return strings.ReplaceAll(strings.Join(lines, "\n"), `,"pruned":true`, "")
}

// sameAlive fails the test unless two stores have the same sessions.
func sameAlive(t *testing.T, want, got map[string]string) {
	t.Helper()
	for id, text := range want {
		if got[id] == "" {
			t.Errorf("session %q is missing", id)
			continue
		}
		a, b := strings.Split(prunedIsNoMatter(text), "\n"), strings.Split(prunedIsNoMatter(got[id]), "\n")
		for i := range a {
			if i >= len(b) || a[i] != b[i] {
				t.Errorf("session %q: got\n%.900s\nwant\n%.900s", id, b[min(i, len(b)-1)], a[i])
				break
			}
		}
	}
	for id := range got {
		if want[id] == "" {
			t.Errorf("session %q is there", id)
		}
	}
}

// Random histories are restored as they were at the end of each run: forks with their parents, sessions that were renamed,
// and those that got the id of a deleted one.
func TestBK1_EachRunCanBeRestored(t *testing.T) {
	for seed := range randomHistories() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			_, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
			if seed%2 == 0 {
				must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour, Records: true}))
			}
			to := backup.Directory(t.TempDir() + "/backup")
			p := newPast(t, st, seed)
			p.forgets = true
			type point struct {
				time time.Time
				all  map[string]string
			}
			var points []point
			for range 7 {
				for range 3 + p.r.IntN(15) {
					p.step()
				}
				if p.r.IntN(4) == 0 { // an id that was in use
					id := p.ids[p.r.IntN(len(p.ids))]
					remove(t, st, id)
					create(t, st, turnstone.Request{ID: id}, []byte("another one"))
				}
				r := backedUp(t, st, to, backup.Options{NewGeneration: p.r.IntN(5) == 0})
				points = append(points, point{r.Time, aliveIn(t, st)})
				if again := backedUp(t, st, to, backup.Options{}); again.Sessions+again.Gone > 0 || again.Bytes > 0 || again.Run != r.Run {
					t.Fatalf("a run without a change: %+v", again)
				}
			}
			verified(t, to)
			for i, at := range points {
				got, r := restored(t, to, backup.RestoreOptions{At: at.time})
				if !r.Time.Equal(at.time) || len(r.Sessions) != len(at.all) {
					t.Fatalf("%+v of %d", r, len(at.all))
				}
				sameAlive(t, at.all, aliveIn(t, got))
				verify(t, got)
				if t.Failed() {
					t.Fatalf("point %d", i)
				}
				id := slices.Sorted(maps.Keys(at.all))[0]
				one, _ := restored(t, to, backup.RestoreOptions{At: at.time, Sessions: []string{id}, As: "one"})
				if got := ids(t, one); len(got) != 1 || got[0] != "one" {
					t.Fatal(got)
				}
			}
		})
	}
}

// A fickle target fails in the way that a test wants.
type fickle struct {
	backup.Target
	before func(what string) error // what is asked before each call
	cut    func(what string) int64 // after how many bytes a Put or a Get fails; negative: never
	late   bool                    // a Put that fails has stored all the same
}

var errFickle = errors.New("the network is down")

func (f *fickle) ask(what string) error {
	if f.before == nil {
		return nil
	}
	return f.before(what)
}

func (f *fickle) Put(ctx context.Context, name string, r io.Reader) error {
	err := f.ask("put")
	if err != nil && !f.late {
		return err
	}
	if n := f.after("put"); n >= 0 {
		r = io.MultiReader(io.LimitReader(r, n), iotest.ErrReader(errFickle))
	}
	return cmp.Or(f.Target.Put(ctx, name, r), err)
}

func (f *fickle) after(what string) int64 {
	if f.cut == nil {
		return -1
	}
	return f.cut(what)
}

func (f *fickle) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if err := f.ask("get"); err != nil {
		return nil, err
	}
	r, err := f.Target.Get(ctx, name, offset, length)
	if n := f.after("get"); err == nil && n >= 0 {
		return struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(r, n), iotest.ErrReader(errFickle)), r}, nil
	}
	return r, err
}

func (f *fickle) List(ctx context.Context, dir string) iter.Seq2[string, error] {
	if err := f.ask("list"); err != nil {
		return func(yield func(string, error) bool) { yield("", err) }
	}
	return f.Target.List(ctx, dir)
}

func (f *fickle) Delete(ctx context.Context, name string) error {
	return cmp.Or(f.ask("delete"), f.Target.Delete(ctx, name))
}

// At each call of the target that fails, or was done and says that it was not, a run has changed nothing of what can be
// restored, or is complete, and the next one goes on. So does a restoring.
func TestBK2_ARunThatIsCutOffChangesNothing(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("late ", late), func(t *testing.T) {
			dir := backup.Directory(t.TempDir() + "/backup")
			_, st := onMemory(t, nil)
			p := newPast(t, st, 7)
			var last map[string]string
			var before time.Time
			for n := 0; n < 12; n++ {
				for range 4 {
					p.step()
				}
				calls := 0
				to := &fickle{Target: dir, late: late, before: func(string) error {
					if calls++; calls == n+1 {
						return errFickle
					}
					return nil
				}}
				_, err := backup.Run(ctx, st, to, backup.Options{NewGeneration: n%4 == 3})
				if calls > n && !errors.Is(err, errFickle) {
					t.Fatalf("call %d: %v", n, err)
				}
				if last != nil && err != nil {
					got, r := restored(t, dir, backup.RestoreOptions{})
					if r.Time.Equal(before) {
						sameAlive(t, last, aliveIn(t, got))
					} else { // It was complete before the call that failed.
						sameAlive(t, aliveIn(t, st), aliveIn(t, got))
					}
				}
				r := backedUp(t, st, dir, backup.Options{})
				last, before = aliveIn(t, st), r.Time
				verified(t, dir)
				_, to2 := onMemory(t, nil)
				for failing := 0; ; failing++ {
					calls := 0
					from := &fickle{Target: dir, before: func(string) error {
						if calls++; calls == failing+1 {
							return errFickle
						}
						return nil
					}}
					got, err := backup.Restore(ctx, from, to2, backup.RestoreOptions{At: r.Time})
					if err == nil {
						break
					}
					if !errors.Is(err, errFickle) {
						t.Fatal(err)
					}
					for _, s := range got.Sessions {
						if !s.Created {
							t.Errorf("%+v", s)
						}
					}
				}
				sameAlive(t, last, aliveIn(t, to2))
				verify(t, to2)
			}
		})
	}
}

// Connections that end after a few kB are a failure, and never a backup with less in it.
func TestBK2_ObjectsThatAreCutOffAreNotTakenForWhole(t *testing.T) {
	dir := backup.Directory(t.TempDir() + "/backup")
	_, st := onMemory(t, nil)
	p := newPast(t, st, 8)
	r := rand.New(rand.NewPCG(8, 8))
	done := 0
	for n := 0; done < testkit.Pick(12, 6, 4); n++ {
		p.step()
		to := &fickle{Target: dir, cut: func(string) int64 {
			if r.IntN(3) == 0 {
				return r.Int64N(20_000)
			}
			return -1
		}}
		if _, err := backup.Run(ctx, st, to, backup.Options{}); err != nil {
			if !errors.Is(err, errFickle) {
				t.Fatal(err)
			}
			continue
		}
		done++
		want := aliveIn(t, st)
		_, got := onMemory(t, nil)
		for {
			_, err := backup.Restore(ctx, to, got, backup.RestoreOptions{})
			if err == nil {
				break
			}
			if !errors.Is(err, errFickle) {
				t.Fatal(err)
			}
		}
		sameAlive(t, want, aliveIn(t, got))
	}
	verified(t, dir)
}

// Whatever is damaged, missing or exchanged in a target, Verify finds it, and Restore restores the rest, or says why it
// can't.
func TestBK3_DamageIsFoundAndNamed(t *testing.T) {
	root := t.TempDir() + "/backup"
	to := backup.Directory(root)
	_, st := onMemory(t, nil)
	p := newPast(t, st, 3)
	known := map[string]bool{} // of each session, at each run
	for range 5 {
		for range 10 {
			p.step()
		}
		backedUp(t, st, to, backup.Options{})
		for id, text := range aliveIn(t, st) {
			known[prunedIsNoMatter(id+text)] = true
		}
	}
	want := aliveIn(t, st)
	check := func(what string) {
		t.Helper()
		v, err := backup.Verify(ctx, to, backup.VerifyOptions{})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if len(v.Problems) == 0 || !errors.Is(v.Err(), backup.ErrTarget) {
			t.Errorf("%s: problems %v", what, v.Problems)
		}
		_, got := onMemory(t, nil)
		_, err = backup.Restore(ctx, to, got, backup.RestoreOptions{})
		if err == nil {
			sameAlive(t, want, aliveIn(t, got))
		} else if !errors.Is(err, backup.ErrTarget) {
			t.Errorf("%s: %v", what, err)
		}
		for id, text := range aliveIn(t, got) {
			if !known[prunedIsNoMatter(id+text)] {
				t.Errorf("%s: session %q never was so: %s", what, id, text)
			}
		}
		verify(t, got)
	}
	var files []string
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	}))
	r := rand.New(rand.NewPCG(3, 3))
	for _, file := range files {
		whole, err := os.ReadFile(file)
		must(t, err)
		for name, content := range map[string][]byte{
			"a bit":     func() []byte { b := bytes.Clone(whole); b[r.IntN(len(b))] ^= 1 << r.IntN(8); return b }(),
			"truncated": whole[:r.IntN(len(whole))],
			"empty":     {},
		} {
			must(t, os.WriteFile(file, content, 0o600))
			check(name + " " + file)
		}
		must(t, os.Remove(file))
		if !strings.HasSuffix(file, "/runs/00000005") { // Without the last run, it is an older backup.
			check("missing " + file)
		}
		must(t, os.WriteFile(file, whole, 0o600))
	}
	for i := range files[:len(files)-1] {
		a, err := os.ReadFile(files[i])
		must(t, err)
		b, err := os.ReadFile(files[i+1])
		must(t, err)
		must(t, os.WriteFile(files[i], b, 0o600))
		check("exchanged " + files[i])
		must(t, os.WriteFile(files[i], a, 0o600))
	}
	verified(t, to)
}

// What was erased does not come back, whatever is restored from whichever run: sessions, also after they were renamed,
// and nodes. What a fork still shows is restored with the fork alone.
func TestBK4_WhatWasErasedStaysSo(t *testing.T) {
	to := backup.Directory(t.TempDir() + "/backup")
	_, st := onMemory(t, nil)
	secret, note := []byte("the secret of the session that is erased"), []byte("a note that is erased by itself")
	gone := create(t, st, turnstone.Request{ID: "gone"}, secret)
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("stays"))
	node := commitTo(t, s, turnstone.Commit{Nodes: saying(note)}).Nodes[0]
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("after it"))})
	held := create(t, st, turnstone.Request{ID: "held"}, []byte("shown by a fork"))
	create(t, st, turnstone.Request{ID: "fork", Parent: "held"}, []byte("own"))
	create(t, st, turnstone.Request{ID: "deleted"}, []byte("deleted by mistake"))
	first := backedUp(t, st, to, backup.Options{})

	must(t, gone.Rename(ctx, "renamed"))
	_, err := st.Erase(ctx, "renamed", turnstone.KeepChildren, turnstone.EraseOptions{})
	must(t, err)
	_, err = session(t, st, "s").Erase(ctx, turnstone.EraseOptions{}, node)
	must(t, err)
	_, err = held.Info(ctx)
	must(t, err)
	_, err = st.Erase(ctx, "held", turnstone.KeepChildren, turnstone.EraseOptions{})
	must(t, err)
	remove(t, st, "deleted")

	check := func(got *turnstone.Store, e *memory.Engine, r *backup.Restored) {
		t.Helper()
		if want := []string{"gone", "held"}; !slices.Equal(r.Erased, want) {
			t.Errorf("erased %q, want %q", r.Erased, want)
		}
		if ids := ids(t, got); !slices.Contains(ids, "deleted") || slices.Contains(ids, "gone") || slices.Contains(ids, "held") {
			t.Error(ids)
		}
		for _, b := range [][]byte{secret, note} {
			if holds(t, e, b) {
				t.Errorf("%q is back", b)
			}
		}
		texts := nodesOf(t, session(t, got, "fork"))
		if !slices.Contains(slices.Collect(maps.Values(texts)), "shown by a fork") {
			t.Error(texts)
		}
		if n := len(nodesOf(t, session(t, got, "s"))); n != 2 {
			t.Errorf("%d nodes", n)
		}
		verify(t, got)
	}
	// The store knows, and the backup does not yet.
	_, err = backup.Restore(ctx, to, st, backup.RestoreOptions{At: first.Time, Sessions: []string{"gone"}})
	must(t, err)
	if slices.Contains(ids(t, st), "gone") {
		t.Error("it is back in the store that erased it")
	}
	// The backup knows.
	backedUp(t, st, to, backup.Options{})
	for range 2 {
		e, got := onMemory(t, nil)
		r, err := backup.Restore(ctx, to, got, backup.RestoreOptions{At: first.Time})
		must(t, err)
		check(got, e, r)
		backedUp(t, st, to, backup.Options{NewGeneration: true}) // An older generation then.
	}
	// When the generations that have it are kept no longer, it is in no file.
	time.Sleep(2 * time.Millisecond)
	if r := backedUp(t, st, to, backup.Options{Keep: time.Millisecond}); r.Expired != 2 {
		t.Errorf("%+v", r)
	}
	if _, err := backup.Restore(ctx, to, st, backup.RestoreOptions{At: first.Time}); !errors.Is(err, backup.ErrNoBackup) {
		t.Error(err)
	}
	verified(t, to)
}

// A session that came a second time, under another id, has the same genesis: to erase one of them leaves the other.
func TestBK4_TheTwinOfAnErasedSessionIsRestored(t *testing.T) {
	to := backup.Directory(t.TempDir() + "/backup")
	_, st := onMemory(t, nil)
	create(t, st, turnstone.Request{ID: "a"}, []byte("text"))
	_, err := st.Unbundle(ctx, bytes.NewReader(bundleOf(t, st, turnstone.Bundled{ID: "a"})), turnstone.UnbundleOptions{As: "b"})
	must(t, err)
	first := backedUp(t, st, to, backup.Options{})
	_, err = st.Erase(ctx, "b", turnstone.KeepChildren, turnstone.EraseOptions{})
	must(t, err)
	for range 2 {
		got, _ := restored(t, to, backup.RestoreOptions{At: first.Time})
		if have := ids(t, got); !slices.Contains(have, "a") {
			t.Error(have)
		}
		last := backedUp(t, st, to, backup.Options{})
		got, r := restored(t, to, backup.RestoreOptions{At: last.Time})
		if have := ids(t, got); !slices.Equal(have, []string{"a"}) || len(r.Erased) > 0 {
			t.Error(have, r.Erased)
		}
		got, r = restored(t, to, backup.RestoreOptions{At: first.Time})
		if have := ids(t, got); !slices.Equal(have, []string{"a"}) || !slices.Equal(r.Erased, []string{"b"}) {
			t.Error(have, r.Erased)
		}
	}
}

// A generation goes when the next one covers the time that is to be kept, and the newest one stays.
func TestBK5_WhatIsKeptNoLongerIsRemoved(t *testing.T) {
	to := backup.Directory(t.TempDir() + "/backup")
	_, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("text"))
	var times []time.Time
	for range 4 {
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("more"))})
		times = append(times, backedUp(t, st, to, backup.Options{NewGeneration: true}).Time)
	}
	n, err := backup.Expire(ctx, to, times[2])
	must(t, err)
	if n != 2 {
		t.Errorf("%d generations went", n)
	}
	if _, err := backup.Restore(ctx, to, st, backup.RestoreOptions{At: times[1]}); !errors.Is(err, backup.ErrNoBackup) {
		t.Error(err)
	}
	for i, at := range times[2:] {
		got, _ := restored(t, to, backup.RestoreOptions{At: at})
		if info, err := session(t, got, "s").Info(ctx); err != nil || info.Revision != head.Revision(i+4) {
			t.Error(info, err)
		}
	}
	if n, err := backup.Expire(ctx, to, time.Now().Add(time.Hour)); n != 1 || err != nil {
		t.Error(n, err)
	}
	restored(t, to, backup.RestoreOptions{})
	all, err := backup.Generations(ctx, to)
	must(t, err)
	if len(all) != 1 {
		t.Error(all)
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
	if r.AllOfThem {
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

// A session that is damaged in the store stays in the backup as it was, is named, and keeps nothing from the others.
func TestBK7_ADamagedSessionIsNamedAndTheOthersAreCopied(t *testing.T) {
	to := backup.Directory(t.TempDir() + "/backup")
	e, st := onMemory(t, nil)
	for _, id := range []string{"a", "b", "c"} {
		create(t, st, turnstone.Request{ID: id}, random(500, 1))
	}
	backedUp(t, st, to, backup.Options{})
	want := everythingOf(t, st, "b", true)
	for _, id := range []string{"a", "b", "c"} {
		commitTo(t, session(t, st, id), turnstone.Commit{Nodes: saying(random(500, 2))})
	}
	spoil := func(id string) {
		inc := incarnationOf(session(t, st, id))
		for _, p := range pairs(t, e) {
			if p.Key[4] == 'p' && bytes.Equal(p.Key[5:21], inc[:]) {
				value := bytes.Clone(p.Value)
				value[len(value)/2]++
				b := &engine.Batch{}
				b.Set(p.Key, value)
				must(t, e.Apply(ctx, b))
			}
		}
	}
	spoil("b")
	st = openStore(t, e, nil)
	r, err := backup.Run(ctx, st, to, backup.Options{})
	must(t, err)
	if len(r.Failed) != 1 || !errors.Is(r.Err(), damage.ErrDamaged) || !strings.Contains(r.Err().Error(), `"b"`) || r.Sessions != 2 {
		t.Fatalf("%+v", r)
	}
	got, _ := restored(t, to, backup.RestoreOptions{})
	if have := everythingOf(t, got, "b", true); have != want {
		t.Errorf("%s\nwant\n%s", have, want)
	}
	for _, id := range []string{"a", "c"} {
		sameThere(t, st, got, true, id)
	}
	verified(t, to)
}
