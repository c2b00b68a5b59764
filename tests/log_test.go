package tests

import (
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
)

// The log of a session has an entry for each commit after a revision, pruned ones included. What a
// fork inherits is not in its log.
func TestTheLogTellsOfEveryCommitSinceARevision(t *testing.T) {
	st := openStore(t, memory.New(), &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s"})
	logOf := func(s *turnstone.Session, after head.Revision) (out []turnstone.LogEntry) {
		t.Helper()
		for e, err := range s.Log(ctx, after) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, e)
		}
		return out
	}
	if got := logOf(s, 0); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	var results []turnstone.Result
	for i := range 5 {
		c := turnstone.Commit{
			Expected: head.Revision(i), Turn: fmt.Sprint("turn ", i+1), Usage: []head.Usage{{Model: "m", Input: uint64(i)}},
			Nodes:      []turnstone.NewNode{{Kind: "user", Payload: fmt.Append(nil, i)}, {Kind: "assistant"}},
			Checkpoint: map[string][]byte{"each": fmt.Append(nil, i)},
		}
		if i == 0 {
			c.Checkpoint["once"] = []byte("x")
		}
		r, err := s.Commit(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
	}
	for after := range 6 {
		got := logOf(s, head.Revision(after))
		if len(got) != max(5-after, 0) {
			t.Fatalf("%d entries after %d", len(got), after)
		}
		for i, e := range got {
			r := results[after+i]
			parts := 1
			if after+i == 0 {
				parts = 2
			}
			if e.Revision != r.Revision || e.Commit != r.Commit || e.Leaf != r.Leaf || e.Nodes != 2 || e.Turn != fmt.Sprint("turn ", after+i+1) ||
				len(e.Parts) != parts || e.Usage[0].Input != uint64(after+i) || e.Time.IsZero() || e.Pruned {
				t.Errorf("after %d: %+v", after, e)
			}
		}
	}
	for range s.Log(ctx, 0) {
		break // the caller may want no more
	}

	// What is pruned is told of still.
	if err := s.Keep(ctx, "kept", 2); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prune(ctx, 2); err != nil {
		t.Fatal(err)
	}
	for i, e := range logOf(s, 0) {
		if want := i == 0 || i == 2; e.Pruned != want {
			t.Errorf("revision %d: pruned %v", i+1, e.Pruned)
		}
		if _, err := s.Load(ctx, turnstone.Scope{At: e.Revision}); errors.Is(err, turnstone.ErrRevisionPruned) != e.Pruned {
			t.Errorf("revision %d: %v", i+1, err)
		}
	}

	// A fork's log is its own; what it inherits is marked.
	f, _, err := st.Create(ctx, turnstone.Request{ID: "f", Parent: "s", ForkNode: results[4].Nodes[0]})
	if err != nil {
		t.Fatal(err)
	}
	if got := logOf(f, 0); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	if _, err := f.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user"}}}); err != nil {
		t.Fatal(err)
	}
	if got := logOf(f, 0); len(got) != 1 || got[0].Revision != 1 || len(got[0].Parts) != 0 {
		t.Errorf("%+v", got)
	}
	for _, scope := range []turnstone.Scope{{}, {Full: true}, {Last: 3}} {
		state, err := f.Load(ctx, scope)
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range state.Nodes {
			if want := i < len(state.Nodes)-1; n.Inherited != want {
				t.Errorf("%+v: node %d of %d: inherited %v", scope, i, len(state.Nodes), n.Inherited)
			}
			if one, err := f.Node(ctx, n.ID); err != nil || one.Inherited != n.Inherited {
				t.Errorf("%+v, %v", one, err)
			}
		}
	}
	if state, err := s.Load(ctx, turnstone.Scope{}); err != nil || state.Nodes[0].Inherited {
		t.Errorf("%v, %v", state, err)
	}

	if err := st.Delete(ctx, "s", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	for _, err := range s.Log(ctx, 0) {
		if !errors.Is(err, turnstone.ErrSessionDeleted) {
			t.Error(err)
		}
	}
}
