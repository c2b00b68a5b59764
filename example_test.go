package turnstone_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// A turn is committed with the revision that was loaded; a second writer who
// loaded the same one loses, and learns where the session stands.
func Example() {
	ctx := context.Background()
	engine := memory.New() // or badger.Open(dir, nil)
	defer engine.Close()
	store, err := turnstone.Open(ctx, engine, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	chat, _, err := store.Create(ctx, turnstone.Request{ID: "chat-1"})
	if err != nil {
		log.Fatal(err)
	}
	say := func(expected turnstone.Revision, text string) (turnstone.Result, error) {
		return chat.Commit(ctx, turnstone.Commit{Expected: expected, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte(text)}}})
	}
	r, err := say(0, "hello")
	fmt.Println(r.Revision, err)
	_, err = say(0, "me too")
	var conflict *turnstone.ConflictError
	fmt.Println(errors.As(err, &conflict), conflict.Revision)
	state, err := chat.Load(ctx, turnstone.Scope{})
	fmt.Println(len(state.Nodes), string(state.Nodes[0].Payload), err)
	// Output:
	// 1 <nil>
	// true 1
	// 1 hello <nil>
}

func ExampleStore_Create_fork() {
	ctx := context.Background()
	store, err := turnstone.Open(ctx, memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	chat, _, err := store.Create(ctx, turnstone.Request{ID: "chat"})
	if err != nil {
		log.Fatal(err)
	}
	r, err := chat.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("shared")}}})
	if err != nil {
		log.Fatal(err)
	}
	fork, _, err := store.Create(ctx, turnstone.Request{ID: "what-if", Parent: "chat", ForkNode: r.Leaf})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Delete(ctx, "chat", turnstone.KeepChildren); err != nil {
		log.Fatal(err)
	}
	state, err := fork.Load(ctx, turnstone.Scope{})
	fmt.Println(len(state.Nodes), err)
	// Output: 1 <nil>
}
