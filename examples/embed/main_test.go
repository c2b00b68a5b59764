package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

func TestTheLoopResumes(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()+"/store"
	for _, m := range []string{"hello", "again"} {
		if err := run(ctx, dir, "chat", m); err != nil {
			t.Fatal(err)
		}
	}
	eng, err := pebble.Open(dir, nil)
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

// What the README shows is this program.
func TestTheREADMEShowsThis(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(readme), "```go\n")
	block, _, ok := strings.Cut(block, "```")
	code := strings.ReplaceAll("\n"+string(source), "\n\t", "\n")
	if !ok || !strings.Contains(code, block) {
		t.Error("the example of README.md is not in main.go")
	}
}
