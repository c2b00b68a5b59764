package eino_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cloudwego/eino/adk"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/open"
)

// An agent that asks, and goes on with the answer. "mem:" stands for a directory, or the URL of a PostgreSQL
// database: then it goes on in another process as well.
func Example() {
	store, err := openStore("mem:")
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	runner, err := runnerOn(store.Factory()) // adk.RunnerConfig{Agent: agent, CheckPointStore: eino.NewCheckPointStore(store.Factory())}
	if err != nil {
		log.Fatal(err)
	}
	_, question, err := results(runner.Query(context.Background(), "Transfer 7.", adk.WithCheckPointID("chat")))
	if err != nil {
		log.Fatal(err)
	}
	events, err := runner.ResumeWithParams(context.Background(), "chat", &adk.ResumeParams{Targets: map[string]any{question: "with consent"}})
	if err != nil {
		log.Fatal(err)
	}
	said, _, err := results(events)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(said)
	// Output: Done: transferred {"amount":7}, with consent
}

// openStore opens the store of a URL for as long as the process lasts.
func openStore(url string) (*turnstone.Store, error) {
	e, err := open.Open(context.Background(), url, nil)
	if err != nil {
		return nil, err
	}
	return turnstone.Open(context.Background(), e, nil)
}
