package tests

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
)

// The ids of erased sessions go from the feed, whether they have a number or not; the changes stay.
func TestWA10_ErasureForgetsIDs(t *testing.T) {
	mem := memory.New()
	st := openStore(t, mem, &turnstone.Options{NoAutoSeal: true})
	begin := startFeed(t, st)
	for _, id := range []string{"secret", "other"} {
		create(t, st, turnstone.Request{ID: id}, []byte("x"))
	}
	if err := rename(ctx, st, "secret", "hidden name"); err != nil {
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

// A session was deleted and vacuumed, and its id is forgotten but for the feed: an erasure takes it from there.
func TestWA10_AnErasureOfAForgottenIDTakesItFromTheFeed(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	mem := memory.New()
	st := openStore(t, mem, &turnstone.Options{NoAutoSeal: true, Now: func() time.Time { return now }})
	startFeed(t, st)
	create(t, st, turnstone.Request{ID: "secret"}, []byte("x"))
	remove(t, st, "secret")
	vacuum(t, st)
	now = now.Add(2 * time.Hour)
	collect(t, st, gc.Options{})
	if _, err := st.Erase(ctx, "secret", turnstone.KeepChildren, turnstone.EraseOptions{}); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error(err)
	}
	for _, p := range pairs(t, mem) {
		if strings.Contains(string(p.Key)+string(p.Value), "secret") {
			t.Errorf("%x has the id", p.Key)
		}
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
					if err := st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}); err != nil {
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
