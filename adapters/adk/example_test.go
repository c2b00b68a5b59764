package adk_test

import (
	"context"
	"fmt"
	"iter"
	"log"

	"google.golang.org/adk/v2/agent"
	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/runner"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/engine/open"
)

// An agent whose sessions and artifacts are in a store. "mem:" stands for a directory, or the URL of a PostgreSQL
// database.
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

	r, err := runner.New(runner.Config{
		AppName: "app", Agent: echo(), AutoCreateSession: true,
		SessionService: adk.NewSessions(store.Factory()), ArtifactService: adk.NewArtifacts(store.Factory()),
	})
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range r.Run(ctx, "user", "chat", genai.NewContentFromText("Hello", genai.RoleUser), agent.RunConfig{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(event.Content.Parts[0].Text)
	}
	// Output: You said: Hello
}

// echo is an agent in place of one with a model.
func echo() agent.Agent {
	a, err := agent.New(agent.Config{Name: "echo", Run: func(ic agent.InvocationContext) iter.Seq2[*session.Event, error] {
		return func(yield func(*session.Event, error) bool) {
			e := session.NewEvent(ic, ic.InvocationID())
			e.Author = ic.Agent().Name()
			e.LLMResponse = model.LLMResponse{Content: genai.NewContentFromText("You said: "+ic.UserContent().Parts[0].Text, genai.RoleModel)}
			yield(e, nil)
		}
	}})
	if err != nil {
		log.Fatal(err)
	}
	return a
}
