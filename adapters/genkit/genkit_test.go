package genkit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/ai/exp"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/genkit"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

var ctx = context.Background()

func TestMain(m *testing.M) { os.Exit(storetest.Main(m, runAgent)) }

// custom is what a host has in its state.
type custom struct {
	Counter int      `json:"counter"`
	Topics  []string `json:"topics,omitempty"`
}

type (
	snapshot = exp.SessionSnapshot[custom]
	state    = exp.SessionState[custom]
)

// snapshots is a store under test.
type snapshots struct {
	*testing.T
	*genkit.Store[custom]
	parent string // of those that are saved
}

func on(t *testing.T, store turnstone.Factory) snapshots {
	return snapshots{T: t, Store: genkit.NewStore[custom](store, genkit.Options{})}
}

// begin is the time of the first snapshot of each test.
var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// save saves a new snapshot, which was created so many seconds after begin, with a counter and messages.
func (s snapshots) save(id, session string, created int, status exp.SnapshotStatus, counter int, messages ...string) *snapshot {
	s.Helper()
	at := begin.Add(time.Duration(created) * time.Second)
	next := &snapshot{SessionID: session, ParentID: s.parent, Status: status, CreatedAt: at, UpdatedAt: at, State: &state{Custom: custom{Counter: counter}, SessionID: session}}
	for i, text := range messages {
		role := ai.RoleUser
		if i%2 == 1 {
			role = ai.RoleModel
		}
		next.State.Messages = append(next.State.Messages, ai.NewTextMessage(role, text))
	}
	saved, err := s.SaveSnapshot(ctx, id, func(existing *snapshot) (*snapshot, error) {
		if existing != nil {
			s.Errorf("%s exists", id)
		}
		return next, nil
	})
	if err != nil {
		s.Fatal(err)
	}
	return saved
}

// change changes a snapshot that exists.
func (s snapshots) change(id string, f func(*snapshot)) *snapshot {
	s.Helper()
	saved, err := s.SaveSnapshot(ctx, id, func(existing *snapshot) (*snapshot, error) {
		if existing == nil {
			return nil, errors.New("there is none")
		}
		f(existing)
		return existing, nil
	})
	if err != nil {
		s.Fatal(err)
	}
	return saved
}

func (s snapshots) get(id string) *snapshot {
	s.Helper()
	got, err := s.GetSnapshot(ctx, id)
	if err != nil {
		s.Fatal(err)
	}
	return got
}

// latest returns the id of the latest snapshot of a session.
func (s snapshots) latest(session string) string {
	s.Helper()
	got, err := s.GetLatestSnapshot(ctx, session)
	if err != nil {
		s.Fatal(err)
	}
	if got == nil {
		return ""
	}
	return got.SnapshotID
}

func texts(s *snapshot) string {
	var out []string
	for _, m := range s.State.Messages {
		out = append(out, m.Text())
	}
	return fmt.Sprint(s.State.Custom.Counter, " ", strings.Join(out, " "))
}

// The cases of Genkit's own stores, which only they can use.
func TestGK1_SnapshotsDoWhatGenkitExpectsOnEveryEngine(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		s := on(t, open(t))
		t.Run("nothing", func(t *testing.T) {
			s := snapshots{T: t, Store: s.Store}
			if got := s.get("missing"); got != nil || s.latest("missing") != "" {
				t.Error(got)
			}
			if _, err := s.GetLatestSnapshot(ctx, ""); err == nil {
				t.Error("an empty session id is no error")
			}
			skipped, err := s.SaveSnapshot(ctx, "missing", func(*snapshot) (*snapshot, error) { return nil, nil })
			if err != nil || skipped != nil || s.get("missing") != nil {
				t.Error(skipped, err)
			}
			mine := errors.New("mine")
			if _, err := s.SaveSnapshot(ctx, "missing", func(*snapshot) (*snapshot, error) { return nil, mine }); !errors.Is(err, mine) {
				t.Error(err)
			}
			if _, err := s.SaveSnapshot(ctx, "missing", func(*snapshot) (*snapshot, error) { return &snapshot{ParentID: "p"}, nil }); err == nil || s.get("missing") != nil {
				t.Error("a snapshot of no session was stored")
			}
		})
		t.Run("what is saved is read", func(t *testing.T) {
			s := snapshots{T: t, Store: s.Store}
			saved := s.save("a", "kept", 1, "", 7, "hello", "hi")
			if saved.SnapshotID != "a" || saved.SessionID != "kept" || saved.Status != exp.SnapshotStatusCompleted {
				t.Errorf("%+v", saved)
			}
			got := s.get("a")
			if !reflect.DeepEqual(asJSON(t, got), asJSON(t, saved)) {
				t.Errorf("%s, want %s", asJSON(t, got), asJSON(t, saved))
			}
			got.State.Custom.Counter = 999
			if n := s.get("a").State.Custom.Counter; n != 7 {
				t.Error(n)
			}
			if id := s.save("", "kept", 0, "", 1).SnapshotID; id == "" || s.get(id) == nil || s.latest("kept") != "a" {
				t.Error("no id was made")
			}
		})
		t.Run("a snapshot stays in its session", func(t *testing.T) {
			s := snapshots{T: t, Store: s.Store}
			s.save("b", "first", 0, exp.SnapshotStatusPending, 1)
			for _, other := range []string{"", "second"} {
				changed := s.change("b", func(b *snapshot) {
					b.SessionID, b.Status, b.State.Custom.Counter = other, exp.SnapshotStatusCompleted, 2
				})
				if changed.SessionID != "first" || s.latest("second") != "" {
					t.Errorf("%+v", changed)
				}
			}
			if got := s.get("b"); got.State.Custom.Counter != 2 || got.SessionID != "first" {
				t.Errorf("%+v", got)
			}
		})
		t.Run("the latest is the one that was created last", func(t *testing.T) {
			s := snapshots{T: t, Store: s.Store}
			s.save("z", "l", 1, exp.SnapshotStatusCompleted, 1)
			s.save("m", "l", 3, exp.SnapshotStatusFailed, 2)
			s.save("n", "l", 2, exp.SnapshotStatusPending, 3)
			s.save("x", "other", 9, exp.SnapshotStatusCompleted, 4)
			if got := s.latest("l"); got != "m" {
				t.Error(got)
			}
			beat := time.Now()
			s.change("n", func(n *snapshot) { n.HeartbeatAt = &beat })
			s.change("n", func(n *snapshot) { n.Status, n.UpdatedAt = exp.SnapshotStatusAborted, beat })
			if got := s.latest("l"); got != "m" {
				t.Error(got)
			}
			if n := s.get("n"); !n.HeartbeatAt.Equal(beat) || !n.CreatedAt.Equal(begin.Add(2*time.Second)) || !n.UpdatedAt.Equal(beat) || n.State.Custom.Counter != 3 {
				t.Errorf("%+v", n)
			}
			s.save("o", "l", 4, exp.SnapshotStatusPending, 5)
			if got := s.latest("l"); got != "o" {
				t.Error(got)
			}
			s.change("m", func(m *snapshot) { m.CreatedAt = begin.Add(5 * time.Second) })
			if got := s.latest("l"); got != "m" {
				t.Error(got)
			}
			s.change("m", func(m *snapshot) { m.CreatedAt = time.Time{} })
			if got := s.latest("l"); got != "o" {
				t.Error(got)
			}
		})
		t.Run("ids that share their beginning", func(t *testing.T) {
			s := snapshots{T: t, Store: s.Store}
			s.save("id/2", "i/1", 1, "", 1)
			s.save("id", "i", 1, "", 2)
			s.save("id2", "i", 2, "", 3)
			for id, want := range map[string]int{"id/2": 1, "id": 2, "id2": 3} {
				if got := s.get(id); got == nil || got.State.Custom.Counter != want {
					t.Error(id, got)
				}
			}
			if got := s.get("i"); got != nil {
				t.Error(got)
			}
		})
	})
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Each snapshot keeps its own state, also of branches, and what they have in common is stored once.
func TestGK2_BranchesShareWhatTheyHaveInCommon(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		store := open(t)
		s := on(t, store)
		s.parent = ""
		s.save("1", "s", 1, "", 1, "a", "b")
		s.save("2", "s", 2, "", 2, "a", "b", "c", "d")
		s.save("3", "s", 3, "", 3, "a", "b", "other")
		s.save("4", "s", 4, "", 4, "a", "b", "other", "e")
		s.save("5", "s", 5, "", 5)
		s.parent = "2"
		s.save("6", "s", 6, "", 6, "a", "b", "c", "d", "f")
		for id, want := range map[string]string{"1": "1 a b", "2": "2 a b c d", "3": "3 a b other", "4": "4 a b other e", "5": "5 ", "6": "6 a b c d f"} {
			if got := texts(s.get(id)); got != want {
				t.Errorf("%s: %q, want %q", id, got, want)
			}
		}
		p, err := store.Session(ctx, "genkit/s")
		if err != nil {
			t.Fatal(err)
		}
		all, err := p.Load(ctx, turnstone.Scope{Full: true})
		if err != nil || len(all.Nodes) != 7 {
			t.Error(len(all.Nodes), err)
		}
	})
}

func TestGK2_AStateOfAnySizeIsStored(t *testing.T) {
	s := on(t, storetest.Memory(t))
	if _, err := s.SaveSnapshot(ctx, "nil", func(*snapshot) (*snapshot, error) {
		return &snapshot{SessionID: "nil", State: &state{Messages: []*ai.Message{nil, ai.NewUserTextMessage("x")}}}, nil
	}); err != nil {
		t.Error(err)
	}
	if m := s.get("nil").State.Messages; len(m) != 2 || m[0] != nil || m[1].Text() != "x" {
		t.Error(m)
	}
	for what, messages := range map[string][]string{
		"many messages":  slices.Repeat([]string{"x"}, 9000),
		"large messages": slices.Repeat([]string{strings.Repeat("0123456789", 9000)}, 100),
		"one of 3 MB":    {strings.Repeat("y", 3<<20)},
	} {
		s.save(what, what, 1, "", 1, messages...)
		if got := texts(s.get(what)); got != "1 "+strings.Join(messages, " ") {
			t.Errorf("%s: %d bytes", what, len(got))
		}
	}
}

// Whatever call of the engine crashes: the snapshot is there as it was, or as it is to be.
func TestGK2_ASnapshotIsStoredWholeOrNotAtAll(t *testing.T) {
	for n := 1; ; n++ {
		faulty := &enginetest.Faulty{Engine: memory.New()}
		s := on(t, storetest.On(t, faulty).Factory())
		s.save("1", "s", 1, exp.SnapshotStatusPending, 1, "a", "b")
		calls := 0
		faulty.Plan = func(enginetest.Call) enginetest.Fault {
			calls++
			return enginetest.Fault{Crash: calls == n, Applied: n%2 == 0}
		}
		_, err := s.SaveSnapshot(ctx, "1", func(existing *snapshot) (*snapshot, error) {
			existing.Status, existing.State.Custom.Counter = exp.SnapshotStatusCompleted, 2
			existing.State.Messages = append(existing.State.Messages, ai.NewTextMessage(ai.RoleUser, "c"))
			return existing, nil
		})
		s = on(t, storetest.On(t, faulty.Engine).Factory())
		got := s.get("1")
		switch found := fmt.Sprint(got.Status, " ", texts(got)); {
		case err == nil && found == "completed 2 a b c":
			if n < 4 {
				t.Error(n)
			}
			return
		case err == nil || found != "completed 2 a b c" && found != "pending 1 a b":
			t.Fatalf("after a crash at call %d: %s, %v", n, found, err)
		}
	}
}

func TestGK3_OfConcurrentSavesNoneIsLost(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		s := on(t, open(t))
		s.save("shared", "s", 0, "", 0)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				for n := range 4 {
					s.change("shared", func(c *snapshot) { c.State.Custom.Counter++ })
					s.save(fmt.Sprint(i, "-", n), "s", 10+i+n, "", i, fmt.Sprint(i), fmt.Sprint(n))
				}
			})
		}
		wg.Wait()
		if got := s.get("shared").State.Custom.Counter; got != 24 {
			t.Error(got)
		}
		for i := range 6 {
			for n := range 4 {
				if got := texts(s.get(fmt.Sprint(i, "-", n))); got != fmt.Sprintf("%d %d %d", i, i, n) {
					t.Error(got)
				}
			}
		}
	})
}

// Statuses come from another store, as from another process.
func TestGK4_AStatusIsToldAcrossProcesses(t *testing.T) {
	e := memory.New()
	open := func() turnstone.Factory {
		st, err := turnstone.Open(ctx, e, &turnstone.Options{PollEvery: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := st.Close(); err != nil {
				t.Error(err)
			}
		})
		return st.Factory()
	}
	writer, reader := on(t, open()), on(t, open())
	if _, ok := <-reader.OnSnapshotStatusChange(ctx, "p"); ok {
		t.Error("there is a status of a snapshot that there is not")
	}
	writer.save("p", "s", 1, exp.SnapshotStatusPending, 0, "a")
	listing := open()
	for range 2 { // A heartbeat makes no revision.
		page, err := listing.List(ctx, turnstone.ListOptions{})
		if err != nil || len(page.Sessions) != 1 || page.Sessions[0].Revision != 1 {
			t.Errorf("%+v, %v", page.Sessions, err)
		}
		writer.change("p", func(p *snapshot) { p.HeartbeatAt = &p.CreatedAt })
	}
	writer.save("q", "s", 2, exp.SnapshotStatusFailed, 0, "b")
	watched, stop := context.WithCancel(ctx)
	defer stop()
	statuses := reader.OnSnapshotStatusChange(watched, "p")
	if got := <-statuses; got != exp.SnapshotStatusPending {
		t.Error(got)
	}
	beat := time.Now()
	writer.change("p", func(p *snapshot) { p.HeartbeatAt = &beat })
	writer.change("p", func(p *snapshot) { p.State.Custom.Counter = 3 })
	writer.change("q", func(q *snapshot) { q.Status = exp.SnapshotStatusCompleted })
	writer.change("p", func(p *snapshot) { p.Status = exp.SnapshotStatusAborted })
	if got := <-statuses; got != exp.SnapshotStatusAborted {
		t.Error(got)
	}
	stop()
	for got := range statuses {
		t.Error(got)
	}
	// Who does not receive gets the last one.
	slow := reader.OnSnapshotStatusChange(t.Context(), "p")
	for i := range 10 {
		writer.change("p", func(p *snapshot) { p.Status = exp.SnapshotStatus(fmt.Sprint(i)) })
	}
	for got := range slow {
		if got == "9" {
			break
		}
	}
}

func TestGK5_ErrorsOfTheStoreAreNotMistakenForNothing(t *testing.T) {
	faulty := &enginetest.Faulty{Engine: memory.New()}
	s := on(t, storetest.On(t, faulty).Factory())
	s.save("p", "s", 1, exp.SnapshotStatusPending, 0)
	faulty.Plan = func(enginetest.Call) enginetest.Fault { return enginetest.Fault{Err: engine.ErrUnavailable} }
	if _, err := s.GetSnapshot(ctx, "p"); !errors.Is(err, engine.ErrUnavailable) {
		t.Error(err)
	}
	if _, err := s.GetLatestSnapshot(ctx, "s"); !errors.Is(err, engine.ErrUnavailable) {
		t.Error(err)
	}
}

// An engine that fails now and then does not end a subscription.
func TestGK4_AStatusIsToldByAStoreThatHasFailed(t *testing.T) {
	var toFail atomic.Int64
	failed := make(chan struct{})
	faulty := &enginetest.Faulty{Engine: memory.New(), Plan: func(enginetest.Call) enginetest.Fault {
		switch toFail.Add(-1) {
		case 0:
			close(failed)
			fallthrough
		case 1, 2:
			return enginetest.Fault{Err: engine.ErrUnavailable}
		}
		return enginetest.Fault{}
	}}
	st, err := turnstone.Open(ctx, faulty, &turnstone.Options{PollEvery: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	reader, writer := on(t, st.Factory()), on(t, storetest.On(t, faulty.Engine).Factory())
	writer.save("p", "s", 1, exp.SnapshotStatusPending, 0)
	statuses := reader.OnSnapshotStatusChange(t.Context(), "p")
	if got := <-statuses; got != exp.SnapshotStatusPending {
		t.Error(got)
	}
	toFail.Store(3)
	<-failed
	writer.change("p", func(p *snapshot) { p.Status = exp.SnapshotStatusAborted })
	if got := <-statuses; got != exp.SnapshotStatusAborted {
		t.Error(got)
	}
}

func TestGK3_AnErrorOfTheCallerEndsTheSave(t *testing.T) {
	s := on(t, storetest.Memory(t))
	for _, mine := range []error{turnstone.ErrConflict, turnstone.ErrRecordConflict, turnstone.ErrSessionDeleted} {
		calls := 0
		_, err := s.SaveSnapshot(ctx, "1", func(*snapshot) (*snapshot, error) { calls++; return nil, mine })
		if !errors.Is(err, mine) || calls != 1 {
			t.Error(calls, err)
		}
	}
}

// The reply of the engine is lost, and then the engine for a while.
func TestGK3_ASaveWhoseReplyIsLostIsMadeOnce(t *testing.T) {
	for n := range 6 {
		faulty := &enginetest.Faulty{Engine: memory.New()}
		s := on(t, storetest.On(t, faulty).Factory())
		s.save("1", "s", 1, "", 1, "a")
		lost := -1
		faulty.Plan = func(call enginetest.Call) enginetest.Fault {
			switch {
			case call.Op == "Apply" && lost < 0:
				lost = n
				return enginetest.Fault{Err: engine.ErrUnknown, Applied: true}
			case lost > 0:
				lost--
				return enginetest.Fault{Err: engine.ErrUnavailable}
			}
			return enginetest.Fault{}
		}
		_, err := s.SaveSnapshot(ctx, "", func(existing *snapshot) (*snapshot, error) {
			return &snapshot{SessionID: "s", CreatedAt: begin.Add(time.Hour), State: &state{Custom: custom{Counter: 2}}}, nil
		})
		faulty.Plan = nil
		if err != nil && !errors.Is(err, turnstone.ErrOutcomeUnknown) || n == 0 && err != nil {
			t.Errorf("%d: %v", n, err)
		}
		if got, err := s.GetLatestSnapshot(ctx, "s"); err != nil || texts(got) != "2 " {
			t.Errorf("%d: %v, %v", n, got, err)
		}
	}
}

// A session that is deleted in the store takes its snapshots along, and can begin anew.
func TestGK5_ADeletedSessionHasNoSnapshots(t *testing.T) {
	store := storetest.Memory(t)
	s := on(t, store)
	s.save("1", "s", 1, "", 1, "a")
	if err := store.Delete(ctx, "genkit/s", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	if s.get("1") != nil || s.latest("s") != "" {
		t.Error("it is still there")
	}
	s.save("1", "s", 1, "", 2, "b")
	if got := texts(s.get("1")); got != "2 b" {
		t.Error(got)
	}
}

func TestGK5_WhatIsTooLargeIsRefusedByName(t *testing.T) {
	store := storetest.Memory(t)
	s := on(t, store)
	large := &state{}
	for range 9000 {
		large.Messages = append(large.Messages, nil)
	}
	for what, next := range map[string]*snapshot{
		"a large state with it":  {SessionID: "s", ParentID: strings.Repeat("x", turnstone.MaxRecord), State: large},
		"an error of a snapshot": {SessionID: "s", ParentID: strings.Repeat("x", turnstone.MaxRecord)},
		"the id of a session":    {SessionID: strings.Repeat("x", turnstone.MaxSessionID)},
	} {
		if _, err := s.SaveSnapshot(ctx, "1", func(*snapshot) (*snapshot, error) { return next, nil }); !errors.Is(err, turnstone.ErrLimit) {
			t.Errorf("%s: %v", what, err)
		}
	}
	page, err := store.List(ctx, turnstone.ListOptions{})
	if err != nil || len(page.Sessions) > 0 {
		t.Error("something was stored: ", page, err)
	}
	longest := strings.Repeat("x", turnstone.MaxSessionID-len("genkit/"))
	s.save(longest, longest, 1, "", 1)
	if s.latest(longest) != longest {
		t.Error("the longest ids are refused")
	}
}
