package trpc_test

import (
	"context"
	"fmt"
	"log"

	"trpc.group/trpc-go/trpc-agent-go/model"
	"trpc.group/trpc-go/trpc-agent-go/runner"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/trpc"
	"github.com/turnstonedb/turnstone/engine/open"
)

// An agent whose sessions are in a store. "mem:" stands for a directory, or the URL of a PostgreSQL database.
func Example() {
	ctx := context.Background()
	engine, err := open.Open(ctx, "mem:", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	store, err := turnstone.Open(ctx, engine, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	sessions := trpc.NewSessions(store.Factory(), trpc.Options{})
	defer sessions.Close()

	r := runner.NewRunner("app", counter{}, runner.WithSessionService(sessions)) // counter is an agent in place of one with a model.
	events, err := r.Run(ctx, "user", "chat", model.NewUserMessage("count"))
	if err != nil {
		log.Fatal(err)
	}
	for e := range events {
		if e.IsValidContent() && !e.IsRunnerCompletion() {
			fmt.Println(e.Choices[0].Message.Content)
		}
	}
	// Output:
	// 1
	// 2
}
