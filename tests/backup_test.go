package tests

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
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

// sameAlive fails the test unless two stores have the same sessions.
func sameAlive(t *testing.T, want, got map[string]string) {
	t.Helper()
	for id, text := range want {
		if got[id] == "" {
			t.Errorf("session %q is missing", id)
			continue
		}
		a, b := strings.Split(text, "\n"), strings.Split(got[id], "\n")
		for i := range a {
			if strings.HasPrefix(a[i], "checkpoint ") && strings.HasSuffix(a[i], `"revision-pruned"`) { // What is pruned is a matter of each store.
				continue
			}
			if strings.HasPrefix(a[i], "log ") {
				a[i], b[i] = strings.ReplaceAll(a[i], `,"pruned":true`, ""), strings.ReplaceAll(b[i], `,"pruned":true`, "")
			}
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
