package adk_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// cutting is a store in which every so many commits one fails.
type cutting struct {
	turnstone.Factory
	calls, every int
}

var errCut = errors.New("cut off")

func (c *cutting) CommitAll(ctx context.Context, commits ...turnstone.SessionCommit) ([]turnstone.Result, error) {
	if c.calls++; c.every > 0 && c.calls%c.every == 0 {
		return nil, errCut
	}
	return c.Factory.CommitAll(ctx, commits...)
}

// Bring brings what another service has, as it is there. It goes on after a call that was cut off, and later brings what is
// new. What hosts have done here stays.
func TestAD23_SessionsOfAnotherServiceAreBrought(t *testing.T) {
	r := rand.New(rand.NewPCG(49, 49))
	source := session.InMemoryService()
	apps := []string{"trips", "a/b"}
	speak := func(to session.Service, app, user, id string, n int) {
		t.Helper()
		got, err := to.Get(ctx, &session.GetRequest{AppName: app, UserID: user, SessionID: id})
		of := session.Session(nil)
		if err != nil {
			made, err := to.Create(ctx, &session.CreateRequest{AppName: app, UserID: user, SessionID: id, State: map[string]any{"first": 1.5, "user:name": "Ann é", "app:n": "x"}})
			if err != nil {
				t.Fatal(err)
			}
			of = made.Session
		} else {
			of = got.Session
		}
		for i := range n {
			e := session.NewEvent(ctx, "invocation")
			e.Author = []string{"user", "agent"}[r.IntN(2)]
			e.LLMResponse = model.LLMResponse{Content: genai.NewContentFromText(fmt.Sprint("Say ", i, " é"), "user"), UsageMetadata: &genai.GenerateContentResponseUsageMetadata{PromptTokenCount: 3, CandidatesTokenCount: 2}}
			if n == 2 {
				e.Timestamp = e.Timestamp.Add(3 * time.Hour) // by another clock
			}
			e.Actions.StateDelta = map[string]any{"own": fmt.Sprint(i), "user:u": fmt.Sprint(r.IntN(5)), "app:a": fmt.Sprint(r.IntN(5))}
			if err := to.AppendEvent(ctx, of, e); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 12 {
		speak(source, apps[i%2], fmt.Sprint("user ", i%3), fmt.Sprint("s/", i), []int{0, 3, 450}[i%3])
	}
	tells := func(s session.Service) (out []string) {
		t.Helper()
		for _, app := range apps {
			listed, err := s.List(ctx, &session.ListRequest{AppName: app})
			if err != nil {
				t.Fatal(err)
			}
			for _, of := range listed.Sessions {
				got, err := s.Get(ctx, &session.GetRequest{AppName: app, UserID: of.UserID(), SessionID: of.ID()})
				if err != nil {
					t.Fatal(err)
				}
				var b strings.Builder
				fmt.Fprintf(&b, "%s %s %s", app, of.UserID(), of.ID())
				state := map[string]any{}
				for k, v := range got.Session.State().All() {
					state[k] = v
				}
				fmt.Fprint(&b, state)
				for e := range got.Session.Events().All() {
					fmt.Fprint(&b, "\n", e.ID, e.Author, e.Timestamp.UTC().Format(time.RFC3339Nano), e.Content.Parts[0].Text, e.Actions.StateDelta, e.UsageMetadata)
				}
				out = append(out, b.String())
			}
		}
		slices.Sort(out)
		return out
	}
	st := storetest.URL(t, "mem:")
	for i, s := range []session.Service{source, adk.NewSessions(st.Factory())} { // with nothing that could be compared
		if _, err := s.Create(ctx, &session.CreateRequest{AppName: "made", UserID: "here", SessionID: "s", State: map[string]any{"by": i}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := adk.NewSessions(st.Factory()).Bring(ctx, source, adapter.BringOptions{}, "made"); err != nil {
		t.Fatal(err)
	}
	made, err := adk.NewSessions(st.Factory()).Get(ctx, &session.GetRequest{AppName: "made", UserID: "here", SessionID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if by, err := made.Session.State().Get("by"); err != nil || fmt.Sprint(by) != "1" {
		t.Errorf("the state is that of %v, %v", by, err)
	}
	before, err := st.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	dry, err := adk.NewSessions(st.Factory()).Bring(ctx, source, adapter.BringOptions{DryRun: true}, apps...)
	if err != nil || dry.Found != 12 || dry.Unchanged != 0 || dry.Brought != 4*(3+450) || len(dry.Different) > 0 {
		t.Errorf("a dry run: %+v, %v", dry, err)
	}
	if after, err := st.Stats(ctx); err != nil || !reflect.DeepEqual(after, before) {
		t.Errorf("a dry run changed the store: %+v, %v", after, err)
	}
	cut := &cutting{Factory: st.Factory(), every: 4}
	cuts := 0
	for {
		b, err := adk.NewSessions(cut).Bring(ctx, source, adapter.BringOptions{}, apps...)
		if err == nil {
			if b.Found != 12 || len(b.Different) > 0 || b.Unchanged == 0 {
				t.Errorf("%+v", b)
			}
			break
		}
		if cuts++; !errors.Is(err, errCut) || cuts > 50 {
			t.Fatal(err)
		}
	}
	target := adk.NewSessions(st.Factory())
	if got, want := tells(target), tells(source); cuts < 3 || !reflect.DeepEqual(got, want) {
		t.Fatalf("%d cuts:\n%.600s\nwant\n%.600s", cuts, got, want)
	}
	h, err := st.Session(ctx, "adk/a%2Fb/user 2/s%2F5")
	if err != nil {
		t.Fatal(err)
	}
	if i, err := h.Info(ctx); err != nil || len(i.Usage) != 1 || i.Usage[0].Input != 3*450 || i.Usage[0].Output != 2*450 {
		t.Errorf("%+v, %v", i.Usage, err)
	}
	speak(source, "trips", "user 0", "s/0", 2)
	speak(source, "trips", "user 1", "new", 2)
	long := strings.Repeat("u", 600)
	speak(source, "refused", long, "s", 1)
	speak(source, "refused", "v", "s", 1)
	if b, err := target.Bring(ctx, source, adapter.BringOptions{}, "refused"); err != nil || b.Found != 2 || b.Brought != 1 || len(b.Different) != 2 || !strings.Contains(b.Different[0], long) || !strings.HasPrefix(b.Different[1], "state of refused/uuu") {
		t.Errorf("%+v, %v", b, err)
	}
	if b, err := target.Bring(ctx, source, adapter.BringOptions{}, apps...); err != nil || b.Unchanged != 11 || b.Brought != 4 || len(b.Different) > 0 {
		t.Errorf("%+v, %v", b, err)
	}
	if !reflect.DeepEqual(tells(target), tells(source)) {
		t.Error("what has come since is not brought")
	}
	since, err := target.Get(ctx, &session.GetRequest{AppName: "trips", UserID: "user 1", SessionID: "new", After: time.Now().Add(2 * time.Hour)})
	if err != nil || since.Session.Events().Len() != 2 {
		t.Errorf("%d events of another clock, %v", since.Session.Events().Len(), err)
	}
	// Rewind knows the state at the last event that was brought, and at those after it.
	speak(target, "trips", "user 1", "new", 1)
	back, err := target.Get(ctx, &session.GetRequest{AppName: "trips", UserID: "user 1", SessionID: "new"})
	if err != nil {
		t.Fatal(err)
	}
	events := slices.Collect(back.Session.Events().All())
	for _, id := range []string{"", events[0].ID} {
		if _, err := target.Rewind(ctx, back.Session, id); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("a rewind to %q of what was brought: %v", id, err)
		}
	}
	if _, err := target.Rewind(ctx, back.Session, "none"); !errors.Is(err, turnstone.ErrNodeNotFound) {
		t.Error(err)
	}
	rewound, err := target.Rewind(ctx, back.Session, events[1].ID)
	if err != nil || rewound.Events().Len() != 2 {
		t.Fatal(rewound, err)
	}
	if own, err := rewound.State().Get("own"); own != "1" || err != nil {
		t.Errorf("the state is of event %v, %v", own, err)
	}
	// Bring does not bring again what somebody has taken back here.
	h, err = st.Session(ctx, "adk/trips/user 1/new")
	if err != nil {
		t.Fatal(err)
	}
	if err := adapter.Rewind(ctx, h, nil); err != nil {
		t.Fatal(err)
	}
	speak(source, "trips", "user 1", "new", 1)
	if b, err := target.Bring(ctx, source, adapter.BringOptions{}, apps...); err != nil || b.Brought != 0 || !slices.Contains(b.Different, "adk/trips/user 1/new") {
		t.Errorf("%+v, %v", b, err)
	}
	if err := source.Delete(ctx, &session.DeleteRequest{AppName: "trips", UserID: "user 1", SessionID: "new"}); err != nil {
		t.Fatal(err)
	}
	// A host goes on here.
	speak(target, "trips", "user 0", "s/0", 1)
	of, err := target.Get(ctx, &session.GetRequest{AppName: "trips", UserID: "user 0", SessionID: "s/0"})
	if err != nil {
		t.Fatal(err)
	}
	e := session.NewEvent(ctx, "i")
	e.Actions.StateDelta = map[string]any{"user:u": "the host's", "app:a": "the host's"}
	if err := target.AppendEvent(ctx, of.Session, e); err != nil {
		t.Fatal(err)
	}
	want := []string{`state "a" of trips`, `state "u" of trips/user 0`, `state "u" of trips/user 1`}
	if b, err := target.Bring(ctx, source, adapter.BringOptions{}, apps...); err != nil || !slices.Equal(b.Different, want) {
		t.Errorf("%+v, %v", b, err)
	}
	speak(source, "trips", "user 0", "s/0", 3)
	if b, err := target.Bring(ctx, source, adapter.BringOptions{}, apps...); err != nil || !slices.Contains(b.Different, "adk/trips/user 0/s%2F0") {
		t.Errorf("%+v, %v", b, err)
	}
	if of, err = target.Get(ctx, &session.GetRequest{AppName: "trips", UserID: "user 0", SessionID: "s/0"}); err != nil || of.Session.Events().Len() != 4 {
		t.Errorf("%d events, %v", of.Session.Events().Len(), err)
	}
}

// deleting is a service. Somebody deletes the first session of each app before the service reads it.
type deleting struct {
	session.Service
	gone map[string]bool
}

func (d deleting) Get(ctx context.Context, r *session.GetRequest) (*session.GetResponse, error) {
	if !d.gone[r.AppName] {
		d.gone[r.AppName] = true
		if err := d.Delete(ctx, &session.DeleteRequest{AppName: r.AppName, UserID: r.UserID, SessionID: r.SessionID}); err != nil {
			return nil, err
		}
	}
	return d.Service.Get(ctx, r)
}

func TestAD23_ASessionThatIsDeletedThereMeanwhileIsNoReasonToStop(t *testing.T) {
	source := session.InMemoryService()
	for i := range 3 {
		if _, err := source.Create(ctx, &session.CreateRequest{AppName: "app", UserID: "ann", SessionID: fmt.Sprint(i), State: map[string]any{"user:name": "Ann"}}); err != nil {
			t.Fatal(err)
		}
	}
	s := adk.NewSessions(storetest.Memory(t))
	if b, err := s.Bring(ctx, deleting{source, map[string]bool{}}, adapter.BringOptions{}, "app"); err != nil || b.Found != 3 || len(b.Different) > 0 {
		t.Errorf("%+v, %v", b, err)
	}
	listed, err := s.List(ctx, &session.ListRequest{AppName: "app", UserID: "ann"})
	if err != nil || len(listed.Sessions) != 2 {
		t.Fatal(listed, err)
	}
	if name, err := listed.Sessions[0].State().Get("user:name"); name != "Ann" || err != nil {
		t.Error(name, err)
	}
	// Bring does not bring again what was deleted here.
	if err := s.Delete(ctx, &session.DeleteRequest{AppName: "app", UserID: "ann", SessionID: listed.Sessions[0].ID()}); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		if b, err := s.Bring(ctx, source, adapter.BringOptions{DryRun: dry}, "app"); err != nil || b.Found != 2 || b.Unchanged != 2 || b.Brought != 0 {
			t.Errorf("%+v, %v", b, err)
		}
	}
	if listed, err = s.List(ctx, &session.ListRequest{AppName: "app", UserID: "ann"}); err != nil || len(listed.Sessions) != 1 {
		t.Error(listed, err)
	}
}

// What somebody has made or sets here stays. Bring names what can't be stored, and brings all else.
func TestAD23_BringReplacesNothingOfAHostAndNamesWhatItCanNotStore(t *testing.T) {
	source := session.InMemoryService()
	add := func(s session.Service, user, id string, state map[string]any, events ...string) {
		t.Helper()
		r, err := s.Create(ctx, &session.CreateRequest{AppName: "a", UserID: user, SessionID: id, State: state})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range events {
			e := session.NewEvent(ctx, "i")
			e.Content = genai.NewContentFromText(text, "user")
			if err := s.AppendEvent(ctx, r.Session, e); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(source, "u", "bad text", map[string]any{"user:kept": "z"}, "\xff")
	add(source, "v", "bad state", map[string]any{"kept": "x", "odd": make(chan int)})
	add(source, "w", "big", map[string]any{"user:big": strings.Repeat("x", 14<<20), "user:kept": "y", "user:color": "old"})
	add(source, "x", "made", map[string]any{"by": "source"}, "one")
	store := storetest.Memory(t)
	host := adk.NewSessions(store)
	add(host, "x", "made", map[string]any{"by": "host", "mine": 1})
	b, err := adk.NewSessions(&meddling{Factory: store, meddle: func() {
		add(host, "w", "beside", map[string]any{"user:color": "the host's"})
	}}).Bring(ctx, source, adapter.BringOptions{}, "a")
	if err != nil || b.Found != 4 || len(b.Different) != 4 {
		t.Fatalf("%+v, %v", b, err)
	}
	for i, want := range []string{`session "bad state"`, `session "bad text"`, `state "big" of a/w: `, `state "color" of a/w`} {
		if !strings.HasPrefix(b.Different[i], want) {
			t.Errorf("%q, want %q", b.Different[i], want)
		}
	}
	whole, err := source.Get(ctx, &session.GetRequest{AppName: "a", UserID: "x", SessionID: "made"})
	if err != nil {
		t.Fatal(err)
	}
	e := session.NewEvent(ctx, "i")
	e.Content = genai.NewContentFromText("two", "user")
	if err := source.AppendEvent(ctx, whole.Session, e); err != nil {
		t.Fatal(err)
	}
	if b, err := host.Bring(ctx, source, adapter.BringOptions{}, "a"); err != nil || b.Brought != 1 { // It is still the host's.
		t.Fatalf("%+v, %v", b, err)
	}
	of, err := host.Get(ctx, &session.GetRequest{AppName: "a", UserID: "x", SessionID: "made"})
	if err != nil || of.Session.Events().Len() != 2 {
		t.Fatalf("%+v, %v", of, err)
	}
	for key, want := range map[string]any{"by": "host", "mine": int64(1)} {
		if got, err := of.Session.State().Get(key); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s is %v, %v", key, got, err)
		}
	}
	if of, err = host.Get(ctx, &session.GetRequest{AppName: "a", UserID: "w", SessionID: "beside"}); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"user:color": "the host's", "user:kept": "y"} {
		if got, err := of.Session.State().Get(key); err != nil || got != want {
			t.Errorf("%s is %v, %v", key, got, err)
		}
	}
	add(host, "u", "good", nil)
	if of, err = host.Get(ctx, &session.GetRequest{AppName: "a", UserID: "u", SessionID: "good"}); err != nil {
		t.Fatal(err)
	}
	if got, err := of.Session.State().Get("user:kept"); err != nil || got != "z" {
		t.Errorf("what the user of a session that can't be stored has: %v, %v", got, err)
	}
}

// Bring does not take a session that it has brought in part for one that a host has made.
func TestAD23_WhatWasCutOffGetsTheStateThatTheSourceHasByNow(t *testing.T) {
	source, store := session.InMemoryService(), storetest.Memory(t)
	r, err := source.Create(ctx, &session.CreateRequest{AppName: "a", UserID: "u", SessionID: "s", State: map[string]any{"own": "before"}})
	if err != nil {
		t.Fatal(err)
	}
	say := func(state map[string]any) {
		t.Helper()
		e := session.NewEvent(ctx, "i")
		e.Content = genai.NewContentFromText("text", "user")
		e.Actions.StateDelta = state
		if err := source.AppendEvent(ctx, r.Session, e); err != nil {
			t.Fatal(err)
		}
	}
	for range 449 {
		say(nil)
	}
	if _, err := adk.NewSessions(&cutting{Factory: store, every: 2}).Bring(ctx, source, adapter.BringOptions{}, "a"); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	say(map[string]any{"own": "since"})
	target := adk.NewSessions(store)
	part, err := target.Get(ctx, &session.GetRequest{AppName: "a", UserID: "u", SessionID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := target.Rewind(ctx, part.Session, part.Session.Events().At(part.Session.Events().Len()-1).ID); !errors.Is(err, turnstone.ErrInvalid) {
		t.Errorf("a rewind of what was cut off: %v", err)
	}
	if b, err := target.Bring(ctx, source, adapter.BringOptions{}, "a"); err != nil || b.Brought != 250 || len(b.Different) > 0 {
		t.Errorf("%+v, %v", b, err)
	}
	got, err := target.Get(ctx, &session.GetRequest{AppName: "a", UserID: "u", SessionID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if own, err := got.Session.State().Get("own"); err != nil || own != "since" {
		t.Errorf("%v, %v", own, err)
	}
}

// meddling calls meddle once, before the first commit to a state of a user.
type meddling struct {
	turnstone.Factory
	meddle func()
}

func (m *meddling) CommitAll(ctx context.Context, commits ...turnstone.SessionCommit) ([]turnstone.Result, error) {
	if commits[0].RecordsOnly && m.meddle != nil {
		meddle := m.meddle
		m.meddle = nil
		meddle()
	}
	return m.Factory.CommitAll(ctx, commits...)
}
