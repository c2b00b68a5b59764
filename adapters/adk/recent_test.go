package adk_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/adk/v2/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// What is asked for of a session costs the same whatever its history.
func TestAD9_AReadCostsWhatItReturns(t *testing.T) {
	storetest.CostsWhatItReturns(t, func(store turnstone.Factory, n int, tick func() (time.Time, string)) map[string]func() {
		s, user := adk.NewSessions(store), fmt.Sprint("user", n)
		made, err := s.Create(ctx, &session.CreateRequest{AppName: "app", UserID: user, SessionID: "chat"})
		if err != nil {
			t.Fatal(err)
		}
		var now time.Time
		for i := range n {
			text := ""
			now, text = tick()
			said := event(fmt.Sprint(i), text, nil)
			said.Timestamp = now
			if err := s.AppendEvent(ctx, made.Session, said); err != nil {
				t.Fatal(err)
			}
		}
		got := func(events int, r session.GetRequest) func() {
			r.AppName, r.UserID, r.SessionID = "app", user, "chat"
			return func() {
				one, err := s.Get(ctx, &r)
				if err != nil || one.Session.Events().Len() != events {
					t.Errorf("%+v of %d events, %v", one, n, err)
				}
			}
		}
		return map[string]func(){
			"the last 10":      got(10, session.GetRequest{NumRecentEvents: 10}),
			"since the last 5": got(5, session.GetRequest{After: now.Add(-4 * time.Hour)}),
			"a list": func() {
				all, err := s.List(ctx, &session.ListRequest{AppName: "app", UserID: user})
				if err != nil || len(all.Sessions) != 1 || all.Sessions[0].Events().Len() != 0 {
					t.Errorf("%+v, %v", all, err)
				}
			},
		}
	})
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
	var before session.Session // event 3
	for i := range 4 {
		r, err := c.Get(ctx, &session.GetRequest{AppName: s.AppName(), UserID: s.UserID(), SessionID: s.ID()})
		if err != nil {
			t.Fatal(err)
		}
		before = r.Session
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
	if err := c.AppendEvent(ctx, before, event("3", "text3", map[string]any{"k": 3, "k3": 1, "user:n": 3})); !errors.Is(err, turnstone.ErrTurnConflict) {
		t.Error(err)
	}
	again, err := c.Rewind(ctx, s, "")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // Nothing is dropped in silence.
		if err := c.AppendEvent(ctx, again, event("0", "text0", map[string]any{"k": 0, "k0": 1, "user:n": 0})); !errors.Is(err, turnstone.ErrTurnConflict) {
			t.Error(err)
		}
	}
	if err := c.AppendEvent(ctx, again, event("9", "goes on", map[string]any{"k": 9})); err != nil {
		t.Error(err)
	}
}
