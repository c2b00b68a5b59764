package adk_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// chats are the sessions of one app and user.
type chats struct {
	*testing.T
	*adk.Sessions
}

func (c chats) create(id string, state map[string]any) session.Session {
	c.Helper()
	r, err := c.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "user", SessionID: id, State: state})
	if err != nil {
		c.Fatal(err)
	}
	return r.Session
}

func (c chats) get(id string) session.Session {
	c.Helper()
	r, err := c.Get(ctx, &session.GetRequest{AppName: "app", UserID: "user", SessionID: id})
	if err != nil {
		c.Fatal(err)
	}
	return r.Session
}

func event(id, text string, delta map[string]any) *session.Event {
	return &session.Event{
		ID: id, Author: "user", InvocationID: "i", Timestamp: time.Date(2026, 1, 1, 0, 0, 0, 123, time.UTC), Actions: session.EventActions{StateDelta: delta},
		LLMResponse: model.LLMResponse{Content: genai.NewContentFromText(text, genai.RoleUser)},
	}
}

// shows returns the state and the texts of a session.
func shows(s session.Session) string {
	state := maps.Collect(s.State().All())
	var out strings.Builder
	for _, k := range slices.Sorted(maps.Keys(state)) {
		fmt.Fprintf(&out, "%s=%v ", k, state[k])
	}
	for e := range s.Events().All() {
		out.WriteString(e.Content.Parts[0].Text + " ")
	}
	return strings.TrimSpace(out.String())
}

func TestAD2_AnEventIsStoredOnceThoughTheStateHasChangedSince(t *testing.T) {
	s := adk.NewSessions(storetest.Memory(t))
	made, err := s.Create(ctx, &session.CreateRequest{AppName: "a", UserID: "u", SessionID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	get := func() session.Session {
		t.Helper()
		got, err := s.Get(ctx, &session.GetRequest{AppName: "a", UserID: "u", SessionID: "s"})
		if err != nil {
			t.Fatal(err)
		}
		return got.Session
	}
	lost := session.NewEvent(ctx, "i")
	lost.Actions.StateDelta = map[string]any{"a": 1.0}
	if err := s.AppendEvent(ctx, made.Session, lost); err != nil {
		t.Fatal(err)
	}
	other := session.NewEvent(ctx, "i")
	other.Actions.StateDelta = map[string]any{"b": 2.0}
	if err := s.AppendEvent(ctx, get(), other); err != nil {
		t.Fatal(err)
	}
	// The answer was lost: the host reads the session again, and appends the event once more.
	if err := s.AppendEvent(ctx, get(), lost); err != nil {
		t.Error(err)
	}
	differs := *lost
	differs.Author = "another"
	if err := s.AppendEvent(ctx, get(), &differs); !errors.Is(err, turnstone.ErrTurnConflict) {
		t.Error(err)
	}
	if n := get().Events().Len(); n != 2 {
		t.Errorf("%d events", n)
	}
}

func TestAD2_AnEventAndTheStateThatItChangesAreStoredTogether(t *testing.T) {
	delta := map[string]any{"k": "own", "user:k": "user", "app:k": "app", "temp:k": "gone"}
	// A crash at any call of the engine: all of it is there, or nothing.
	crashes := 0
	for n := 1; ; n++ {
		for _, applied := range []bool{false, true} {
			faulty := &enginetest.Faulty{Engine: memory.New()}
			c := chats{t, adk.NewSessions(storetest.On(t, faulty).Factory())}
			s := c.create("s", map[string]any{"user:a": 0, "app:a": 0})
			calls := 0
			faulty.Plan = func(enginetest.Call) enginetest.Fault {
				calls++
				return enginetest.Fault{Crash: calls == n, Applied: applied}
			}
			err := c.AppendEvent(ctx, s, event("e", "hello", delta))
			c = chats{t, adk.NewSessions(storetest.On(t, faulty.Engine).Factory())}
			got := shows(c.get("s"))
			switch before, after := "app:a=0 user:a=0", "app:a=0 app:k=app k=own user:a=0 user:k=user hello"; {
			case err == nil && n == 1:
				t.Fatal("no call failed")
			case err == nil && got == after:
				stored := c.get("s").Events().At(0).Actions.StateDelta
				if _, temporary := stored["temp:k"]; temporary || len(stored) != 3 || len(delta) != 4 {
					t.Errorf("stored %v, of %v", stored, delta)
				}
				if crashes < 2 {
					t.Fatal(crashes)
				}
				return
			case err == nil || got != before && got != after:
				t.Fatalf("after a crash at call %d: %q, %v", n, got, err)
			}
			crashes++
		}
	}
}

// The reply of the engine is lost, and then the engine.
func TestAD2_AnEventIsStoredOnceHoweverOftenItIsAppended(t *testing.T) {
	faulty := &enginetest.Faulty{Engine: memory.New()}
	c := chats{t, adk.NewSessions(storetest.On(t, faulty).Factory())}
	s := c.create("s", map[string]any{"user:n": 0}) // the state of the user is there
	lost := false
	faulty.Plan = func(call enginetest.Call) enginetest.Fault {
		switch {
		case lost: // so that the store can't find out by itself
			return enginetest.Fault{Err: engine.ErrUnavailable}
		case call.Op == "Apply":
			lost = true
			return enginetest.Fault{Err: engine.ErrUnknown, Applied: true}
		}
		return enginetest.Fault{}
	}
	e := event("e", "hello", map[string]any{"n": 1, "user:n": 1})
	if err := c.AppendEvent(ctx, s, e); !errors.Is(err, turnstone.ErrOutcomeUnknown) {
		t.Fatal(err)
	}
	faulty.Plan = nil
	for range 2 {
		if err := c.AppendEvent(ctx, s, e); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.AppendEvent(ctx, s, event("f", "again", map[string]any{"n": 2})); err != nil {
		t.Fatal(err)
	}
	const want = "n=2 user:n=1 hello again"
	if got := shows(s); got != want {
		t.Error(got)
	}
	if got := shows(c.get("s")); got != want {
		t.Error(got)
	}
}

func TestAD2_ASessionThatIsStaleIsRefused(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		c := chats{t, adk.NewSessions(open(t))}
		c.create("s", nil)
		one, two := c.get("s"), c.get("s")
		if err := c.AppendEvent(ctx, one, event("1", "first", nil)); err != nil {
			t.Fatal(err)
		}
		if err := c.AppendEvent(ctx, two, event("2", "late", map[string]any{"app:k": "lost"})); !errors.Is(err, turnstone.ErrConflict) {
			t.Fatal(err)
		}
		// Appending what another one has appended makes nobody see less than there is.
		if err := c.AppendEvent(ctx, one, event("3", "third", nil)); err != nil {
			t.Fatal(err)
		}
		if err := c.AppendEvent(ctx, two, event("3", "third", nil)); err != nil {
			t.Fatal(err)
		}
		if err := c.AppendEvent(ctx, two, event("4", "late", nil)); !errors.Is(err, turnstone.ErrConflict) {
			t.Fatal(err)
		}
		if got := shows(c.get("s")); got != "first third" || shows(two) != "" || shows(one) != got {
			t.Errorf("%q, %q, %q", got, shows(one), shows(two))
		}
	})
}

func TestAD2_SessionsOfAUserChangeItsStateAtOnce(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		store := open(t)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				c := chats{t, adk.NewSessions(store)}
				s := c.create(fmt.Sprint(i), nil)
				for n := range 5 {
					delta := map[string]any{fmt.Sprint("user:", i): n, "app:last": i, "n": n}
					if err := c.AppendEvent(ctx, s, event(fmt.Sprint(n), "x", delta)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		c := chats{t, adk.NewSessions(store)}
		state := maps.Collect(c.get("3").State().All())
		if len(state) != 10 {
			t.Error(state)
		}
		for i := range 8 {
			if state[fmt.Sprint("user:", i)] != 4 {
				t.Error(state)
			}
		}
	})
}

func TestAD2_ConcurrentEventsOfOneSessionAreAllStored(t *testing.T) {
	c := chats{t, adk.NewSessions(storetest.Pebble(t))}
	s := c.create("s", nil)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := c.AppendEvent(ctx, s, event(fmt.Sprint(i), "x", map[string]any{fmt.Sprint(i): i})); err != nil {
				t.Error(err)
			}
			for range s.Events().All() {
			}
			if _, err := s.State().Get(fmt.Sprint(i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got := c.get("s")
	if n := got.Events().Len(); n != 20 || s.Events().Len() != 20 || len(maps.Collect(got.State().All())) != 20 {
		t.Error(n, shows(got))
	}
}

func TestAD2_StateOfAUserThatSomebodyDeletedBeginsAnew(t *testing.T) {
	store := storetest.Memory(t)
	c := chats{t, adk.NewSessions(store)}
	s := c.create("s", map[string]any{"user:old": 1})
	if err := store.Delete(ctx, "adk/app/user", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	if got := shows(c.get("s")); got != "" {
		t.Error(got)
	}
	if err := c.AppendEvent(ctx, s, event("e", "x", map[string]any{"user:new": 2})); err != nil {
		t.Fatal(err)
	}
	if got := shows(c.get("s")); got != "user:new=2 x" {
		t.Error(got)
	}
}

// A list shows what Get shows, but for events, and a session of it can be appended to.
func TestAD3_ListsShowStatesAndNamesAreKeptApart(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		store := open(t)
		service := adk.NewSessions(store)
		if _, _, err := store.Create(ctx, turnstone.Request{ID: "another's", Metadata: head.Metadata{Group: "adk/a/b"}}); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for _, of := range [][3]string{{"a", "b", "c"}, {"a", "b/c", "d"}, {"a/b", "c", "d"}, {"a", "b", "c/d"}, {"a%2Fb", "c", "d"}, {"a", "ü", "."}} {
			_, err := service.Create(ctx, &session.CreateRequest{
				AppName: of[0], UserID: of[1], SessionID: of[2],
				State: map[string]any{"k": strings.Join(of[:], " "), "user:k": of[0] + " " + of[1], "app:k": of[0]},
			})
			if err != nil {
				t.Fatal(of, err)
			}
			want[strings.Join(of[:], " ")] = fmt.Sprintf("app:k=%s k=%s user:k=%s", of[0], strings.Join(of[:], " "), of[0]+" "+of[1])
		}
		for app, n := range map[string]int{"a": 4, "a/b": 1, "a%2Fb": 1, "b": 0} {
			r, err := service.List(ctx, &session.ListRequest{AppName: app})
			if err != nil || len(r.Sessions) != n {
				t.Fatal(app, r, err)
			}
			for _, s := range r.Sessions {
				if got := shows(s); got != want[s.AppName()+" "+s.UserID()+" "+s.ID()] {
					t.Error(got)
				}
				if s.LastUpdateTime().IsZero() {
					t.Error("no time")
				}
				if err := service.AppendEvent(ctx, s, event("e", "hello", nil)); err != nil {
					t.Error(err)
				}
			}
		}
		r, err := service.List(ctx, &session.ListRequest{AppName: "a", UserID: "b"})
		if err != nil || len(r.Sessions) != 2 || r.Sessions[0].Events().Len() != 0 {
			t.Error(r, err)
		}
	})
}

func TestAD3_WhatIsWrongIsRefusedBeforeAnyEffect(t *testing.T) {
	c := chats{t, adk.NewSessions(storetest.Memory(t))}
	s := c.create("s", nil)
	for what, err := range map[string]error{
		"no session": c.AppendEvent(ctx, nil, event("e", "x", nil)),
		"no event":   c.AppendEvent(ctx, s, nil),
		"no JSON":    c.AppendEvent(ctx, s, event("e", "x", map[string]any{"k": func() {}})),
		"of a user":  c.AppendEvent(ctx, s, event("e", "x", map[string]any{"user:k": make(chan int), "k": 1})),
		"no app": func() error {
			_, err := c.Create(ctx, &session.CreateRequest{UserID: "u"})
			return err
		}(),
		"no id": func() error { _, err := c.Get(ctx, &session.GetRequest{AppName: "a", UserID: "u"}); return err }(),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if err := c.AppendEvent(ctx, s, event("e", "x", map[string]any{"app:k": strings.Repeat("x", 201*turnstone.MaxRecord)})); !errors.Is(err, turnstone.ErrLimit) {
		t.Error(err)
	}
	if _, err := c.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "user", SessionID: "s", State: map[string]any{"app:k": 1}}); !errors.Is(err, turnstone.ErrExists) {
		t.Error(err)
	}
	if _, err := c.Get(ctx, &session.GetRequest{AppName: "app", UserID: "user", SessionID: "t"}); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error(err)
	}
	if got := shows(c.get("s")); got != "" || shows(s) != "" {
		t.Error(got)
	}
	// A state of its own may be large.
	if err := c.AppendEvent(ctx, s, event("e", "x", map[string]any{"k": strings.Repeat("x", 1<<20)})); err != nil {
		t.Error(err)
	}
}

// The state belongs to the revision, so that a fork and an older revision have theirs.
func TestAD3_AForkHasTheStateOfItsRevision(t *testing.T) {
	store := storetest.Memory(t)
	c := chats{t, adk.NewSessions(store)}
	s := c.create("s", map[string]any{"n": 0})
	var at head.Revision
	for i := range 3 {
		if err := c.AppendEvent(ctx, s, event(fmt.Sprint(i), fmt.Sprint(i), map[string]any{"n": i + 1})); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			info, err := s.(*adk.Session).Persistence().Info(ctx)
			if err != nil {
				t.Fatal(err)
			}
			at = info.Revision
		}
	}
	if _, _, err := store.Create(ctx, turnstone.Request{ID: "adk/app/user/fork", Parent: "adk/app/user/s", ForkAt: at, Metadata: head.Metadata{Group: "adk/app/user"}}); err != nil {
		t.Fatal(err)
	}
	fork := c.get("fork")
	if got := shows(fork); got != "n=2 0 1" {
		t.Error(got)
	}
	if err := c.AppendEvent(ctx, fork, event("f", "f", nil)); err != nil {
		t.Fatal(err)
	}
	if got := shows(c.get("fork")); got != "n=2 0 1 f" {
		t.Error(got)
	}
}

func TestAD3_FiltersOfGet(t *testing.T) {
	c := chats{t, adk.NewSessions(storetest.Memory(t))}
	s := c.create("s", nil)
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, at := range []int{1, 5, 3, 4} { // The clock went back.
		e := event(fmt.Sprint(i), fmt.Sprint(at), nil)
		e.Timestamp = base.Add(time.Duration(at) * time.Second)
		if err := c.AppendEvent(ctx, s, e); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []struct {
		last, after int
		want        string
	}{{0, 0, "1 5 3 4"}, {2, 0, "3 4"}, {9, 0, "1 5 3 4"}, {0, 4, "5 4"}, {1, 3, "4"}, {2, 3, "3 4"}, {1, 9, ""}} {
		r := &session.GetRequest{AppName: "app", UserID: "user", SessionID: "s", NumRecentEvents: f.last}
		if f.after > 0 {
			r.After = base.Add(time.Duration(f.after) * time.Second)
		}
		got, err := c.Get(ctx, r)
		if err != nil || shows(got.Session) != f.want {
			t.Errorf("%+v: %q, %v", f, shows(got.Session), err)
		}
	}
	if got := c.get("s").LastUpdateTime(); !got.Equal(base.Add(4 * time.Second)) {
		t.Error(got)
	}
}

func TestAD3_UsageIsCounted(t *testing.T) {
	c := chats{t, adk.NewSessions(storetest.Memory(t))}
	s := c.create("s", nil)
	e := event("e", "x", nil)
	e.Author, e.ModelVersion = "agent", "model-1"
	e.UsageMetadata = &genai.GenerateContentResponseUsageMetadata{PromptTokenCount: 7, ToolUsePromptTokenCount: 3, CandidatesTokenCount: 3, CachedContentTokenCount: 4, ThoughtsTokenCount: 2}
	if err := c.AppendEvent(ctx, s, e); err != nil {
		t.Fatal(err)
	}
	i, err := s.(*adk.Session).Persistence().Info(ctx)
	want := head.Usage{Model: "model-1", Input: 10, Output: 5, CachedInput: 4, Reasoning: 2}
	if err != nil || len(i.Usage) != 1 || i.Usage[0] != want {
		t.Errorf("%+v, %v", i.Usage, err)
	}
}

// What a caller does to a value that State has returned is not stored with the next event.
func TestAD2_OnlyDeltasChangeTheState(t *testing.T) {
	c := chats{t, adk.NewSessions(storetest.Memory(t))}
	c.create("s", map[string]any{"cart": map[string]any{"a": 1}})
	s := c.get("s")
	cart, err := s.State().Get("cart")
	if err != nil {
		t.Fatal(err)
	}
	cart.(map[string]any)["b"] = 2
	if err := s.State().Set("set", "directly"); err != nil {
		t.Fatal(err)
	}
	if err := c.AppendEvent(ctx, s, event("e", "x", map[string]any{"other": 1})); err != nil {
		t.Fatal(err)
	}
	if got := shows(c.get("s")); got != "cart=map[a:1] other=1 x" {
		t.Error(got)
	}
}

// A session that is made although the reply is lost is made once, and whoever is told so knows.
func TestAD2_ASessionIsMadeOnce(t *testing.T) {
	for n := 1; ; n++ {
		faulty := &enginetest.Faulty{Engine: memory.New()}
		c := chats{t, adk.NewSessions(storetest.On(t, faulty).Factory())}
		calls, lost := 0, 0
		faulty.Plan = func(call enginetest.Call) enginetest.Fault {
			if calls++; calls < n {
				return enginetest.Fault{}
			}
			if call.Op == "Apply" && lost == 0 {
				lost++
				return enginetest.Fault{Err: engine.ErrUnknown, Applied: true}
			}
			return enginetest.Fault{Err: engine.ErrUnavailable}
		}
		_, err := c.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "user", SessionID: "s", State: map[string]any{"k": 1}})
		faulty.Plan = nil
		_, missing := c.Get(ctx, &session.GetRequest{AppName: "app", UserID: "user", SessionID: "s"})
		there := missing == nil
		switch {
		case err == nil && there:
			if n < 4 {
				t.Error(n)
			}
			return
		case err == nil, there && !errors.Is(err, turnstone.ErrOutcomeUnknown):
			t.Fatalf("call %d: %v, and it is there: %v", n, err, there)
		}
	}
}

// pages makes pages of lists short, and calls between them.
type pages struct {
	turnstone.Factory
	between func()
}

func (p pages) List(ctx context.Context, o turnstone.ListOptions) (turnstone.Page, error) {
	if o.After != "" {
		p.between()
	}
	o.Limit = 2
	return p.Factory.List(ctx, o)
}

func TestAD3_AListHasTheSessionsThatAreUsedMeanwhile(t *testing.T) {
	store := storetest.Memory(t)
	c := chats{t, adk.NewSessions(store)}
	var all []session.Session
	for i := range 6 {
		all = append(all, c.create(fmt.Sprint(i), nil))
	}
	n := 0
	listing := adk.NewSessions(pages{store, func() {
		if n++; n <= 3 { // the one at the end of the list moves to its front
			if err := c.AppendEvent(ctx, all[n-1], event(fmt.Sprint(n), "x", nil)); err != nil {
				t.Error(err)
			}
		}
	}})
	r, err := listing.List(ctx, &session.ListRequest{AppName: "app", UserID: "user"})
	if err != nil || len(r.Sessions) != 6 {
		t.Errorf("%d sessions, %v", len(r.Sessions), err)
	}
}

func TestAD3_AListHasTheTimeOfTheLastEvent(t *testing.T) {
	c := chats{t, adk.NewSessions(storetest.Memory(t))}
	if err := c.AppendEvent(ctx, c.create("s", nil), event("e", "x", nil)); err != nil {
		t.Fatal(err)
	}
	r, err := c.List(ctx, &session.ListRequest{AppName: "app"})
	if err != nil || len(r.Sessions) != 1 || !r.Sessions[0].LastUpdateTime().Equal(event("", "", nil).Timestamp) {
		t.Error(r, err)
	}
}

// Somebody has renamed a session to that of another user.
func TestAD3_ASessionIsListedForItsUserOnly(t *testing.T) {
	st := storetest.URL(t, "mem:")
	c := chats{t, adk.NewSessions(st.Factory())}
	c.create("s", nil)
	s, err := st.Session(ctx, "adk/app/user/s")
	if err == nil {
		err = s.Rename(ctx, "adk/app/other/s")
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.List(ctx, &session.ListRequest{AppName: "app", UserID: "user"})
	if err != nil || len(r.Sessions) != 0 {
		t.Error(r, err)
	}
}

func TestAD3_WhatIsRefusedMakesNoSession(t *testing.T) {
	store := storetest.Memory(t)
	c := chats{t, adk.NewSessions(store)}
	for _, state := range []map[string]any{{"user:k": strings.Repeat("x", 201*turnstone.MaxRecord)}, {"app:\x00": 1}, {"app:" + strings.Repeat("k", 600): 1}} {
		if _, err := c.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "user", State: state}); err == nil {
			t.Error("no error")
		}
	}
	page, err := store.List(ctx, turnstone.ListOptions{})
	if err != nil || len(page.Sessions) > 0 {
		t.Error(page, err)
	}
}

func TestAD11_StateKeepsItsTypes(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) { stateKeepsItsTypes(t, open(t)) })
}

func stateKeepsItsTypes(t *testing.T, store turnstone.Factory) {
	c := chats{t, adk.NewSessions(store)}
	noise := make([]byte, 500_000)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise) // It never fails.
	values := map[string]any{
		"a": int64(1<<60 + 1), "user:b": []byte{0, 255}, "app:c": time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), "d": map[string]any{}, "user:e": 5, "f": 5.0,
		"g": []string{"x"}, "user:large": strings.Repeat("é", 200_000), "app:large": hex.EncodeToString(noise),
	}
	if _, err := c.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "user", SessionID: "s", State: map[string]any{"own": uint8(1)}}); err != nil {
		t.Fatal(err)
	}
	first := c.get("s")
	e := event("e", "x", maps.Clone(values))
	e.Actions.StateDelta["temp:t"] = func() {}
	if err := c.AppendEvent(ctx, first, e); err != nil {
		t.Fatal(err)
	}
	values["own"] = uint8(1)
	for _, s := range []session.Session{first, c.get("s")} {
		state := maps.Collect(s.State().All())
		delete(state, "temp:t")
		if !reflect.DeepEqual(state, values) {
			t.Errorf("%.300v", state)
		}
		delta := s.Events().At(0).Actions.StateDelta
		if len(delta) != len(values)-1 || !reflect.DeepEqual(delta["a"], values["a"]) || !reflect.DeepEqual(delta["user:b"], values["user:b"]) {
			t.Errorf("%.300v", delta)
		}
	}
	for _, v := range []any{struct{ A int }{1}, math.NaN(), "\xff", []any{&first}} {
		if err := c.AppendEvent(ctx, first, event("bad", "x", map[string]any{"a": v})); err == nil {
			t.Errorf("%T: no error", v)
		}
	}
	if n := c.get("s").Events().Len(); n != 1 {
		t.Errorf("%d events", n)
	}
}
