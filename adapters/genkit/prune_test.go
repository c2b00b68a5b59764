package genkit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/ai/exp"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/genkit"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// A prune leaves the state that was saved last, so that a host can go on with the session.
func TestGK5_TheLastStateOutlivesEveryPrune(t *testing.T) {
	st := storetest.URL(t, "mem:")
	s := on(t, st.Factory())
	s.save("1", "s", 1, "", 1, "a")
	s.save("2", "s", 2, "", 2, "a", "b")
	pending := &snapshot{SessionID: "s", ParentID: "2", Status: exp.SnapshotStatusPending, CreatedAt: begin.Add(time.Minute)}
	if _, err := s.SaveSnapshot(ctx, "3", func(*snapshot) (*snapshot, error) { return pending, nil }); err != nil {
		t.Fatal(err)
	}
	s.change("3", func(c *snapshot) { c.Status = exp.SnapshotStatusAborted })
	if _, err := st.Prune(ctx, gc.PruneOptions{Revisions: 1}); err != nil {
		t.Fatal(err)
	}
	if got := texts(s.get("2")); got != "2 a b" {
		t.Error(got)
	}
	if _, err := s.GetSnapshot(ctx, "1"); !errors.Is(err, turnstone.ErrRevisionPruned) {
		t.Error(err)
	}
	// A host can still change a snapshot whose state was pruned.
	if got := s.change("1", func(c *snapshot) { c.Status = exp.SnapshotStatusFailed }); got.State != nil || got.Status != exp.SnapshotStatusFailed {
		t.Errorf("%+v", got)
	}
	if got := s.get("1"); got.Status != exp.SnapshotStatusFailed {
		t.Errorf("%+v", got)
	}
}

// A run in the background may save its state after a newer snapshot was saved. The newer one keeps its state all the same.
func TestGK5_TheLatestSnapshotKeepsItsStateWhateverIsSavedLast(t *testing.T) {
	st := storetest.URL(t, "mem:")
	s := on(t, st.Factory())
	s.save("first", "s", 1, "", 1, "a")
	s.parent = "first"
	s.save("background", "s", 2, exp.SnapshotStatusPending, 2, "a")
	s.save("foreground", "s", 3, "", 3, "a", "b")
	s.change("background", func(of *snapshot) {
		of.Status = exp.SnapshotStatusCompleted
		of.State.Messages = append(of.State.Messages, ai.NewUserTextMessage("late"))
	})
	s.save("by an earlier clock", "s", 0, "", 4, "a", "c")
	if _, err := st.Prune(ctx, gc.PruneOptions{Revisions: 1}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.GetLatestSnapshot(ctx, "s"); err != nil || got.SnapshotID != "foreground" || len(got.State.Messages) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Of the snapshots that have a state, the one that was created last keeps it in a prune, whatever other snapshots there are.
func TestGK5_TheLatestStateOutlivesAPruneBesideSnapshotsThatHaveNone(t *testing.T) {
	prune := func(t *testing.T, st *turnstone.Store) {
		t.Helper()
		if _, err := st.Prune(ctx, gc.PruneOptions{Revisions: 1}); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("without a state", func(t *testing.T) {
		st := storetest.URL(t, "mem:")
		s := on(t, st.Factory())
		s.save("1", "s", 1, "", 1, "a")
		pending := &snapshot{SessionID: "s", ParentID: "1", Status: exp.SnapshotStatusPending, CreatedAt: begin.Add(time.Minute)}
		if _, err := s.SaveSnapshot(ctx, "detached", func(*snapshot) (*snapshot, error) { return pending, nil }); err != nil {
			t.Fatal(err)
		}
		s.save("2", "s", 2, "", 2, "a", "b")
		s.change("detached", func(c *snapshot) { c.Status = exp.SnapshotStatusAborted })
		prune(t, st)
		if got := texts(s.get("2")); got != "2 a b" {
			t.Error(got)
		}
	})
	t.Run("deleted by its chain", func(t *testing.T) {
		st := storetest.URL(t, "mem:")
		s := snapshots{T: t, Store: genkit.NewStore[custom](st.Factory(), genkit.Options{MaxChain: 1})}
		s.save("1", "s", 10, "", 1, "a")
		s.parent = "1"
		s.save("2", "s", 5, "", 2, "a", "b")
		s.parent = ""
		s.save("3", "s", 3, "", 3, "c")
		prune(t, st)
		if got := s.latest("s"); got != "2" {
			t.Error(got)
		}
	})
	t.Run("got another state", func(t *testing.T) {
		st := storetest.URL(t, "mem:")
		s := on(t, st.Factory())
		s.save("1", "s", 1, exp.SnapshotStatusPending, 1, "a")
		s.change("1", func(c *snapshot) {
			c.Status = exp.SnapshotStatusCompleted
			c.State.Messages = append(c.State.Messages, ai.NewModelTextMessage("b"))
		})
		s.save("0", "s", 0, "", 0, "c")
		prune(t, st)
		if got := texts(s.get("1")); got != "1 a b" {
			t.Error(got)
		}
	})
	t.Run("created at another time", func(t *testing.T) {
		st := storetest.URL(t, "mem:")
		s := on(t, st.Factory())
		s.save("1", "s", 1, "", 1, "a")
		s.save("2", "s", 2, "", 2, "b")
		s.change("1", func(c *snapshot) { c.CreatedAt = begin.Add(time.Minute) })
		s.save("0", "s", 0, "", 0, "c")
		prune(t, st)
		if got := s.latest("s"); got != "1" {
			t.Error(got)
		}
	})
}

// between is a store that calls a function before it reads a record, and another one before it reads a state.
type between struct {
	turnstone.Factory
	call, load func()
}

type betweenHandle struct {
	turnstone.Persistence
	of *between
}

func (b *between) Session(ctx context.Context, id string) (turnstone.Persistence, error) {
	h, err := b.Factory.Session(ctx, id)
	return betweenHandle{h, b}, err
}

func (h betweenHandle) Record(ctx context.Context, key string) (turnstone.Record, error) {
	if call := h.of.call; call != nil {
		h.of.call = nil
		call()
	}
	return h.Persistence.Record(ctx, key)
}

func (h betweenHandle) Load(ctx context.Context, s turnstone.Scope) (*turnstone.State, error) {
	if call := h.of.load; call != nil {
		h.of.load = nil
		call()
	}
	return h.Persistence.Load(ctx, s)
}

func TestGK5_TheLatestSnapshotIsReadBesideASaveAndAPrune(t *testing.T) {
	st := storetest.URL(t, "mem:")
	writer := on(t, st.Factory())
	writer.save("1", "s", 1, "", 1, "a")
	reader := genkit.NewStore[custom](&between{Factory: st.Factory(), load: func() {
		writer.save("2", "s", 2, "", 2, "a", "b")
		if _, err := st.Prune(ctx, gc.PruneOptions{Revisions: 1}); err != nil {
			t.Error(err)
		}
	}}, genkit.Options{})
	if got, err := reader.GetLatestSnapshot(ctx, "s"); err != nil || got == nil || got.SnapshotID != "2" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestGK7_TheLatestSnapshotIsReadWhileAChainGetsAnother(t *testing.T) {
	store := storetest.Memory(t)
	writer := snapshots{T: t, Store: genkit.NewStore[custom](store, genkit.Options{MaxChain: 1}), parent: "1"}
	writer.save("1", "s", 1, "", 1, "a")
	reader := genkit.NewStore[custom](&between{Factory: store, call: func() { writer.save("2", "s", 2, "", 2, "a", "b") }}, genkit.Options{})
	if got, err := reader.GetLatestSnapshot(ctx, "s"); err != nil || got == nil || got.SnapshotID != "2" {
		t.Errorf("%+v, %v", got, err)
	}
}

// If the list of snapshots names one that does not exist, GetLatestSnapshot returns an error, and ends.
func TestGK5_ALeadToNoSnapshotIsAnError(t *testing.T) {
	store := storetest.Memory(t)
	s := on(t, store)
	s.save("1", "s", 1, "", 1, "a")
	h, err := store.Session(ctx, "genkit/s")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.ChangeRecords(ctx, turnstone.RecordChange{Key: "genkit/1", Action: turnstone.DeleteRecord}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.GetLatestSnapshot(ctx, "s"); !errors.Is(err, turnstone.ErrRecordNotFound) {
		t.Errorf("%+v, %v", got, err)
	}
}
