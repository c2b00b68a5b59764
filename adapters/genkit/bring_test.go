package genkit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/ai/exp"
	"github.com/firebase/genkit/go/ai/exp/localstore"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/adapters/genkit"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// Bring brings the snapshots of Genkit's files as they are, and later those that are new or have changed. It leaves alone the
// snapshots that a host has saved here.
func TestGK8_SnapshotsOfFilesAreBrought(t *testing.T) {
	dir := t.TempDir()
	files, err := localstore.NewFileSessionStore[custom](dir, localstore.WithSnapshotPathPrefix(func(context.Context) string { return "org/ann" }))
	if err != nil {
		t.Fatal(err)
	}
	put := func(s exp.SessionStore[custom], id, session, parent string, n int, status exp.SnapshotStatus, at time.Time) {
		t.Helper()
		_, err := s.SaveSnapshot(ctx, id, func(*snapshot) (*snapshot, error) {
			next := &snapshot{SessionID: session, ParentID: parent, Status: status, CreatedAt: at, UpdatedAt: at, State: &state{SessionID: session, Custom: custom{Counter: n}}}
			for i := range n {
				next.State.Messages = append(next.State.Messages, ai.NewUserTextMessage(fmt.Sprint("message ", i, " é")))
			}
			return next, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		parent := ""
		if i > 1 {
			parent = fmt.Sprintf("s%02d", i-2)
		}
		put(files, fmt.Sprintf("s%02d", i), []string{"one", "two"}[i%2], parent, i/2+1, exp.SnapshotStatusCompleted, begin.Add(time.Duration(i)*time.Second))
	}
	put(files, "pending", "one", "s18", 11, exp.SnapshotStatusPending, begin.Add(time.Minute))
	store := storetest.Memory(t)
	prefix := func(context.Context) string { return "org/ann" }
	s := genkit.NewStore[custom](store, genkit.Options{Prefix: prefix})
	same := func() {
		t.Helper()
		ids := []string{"pending"}
		for i := range 20 {
			ids = append(ids, fmt.Sprintf("s%02d", i))
		}
		for _, id := range ids {
			var text [2][]byte
			for i, from := range []exp.SessionStore[custom]{files, s} {
				got, err := from.GetSnapshot(ctx, id)
				if err != nil {
					t.Fatal(err)
				}
				if text[i], err = json.Marshal(got); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(text[0], text[1]) {
				t.Errorf("%s:\n%s\nwant\n%s", id, text[1], text[0])
			}
		}
	}
	if b, err := s.Bring(ctx, dir, "org/ann", adapter.BringOptions{DryRun: true}); err != nil || b.Found != 21 || b.Brought != 21 || b.Unchanged != 0 {
		t.Errorf("%+v, %v", b, err)
	}
	if page, err := store.List(ctx, turnstone.ListOptions{}); err != nil || len(page.Sessions) > 0 {
		t.Errorf("a dry run made %+v, %v", page.Sessions, err)
	}
	for _, want := range [][2]int{{21, 0}, {0, 21}} {
		b, err := s.Bring(ctx, dir, "org/ann", adapter.BringOptions{})
		if err != nil || b.Found != 21 || b.Brought != want[0] || b.Unchanged != want[1] || len(b.Different) > 0 {
			t.Errorf("%+v, %v", b, err)
		}
		same()
	}
	put(files, "pending", "one", "s18", 12, exp.SnapshotStatusCompleted, begin.Add(2*time.Minute))
	if b, err := s.Bring(ctx, dir, "org/ann", adapter.BringOptions{}); err != nil || b.Brought != 1 || b.Unchanged != 20 {
		t.Errorf("%+v, %v", b, err)
	}
	same()
	latest, err := s.GetLatestSnapshot(ctx, "one")
	if err != nil || latest == nil || latest.SnapshotID != "pending" || len(latest.State.Messages) != 12 {
		t.Errorf("%+v, %v", latest, err)
	}
	put(s, "pending", "one", "s18", 13, exp.SnapshotStatusCompleted, begin.Add(3*time.Minute))
	if b, err := s.Bring(ctx, dir, "org/ann", adapter.BringOptions{}); err != nil || b.Unchanged != 21 {
		t.Errorf("%+v, %v", b, err)
	}
	if latest, err := s.GetLatestSnapshot(ctx, "one"); err != nil || len(latest.State.Messages) != 13 {
		t.Errorf("%+v, %v", latest, err)
	}
	put(files, "pending", "one", "s18", 14, exp.SnapshotStatusPending, begin.Add(4*time.Minute)) // The old host has not stopped.
	if b, err := s.Bring(ctx, dir, "org/ann", adapter.BringOptions{}); err != nil || b.Unchanged != 20 || !slices.Equal(b.Different, []string{"pending"}) {
		t.Errorf("%+v, %v", b, err)
	}
	if latest, err := s.GetLatestSnapshot(ctx, "one"); err != nil || len(latest.State.Messages) != 13 {
		t.Errorf("%+v, %v", latest, err)
	}
	put(files, "refused", strings.Repeat("x", 600), "", 1, exp.SnapshotStatusCompleted, begin)
	put(files, "zz", "three", "", 1, exp.SnapshotStatusCompleted, begin.Add(5*time.Minute))
	if b, err := s.Bring(ctx, dir, "org/ann", adapter.BringOptions{}); err != nil || b.Brought != 1 || len(b.Different) != 2 || !strings.HasPrefix(b.Different[0], "refused: ") {
		t.Errorf("%+v, %v", b, err)
	}
	for _, gone := range []string{"refused", "zz"} {
		if err := os.Remove(dir + "/org/ann/" + gone + ".json"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Bring(ctx, dir+"/none", "nobody", adapter.BringOptions{}); err == nil {
		t.Error("a folder that there is not was brought")
	}
	if _, err := os.Stat(dir + "/none"); err == nil {
		t.Error("the folder was made")
	}
	if err := os.WriteFile(dir+"/org/ann/bad.json", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	put(files, "fork", "two", "s17", 12, exp.SnapshotStatusCompleted, begin.Add(6*time.Minute))
	put(files, "tip", "two", "s19", 12, exp.SnapshotStatusCompleted, begin.Add(7*time.Minute)) // which leaves no s17
	few := genkit.NewStore[custom](storetest.Memory(t), genkit.Options{MaxChain: 2})
	for name, text := range map[string]string{"another": `{"snapshotId":"s18","sessionId":"one"}`, "homeless": `{"snapshotId":"homeless"}`} {
		if err := os.WriteFile(dir+"/org/ann/"+name+".json", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, brought := range []int{5, 0} {
		b, err := few.Bring(ctx, dir, "org/ann", adapter.BringOptions{})
		if err != nil || b.Found != 8 || len(b.Different) != 3 || b.Brought != brought || b.Unchanged != 5-brought {
			t.Errorf("%+v, %v", b, err)
		}
		for id, want := range map[string]bool{"pending": true, "s18": true, "s16": false, "tip": true, "fork": true, "s19": true, "s17": false, "s15": false} {
			if got, err := few.GetSnapshot(ctx, id); err != nil || (got != nil) != want {
				t.Errorf("%s: %v, %v", id, got, err)
			}
		}
	}
}

// A snapshot that a host has saved here keeps its state, also if Bring is called again after a prune.
func TestGK8_BringTakesNothingFromAHostAfterAPrune(t *testing.T) {
	files, dir := filesOf(t)
	st := storetest.URL(t, "mem:")
	s := on(t, st.Factory())
	put := func(to exp.SessionStore[custom], id, parent string, at int) {
		t.Helper()
		_, err := to.SaveSnapshot(ctx, id, func(*snapshot) (*snapshot, error) {
			when := begin.Add(time.Duration(at) * time.Second)
			return &snapshot{SessionID: "s", ParentID: parent, CreatedAt: when, UpdatedAt: when, State: &state{SessionID: "s", Messages: []*ai.Message{ai.NewUserTextMessage(id)}}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	put(files, "1", "", 1)
	put(files, "2", "1", 2)
	for _, want := range []int{0, 2} { // unchanged
		if b, err := s.Bring(ctx, dir, "global", adapter.BringOptions{}); err != nil || b.Unchanged != want || len(b.Different) > 0 {
			t.Errorf("%+v, %v", b, err)
		}
		put(s, "3", "2", 3)
		if _, err := st.Prune(ctx, gc.PruneOptions{Revisions: 1}); err != nil {
			t.Fatal(err)
		}
		if got, err := s.GetLatestSnapshot(ctx, "s"); err != nil || got.SnapshotID != "3" || len(got.State.Messages) != 1 {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// put saves a snapshot of session "s" in place of the one that has its id.
func put(t *testing.T, to exp.SessionStore[custom], id, parent string, created int, texts ...string) {
	t.Helper()
	at := begin.Add(time.Duration(created) * time.Second)
	next := &snapshot{SessionID: "s", ParentID: parent, CreatedAt: at, UpdatedAt: at}
	if len(texts) > 0 {
		next.State = &state{SessionID: "s"}
	}
	for _, text := range texts {
		next.State.Messages = append(next.State.Messages, ai.NewUserTextMessage(text))
	}
	if _, err := to.SaveSnapshot(ctx, id, func(*snapshot) (*snapshot, error) { return next, nil }); err != nil {
		t.Fatal(err)
	}
}

// Bring brings no snapshot that MaxChain has deleted here.
func TestGK7_BringAddsNothingToAChainThatAHostHasGoneOnWith(t *testing.T) {
	files, dir := filesOf(t)
	s := snapshots{T: t, Store: genkit.NewStore[custom](storetest.Memory(t), genkit.Options{MaxChain: 2})}
	put(t, files, "1", "", 1, "a")
	put(t, files, "2", "1", 2, "a", "b")
	for round := range 3 {
		if _, err := s.Bring(ctx, dir, "global", adapter.BringOptions{}); err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			put(t, s, "3", "2", 3, "a", "b", "c")
			put(t, s, "4", "3", 4, "a", "b", "c", "d")
		}
		for id, want := range map[string]bool{"1": false, "2": false, "3": true, "4": true} {
			if there := s.get(id) != nil; there != want {
				t.Errorf("round %d: snapshot %s is there: %v", round, id, there)
			}
		}
	}
}

// Bring brings a state that a file has got since the last call, also if nothing else in the file has changed.
func TestGK8_AStateThatCameLaterIsBrought(t *testing.T) {
	files, dir := filesOf(t)
	s := on(t, storetest.Memory(t))
	for _, said := range [][]string{nil, {"a"}} {
		put(t, files, "1", "", 1, said...)
		if b, err := s.Bring(ctx, dir, "global", adapter.BringOptions{}); err != nil || b.Brought != 1 {
			t.Errorf("%+v, %v", b, err)
		}
	}
	if got := texts(s.get("1")); got != "0 a" {
		t.Error(got)
	}
}

// filesOf returns a store of files, and its directory.
func filesOf(t *testing.T) (*localstore.FileSessionStore[custom], string) {
	t.Helper()
	dir := t.TempDir()
	files, err := localstore.NewFileSessionStore[custom](dir)
	if err != nil {
		t.Fatal(err)
	}
	return files, dir
}
