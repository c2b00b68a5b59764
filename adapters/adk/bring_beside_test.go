package adk_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// Bring brings an event also if its time is that of the last one.
func TestAD23_AnEventOfTheTimeOfTheLastOneIsBrought(t *testing.T) {
	source, s := said(t, 2), adk.NewSessions(storetest.Memory(t))
	for _, want := range []adapter.Brought{{Found: 1, Brought: 2}, {Found: 1, Unchanged: 1}} {
		if b, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil || !reflect.DeepEqual(*b, want) {
			t.Errorf("%+v, %v", b, err)
		}
	}
	of := got(t, source)
	e := session.NewEvent(ctx, "i")
	e.Timestamp, e.Content = of.LastUpdateTime(), genai.NewContentFromText("in the same tick", "user")
	if err := source.AppendEvent(ctx, of, e); err != nil {
		t.Fatal(err)
	}
	if b, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil || b.Brought != 1 {
		t.Errorf("%+v, %v", b, err)
	}
}

// said returns a service in which user ann has said so many things in session s of app.
func said(t *testing.T, events int) session.Service {
	t.Helper()
	source := session.InMemoryService()
	r, err := source.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "ann", SessionID: "s", State: map[string]any{"user:mail": "ann@x", "user:name": "Ann"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range events {
		e := session.NewEvent(ctx, "i")
		e.Content = genai.NewContentFromText(fmt.Sprint("text ", i), "user")
		if err := source.AppendEvent(ctx, r.Session, e); err != nil {
			t.Fatal(err)
		}
	}
	return source
}

func got(t *testing.T, of session.Service) session.Session {
	t.Helper()
	r, err := of.Get(ctx, &session.GetRequest{AppName: "app", UserID: "ann", SessionID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	return r.Session
}

// Bring does not bring again what a host has deleted here: a session of which it had brought a part or all, or a value of
// state. If the host makes a session of that id, Bring adds nothing to it.
func TestAD23_WhatWasDeletedHereDoesNotComeAgain(t *testing.T) {
	for _, cut := range []bool{false, true} {
		source, store := said(t, 450), &cutting{Factory: storetest.Memory(t)}
		s := adk.NewSessions(store)
		if cut {
			store.every = 2
		}
		if _, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); cut != errors.Is(err, errCut) {
			t.Fatal(err)
		}
		store.every = 0
		if !cut {
			deleted := []turnstone.RecordChange{{Key: "mail", Action: turnstone.DeleteRecord}}
			if _, err := adapter.NewStates(store, "adk-state").Commit(ctx, []adapter.StateChange{{ID: "adk/app/ann", Values: deleted}}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil {
				t.Fatal(err)
			}
			if v, err := got(t, s).State().Get("user:mail"); err == nil {
				t.Errorf("%v is here again", v)
			}
			if v, err := got(t, s).State().Get("user:name"); v != "Ann" || err != nil {
				t.Errorf("%v, %v", v, err)
			}
		}
		if err := s.Delete(ctx, &session.DeleteRequest{AppName: "app", UserID: "ann", SessionID: "s"}); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"adk/app/ann", "adk-migration/adk%2Fapp%2Fann"} {
			if err := store.Delete(ctx, id, turnstone.KeepChildren); err != nil && !adapter.Gone(err) {
				t.Fatal(err)
			}
		}
		for round := range 2 {
			if b, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil || b.Unchanged != 1 || b.Brought != 0 || len(b.Different) > 0 {
				t.Errorf("%+v, %v", b, err)
			}
			if _, err := store.Session(ctx, "adk/app/ann"); !adapter.Gone(err) {
				t.Errorf("the state of the user is here again: %v", err)
			}
			if round == 0 {
				if _, err := s.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "ann", SessionID: "s"}); err != nil {
					t.Fatal(err)
				}
			}
			if n := got(t, s).Events().Len(); n > 0 {
				t.Errorf("the new session has %d events of the other one", n)
			}
		}
	}
}

// failingAt is a store. One of its commits fails, or a host deletes the session just before that commit.
type failingAt struct {
	turnstone.Factory
	calls, at int
	deletes   bool
	deleted   bool
}

func (f *failingAt) CommitAll(ctx context.Context, commits ...turnstone.SessionCommit) ([]turnstone.Result, error) {
	if f.calls++; f.calls == f.at && !f.deletes {
		return nil, errCut
	} else if f.calls == f.at {
		err := f.Delete(ctx, "adk/app/ann/s", turnstone.KeepChildren)
		if err != nil && !adapter.Gone(err) {
			return nil, err
		}
		f.deleted = err == nil
	}
	return f.Factory.CommitAll(ctx, commits...)
}

// Whichever commit of Bring fails, the next call brings the rest, also to a session that a host has made, whose state stays.
// Whenever a host deletes a session of which Bring has brought an event, it stays deleted.
func TestAD23_WhicheverCallFailsTheNextOneBringsTheRest(t *testing.T) {
	for at := 1; at < 8; at++ {
		for _, deletes := range []bool{false, true} {
			for _, hosts := range []bool{false, true} {
				source, store := said(t, 250), &failingAt{Factory: storetest.Memory(t), at: at, deletes: deletes}
				s := adk.NewSessions(store)
				if hosts {
					made, err := adk.NewSessions(store.Factory).Create(ctx, &session.CreateRequest{AppName: "app", UserID: "ann", SessionID: "s", State: map[string]any{"mine": "kept"}})
					if err != nil {
						t.Fatal(err)
					}
					if err := adk.NewSessions(store.Factory).AppendEvent(ctx, made.Session, got(t, source).Events().At(0)); err != nil {
						t.Fatal(err)
					}
				}
				var last *adapter.Brought
				for n := 0; n < 3; n++ {
					b, err := s.Bring(ctx, source, adapter.BringOptions{}, "app")
					if err != nil && !errors.Is(err, errCut) || err == nil && len(b.Different) > 0 {
						t.Fatalf("call %d, %v: %+v, %v", at, deletes, b, err)
					}
					last = b
				}
				if last.Unchanged != 1 || last.Brought != 0 {
					t.Errorf("call %d, %v: %+v", at, deletes, last)
				}
				left, err := s.Get(ctx, &session.GetRequest{AppName: "app", UserID: "ann", SessionID: "s"})
				if gone := store.deleted && at > 1; gone != adapter.Gone(err) || !gone && (err != nil || left.Session.Events().Len() != 250) {
					t.Errorf("call %d, %v, of a host %v: %v, %v", at, deletes, hosts, left, err)
				} else if hosts && !store.deleted {
					if mine, err := left.Session.State().Get("mine"); err != nil || mine != "kept" {
						t.Errorf("call %d, %v: the host's state is %v, %v", at, deletes, mine, err)
					}
				}
			}
		}
	}
}

// Until Bring has brought a session whole, nobody can rewind it to an event that was brought. The next call brings the rest.
func TestAD23_NobodyRewindsIntoWhatIsBeingBrought(t *testing.T) {
	source, store := said(t, 2), &failingAt{Factory: storetest.Memory(t)}
	s := adk.NewSessions(store)
	if _, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil {
		t.Fatal(err)
	}
	of := got(t, source)
	var ids []string
	for i := range 300 {
		e := session.NewEvent(ctx, "i")
		e.Actions.StateDelta = map[string]any{"n": i}
		if err := source.AppendEvent(ctx, of, e); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, e.ID)
	}
	for range 2 { // The second commit fails: first that of the last events, then the one which notes that there are all.
		store.calls, store.at = 0, 2
		if _, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		events := got(t, s).Events().Len()
		for _, id := range []string{ids[0], ids[events-3], ""} {
			if _, err := s.Rewind(ctx, got(t, s), id); !errors.As(err, new(*turnstone.InvalidError)) {
				t.Errorf("%d events, to %q: %v", events, id, err)
			}
		}
	}
	store.at = 0
	if b, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil || b.Brought != 0 || got(t, s).Events().Len() != 302 {
		t.Errorf("%+v, %v", b, err)
	}
	h, err := store.Session(ctx, "adk/app/ann/s")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // The second time Bring brings the state alone.
		if _, err := s.Rewind(ctx, got(t, s), ids[299]); err != nil {
			t.Error(err)
		}
		if _, err := h.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"state": []byte("{}")}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := got(t, s).State().Get("n"); err != nil || fmt.Sprint(n) != "299" {
		t.Errorf("%v, %v", n, err)
	}
}

// getting is a service. It calls act just before it reads a session for the first time.
type getting struct {
	session.Service
	act func()
}

func (g *getting) Get(ctx context.Context, r *session.GetRequest) (*session.GetResponse, error) {
	if act := g.act; act != nil {
		g.act = nil
		act()
	}
	return g.Service.Get(ctx, r)
}

// Two calls of Bring work at once. When a host deletes what one of them has brought, the other one does not bring it again.
func TestAD23_TwoBringsAtOnceLeaveAwayWhatAHostDeletes(t *testing.T) {
	for _, deletes := range []bool{false, true} {
		source, store := said(t, 3), storetest.Memory(t)
		s := adk.NewSessions(store)
		b, err := s.Bring(ctx, &getting{source, func() {
			if b, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil || b.Brought != 3 {
				t.Errorf("%+v, %v", b, err)
			}
			if deletes {
				if err := s.Delete(ctx, &session.DeleteRequest{AppName: "app", UserID: "ann", SessionID: "s"}); err != nil {
					t.Error(err)
				}
			}
		}}, adapter.BringOptions{}, "app")
		if err != nil || b.Brought != 0 || b.Unchanged != 1 || len(b.Different) > 0 {
			t.Errorf("deleted %v: %+v, %v", deletes, b, err)
		}
		if _, err := store.Session(ctx, "adk/app/ann/s"); adapter.Gone(err) != deletes {
			t.Errorf("deleted %v: %v", deletes, err)
		}
	}
}

// before is a store. It calls act just before one of its commits or, with after, right after the commit before that.
type before struct {
	turnstone.Factory
	at    int
	after bool
	act   func()
}

func (b *before) CommitAll(ctx context.Context, commits ...turnstone.SessionCommit) ([]turnstone.Result, error) {
	if b.at--; b.at == 0 && !b.after {
		b.act()
	}
	results, err := b.Factory.CommitAll(ctx, commits...)
	if b.at == 1 && b.after {
		b.act()
	}
	return results, err
}

// counts adds events to sessions that have the same ones. Each sets the state n to its number, and so that of the user.
func counts(t *testing.T, ids *[]string, events int, in ...session.Service) {
	t.Helper()
	for range events {
		e := session.NewEvent(ctx, "i")
		e.Actions.StateDelta = map[string]any{"n": len(*ids), "user:n": len(*ids), "app:n": len(*ids)}
		for _, s := range in {
			same := *e
			if err := s.AppendEvent(ctx, got(t, s), &same); err != nil {
				t.Fatal(err)
			}
		}
		*ids = append(*ids, e.ID)
	}
}

// Another Bring brings more while one works, whichever commit of it is the next. Together they say how many events they have
// brought. Nobody can rewind into these events, and their state is the last one.
func TestAD23_TwoBringsAtOnceForgetNothingOfEachOther(t *testing.T) {
	for at := 1; at < 7; at++ { // 450 events, the note of the session, and the states of the user and the app
		var ids []string
		source, store := said(t, 0), storetest.Memory(t)
		counts(t, &ids, 450, source)
		b := adk.NewSessions(store)
		var others *adapter.Brought
		a := adk.NewSessions(&before{store, at, false, func() {
			counts(t, &ids, 5, source)
			var err error
			if others, err = b.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil || len(others.Different) > 0 {
				t.Errorf("call %d: %+v, %v", at, others, err)
			}
		}})
		mine, err := a.Bring(ctx, source, adapter.BringOptions{}, "app")
		if err != nil || others == nil || mine.Brought+others.Brought != 455 || mine.Unchanged+others.Unchanged > 1 || len(mine.Different) > 0 {
			t.Errorf("call %d: %+v, %v, beside %+v", at, mine, err, others)
		}
		if _, err := a.Rewind(ctx, got(t, a), ids[453]); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("call %d: a rewind: %v", at, err)
		}
		for _, key := range []string{"n", "user:n", "app:n"} {
			if n, err := got(t, a).State().Get(key); err != nil || fmt.Sprint(n) != "454" {
				t.Errorf("call %d: %s is %v, %v", at, key, n, err)
			}
		}
	}
}

// A host deletes what Bring has begun to bring, and makes another session of that name at once, whatever Bring does next. Bring
// adds nothing to it.
func TestAD23_WhatAHostMakesAnewMeanwhileIsItsOwn(t *testing.T) {
	for at := 2; at < 5; at++ {
		for _, after := range []bool{false, true} {
			source, store := said(t, 450), storetest.Memory(t)
			host := adk.NewSessions(store)
			b, err := adk.NewSessions(&before{store, at, after, func() {
				if err := host.Delete(ctx, &session.DeleteRequest{AppName: "app", UserID: "ann", SessionID: "s"}); err != nil {
					t.Error(err)
				}
				if _, err := host.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "ann", SessionID: "s"}); err != nil {
					t.Error(err)
				}
			}}).Bring(ctx, source, adapter.BringOptions{}, "app")
			if err != nil || len(b.Different) > 0 || got(t, host).Events().Len() > 0 {
				t.Errorf("call %d, after %v: %+v, %v, %d events", at, after, b, err, got(t, host).Events().Len())
			}
		}
	}
}

// The source goes on after Bring has listed its sessions. What is brought has the state that belongs to its events, and it does
// not replace what another Bring has brought since.
func TestAD23_TheStateIsAsNewAsTheEvents(t *testing.T) {
	for _, known := range []bool{false, true} {
		for _, beside := range []bool{false, true} {
			var ids []string
			source, s := said(t, 0), adk.NewSessions(storetest.Memory(t))
			counts(t, &ids, 5, source)
			if known {
				if _, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil {
					t.Fatal(err)
				}
			}
			b, err := s.Bring(ctx, &getting{source, func() {
				counts(t, &ids, 5, source)
				if beside {
					if b, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil || len(b.Different) > 0 {
						t.Errorf("%+v, %v", b, err)
					}
				}
			}}, adapter.BringOptions{}, "app")
			if err != nil || len(b.Different) > 0 || got(t, s).Events().Len() != 10 {
				t.Errorf("%+v, %v", b, err)
			}
			for _, key := range []string{"n", "user:n", "app:n"} {
				if n, err := got(t, s).State().Get(key); err != nil || fmt.Sprint(n) != "9" {
					t.Errorf("known %v, beside %v: %s is %v, %v", known, beside, key, n, err)
				}
			}
		}
	}
}

// An older copy of the source changes nothing in a session that has all of its events. Nobody can rewind into more of them than
// before.
func TestAD23_AnOlderCopyOfTheSourceTakesNothingBack(t *testing.T) {
	var ids []string
	source, older, s := said(t, 0), said(t, 0), adk.NewSessions(storetest.Memory(t))
	counts(t, &ids, 5, source, older)
	counts(t, &ids, 5, source)
	for _, from := range []session.Service{source, older, source} {
		if b, err := s.Bring(ctx, from, adapter.BringOptions{}, "app"); err != nil || len(b.Different) > 0 {
			t.Errorf("%+v, %v", b, err)
		}
		if _, err := s.Rewind(ctx, got(t, s), ids[6]); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("a rewind: %v", err)
		}
		if n, err := got(t, s).State().Get("n"); err != nil || fmt.Sprint(n) != "9" {
			t.Errorf("n is %v, %v", n, err)
		}
	}
}

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

// bare is a session without state, as the list of a service may have it.
type bare struct {
	session.Session
	none session.State
}

func (b bare) State() session.State { return b.none }

// Bring brings the state of users and apps also if the list of the service has none. If the list has them, and nothing is new,
// Bring does not read them again.
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
	for _, id := range []string{"a", "z"} {
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
					e := session.NewEvent(ctx, "i")
					e.Actions.StateDelta = map[string]any{"user:more": 1}
					if err := source.AppendEvent(ctx, got(t, source), e); err != nil {
						t.Fatal(err)
					}
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

// A value of state that can't be stored is named by each call.
func TestAD23_AnOddValueIsNamedEachTime(t *testing.T) {
	source, s := said(t, 1), adk.NewSessions(storetest.Memory(t))
	if _, err := s.Bring(ctx, source, adapter.BringOptions{}, "app"); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, &session.DeleteRequest{AppName: "app", UserID: "ann", SessionID: "s"}); err != nil {
		t.Fatal(err)
	}
	e := session.NewEvent(ctx, "i")
	e.Actions.StateDelta = map[string]any{"user:odd": make(chan int)}
	if err := source.AppendEvent(ctx, got(t, source), e); err != nil {
		t.Fatal(err)
	}
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
	e := session.NewEvent(ctx, "i")
	e.Actions.StateDelta = map[string]any{"user:mail": "anna@x", "user:more": 1, "user:name": "Anna", "user:odd": make(chan int)}
	of := got(t, source)
	if err := source.AppendEvent(ctx, of, e); err != nil {
		t.Fatal(err)
	}
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

// Bring names what a validator refuses, and brings all else.
func TestAD23_WhatAValidatorDoesNotWantIsNamed(t *testing.T) {
	source := session.InMemoryService()
	for i := range 3 {
		if _, err := source.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "ann", SessionID: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	st, err := turnstone.Open(ctx, memory.New(), &turnstone.Options{Validator: func(_ context.Context, id string, _ *turnstone.Commit) error {
		if id == "adk/app/ann/0" {
			return errors.New("no")
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	b, err := adk.NewSessions(st.Factory()).Bring(ctx, source, adapter.BringOptions{}, "app")
	if err != nil || b.Found != 3 || len(b.Different) != 1 || !strings.Contains(b.Different[0], `"0"`) {
		t.Errorf("%+v, %v", b, err)
	}
	if listed, err := adk.NewSessions(st.Factory()).List(ctx, &session.ListRequest{AppName: "app"}); err != nil || len(listed.Sessions) != 2 {
		t.Errorf("%+v, %v", listed, err)
	}
}
