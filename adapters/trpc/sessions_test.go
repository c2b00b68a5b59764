package trpc_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"

	"trpc.group/trpc-go/trpc-agent-go/model"
	"trpc.group/trpc-go/trpc-agent-go/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/trpc"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

func TestTR2_AnEventAndTheStateThatItChangesAreStoredTogether(t *testing.T) {
	crashes := 0
	for n := 1; ; n++ {
		for _, applied := range []bool{false, true} {
			faulty := &enginetest.Faulty{Engine: memory.New()}
			s := trpc.NewSessions(storetest.On(t, faulty).Factory(), trpc.Options{})
			of := must(s.CreateSession(ctx, chat, session.StateMap{"a": []byte("0")}))
			calls := 0
			faulty.Plan = func(enginetest.Call) enginetest.Fault {
				calls++
				return enginetest.Fault{Crash: calls == n, Applied: applied}
			}
			err := s.AppendEvent(ctx, of, say(1, model.RoleUser, "hello", map[string][]byte{"a": []byte("1"), "b": nil}))
			stored := must(trpc.NewSessions(storetest.On(t, faulty.Engine).Factory(), trpc.Options{}).GetSession(ctx, chat))
			got := fmt.Sprintf("%s %q", texts(stored), maps.Collect(maps.All(stored.State)))
			switch before, after := `[] map["a":"0"]`, `[hello] map["a":"1" "b":""]`; {
			case err == nil && n == 1:
				t.Fatal("no call failed")
			case err != nil && len(of.Events) > 0:
				t.Fatalf("after a crash at call %d the caller's session has the event, and %v", n, err)
			case err == nil && got == after && len(of.Events) == 1:
				if crashes < 2 {
					t.Fatal(crashes)
				}
				return
			case err == nil || got != before && got != after:
				t.Fatalf("after a crash at call %d: %s, %v", n, got, err)
			}
			crashes++
		}
	}
}

func TestTR2_OfAnEventWithoutContentOnlyTheStateIsStored(t *testing.T) {
	store := storetest.Memory(t)
	s := trpc.NewSessions(store, trpc.Options{})
	of := must(s.CreateSession(ctx, chat, nil))
	h := must(store.Session(ctx, "trpc/app/user/chat"))
	partial := say(1, model.RoleAssistant, "a part", nil)
	partial.IsPartial = true
	for i, want := range []turnstone.State{{Revision: 1}, {Revision: 2}} {
		if err := s.AppendEvent(ctx, of, partial); err != nil {
			t.Fatal(err)
		}
		if st := must(h.Load(ctx, turnstone.Scope{})); st.Revision != want.Revision || len(st.Nodes) > 0 {
			t.Errorf("%d: revision %d, %d nodes", i, st.Revision, len(st.Nodes))
		}
		partial.StateDelta = map[string][]byte{"k": []byte("v")}
	}
	if v, _ := of.GetState("k"); string(v) != "v" || len(of.Events) > 0 {
		t.Errorf("%q, %v", v, of.Events)
	}
}

func TestTR2_EventsThatAreAppendedAtOnceAreAllStored(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		store := open(t)
		services := []*trpc.Sessions{trpc.NewSessions(store, trpc.Options{}), trpc.NewSessions(store, trpc.Options{})}
		must(services[0].CreateSession(ctx, chat, nil))
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				s := services[i%2]
				of := must(s.GetSession(ctx, chat))
				key := fmt.Sprint("k", i)
				if err := s.AppendEvent(ctx, of, say(i, model.RoleUser, key, map[string][]byte{key: []byte(key)})); err != nil {
					t.Error(err)
				}
				if err := s.UpdateUserState(ctx, session.UserKey{AppName: "app", UserID: "user"}, session.StateMap{key: []byte(key)}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		got := must(services[1].GetSession(ctx, chat))
		if len(got.Events) != 16 || len(got.State) != 32 {
			t.Errorf("%d events, %d keys", len(got.Events), len(got.State))
		}
	})
}

func TestTR2_ASessionThatWasMadeAnewIsUsed(t *testing.T) {
	store := storetest.Memory(t)
	s, other := trpc.NewSessions(store, trpc.Options{}), trpc.NewSessions(store, trpc.Options{})
	of := must(s.CreateSession(ctx, chat, nil))
	if err := s.AppendEvent(ctx, of, say(1, model.RoleUser, "old", nil)); err != nil {
		t.Fatal(err)
	}
	if err := other.DeleteSession(ctx, chat); err != nil {
		t.Fatal(err)
	}
	if err := s.AppendEvent(ctx, of, say(2, model.RoleUser, "lost", nil)); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error(err)
	}
	must(other.CreateSession(ctx, chat, nil))
	if err := s.AppendEvent(ctx, of, say(3, model.RoleUser, "new", nil)); err != nil {
		t.Fatal(err)
	}
	if got := texts(must(s.GetSession(ctx, chat))); !slices.Equal(got, []string{"new"}) {
		t.Error(got)
	}
}

func TestTR3_WhatIsWrongIsRefusedBeforeAnyEffect(t *testing.T) {
	store := storetest.Memory(t)
	s := trpc.NewSessions(store, trpc.Options{})
	of := must(s.CreateSession(ctx, chat, session.StateMap{"a": []byte("1")}))
	before := shows(t, must(s.GetSession(ctx, chat)))
	odd := session.NewSession("app", "user", "chat", session.WithSessionState(session.StateMap{"tracks": []byte("no list")}))
	bad := say(1, model.RoleUser, "x", map[string][]byte{"\xff": nil})
	raw := say(1, model.RoleUser, "x", nil)
	raw.Extensions = map[string]json.RawMessage{"e": json.RawMessage("{")}
	_, noUser := s.CreateSession(ctx, session.Key{AppName: "app"}, nil)
	_, page := s.GetSession(ctx, chat, session.WithGetSessionEventPage(0, 0))
	_, listed := s.ListSessions(ctx, session.UserKey{AppName: "app", UserID: "user"}, session.WithGetSessionEventPage(0, 1))
	for name, err := range map[string]error{
		"no user":                       noUser,
		"an empty page":                 page,
		"a page of events in a list":    listed,
		"a key that is not UTF-8":       s.AppendEvent(ctx, of, bad),
		"an extension that is no JSON":  s.AppendEvent(ctx, of, raw),
		"no event":                      s.AppendEvent(ctx, of, nil),
		"no session":                    s.AppendEvent(ctx, nil, say(1, model.RoleUser, "x", nil)),
		"no track event":                s.AppendTrackEvent(ctx, of, nil),
		"a track event that is no JSON": s.AppendTrackEvent(ctx, of, &session.TrackEvent{Track: "t", Payload: json.RawMessage("{")}),
		"a track of a session whose list of tracks is none": s.AppendTrackEvent(ctx, odd, &session.TrackEvent{Track: "t"}),
		"a large value of a user":                           s.UpdateUserState(ctx, session.UserKey{AppName: "app", UserID: "user"}, session.StateMap{"k": make([]byte, 200*turnstone.MaxRecord+1)}),
		"a user's value in session state":                   s.UpdateSessionState(ctx, chat, session.StateMap{"user:k": nil}),
		"no app":                                            s.UpdateAppState(ctx, "", nil),
	} {
		if err == nil {
			t.Errorf("%s is not refused", name)
		}
	}
	if !errors.Is(noUser, session.ErrUserIDRequired) {
		t.Error(noUser)
	}
	if got := shows(t, must(s.GetSession(ctx, chat))); got != before || len(of.Events) > 0 || len(of.Tracks) > 0 {
		t.Errorf("%s, want %s; %v", got, before, of.Events)
	}
	if page := must(store.List(ctx, turnstone.ListOptions{})); len(page.Sessions) != 1 {
		t.Errorf("%+v", page)
	}
}

func TestTR3_PagesOfEventsHooksAndForks(t *testing.T) {
	store := storetest.Memory(t)
	var called []string
	s := trpc.NewSessions(store, trpc.Options{
		AppendEventHooks: []session.AppendEventHook{
			func(c *session.AppendEventContext, next func() error) error {
				called = append(called, "outer "+c.Event.ID)
				return next()
			},
			func(c *session.AppendEventContext, next func() error) error {
				if c.Event.ID == "e3" {
					return errors.New("refused")
				}
				called = append(called, "inner")
				return next()
			},
		},
		GetSessionHooks: []session.GetSessionHook{func(c *session.GetSessionContext, next func() (*session.Session, error)) (*session.Session, error) {
			called = append(called, "get "+c.Key.SessionID)
			return next()
		}},
	})
	of := must(s.CreateSession(ctx, chat, nil))
	for i := range 5 {
		if err := s.AppendEvent(ctx, of, say(i, model.RoleAssistant, fmt.Sprint(i), map[string][]byte{"n": fmt.Append(nil, i)})); (err != nil) != (i == 3) {
			t.Fatal(err)
		}
	}
	called = called[len(called)-2:]
	for _, c := range []struct {
		offset, limit int
		want          []string
	}{{0, 2, []string{"2", "4"}}, {2, 1, []string{"1"}}, {3, 9, []string{"0"}}, {4, 1, nil}, {9, 1, nil}} {
		if got := texts(must(s.GetSession(ctx, chat, session.WithGetSessionEventPage(c.offset, c.limit)))); !slices.Equal(got, c.want) {
			t.Errorf("page %d, %d: %v", c.offset, c.limit, got)
		}
	}
	if want := []string{"outer e4", "inner", "get chat"}; !slices.Equal(called[:3], want) {
		t.Errorf("%v, want %v", called, want)
	}
	// A fork of an earlier revision has the state of that one.
	fork := turnstone.Request{ID: "trpc/app/user/fork", Parent: "trpc/app/user/chat", ForkAt: 3, Metadata: head.Metadata{Group: "trpc/app/user"}}
	if _, _, err := store.Create(ctx, fork); err != nil {
		t.Fatal(err)
	}
	forked := must(s.GetSession(ctx, session.Key{AppName: "app", UserID: "user", SessionID: "fork"}, session.WithGetSessionEventPage(0, 9)))
	if n := string(forked.State["n"]); n != "1" || len(forked.Events) != 2 {
		t.Errorf("n is %s, %v", n, texts(forked))
	}
	listed := must(s.ListSessions(ctx, session.UserKey{AppName: "app", UserID: "user"}))
	if len(listed) != 2 || listed[0].ID != "fork" || listed[1].UpdatedAt.IsZero() || listed[1].CreatedAt.After(listed[1].UpdatedAt) {
		t.Errorf("%+v", listed)
	}
}

func TestTR3_TokensAreCountedAndWhatOthersHavePutThereIsTold(t *testing.T) {
	store := storetest.Memory(t)
	s := trpc.NewSessions(store, trpc.Options{})
	of := must(s.CreateSession(ctx, chat, nil))
	e := say(1, model.RoleAssistant, "x", nil)
	e.Usage = &model.Usage{PromptTokens: 5, CompletionTokens: 3, PromptTokensDetails: model.PromptTokensDetails{CachedTokens: 2}}
	if err := s.AppendEvent(ctx, of, e); err != nil {
		t.Fatal(err)
	}
	h := must(store.Session(ctx, "trpc/app/user/chat"))
	want := []head.Usage{{Model: "m", Input: 5, Output: 3, CachedInput: 2}}
	if i := must(h.Info(ctx)); !reflect.DeepEqual(i.Usage, want) {
		t.Errorf("%+v", i.Usage)
	}
	// Another session of the group is not one of the user's.
	for _, id := range []string{"other", "trpc/app/user", "trpc/app/other/chat"} {
		if _, _, err := store.Create(ctx, turnstone.Request{ID: id, Metadata: head.Metadata{Group: "trpc/app/user"}}); err != nil {
			t.Fatal(err)
		}
	}
	if listed := must(s.ListSessions(ctx, session.UserKey{AppName: "app", UserID: "user"})); len(listed) != 1 {
		t.Errorf("%+v", listed)
	}
	for _, c := range []struct {
		commit turnstone.Commit
		read   bool
	}{
		{turnstone.Commit{Checkpoint: map[string][]byte{"x": nil, "s": nil, "memo": []byte("{}")}}, true}, // parts of another program
		{turnstone.Commit{Checkpoint: map[string][]byte{"s/a": []byte("{\"key\":\"b\"}\n")}}, false},
		{turnstone.Commit{Drop: []string{"s/a"}, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("no event")}}}, false},
	} {
		c.commit.Expected = turnstone.AnyRevision
		must(h.Commit(ctx, c.commit))
		if _, err := s.GetSession(ctx, chat); (err == nil) != c.read {
			t.Errorf("%+v: %v", c.commit, err)
		}
	}
}

func TestTR2_ASessionIsReadWhileItIsPruned(t *testing.T) {
	st := storetest.URL(t, "mem:")
	s := trpc.NewSessions(st.Factory(), trpc.Options{})
	of := must(s.CreateSession(ctx, chat, nil))
	h := must(st.Session(ctx, "trpc/app/user/chat"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 100 {
			err := s.AppendEvent(ctx, of, say(i, model.RoleUser, "x", map[string][]byte{"n": fmt.Append(nil, i)}))
			if err == nil {
				_, err = h.Prune(ctx, 1)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	defer func() { <-done }()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		if _, err := s.GetSession(ctx, chat, session.WithEventNum(1)); err != nil {
			t.Fatal(err)
		}
	}
}
