package trpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/event"
	"trpc.group/trpc-go/trpc-agent-go/model"
	"trpc.group/trpc-go/trpc-agent-go/session"
	"trpc.group/trpc-go/trpc-agent-go/session/inmemory"
	"trpc.group/trpc-go/trpc-agent-go/session/summary"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/trpc"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

var ctx = context.Background()

func TestMain(m *testing.M) { os.Exit(storetest.Main(m, runAgent)) }

// services is what the in-memory service and this one have.
type services interface {
	session.Service
	session.TrackService
	session.WindowService
	GetTrackEvents(context.Context, session.Key, session.Track, ...session.Option) (*session.TrackEvents, error)
}

// start is after all sessions were made: a summary of what is older than its session is not used.
var start = time.Now().Add(time.Hour).UTC().Truncate(time.Second)

// say returns an event n seconds after the start.
func say(n int, role model.Role, text string, delta map[string][]byte) *event.Event {
	e := event.New("invocation", "author")
	e.ID, e.Timestamp, e.StateDelta = fmt.Sprint("e", n), start.Add(time.Duration(n)*time.Second), delta
	e.Response = &model.Response{Model: "m", Choices: []model.Choice{{Message: model.Message{Role: role, Content: text}}}}
	return e
}

// shows returns all that a session has but its times.
func shows(t *testing.T, s *session.Session) string {
	t.Helper()
	if s == nil {
		return "none"
	}
	s = s.Clone()
	s.CreatedAt, s.UpdatedAt = time.Time{}, time.Time{}
	if raw := s.State["tracks"]; raw != nil {
		tracks, err := session.TracksFromState(s.State)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(tracks)
		s.State["tracks"] = []byte(fmt.Sprint(tracks))
	}
	for k, v := range s.State { // nil is told from empty
		s.State[k] = fmt.Appendf(nil, "%v %s", v == nil, v)
	}
	for track, events := range s.Tracks { // one without events is like none
		if len(events.Events) == 0 {
			delete(s.Tracks, track)
		}
	}
	return text(t, s)
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestTR1_TheServiceDoesWhatTheInMemoryOneDoes(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		for seed := range uint64(4) {
			compare(t, trpc.NewSessions(open(t), trpc.Options{}), rand.New(rand.NewPCG(seed, 0)))
		}
	})
}

// compare makes random calls of a service and of the in-memory one.
func compare(t *testing.T, ours services, random *rand.Rand) {
	t.Helper()
	both := [2]services{ours, inmemory.NewSessionService(inmemory.WithSessionEventLimit(0))}
	one := func(from ...string) string { return from[random.IntN(len(from))] }
	key := func() session.Key {
		return session.Key{AppName: one("a", "a/b"), UserID: one("u", "%2F"), SessionID: one("s1", "s2/", "s3")}
	}
	value := func() []byte { return [][]byte{nil, {}, []byte("x"), []byte(`{"y":1}`), {0, 255}}[random.IntN(5)] }
	state := func(prefixes ...string) map[string][]byte {
		out := map[string][]byte{}
		for range random.IntN(3) {
			out[one(append(prefixes, "")...)+one("k", "l", strings.Repeat("long", 30))] = value()
		}
		return out
	}
	live := [2]map[session.Key]*session.Session{{}, {}} // the callers' sessions
	for step := range 120 {
		k := key()
		user := session.UserKey{AppName: k.AppName, UserID: k.UserID}
		var do func(i int, s services) (any, error)
		name := ""
		switch n := random.IntN(16); n {
		case 0, 1:
			name = "create"
			st := session.StateMap(state("user:", "temp:"))
			if live[0][k] != nil {
				continue // The in-memory service replaces it.
			}
			do = func(i int, s services) (any, error) {
				made, err := s.CreateSession(ctx, k, st)
				live[i][k] = made
				return shows(t, made), err
			}
		case 2, 3, 4, 5, 6:
			name = "append"
			if live[0][k] == nil {
				continue
			}
			e := say(step, model.Role(one("user", "assistant", "tool", "system")), one("", "hello", "…"), state("app:", "user:", "temp:"))
			e.IsPartial = random.IntN(5) == 0
			if random.IntN(8) == 0 {
				e.Response = nil
			}
			if random.IntN(4) == 0 {
				e.FilterKey, e.Branch, e.LongRunningToolIDs = "a/b", "a", map[string]struct{}{"x": {}}
				e.Extensions = map[string]json.RawMessage{"ext": json.RawMessage(`{"a":[1]}`)}
			}
			if e.Response == nil || e.IsPartial || !e.IsValidContent() {
				e.StateDelta["k"] = value() // Of an event that changes nothing the in-memory service notes the time.
			}
			var options []session.Option
			if random.IntN(4) == 0 {
				options = append(options, session.WithEventNum(2))
			}
			do = func(i int, s services) (any, error) {
				copied := *e
				err := s.AppendEvent(ctx, live[i][k], &copied, options...)
				return shows(t, live[i][k]), err
			}
		case 7, 8:
			name = "track"
			if live[0][k] == nil {
				continue
			}
			e := session.TrackEvent{Track: session.Track(one("t1", "t/2")), Payload: json.RawMessage(`{"n":1}`), Timestamp: start.Add(time.Duration(step) * time.Second)}
			do = func(i int, s services) (any, error) {
				err := s.AppendTrackEvent(ctx, live[i][k], &e)
				return shows(t, live[i][k]), err
			}
		case 9:
			name = "app state"
			st, gone := state("app:"), one("k", "app:k", "none")
			do = func(_ int, s services) (any, error) {
				if err := s.UpdateAppState(ctx, k.AppName, st); err != nil {
					return nil, err
				}
				if err := s.DeleteAppState(ctx, k.AppName, gone); err != nil {
					return nil, err
				}
				return s.ListAppStates(ctx, k.AppName)
			}
		case 10:
			name = "user state"
			st, gone := state("user:", "app:", "temp:", "user:"), one("k", "user:k", "none")
			do = func(_ int, s services) (any, error) {
				if err := s.UpdateUserState(ctx, user, st); err != nil {
					return nil, err
				}
				if err := s.DeleteUserState(ctx, user, gone); err != nil {
					return nil, err
				}
				return s.ListUserStates(ctx, user)
			}
		case 11:
			name = "session state"
			st := state("app:", "temp:", "temp:")
			do = func(_ int, s services) (any, error) { return nil, s.UpdateSessionState(ctx, k, st) }
		case 12:
			name = "delete"
			if random.IntN(3) > 0 {
				continue
			}
			do = func(i int, s services) (any, error) {
				delete(live[i], k)
				return nil, s.DeleteSession(ctx, k)
			}
		case 13:
			name = "window"
			r := session.EventWindowRequest{
				Key: k, AnchorEventID: fmt.Sprint("e", random.IntN(step+1)), Before: random.IntN(4) - 1, After: random.IntN(3),
				Roles: []model.Role{model.RoleUser, model.RoleAssistant}[:random.IntN(3)],
			}
			do = func(_ int, s services) (any, error) {
				w, err := s.GetEventWindow(ctx, r)
				if w != nil {
					for i := range w.Entries {
						w.Entries[i].CreatedAt = time.Time{}
					}
				}
				return w, err
			}
		case 14:
			name = "list"
			var options []session.Option
			if random.IntN(2) == 0 {
				options = append(options, session.WithListSessionOnlyMeta())
			}
			if random.IntN(2) == 0 {
				options = append(options, session.WithEventNum(random.IntN(3)))
			}
			if random.IntN(2) == 0 {
				options = append(options, session.WithListSessionPage(random.IntN(3), 1+random.IntN(2)))
			}
			do = func(_ int, s services) (any, error) {
				found, err := s.ListSessions(ctx, user, options...)
				var out []string
				for _, f := range found {
					out = append(out, shows(t, f))
				}
				return out, err
			}
		default:
			name = "tracks"
			track := session.Track(one("t1", "t/2", "none"))
			do = func(_ int, s services) (any, error) { return s.GetTrackEvents(ctx, k, track) }
		}
		var got [2]string
		for i, s := range both {
			result, err := do(i, s)
			got[i] = text(t, result) + fmt.Sprint(err != nil)
			if i == 0 && name != "delete" && name != "create" {
				time.Sleep(time.Millisecond) // so that the times of updates differ
			}
		}
		if got[0] != got[1] {
			t.Fatalf("step %d: %s of %v: %s, want %s", step, name, k, got[0], got[1])
		}
		options := []session.Option{session.WithEventNum(random.IntN(4))}
		if random.IntN(2) == 0 {
			options = append(options, session.WithEventTime(start.Add(time.Duration(random.IntN(step+1))*time.Second)))
		}
		for i, s := range both {
			read, err := s.GetSession(ctx, k, options...)
			if err != nil {
				t.Fatal(err)
			}
			got[i] = shows(t, read)
		}
		if got[0] != got[1] {
			t.Fatalf("step %d: after %s, %v is %s, want %s", step, name, k, got[0], got[1])
		}
	}
}

// must fails the test if there is an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

var chat = session.Key{AppName: "app", UserID: "user", SessionID: "chat"}

func texts(s *session.Session) (out []string) {
	for i := range s.Events {
		out = append(out, s.Events[i].Choices[0].Message.Content)
	}
	return out
}

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
	_, exists := s.CreateSession(ctx, chat, nil)
	_, noUser := s.CreateSession(ctx, session.Key{AppName: "app"}, nil)
	_, page := s.GetSession(ctx, chat, session.WithGetSessionEventPage(0, 0))
	_, listed := s.ListSessions(ctx, session.UserKey{AppName: "app", UserID: "user"}, session.WithGetSessionEventPage(0, 1))
	for name, err := range map[string]error{
		"a session that exists":         exists,
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
		"a large value of a user":                           s.UpdateUserState(ctx, session.UserKey{AppName: "app", UserID: "user"}, session.StateMap{"k": make([]byte, turnstone.MaxRecord+1)}),
		"a user's value in session state":                   s.UpdateSessionState(ctx, chat, session.StateMap{"user:k": nil}),
		"no app":                                            s.UpdateAppState(ctx, "", nil),
	} {
		if err == nil {
			t.Errorf("%s is not refused", name)
		}
	}
	if !errors.Is(exists, turnstone.ErrExists) || !errors.Is(noUser, session.ErrUserIDRequired) {
		t.Error(exists, noUser)
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
	fork := turnstone.Request{ID: "trpc/app/user/fork", Parent: "trpc/app/user/chat", ForkAt: 3, Metadata: turnstone.Metadata{Group: "trpc/app/user"}}
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
		if _, _, err := store.Create(ctx, turnstone.Request{ID: id, Metadata: turnstone.Metadata{Group: "trpc/app/user"}}); err != nil {
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

func TestTR4_ASummaryThatCouldNotBeStoredIsMadeAgain(t *testing.T) {
	faulty := &enginetest.Faulty{Engine: memory.New()}
	s := trpc.NewSessions(storetest.On(t, faulty).Factory(), trpc.Options{Summarizer: &scripted{}})
	of := must(s.CreateSession(ctx, chat, nil))
	if err := s.AppendEvent(ctx, of, say(1, model.RoleUser, "hello", nil)); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("the disk has failed")
	faulty.Plan = func(enginetest.Call) enginetest.Fault { return enginetest.Fault{Err: failure} }
	if err := s.CreateSessionSummary(ctx, of, "", false); !errors.Is(err, failure) || len(of.Summaries) > 0 {
		t.Errorf("%v, %v", err, of.Summaries)
	}
	faulty.Plan = nil
	if err := s.CreateSessionSummary(ctx, of, "", false); err != nil {
		t.Fatal(err)
	}
	if stored := must(s.GetSession(ctx, chat)).Summaries; len(stored) != 1 {
		t.Errorf("%v", stored)
	}
}

func TestTR4_AForkHasTheSummariesOfItsRevision(t *testing.T) {
	store := storetest.Memory(t)
	s := trpc.NewSessions(store, trpc.Options{Summarizer: &scripted{}})
	of := must(s.CreateSession(ctx, chat, nil))
	e := say(1, model.RoleUser, "hello", nil)
	e.Timestamp = time.Now()
	if err := errors.Join(s.AppendEvent(ctx, of, e), s.CreateSessionSummary(ctx, of, "", true)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Millisecond)
	fork := turnstone.Request{ID: "trpc/app/user/fork", Parent: "trpc/app/user/chat", Metadata: turnstone.Metadata{Group: "trpc/app/user"}}
	if _, _, err := store.Create(ctx, fork); err != nil {
		t.Fatal(err)
	}
	forked := must(s.GetSession(ctx, session.Key{AppName: "app", UserID: "user", SessionID: "fork"}))
	if text, ok := s.GetSessionSummaryText(ctx, forked); !ok || text == "" {
		t.Errorf("the fork has %v", forked.Summaries)
	}
}

func TestTR4_OptionsSayWhatIsSummarized(t *testing.T) {
	for _, c := range []struct {
		options trpc.Options
		want    []string
	}{
		{trpc.Options{}, []string{"", "app/1"}},
		{trpc.Options{BranchSummariesOnly: true}, []string{"app/1"}},
		{trpc.Options{SummaryFilterKeys: []string{"app/0"}}, []string{""}},
	} {
		c.options.Summarizer = &scripted{}
		s := trpc.NewSessions(storetest.Memory(t), c.options)
		of := must(s.CreateSession(ctx, chat, nil))
		for i := range 4 {
			e := say(i, model.RoleUser, "text", nil)
			e.FilterKey = fmt.Sprint("app/", i%2)
			if err := s.AppendEvent(ctx, of, e); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(s.EnqueueSummaryJob(ctx, of, "app/1", false), s.Close()); err != nil {
			t.Fatal(err)
		}
		if keys := slices.Sorted(maps.Keys(must(s.GetSession(ctx, chat)).Summaries)); !slices.Equal(keys, c.want) {
			t.Errorf("%+v: summaries of %q, want %q", c.options, keys, c.want)
		}
	}
}

// scripted is a summarizer.
type scripted struct {
	summary.SessionSummarizer
	mu     sync.Mutex
	texts  []string
	before func()
	fails  error
}

func (s *scripted) ShouldSummarize(*session.Session) bool { return true }

func (s *scripted) Metadata() map[string]any { return nil }

func (s *scripted) Summarize(_ context.Context, of *session.Session) (string, error) {
	if s.before != nil {
		s.before()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails != nil {
		return "", s.fails
	}
	text := fmt.Sprintf("summary %d of %d events", len(s.texts)+1, len(of.Events))
	s.texts = append(s.texts, text)
	return text, nil
}

func TestTR4_SummariesAreThoseOfTheInMemoryServiceAndAreStored(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		store := open(t)
		made := func(s services) string {
			of := must(s.CreateSession(ctx, chat, nil))
			for i := range 6 {
				e := say(i, []model.Role{model.RoleUser, model.RoleAssistant}[i%2], fmt.Sprint("text ", i), nil)
				e.FilterKey = []string{"app/a", "app/b"}[i/2%2]
				if err := s.AppendEvent(ctx, of, e); err != nil {
					t.Fatal(err)
				}
				if i == 3 {
					if err := s.CreateSessionSummary(ctx, of, "app/a", false); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := s.CreateSessionSummary(ctx, of, "", true); err != nil {
				t.Fatal(err)
			}
			stored := must(s.GetSession(ctx, chat))
			for _, sum := range stored.Summaries {
				sum.UpdatedAt = time.Time{}
			}
			whole, _ := s.GetSessionSummaryText(ctx, of)
			branch, _ := s.GetSessionSummaryText(ctx, of, session.WithSummaryFilterKey("app/a"))
			return shows(t, stored) + whole + branch
		}
		summarizer := &scripted{}
		ours := trpc.NewSessions(store, trpc.Options{Summarizer: summarizer})
		got, want := made(ours), made(inmemory.NewSessionService(inmemory.WithSummarizer(&scripted{})))
		if got != want || len(summarizer.texts) != 2 {
			t.Errorf("%s, want %s", got, want)
		}
		// The session of a caller that has no summary yet.
		bare := session.NewSession("app", "user", "chat")
		if text, ok := ours.GetSessionSummaryText(ctx, bare); !ok || text != summarizer.texts[1] {
			t.Error(text, ok)
		}
		if _, ok := ours.GetSessionSummaryText(ctx, session.NewSession("app", "user", "none")); ok {
			t.Error("a session that is not there has a summary")
		}
	})
}

func TestTR4_ASummaryThatIsEnqueuedIsStoredWhenTheServiceIsClosed(t *testing.T) {
	store := storetest.Badger(t)
	wait := make(chan struct{})
	summarizer := &scripted{before: func() { <-wait }}
	s := trpc.NewSessions(store, trpc.Options{Summarizer: summarizer})
	of := must(s.CreateSession(ctx, chat, nil))
	for i := range 4 {
		e := say(i, model.RoleUser, "text", nil)
		e.FilterKey = fmt.Sprint("app/", i%2)
		if err := s.AppendEvent(ctx, of, e); err != nil {
			t.Fatal(err)
		}
	}
	canceled, cancel := context.WithCancel(ctx)
	if err := s.EnqueueSummaryJob(canceled, of, "app/1", false); err != nil {
		t.Fatal(err)
	}
	cancel() // The run is over before the summary is.
	close(wait)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	stored := must(trpc.NewSessions(store, trpc.Options{}).GetSession(ctx, chat))
	if keys := slices.Sorted(maps.Keys(stored.Summaries)); !reflect.DeepEqual(keys, []string{"", "app/1"}) {
		t.Errorf("summaries of %q", keys)
	}
	// After Close it is made at once, and its error is the caller's.
	summarizer.fails = errors.New("the model is down")
	if err := s.EnqueueSummaryJob(ctx, of, "", true); !errors.Is(err, summarizer.fails) {
		t.Error(err)
	}
	summarizer.fails = nil
	if err := s.AppendEvent(ctx, of, say(9, model.RoleUser, "more", nil)); err != nil {
		t.Fatal(err)
	}
	if err := s.EnqueueSummaryJob(ctx, of, "", true); err != nil {
		t.Fatal(err)
	}
	if sum := must(s.GetSession(ctx, chat)).Summaries[""]; sum.Summary != summarizer.texts[len(summarizer.texts)-1] || len(summarizer.texts) != 3 {
		t.Errorf("%+v of %q", sum, summarizer.texts)
	}
	without := trpc.NewSessions(store, trpc.Options{})
	if err := errors.Join(without.EnqueueSummaryJob(ctx, of, "", true), without.CreateSessionSummary(ctx, nil, "", true), without.Close()); err != nil {
		t.Error(err)
	}
	if err := s.CreateSessionSummary(ctx, nil, "", true); !errors.Is(err, session.ErrNilSession) {
		t.Error(err)
	}
}
