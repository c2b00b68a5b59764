package shared_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/engine/shared"
)

// Any number of processes open one store like this. Here one process does it twice.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "turnstone")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	open := func() (*shared.Engine, *turnstone.Store) {
		e, err := shared.Open(ctx, dir+"/store", shared.Driver{Name: "pebble", Open: func(dir string) (engine.Engine, error) { return pebble.Open(dir, nil) }})
		if err != nil {
			log.Fatal(err)
		}
		st, err := turnstone.Open(ctx, e, nil)
		if err != nil {
			log.Fatal(err)
		}
		return e, st
	}

	owner, first := open()
	other, second := open()
	defer other.Close()

	s, _, err := first.Create(ctx, turnstone.Request{ID: "chat"})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := s.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("Hello")}}}); err != nil {
		log.Fatal(err)
	}
	first.Close()
	owner.Close() // The other one takes over.

	t, err := second.Session(ctx, "chat")
	if err != nil {
		log.Fatal(err)
	}
	state, err := t.Load(ctx, turnstone.Scope{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s at revision %d\n", state.Nodes[0].Payload, state.Revision)
	// Output: Hello at revision 1
}
