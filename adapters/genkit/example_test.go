package genkit_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/ai/exp"
	gk "github.com/firebase/genkit/go/genkit"
	gkx "github.com/firebase/genkit/go/genkit/exp"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/genkit"
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

	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil))) // Genkit says that it begins.
	agent := gkx.DefineCustomAgent(gk.Init(ctx, gk.WithExperimental()), "echo", echo, exp.WithSessionStore(genkit.NewStore[any](store.Factory(), genkit.Options{})))
	for _, text := range []string{"Hello", "Hello again"} {
		out, err := agent.RunText(ctx, text, exp.WithSessionID[any]("chat"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(out.Message.Text())
	}
	// Output:
	// You said Hello.
	// You said Hello again.
}

// echo is an agent in place of one with a model.
func echo(ctx context.Context, _ exp.Responder, sess *exp.SessionRunner[any]) (*exp.AgentResult, error) {
	err := sess.Run(ctx, func(_ context.Context, in *exp.AgentInput) (*exp.TurnResult, error) {
		sess.AddMessages(ai.NewModelTextMessage("You said " + in.Message.Text() + "."))
		return nil, nil
	})
	return sess.Result(), err
}
