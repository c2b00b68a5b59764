package tests

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/storetest"
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

// asItStands fails the test unless the last run has what the store has, and the backup is whole.
func asItStands(t *testing.T, st *turnstone.Store, to backup.Target) {
	t.Helper()
	verified(t, to)
	got, _ := restored(t, to, backup.RestoreOptions{})
	sameAlive(t, aliveIn(t, st), aliveIn(t, got))
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
			if seed%3 == 1 {
				to = backup.Encrypted(to, storetest.Keyring(t, ""), "")
			}
			p := newPast(t, st, seed)
			p.forgets = true
			type point struct {
				time time.Time
				all  map[string]string
			}
			var points []point
			for range testkit.Pick(7, 7, 3) {
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

// A backup of a store on any engine is restored to a store on any other one.
func TestBK1_BackupsGoBetweenAllEngines(t *testing.T) {
	stores := map[string]*turnstone.Store{}
	var names []string
	for name, start := range storetest.Engines {
		e, err := start(t)()
		must(t, err)
		t.Cleanup(func() { e.Close() })
		stores[name], names = openStore(t, e, nil), append(names, name)
	}
	slices.Sort(names)
	p := newPast(t, stores[names[0]], 12)
	p.forgets = true
	for i, name := range names {
		st := stores[name]
		must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour, Records: true}))
		to := backup.Directory(t.TempDir() + "/backup")
		p.st = st
		var last *backup.Report
		for range testkit.Pick(3, 3, 2) {
			for range 12 {
				p.step()
			}
			last = backedUp(t, st, to, backup.Options{})
		}
		if last.All {
			t.Errorf("%s: the feed did not tell what has changed", name)
		}
		asItStands(t, st, to)
		if i+1 < len(names) { // The next one goes on from it.
			_, err := backup.Restore(ctx, to, stores[names[i+1]], backup.RestoreOptions{})
			must(t, err)
			sameAlive(t, aliveIn(t, st), aliveIn(t, stores[names[i+1]]))
			verify(t, stores[names[i+1]])
		}
	}
}

// What compresses very well is restored all the same.
func TestBK1_WhatCompressesWellIsRestored(t *testing.T) {
	_, st := onMemory(t, nil)
	to := backup.Directory(t.TempDir() + "/backup")
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 20 {
		change(t, s, turnstone.RecordChange{Key: fmt.Sprint(i), Value: bytes.Repeat([]byte{'x'}, turnstone.MaxRecord)})
	}
	if r := backedUp(t, st, to, backup.Options{}); r.Bytes > 20*turnstone.MaxRecord/256 {
		t.Fatalf("%d bytes", r.Bytes)
	}
	asItStands(t, st, to)
}

func TestVF10_ABackupIsNoted(t *testing.T) {
	_, st := onMemory(t, nil)
	create(t, st, turnstone.Request{ID: "a"}, []byte("a"))
	backedUp(t, st, backup.Directory(t.TempDir()), backup.Options{})
	if b := noted(t, st)["backup"]; b.Problem != "" || b.Numbers["sessions"] != 1 || b.Took <= 0 {
		t.Errorf("%+v", b)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Run(ctx, st, backup.Directory(file), backup.Options{}); err == nil {
		t.Fatal("a file is a target")
	}
	if b := noted(t, st)["backup"]; b.Problem == "" {
		t.Errorf("%+v", b)
	}
}
