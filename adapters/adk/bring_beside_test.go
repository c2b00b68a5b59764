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
// before. The states of the user and of the app, of which nobody knows how old they are, are those of the copy.
func TestAD23_AnOlderCopyOfTheSourceTakesNothingBack(t *testing.T) {
	var ids []string
	source, older, s := said(t, 0), said(t, 0), adk.NewSessions(storetest.Memory(t))
	counts(t, &ids, 5, source, older)
	counts(t, &ids, 5, source)
	for i, from := range []session.Service{source, older, source} {
		if b, err := s.Bring(ctx, from, adapter.BringOptions{}, "app"); err != nil || len(b.Different) > 0 {
			t.Errorf("%+v, %v", b, err)
		}
		if _, err := s.Rewind(ctx, got(t, s), ids[6]); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("a rewind: %v", err)
		}
		last := []string{"9", "4", "9"}[i]
		for key, want := range map[string]string{"n": "9", "user:n": last, "app:n": last} {
			if n, err := got(t, s).State().Get(key); err != nil || fmt.Sprint(n) != want {
				t.Errorf("%d: %s is %v, %v", i, key, n, err)
			}
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
