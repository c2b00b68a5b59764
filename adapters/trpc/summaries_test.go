package trpc_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

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
	fork := turnstone.Request{ID: "trpc/app/user/fork", Parent: "trpc/app/user/chat", Metadata: head.Metadata{Group: "trpc/app/user"}}
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
		of := twoBranches(t, s)
		if err := errors.Join(s.EnqueueSummaryJob(ctx, of, "app/1", false), s.Close()); err != nil {
			t.Fatal(err)
		}
		if keys := slices.Sorted(maps.Keys(must(s.GetSession(ctx, chat)).Summaries)); !slices.Equal(keys, c.want) {
			t.Errorf("%+v: summaries of %q, want %q", c.options, keys, c.want)
		}
	}
}

// twoBranches returns a session with four events, by turns of the branches app/0 and app/1.
func twoBranches(t *testing.T, s *trpc.Sessions) *session.Session {
	t.Helper()
	of := must(s.CreateSession(ctx, chat, nil))
	for i := range 4 {
		e := say(i, model.RoleUser, "text", nil)
		e.FilterKey = fmt.Sprint("app/", i%2)
		if err := s.AppendEvent(ctx, of, e); err != nil {
			t.Fatal(err)
		}
	}
	return of
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
	store := storetest.Pebble(t)
	wait := make(chan struct{})
	summarizer := &scripted{before: func() { <-wait }}
	s := trpc.NewSessions(store, trpc.Options{Summarizer: summarizer})
	of := twoBranches(t, s)
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

// A summary takes its time. If the session goes back meanwhile, or is deleted and made anew, the summary is of nothing that
// is there.
func TestTR4_ASummaryIsStoredOnlyWhereItsEventsAre(t *testing.T) {
	for name, meanwhile := range map[string]func(s *trpc.Sessions) error{
		"rewound": func(s *trpc.Sessions) error {
			_, err := s.Rewind(ctx, chat, "e0")
			return err
		},
		"made anew": func(s *trpc.Sessions) error {
			if err := s.DeleteSession(ctx, chat); err != nil {
				return err
			}
			of, err := s.CreateSession(ctx, chat, nil)
			if err == nil {
				err = s.AppendEvent(ctx, of, say(0, model.RoleUser, "anew", nil))
			}
			return err
		},
	} {
		var s *trpc.Sessions
		var failed error
		s = trpc.NewSessions(storetest.Memory(t), trpc.Options{Summarizer: &scripted{before: func() { failed = meanwhile(s) }}})
		of := must(s.CreateSession(ctx, chat, nil))
		for i := range 4 {
			if err := s.AppendEvent(ctx, of, say(i, model.RoleUser, "text", nil)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.CreateSessionSummary(ctx, of, "", true); !errors.Is(err, turnstone.ErrNodeNotFound) || failed != nil {
			t.Errorf("%s: %v, %v", name, err, failed)
		}
		if got := must(s.GetSession(ctx, chat)); len(got.Events) != 1 || len(got.Summaries) > 0 || len(of.Summaries) > 0 {
			t.Errorf("%s: %d events, %+v", name, len(got.Events), got.Summaries)
		}
	}
	// Events that are older than the session are summarized, and the summary is not shown, as with the in-memory service.
	for _, old := range []services{
		trpc.NewSessions(storetest.Memory(t), trpc.Options{Summarizer: &scripted{}}), inmemory.NewSessionService(inmemory.WithSummarizer(&scripted{})),
	} {
		of := must(old.CreateSession(ctx, chat, nil))
		e := say(1, model.RoleUser, "from long ago", nil)
		e.Timestamp = time.Now().Add(-time.Hour)
		if err := errors.Join(old.AppendEvent(ctx, of, e), old.CreateSessionSummary(ctx, of, "", true)); err != nil {
			t.Error(err)
		}
		if text, ok := old.GetSessionSummaryText(ctx, must(old.GetSession(ctx, chat))); ok {
			t.Errorf("%T: %q", old, text)
		}
	}
	// What is added meanwhile is no reason.
	var s *trpc.Sessions
	s = trpc.NewSessions(storetest.Memory(t), trpc.Options{Summarizer: &scripted{before: func() {
		if err := s.AppendEvent(ctx, must(s.GetSession(ctx, chat)), say(5, model.RoleUser, "more", nil)); err != nil {
			t.Error(err)
		}
	}}})
	of := must(s.CreateSession(ctx, chat, nil))
	if err := errors.Join(s.AppendEvent(ctx, of, say(1, model.RoleUser, "text", nil)), s.CreateSessionSummary(ctx, of, "", true)); err != nil {
		t.Error(err)
	}
	if got := must(s.GetSession(ctx, chat)); len(got.Events) != 2 || len(got.Summaries) != 1 {
		t.Errorf("%d events, %+v", len(got.Events), got.Summaries)
	}
}

// beside is a store. It calls act just before it stores a summary.
type beside struct {
	turnstone.Factory
	act func()
}

type besideHandle struct {
	turnstone.Persistence
	of beside
}

func (b beside) Session(ctx context.Context, id string) (turnstone.Persistence, error) {
	h, err := b.Factory.Session(ctx, id)
	return besideHandle{h, b}, err
}

func (h besideHandle) Commit(ctx context.Context, c turnstone.Commit) (turnstone.Result, error) {
	if c.Checkpoint["m/"] != nil {
		h.of.act()
	}
	return h.Persistence.Commit(ctx, c)
}

// A summary is stored though others append just before it. It is not stored if somebody rewinds the session just before it.
func TestTR4_ASummaryIsStoredBesideAppendsButNotBesideARewind(t *testing.T) {
	for _, rewinds := range []bool{false, true} {
		store, n := storetest.Memory(t), 0
		host := trpc.NewSessions(store, trpc.Options{})
		of := must(host.CreateSession(ctx, chat, nil))
		s := trpc.NewSessions(beside{store, func() {
			n++
			var err error
			if rewinds {
				_, err = host.Rewind(ctx, chat, "e0")
			} else {
				err = host.AppendEvent(ctx, of, say(10+n, model.RoleUser, "more", nil))
			}
			if err != nil || n > 10 {
				t.Errorf("%d commits, %v", n, err)
				t.FailNow()
			}
		}}, trpc.Options{Summarizer: &scripted{}})
		for i := range 4 {
			if err := host.AppendEvent(ctx, of, say(i, model.RoleUser, "text", nil)); err != nil {
				t.Fatal(err)
			}
		}
		err := s.CreateSessionSummary(ctx, must(s.GetSession(ctx, chat)), "", true)
		stored := len(must(host.GetSession(ctx, chat)).Summaries) == 1
		if n != 1 || stored == rewinds || errors.Is(err, turnstone.ErrNodeNotFound) != rewinds || err != nil && !rewinds {
			t.Errorf("rewinds %v: %d commits, stored %v, %v", rewinds, n, stored, err)
		}
	}
}
