package adk_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/adk/v2/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// What is asked for of a session costs the same whatever its history.
func TestAD9_AReadCostsWhatItReturns(t *testing.T) {
	const size = 1500    // bytes of an event, about
	const unsealed = 256 // commits that are not in a segment yet, at most; a segment has as many
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e := &storetest.Counted{Engine: memory.New()}
	store, err := turnstone.Open(ctx, e, &turnstone.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s := adk.NewSessions(store.Factory())
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{30, 300, 3000} {
		user := fmt.Sprint("user", n)
		made, err := s.Create(ctx, &session.CreateRequest{AppName: "app", UserID: user, SessionID: "chat"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			now = now.Add(time.Hour)
			text := make([]byte, size/2)
			for i := range text {
				text[i] = byte(rng.Uint32())
			}
			said := event(fmt.Sprint(i), hex.EncodeToString(text), nil)
			said.Timestamp = now
			if err := s.AppendEvent(ctx, made.Session, said); err != nil {
				t.Fatal(err)
			}
		}
		get := func(r session.GetRequest) (events int) {
			r.AppName, r.UserID, r.SessionID = "app", user, "chat"
			got, err := s.Get(ctx, &r)
			if err != nil {
				t.Fatal(err)
			}
			return got.Session.Events().Len()
		}
		for name, f := range map[string]func() int{
			"the last 10":      func() int { return get(session.GetRequest{NumRecentEvents: 10}) },
			"since the last 5": func() int { return get(session.GetRequest{After: now.Add(-4 * time.Hour)}) },
			"a list": func() int {
				r, err := s.List(ctx, &session.ListRequest{AppName: "app", UserID: user})
				if err != nil || len(r.Sessions) != 1 {
					t.Fatal(r, err)
				}
				return r.Sessions[0].Events().Len()
			},
		} {
			e.Bytes.Store(0)
			events := f()
			if want := map[string]int{"the last 10": 10, "since the last 5": 5}[name]; events != want {
				t.Errorf("%s: %d events", name, events)
			}
			if cost := e.Bytes.Load(); cost > 2*unsealed*size {
				t.Errorf("%s of %d events reads %d bytes", name, n, cost)
			}
		}
	}
}

// An event whose time is later than that of its commit is found by its time.
func TestAD9_EventsOfALaterTimeAreFound(t *testing.T) {
	c := chats{t, adk.NewSessions(storetest.Memory(t))}
	s := c.create("s", nil)
	later := time.Now().Add(100 * 24 * time.Hour)
	for i, at := range []time.Time{time.Now(), later, time.Now(), time.Now()} {
		e := event(fmt.Sprint(i), fmt.Sprint(i), map[string]any{"k": i})
		e.Timestamp = at
		if err := c.AppendEvent(ctx, s, e); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Get(ctx, &session.GetRequest{AppName: s.AppName(), UserID: s.UserID(), SessionID: "s", After: later.Add(-time.Hour)})
	if err != nil || got.Session.Events().Len() != 1 || got.Session.Events().At(0).ID != "1" {
		t.Errorf("%+v, %v", got, err)
	}
}

// A rewind takes the session's state along, and leaves that of its user.
func TestAD10_ARewindTakesTheStateAlong(t *testing.T) {
	c := chats{t, adk.NewSessions(storetest.Memory(t))}
	s := c.create("s", map[string]any{"k": "first"})
	for i := range 4 {
		if err := c.AppendEvent(ctx, s, event(fmt.Sprint(i), fmt.Sprint("text", i), map[string]any{"k": i, fmt.Sprint("k", i): 1, "user:n": i})); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []struct{ last, shown string }{
		{"2", "k=2 k0=1 k1=1 k2=1 user:n=3 text0 text1 text2"}, {"0", "k=0 k0=1 user:n=3 text0"}, {"", "k=first user:n=3"},
	} {
		got, err := c.Rewind(ctx, s, want.last)
		if err != nil {
			t.Fatal(err)
		}
		if text := shows(got); text != want.shown {
			t.Errorf("after a rewind to %q: %s, want %s", want.last, text, want.shown)
		}
	}
	if _, err := c.Rewind(ctx, s, "2"); !errors.Is(err, turnstone.ErrNodeNotFound) {
		t.Error(err)
	}
	if err := c.AppendEvent(ctx, s, event("9", "stale", nil)); !errors.Is(err, turnstone.ErrConflict) {
		t.Error(err)
	}
	again, err := c.Rewind(ctx, s, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AppendEvent(ctx, again, event("9", "goes on", map[string]any{"k": 9})); err != nil {
		t.Error(err)
	}
}
