package trpc_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/event"
	"trpc.group/trpc-go/trpc-agent-go/model"
	"trpc.group/trpc-go/trpc-agent-go/session"
	"trpc.group/trpc-go/trpc-agent-go/session/inmemory"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/trpc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// What is asked for of a session costs the same whatever its history.
func TestTR7_AReadCostsWhatItReturns(t *testing.T) {
	storetest.CostsWhatItReturns(t, func(store turnstone.Factory, n int, tick func() (time.Time, string)) map[string]func() {
		s := trpc.NewSessions(store, trpc.Options{})
		user := session.UserKey{AppName: "app", UserID: fmt.Sprint("user", n)}
		key := session.Key{AppName: "app", UserID: user.UserID, SessionID: "chat"}
		of := must(s.CreateSession(ctx, key, session.StateMap{"k": []byte("v")}))
		var now time.Time
		var anchor string
		for i := range n {
			role, text := model.RoleAssistant, ""
			if i%2 == 0 {
				role = model.RoleUser
			}
			now, text = tick()
			said := say(i, role, text, nil)
			if i == n-8 {
				anchor = said.ID
			}
			said.Timestamp = now
			if err := s.AppendEvent(ctx, of, said); err != nil {
				t.Fatal(err)
			}
		}
		// got returns a read that returns so many events, from one that is of a user on.
		got := func(events int, options ...session.Option) func() {
			return func() {
				if one := must(s.GetSession(ctx, key, options...)); len(one.Events) != events {
					t.Errorf("%d of %d events, want %d", len(one.Events), n, events)
				}
			}
		}
		listed := func(events int, options ...session.Option) func() {
			return func() {
				if all := must(s.ListSessions(ctx, user, options...)); len(all) != 1 || len(all[0].Events) != events {
					t.Errorf("%+v", all)
				}
			}
		}
		return map[string]func(){
			"a window": func() {
				w := must(s.GetEventWindow(ctx, session.EventWindowRequest{Key: key, AnchorEventID: anchor, Before: 5, After: 3}))
				if len(w.Entries) != 9 || w.Entries[5].Event.ID != anchor {
					t.Errorf("%d events", len(w.Entries))
				}
			},
			"the last 10":          got(10, session.WithEventNum(10)),
			"since the last 6":     got(6, session.WithEventTime(now.Add(-5*time.Hour))),
			"a page of 10":         got(10, session.WithGetSessionEventPage(5, 10)),
			"a list without any":   listed(0, session.WithListSessionOnlyMeta()),
			"a list of the last 4": listed(4, session.WithEventNum(4)),
		}
	})
}

// An event whose time is later than that of its commit is found by its time.
func TestTR7_EventsOfALaterTimeAreFound(t *testing.T) {
	store := storetest.Memory(t)
	s := trpc.NewSessions(store, trpc.Options{})
	later := time.Now().Add(100 * 24 * time.Hour)
	for _, late := range []string{"event", "track event"} {
		key := session.Key{AppName: "app", UserID: "user", SessionID: late}
		of := must(s.CreateSession(ctx, key, nil))
		for i := range 4 {
			e := say(i, model.RoleUser, "text", nil)
			track := &session.TrackEvent{Track: "t", Payload: json.RawMessage(fmt.Sprint(i)), Timestamp: time.Now()}
			if e.Timestamp = time.Now(); i == 1 && late == "event" {
				e.Timestamp = later
			} else if i == 1 {
				track.Timestamp = later
			}
			if err := s.AppendEvent(ctx, of, e); err != nil {
				t.Fatal(err)
			}
			if err := s.AppendTrackEvent(ctx, of, track); err != nil {
				t.Fatal(err)
			}
		}
		got := must(s.GetSession(ctx, key, session.WithEventTime(later.Add(-time.Hour))))
		if found := len(got.Events) == 3 && got.Events[0].ID == "e1"; found != (late == "event") {
			t.Errorf("%s: %+v", late, got.Events)
		}
		if found := got.Tracks["t"] != nil && len(got.Tracks["t"].Events) == 1; found != (late == "track event") {
			t.Errorf("%s: %+v", late, got.Tracks["t"])
		}
	}
}

// Of first runs at once all go on, with one session.
func TestTR7_FirstRunsAtOnceGoOn(t *testing.T) {
	store := storetest.Memory(t)
	key := session.Key{AppName: "app", UserID: "user", SessionID: "chat"}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s := trpc.NewSessions(store, trpc.Options{})
			of, err := s.CreateSession(ctx, key, session.StateMap{fmt.Sprint(i): []byte("v")})
			if err == nil && of.State[fmt.Sprint(i)] == nil {
				t.Errorf("run %d has the state %q", i, of.State)
			}
			var e *event.Event
			if err == nil {
				e = say(i, model.RoleUser, "text", nil)
				err = s.AppendEvent(ctx, of, e)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got := must(trpc.NewSessions(store, trpc.Options{}).GetSession(ctx, key))
	if len(got.Events) != 8 || len(got.State) != 8 {
		t.Errorf("%d events, %d values", len(got.Events), len(got.State))
	}
}

// A rewind takes the state of the session, its tracks and what was summarized along.
func TestTR8_ARewindTakesTheStateAlong(t *testing.T) {
	store := storetest.Memory(t)
	s := trpc.NewSessions(store, trpc.Options{})
	key := session.Key{AppName: "app", UserID: "user", SessionID: "chat"}
	of := must(s.CreateSession(ctx, key, session.StateMap{"k": []byte("first")}))
	shown := []string{shows(t, must(s.GetSession(ctx, key)))}
	for i := range 4 {
		e := say(i, model.RoleUser, fmt.Sprint(i), map[string][]byte{"k": []byte(fmt.Sprint(i)), fmt.Sprint("k", i): nil})
		if err := s.AppendEvent(ctx, of, e); err != nil {
			t.Fatal(err)
		}
		shown = append(shown, shows(t, must(s.GetSession(ctx, key))))
		track := &session.TrackEvent{Track: session.Track(fmt.Sprint("t", i)), Payload: json.RawMessage("1"), Timestamp: e.Timestamp}
		if err := s.AppendTrackEvent(ctx, of, track); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range []int{2, 0, -1} {
		last := ""
		if to >= 0 {
			last = fmt.Sprint("e", to)
		}
		got := must(s.Rewind(ctx, key, last))
		if g := shows(t, got); g != shown[to+1] || g != shows(t, must(s.GetSession(ctx, key))) {
			t.Errorf("after a rewind to %q: %s, want %s", last, g, shown[to+1])
		}
	}
	if _, err := s.Rewind(ctx, key, "e2"); !errors.Is(err, turnstone.ErrNodeNotFound) {
		t.Error(err)
	}
	if err := s.AppendEvent(ctx, of, say(9, model.RoleUser, "goes on", nil)); err != nil {
		t.Fatal(err)
	}
	if got := must(s.GetSession(ctx, key)); len(got.Events) != 1 || string(got.State["k"]) != "first" {
		t.Errorf("%+v", got)
	}
	if _, err := s.Rewind(ctx, session.Key{AppName: "app", UserID: "user", SessionID: "none"}, ""); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error(err)
	}
}

func TestTR7_APageMayBeOfAnySize(t *testing.T) {
	s := trpc.NewSessions(storetest.Memory(t), trpc.Options{})
	of := must(s.CreateSession(ctx, chat, nil))
	for i := range 6 {
		if err := s.AppendEvent(ctx, of, say(i, model.RoleUser, fmt.Sprint("m", i), nil)); err != nil {
			t.Fatal(err)
		}
	}
	if got := must(s.GetSession(ctx, chat, session.WithGetSessionEventPage(1, math.MaxInt))); len(got.Events) != 5 {
		t.Errorf("%d events", len(got.Events))
	}
}

// An event of a process whose clock is behind does not hide what came before it.
func TestTR7_ANumberOfEventsSinceATimeIsThatOfTheInMemoryService(t *testing.T) {
	want := map[string]string{}
	m := inmemory.NewSessionService()
	now := time.Now()
	for name, s := range map[string]session.Service{"turnstone": trpc.NewSessions(storetest.Memory(t), trpc.Options{}), "memory": m} {
		of := must(s.CreateSession(ctx, chat, nil))
		for i, at := range []time.Duration{0, 2 * time.Second, time.Second, time.Second} { // the clock of another process is a second behind
			role := model.RoleAssistant
			if i%2 == 0 {
				role = model.RoleUser
			}
			e := say(i, role, fmt.Sprint("m", i), nil)
			e.Timestamp = now.Add(at)
			if err := s.AppendEvent(ctx, of, e); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.GetSession(ctx, chat, session.WithEventNum(2), session.WithEventTime(now.Add(2*time.Second)))
		if err != nil {
			t.Fatal(err)
		}
		want[name] = fmt.Sprint(texts(got))
	}
	if want["turnstone"] != want["memory"] {
		t.Errorf("%v", want)
	}
}
