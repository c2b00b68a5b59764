package main

import (
	"context"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/open"
)

func TestTheLoopResumes(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()+"/store"
	for _, m := range []string{"hello", "again"} {
		if err := run(ctx, dir, "chat", m); err != nil {
			t.Fatal(err)
		}
	}
	eng, err := open.Open(ctx, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	store, err := turnstone.Open(ctx, eng, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s, err := store.Session(ctx, "chat")
	if err != nil {
		t.Fatal(err)
	}
	state, err := s.Load(ctx, turnstone.Scope{Last: 1})
	if err != nil || len(state.Nodes) != 1 || string(state.Nodes[0].Payload) != `You said "again"; before that, 2 messages.` {
		t.Errorf("%v, %v", state, err)
	}
}
