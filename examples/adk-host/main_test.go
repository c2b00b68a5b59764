package main

import (
	"context"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// The kit's state and events come back in a process that has only the store.
func TestAnInvocationIsATurnAndTheNextOneGoesOn(t *testing.T) {
	ctx := context.Background()
	eng := memory.New()
	defer eng.Close()
	for _, c := range []struct{ message, want string }{
		{"hello", `Message 1 was "hello".`},
		{"again", `Message 2 was "again".`},
	} {
		store, err := turnstone.Open(ctx, eng, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := turn(ctx, store, "chat", c.message); err != nil || got != c.want {
			t.Errorf("%s: %q, %v", c.message, got, err)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	store, err := turnstone.Open(ctx, eng, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s, err := store.Session(ctx, "chat")
	if err != nil {
		t.Fatal(err)
	}
	state, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, n := range state.Nodes {
		kinds = append(kinds, n.Kind)
	}
	if want := []string{"user", "counter", "user", "counter"}; state.Revision != 2 || !slices.Equal(kinds, want) {
		t.Errorf("revision %d with events by %v, want 2 with %v", state.Revision, kinds, want)
	}
}

func TestTheProgramRunsOnADirectory(t *testing.T) {
	dir := t.TempDir() + "/store"
	for _, m := range []string{"hello", "again"} {
		if err := run(context.Background(), dir, "chat", m); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(context.Background(), "nowhere:", "chat", "hello"); err == nil {
		t.Error("a store that is no store was opened")
	}
}
