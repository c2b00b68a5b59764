package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
)

// A recorder is an observer that keeps what it is told.
type recorder struct {
	mu   sync.Mutex
	open int
	seen []told
}

type told struct {
	turnstone.Operation
	turnstone.Outcome
	within string // the operation whose context this one has
}

type within struct{}

func (r *recorder) Begin(ctx context.Context, op turnstone.Operation) (context.Context, func(turnstone.Outcome)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open++
	outer, _ := ctx.Value(within{}).(string)
	return context.WithValue(ctx, within{}, op.Name), func(o turnstone.Outcome) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.open--
		r.seen = append(r.seen, told{op, o, outer})
	}
}

// of returns what was told of an operation since the last call.
func (r *recorder) of(name string) (out []told) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var rest []told
	for _, o := range r.seen {
		if o.Name == name {
			out = append(out, o)
		} else {
			rest = append(rest, o)
		}
	}
	r.seen = rest
	return out
}

// An observer is told of each operation once, with what it worked on and how it ended, and of the
// calls of the engine within it.
func TestAnObserverIsToldOfEverything(t *testing.T) {
	var r recorder
	st := openStore(t, memory.New(), &turnstone.Options{Observer: &r, NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s"})
	in := turnstone.Commit{
		Turn: "t", Nodes: []turnstone.NewNode{{Kind: "user", Key: "k", Payload: []byte("12345")}, {Kind: "user", Payload: []byte("678")}},
		Checkpoint: map[string][]byte{"p": []byte("90")},
	}
	one := func(name string) told {
		t.Helper()
		got := r.of(name)
		if len(got) != 1 {
			t.Fatalf("%s was told %d times", name, len(got))
		}
		return got[0]
	}
	first, err := s.Commit(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if got := one(turnstone.OpCommit); got.Session != "s" || got.Items != 2 || got.Bytes != 10 || got.BaseMisses != 1 || got.BaseHits != 0 || got.Err != nil || got.Replayed {
		t.Errorf("%+v", got)
	}
	if got := r.of(turnstone.OpEngineApply); len(got) == 0 || got[len(got)-1].within != turnstone.OpCommit || got[len(got)-1].Items < 3 || got[len(got)-1].Bytes < 100 {
		t.Errorf("%+v", got)
	}
	if _, err := s.Commit(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if got := one(turnstone.OpCommit); !got.Replayed || got.Items != 0 {
		t.Errorf("%+v", got)
	}
	if _, err := s.Commit(t.Context(), turnstone.Commit{Expected: 5}); err == nil {
		t.Fatal("no conflict")
	}
	if got := one(turnstone.OpCommit); turnstone.KindOf(got.Err).Name != "conflict" {
		t.Errorf("%+v", got)
	}
	if _, err := s.Commit(t.Context(), turnstone.Commit{Expected: 1, Checkpoint: map[string][]byte{"p": []byte("91")}}); err != nil {
		t.Fatal(err)
	}
	if got := one(turnstone.OpCommit); got.BaseHits != 1 || got.BaseMisses != 0 {
		t.Errorf("%+v", got)
	}
	_, err = st.CommitAll(t.Context(), turnstone.SessionCommit{Session: s, Commit: turnstone.Commit{
		Expected: turnstone.AnyRevision, Nodes: sayingAfter(graph.ID{1}, nil), Checkpoint: map[string][]byte{"p": []byte("92"), "new": nil},
	}})
	if got := one(turnstone.OpCommitAll); err == nil || got.Err == nil || got.BaseHits != 1 || got.BaseMisses != 1 || got.Items != 0 {
		t.Errorf("%v, %+v", err, got)
	}
	at, err := s.PutAttachment(t.Context(), strings.NewReader("attached"), -1, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), turnstone.Commit{Expected: 2, Nodes: []turnstone.NewNode{{Kind: "user", Attachments: []blob.Attachment{at}}}}); err != nil {
		t.Fatal(err)
	}
	r.of(turnstone.OpCommit)
	for _, c := range []struct {
		name  string
		do    func() error
		items int
		bytes int64
	}{
		{turnstone.OpCreate, func() error { return nil }, 0, 0},
		{turnstone.OpPutAttachment, func() error { return nil }, 0, 8},
		{turnstone.OpReadAttachment, func() error { _, err := s.ReadAttachment(t.Context(), &bytes.Buffer{}, at.ID); return err }, 0, 8},
		{turnstone.OpLoad, func() error { _, err := s.Load(t.Context(), turnstone.Scope{}); return err }, 3, 8},
		{turnstone.OpNode, func() error { _, err := s.Node(t.Context(), first.Nodes[0]); return err }, 1, 5},
		{turnstone.OpNode, func() error { _, err := s.NodeByKey(t.Context(), "k"); return err }, 1, 5},
		{turnstone.OpNode, func() error { _, err := s.NodesByKey(t.Context(), "k"); return err }, 1, 5},
		{turnstone.OpCheckpoint, func() error { _, err := s.Checkpoint(t.Context(), 0); return err }, 0, 2},
		{turnstone.OpList, func() error { _, err := st.List(t.Context(), turnstone.ListOptions{}); return err }, 1, 0},
		{turnstone.OpTombstone, func() error { return s.Tombstone(t.Context(), first.Nodes[1]) }, 1, 0},
		{turnstone.OpVerify, func() error { _, err := st.Verify(t.Context(), turnstone.VerifyOptions{}); return err }, 0, 0},
		{turnstone.OpDelete, func() error { return st.Delete(t.Context(), "none", turnstone.KeepChildren) }, 0, 0},
		{turnstone.OpSeal, func() error { return s.Seal(t.Context()) }, 0, 0},
		{turnstone.OpPrune, func() error { _, err := st.Prune(t.Context(), gc.PruneOptions{}); return err }, 0, 0},
		{turnstone.OpCommitAll, func() error {
			_, err := st.CommitAll(t.Context(), turnstone.SessionCommit{Session: s, Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("12345"))}})
			return err
		}, 1, 5},
	} {
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := one(c.name); got.Items != c.items || got.Bytes != c.bytes || got.Err != nil {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	if _, err := st.GC(t.Context(), gc.Options{DryRun: true}); err != nil {
		t.Fatal(err)
	}
	if got := one(turnstone.OpGC); got.GC != nil {
		t.Errorf("a dry run: %+v", got)
	}
	if _, err := st.GC(t.Context(), gc.Options{}); err != nil {
		t.Fatal(err)
	}
	if got := one(turnstone.OpGC); got.GC == nil {
		t.Errorf("%+v", got)
	}
	if _, err := st.Vacuum(t.Context(), gc.VacuumOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := one(turnstone.OpVacuum); got.Vacuum == nil || got.Vacuum.Nodes != 1 {
		t.Errorf("%+v", got)
	}
	for _, name := range []string{turnstone.OpEngineGet, turnstone.OpEngineScan} {
		if got := r.of(name); !slices.ContainsFunc(got, func(o told) bool { return o.Items > 0 && o.Bytes > 0 && o.within == turnstone.OpLoad }) {
			t.Errorf("none of %d %s says what a load read", len(got), name)
		}
	}
	if r.open != 0 {
		t.Errorf("%d operations did not end", r.open)
	}
}

// An operation ends for the observer also when code of the caller's panics in it.
func TestAnObserverIsToldTheEndOfACallThatPanics(t *testing.T) {
	var r recorder
	st := openStore(t, memory.New(), &turnstone.Options{Observer: &r, Validator: func(context.Context, string, *turnstone.Commit) error { panic("host") }})
	s := create(t, st, turnstone.Request{ID: "s"})
	for _, f := range []func(){
		func() { s.Commit(t.Context(), turnstone.Commit{}) },
		func() { s.PutAttachment(t.Context(), panicking{}, -1, "", "") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("it did not panic")
				}
			}()
			f()
		}()
	}
	for _, name := range []string{turnstone.OpCommit, turnstone.OpPutAttachment} {
		if got := r.of(name); len(got) != 1 || got[0].Err == nil || r.open != 0 {
			t.Errorf("%s: %+v, %d are open", name, got, r.open)
		}
	}
}

type panicking struct{}

func (panicking) Read([]byte) (int, error) { panic("reader") }

// A LogObserver logs operations and the kinds of their errors, and nothing of what they store.
func TestALogObserverLogsNoContent(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	st := openStore(t, memory.New(), &turnstone.Options{Observer: turnstone.LogObserver(log), NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s"})
	in := turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("secret text")}}, Checkpoint: map[string][]byte{"p": []byte("secret part")}}
	for range 2 { // the second is a conflict
		_, _ = s.Commit(t.Context(), in)
	}
	if _, err := s.Load(t.Context(), turnstone.Scope{}); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{
		"level=DEBUG msg=turnstone operation=commit", "session=s items=1 bytes=22", "level=INFO msg=turnstone operation=commit", "error_type=conflict", "operation=load",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "secret") || strings.Contains(text, "engine.") {
		t.Errorf("it says too much:\n%s", text)
	}
}

// KindOf finds the kind of each error, however it is wrapped.
func TestEveryErrorHasAKind(t *testing.T) {
	for want, err := range map[string]error{
		"": nil, "conflict": &turnstone.ConflictError{}, "turn-conflict": &turnstone.TurnConflictError{}, "record-conflict": &turnstone.RecordConflictError{}, "limit": &turnstone.LimitError{},
		"invalid": &turnstone.InvalidError{}, "session-not-found": fmt.Errorf("x: %w", turnstone.ErrSessionNotFound), "damaged": &damage.CorruptError{}, "format": fmt.Errorf("x: %w", &damage.FormatError{}),
		"unknown-outcome": fmt.Errorf("%w: %w", turnstone.ErrOutcomeUnknown, engine.ErrClosed), "canceled": context.Canceled, "no-space": engine.ErrNoSpace,
		"closed": engine.ErrClosed, "unavailable": engine.ErrUnavailable, "rejected": turnstone.ErrRejected, "revision-pruned": turnstone.ErrRevisionPruned, "exists": turnstone.ErrExists,
		"has-children": turnstone.ErrHasChildren, "other": errors.New("x"),
	} {
		if got := turnstone.KindOf(err).Name; got != want {
			t.Errorf("%v is %q, not %q", err, got, want)
		}
	}
}
