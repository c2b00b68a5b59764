package adk_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/adk/v2/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// told is a service. It changes what it answers.
type told struct {
	session.Service
	list func(*session.ListResponse)
	get  error // of reads of so many events
	of   int
	gets int
	// ahead is called ahead of each read.
	ahead func(*session.GetRequest)
}

func (s *told) List(ctx context.Context, r *session.ListRequest) (*session.ListResponse, error) {
	listed, err := s.Service.List(ctx, r)
	if err == nil && s.list != nil {
		s.list(listed)
	}
	return listed, err
}

func (s *told) Get(ctx context.Context, r *session.GetRequest) (*session.GetResponse, error) {
	if s.gets++; s.ahead != nil {
		s.ahead(r)
	}
	if s.get != nil && r.NumRecentEvents == s.of {
		return nil, s.get
	}
	return s.Service.Get(ctx, r)
}

// setState adds an event that sets state.
func setState(t *testing.T, in session.Service, values map[string]any) {
	t.Helper()
	e := session.NewEvent(ctx, "i")
	e.Actions.StateDelta = values
	if err := in.AppendEvent(ctx, got(t, in), e); err != nil {
		t.Fatal(err)
	}
}

// bare is a session without state, as the list of a service may have it.
type bare struct {
	session.Session
	none session.State
}

func (b bare) State() session.State { return b.none }

// Bring brings the states of users and apps also from a service whose list has no state. If the list has the states, and nothing
// is new, Bring does not read them again.
func TestAD23_StateComesFromAServiceThatListsNone(t *testing.T) {
	var ids []string
	source := said(t, 0)
	counts(t, &ids, 1, source)
	empty, err := session.InMemoryService().Create(ctx, &session.CreateRequest{AppName: "app", UserID: "u"})
	if err != nil {
		t.Fatal(err)
	}
	for _, lists := range []bool{false, true} {
		s, from := adk.NewSessions(storetest.Memory(t)), &told{Service: source}
		if !lists {
			from.list = func(r *session.ListResponse) {
				for i, of := range r.Sessions {
					r.Sessions[i] = bare{of, empty.Session.State()}
				}
			}
		}
		for range 2 {
			if b, err := s.Bring(ctx, from, adapter.BringOptions{}, "app"); err != nil || len(b.Different) > 0 {
				t.Errorf("%+v, %v", b, err)
			}
			for _, key := range []string{"n", "user:n", "app:n"} {
				if n, err := got(t, s).State().Get(key); err != nil || fmt.Sprint(n) != "0" {
					t.Errorf("lists %v: %s is %v, %v", lists, key, n, err)
				}
			}
		}
		// At first it reads the session, and the states with it, and then the session, which was used just now.
		if want := map[bool]int{false: 6, true: 4}[lists]; from.gets != want {
			t.Errorf("lists %v: %d reads, want %d", lists, from.gets, want)
		}
	}
}

// An error of the other service ends Bring, whatever errors of a store it matches.
func TestAD23_AnErrorOfTheOtherServiceIsReturned(t *testing.T) {
	for _, is := range []error{turnstone.ErrConflict, turnstone.ErrRecordConflict, turnstone.ErrSessionDeleted, turnstone.ErrInvalid, errCut} {
		for _, of := range []int{0, 1} { // the session, or the state of its user
			_, err := adk.NewSessions(storetest.Memory(t)).Bring(ctx, &told{Service: said(t, 1), get: is, of: of}, adapter.BringOptions{}, "app")
			if !errors.Is(err, is) {
				t.Errorf("%v: %v", is, err)
			}
		}
	}
}

// A session that can't be stored does not hide the states of its user and app. If a host erases the user, that session does not
// bring them again.
func TestAD23_ASessionThatCanNotBeStoredHidesNoStateAndBringsNoneBack(t *testing.T) {
	source, store := session.InMemoryService(), storetest.Memory(t)
	s := adk.NewSessions(store)
	add := func(id string, own any) {
		t.Helper()
		state := map[string]any{"own": own, "user:mail": "ann@x", "app:n": 1}
		if _, err := source.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "ann", SessionID: id, State: state}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"a", strings.Repeat("a", 600)} { // The second one is too long.
		add(id, make(chan int))
	}
	add("s", 1)
	bring := func() {
		t.Helper()
		if b, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil || b.Found != 3 || len(b.Different) != 2 {
			t.Fatalf("%+v, %v", b, err)
		}
	}
	bring()
	for _, key := range []string{"user:mail", "app:n"} {
		if _, err := got(t, s).State().Get(key); err != nil {
			t.Error(err)
		}
	}
	erase(t, store)
	bring()
	if _, err := store.Session(ctx, "adk/app/ann"); !adapter.Gone(err) {
		t.Errorf("the state of the user is here again: %v", err)
	}
}

// erase deletes a session of ann, and all that is known of her.
func erase(t *testing.T, store turnstone.Factory) {
	t.Helper()
	for _, id := range []string{"adk/app/ann/s", "adk/app/ann", "adk-migration/adk%2Fapp%2Fann"} {
		if err := store.Delete(ctx, id, turnstone.KeepChildren); err != nil && !adapter.Gone(err) {
			t.Fatal(err)
		}
	}
}

// A host erases a user while Bring works, before any of its commits or reads. What was brought of the user does not come again,
// also not a value of state, whether a part was brought before, and whether the sessions were deleted before.
func TestAD23_AUserWhoIsErasedMeanwhileStaysErased(t *testing.T) {
	for _, c := range []struct {
		name            string
		known, sessions bool // some was brought before, and the session was deleted then
		reads           bool
		moments         int
	}{
		{name: "at a commit", moments: 7}, // sessions and notes of two users, their states, and the state of the app
		{name: "at a read", reads: true, moments: 5},
		{name: "at a commit, of one who was brought", known: true, moments: 3},
		{name: "at a read, of one who was brought", known: true, reads: true, moments: 4},
		{name: "at a commit, of one without sessions", known: true, sessions: true, moments: 1},
		{name: "at a read, of one without sessions", known: true, sessions: true, reads: true, moments: 3},
	} {
		for at := 1; at <= c.moments; at++ {
			t.Run(fmt.Sprint(c.name, " ", at), func(t *testing.T) {
				source, store, came, acted := said(t, 1), storetest.Memory(t), c.known, false
				if _, err := source.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "bob", SessionID: "s", State: map[string]any{"user:mail": "bob@x", "app:n": 1}}); err != nil {
					t.Fatal(err)
				}
				host := adk.NewSessions(store)
				if c.known {
					if _, err := host.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil {
						t.Fatal(err)
					}
					setState(t, source, map[string]any{"user:more": 1})
				}
				if c.sessions {
					if err := host.Delete(ctx, &session.DeleteRequest{AppName: "app", UserID: "ann", SessionID: "s"}); err != nil {
						t.Fatal(err)
					}
				}
				act := func() {
					_, err := store.Session(ctx, "adk/app/ann/s")
					came, acted = came || err == nil, true
					erase(t, store)
				}
				from, to := &told{Service: source}, &before{Factory: store, at: at, act: act}
				if c.reads {
					to.at = 0
					from.ahead = func(*session.GetRequest) {
						if from.gets == at {
							act()
						}
					}
				}
				s := adk.NewSessions(to)
				for range 2 {
					if b, err := s.Bring(ctx, from, adapter.BringOptions{}, "app"); err != nil || len(b.Different) > 0 {
						t.Errorf("%+v, %v", b, err)
					}
				}
				if _, err := store.Session(ctx, "adk/app/ann/s"); adapter.Gone(err) != came || !acted {
					t.Errorf("came %v, acted %v: %v", came, acted, err)
				}
				for id, want := range map[string]bool{"adk/app/ann": !came, "adk/app/bob": true, "adk/app": true} {
					if state, err := adapter.NewStates(store, "adk-state").Read(ctx, id); err != nil || (len(state) > 0) != want {
						t.Errorf("came %v: %s: %q, %v", came, id, state, err)
					}
				}
			})
		}
	}
}

// The sessions of a user that were brought are deleted here, and values of any size still come.
func TestAD23_LargeValuesComeThoughTheSessionsAreGone(t *testing.T) {
	source, store := said(t, 1), storetest.Memory(t)
	s, r := adk.NewSessions(store), rand.New(rand.NewPCG(1, 2))
	set := func(key string, bytes int) {
		t.Helper()
		value := make([]byte, bytes)
		for i := range value {
			value[i] = byte('a' + r.IntN(26))
		}
		setState(t, source, map[string]any{key: string(value)})
	}
	for i := range 3 {
		set(fmt.Sprint("user:", i), 1000<<10+i)
		if b, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil || len(b.Different) > 0 {
			t.Fatalf("%+v, %v", b, err)
		}
		if err := s.Delete(ctx, &session.DeleteRequest{AppName: "app", UserID: "ann", SessionID: "s"}); i == 0 && err != nil {
			t.Fatal(err)
		}
	}
	values, err := adapter.NewStates(store, "adk-state").Read(ctx, "adk/app/ann")
	if err != nil || len(values) != 5 {
		t.Fatalf("%d values, %v", len(values), err)
	}
	for i := range 3 {
		if n := len(values[fmt.Sprint(i)]); n != 1000<<10+i+2 {
			t.Errorf("value %d has %d bytes", i, n)
		}
	}
}

// A host has erased the sessions and the state of a user, as it is documented, and perhaps not yet the notes. Bring sets nothing.
func TestAD23_AUserWhoseStateIsErasedGetsNothing(t *testing.T) {
	ids := []string{"adk/app/ann/s", "adk/app/ann", "adk-migration/adk%2Fapp%2Fann"}
	for part := 2; part <= len(ids); part++ {
		source, store := said(t, 1), storetest.Memory(t)
		s := adk.NewSessions(store)
		if _, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil {
			t.Fatal(err)
		}
		setState(t, source, map[string]any{"user:more": 1})
		for _, id := range ids[:part] {
			if err := store.Delete(ctx, id, turnstone.KeepChildren); err != nil {
				t.Fatal(err)
			}
		}
		if b, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil || len(b.Different) > 0 {
			t.Errorf("%d: %+v, %v", part, b, err)
		}
		if state, err := adapter.NewStates(store, "adk-state").Read(ctx, "adk/app/ann"); err != nil || len(state) > 0 {
			t.Errorf("%d: %q, %v", part, state, err)
		}
	}
}

// A host erases the state and the notes of a user in any order, and Bring commits between. What was deleted first does not come
// again.
func TestAD23_BetweenTheErasuresOfAStateNothingIsSet(t *testing.T) {
	parts := []string{"adk/app/ann", "adk-migration/adk%2Fapp%2Fann"}
	for _, first := range parts {
		source, store := said(t, 1), storetest.Memory(t)
		if _, err := adk.NewSessions(store).Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil {
			t.Fatal(err)
		}
		setState(t, source, map[string]any{"user:more": 1})
		remove := func(id string) {
			if err := store.Delete(ctx, id, turnstone.KeepChildren); err != nil {
				t.Fatal(err)
			}
		}
		remove("adk/app/ann/s")
		to := &before{Factory: store, at: 1, act: func() { remove(first) }}
		if b, err := adk.NewSessions(to).Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil || len(b.Different) > 0 || to.at > 0 {
			t.Errorf("%s: %+v, %v", first, b, err)
		}
		if state, err := adapter.NewStates(store, "adk-state").Read(ctx, first); err != nil || len(state) > 0 {
			t.Errorf("%s: %q, %v", first, state, err)
		}
	}
}

// A user may have more sessions that can't be stored than one commit can check. The state still comes.
func TestAD23_ManySessionsThatCanNotBeStoredHideNoState(t *testing.T) {
	source, s := said(t, 0), adk.NewSessions(storetest.Memory(t))
	for i := range 260 {
		state := map[string]any{"own": make(chan int)}
		if _, err := source.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "bob", SessionID: fmt.Sprint(i), State: state}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := source.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "bob", SessionID: strings.Repeat("s", 600), State: map[string]any{"user:mail": "bob@x"}}); err != nil {
		t.Fatal(err)
	}
	if b, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil || len(b.Different) != 261 {
		t.Fatalf("%d, %v", len(b.Different), err)
	}
	bob, err := s.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	if mail, err := bob.Session.State().Get("user:mail"); mail != "bob@x" {
		t.Errorf("%v, %v", mail, err)
	}
}

// A value of an app or a user that can't be stored is named, and the sessions that are shown with it come, but for one whose
// event has it.
func TestAD23_AnOddValueOfAnAppHidesNoSession(t *testing.T) {
	source, s := said(t, 1), adk.NewSessions(storetest.Memory(t))
	odd := map[string]any{"app:odd": make(chan int), "user:odd": make(chan int), "own": 1}
	if _, err := source.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "bob", SessionID: "s", State: odd}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		b, err := s.Bring(ctx, source, adapter.BringOptions{}, "app")
		if err != nil || len(b.Different) != 2 || !strings.HasPrefix(b.Different[0], `state "odd" of app/bob: `) || !strings.HasPrefix(b.Different[1], `state "odd" of app: `) {
			t.Errorf("%+v, %v", b, err)
		}
	}
	if n := got(t, s).Events().Len(); n != 1 {
		t.Errorf("ann has %d events", n)
	}
	bob, err := s.Get(ctx, &session.GetRequest{AppName: "app", UserID: "bob", SessionID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if own, err := bob.Session.State().Get("own"); fmt.Sprint(own) != "1" {
		t.Errorf("%v, %v", own, err)
	}
	setState(t, source, odd)
	if b, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil || len(b.Different) != 4 || !strings.HasPrefix(b.Different[0], `session "s" of user "ann": `) {
		t.Errorf("%+v, %v", b, err)
	}
}

// A Bring that finds what another one has brought knows that, also if a host erases the user then.
func TestAD23_WhatAnotherBringHasBroughtIsErasedAsWell(t *testing.T) {
	source, store := said(t, 1), storetest.Memory(t)
	if _, err := source.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "bob", SessionID: "s"}); err != nil {
		t.Fatal(err)
	}
	other := adk.NewSessions(store)
	from := &told{Service: source}
	from.ahead = func(r *session.GetRequest) {
		if r.UserID == "bob" {
			from.ahead = nil
			erase(t, store)
		}
	}
	_, err := adk.NewSessions(&before{Factory: store, at: 1, act: func() {
		if _, err := other.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil {
			t.Error(err)
		}
	}}).Bring(ctx, from, adapter.BringOptions{}, "app")
	if err != nil {
		t.Fatal(err)
	}
	if state, err := adapter.NewStates(store, "adk-state").Read(ctx, "adk/app/ann"); err != nil || len(state) > 0 {
		t.Errorf("%q, %v", state, err)
	}
}

// So does one that finds nothing of it any more, and can't store what its source has, whenever the other one works.
func TestAD23_WhatAnotherBringHasBroughtIsErasedThoughTheSourceIsOdd(t *testing.T) {
	for _, when := range []string{"abe 0", "ann 1", "commit"} { // a read of so many events, and the commit of the state of ann
		source, store := session.InMemoryService(), storetest.Memory(t)
		for user, own := range map[string]any{"abe": 1, "ann": make(chan int)} {
			if _, err := source.Create(ctx, &session.CreateRequest{AppName: "app", UserID: user, SessionID: "s", State: map[string]any{"own": own, "user:mail": user}}); err != nil {
				t.Fatal(err)
			}
		}
		acted := false
		act := func() {
			if b, err := adk.NewSessions(store).Bring(ctx, said(t, 1), adapter.BringOptions{}, "app"); err != nil || b.Brought != 1 {
				t.Errorf("%s: %+v, %v", when, b, err)
			}
			erase(t, store)
			acted = true
		}
		from := &told{Service: source, ahead: func(r *session.GetRequest) {
			if !acted && fmt.Sprint(r.UserID, " ", r.NumRecentEvents) == when {
				act()
			}
		}}
		to := &before{Factory: store, act: act}
		if when == "commit" {
			to.at = 4
		}
		if b, err := adk.NewSessions(to).Bring(ctx, from, adapter.BringOptions{}, "app"); err != nil || len(b.Different) != 1 || !acted {
			t.Errorf("%s: %+v, %v", when, b, err)
		}
		if state, err := adapter.NewStates(store, "adk-state").Read(ctx, "adk/app/ann"); err != nil || len(state) > 0 {
			t.Errorf("%s: %q, %v", when, state, err)
		}
	}
}

// A value of state that can't be stored is named by each call.
func TestAD23_AnOddValueIsNamedEachTime(t *testing.T) {
	source, s := said(t, 1), adk.NewSessions(storetest.Memory(t))
	if _, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, &session.DeleteRequest{AppName: "app", UserID: "ann", SessionID: "s"}); err != nil {
		t.Fatal(err)
	}
	setState(t, source, map[string]any{"user:odd": make(chan int)})
	for _, dry := range []bool{true, false, false, true} {
		if b, err := s.Bring(ctx, source, adapter.BringOptions{DryRun: dry}, "app"); err != nil || len(b.Different) != 1 {
			t.Errorf("%+v, %v", b, err)
		}
	}
}

// A host deletes the only session of a user that was brought, and makes another one. State of the user that changes in the
// source still comes, and a dry run says the same of it.
func TestAD23_StateOfAUserComesThoughTheSessionsAreOthers(t *testing.T) {
	source, s := said(t, 1), adk.NewSessions(storetest.Memory(t))
	bring := func(o adapter.BringOptions) *adapter.Brought {
		t.Helper()
		b, err := s.Bring(ctx, source, o, "app")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	bring(adapter.BringOptions{})
	if err := s.Delete(ctx, &session.DeleteRequest{AppName: "app", UserID: "ann", SessionID: "s"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "ann", SessionID: "new", State: map[string]any{"user:name": "the host's"}}); err != nil {
		t.Fatal(err)
	}
	setState(t, source, map[string]any{"user:mail": "anna@x", "user:more": 1, "user:name": "Anna", "user:odd": make(chan int)})
	for _, dry := range []bool{true, false} {
		b := bring(adapter.BringOptions{DryRun: dry})
		if len(b.Different) != 2 || !strings.HasPrefix(b.Different[0], `state "name" of app/ann`) || !strings.HasPrefix(b.Different[1], `state "odd" of app/ann: `) {
			t.Errorf("dry %v: %q", dry, b.Different)
		}
	}
	made, err := s.Get(ctx, &session.GetRequest{AppName: "app", UserID: "ann", SessionID: "new"})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"user:mail": "anna@x", "user:more": "1", "user:name": "the host's"} {
		if v, err := made.Session.State().Get(key); err != nil || fmt.Sprint(v) != want {
			t.Errorf("%s is %v, %v", key, v, err)
		}
	}
}
