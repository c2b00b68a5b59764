// Command embed is the smallest useful agent loop on Turnstone. It resumes the
// session that its argument names, runs one turn, and commits that turn. Other
// processes, and the command, may use the store at the same time.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/open"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: embed DIRECTORY SESSION MESSAGE")
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir, id, message string) error {
	eng, err := open.Open(ctx, dir, nil)
	if err != nil {
		return err
	}
	defer eng.Close()
	store, err := turnstone.Open(ctx, eng, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	session, _, err := store.Create(ctx, turnstone.Request{ID: id}) // or the one that exists
	if err != nil {
		return err
	}
	state, err := session.Load(ctx, turnstone.Scope{})
	if err != nil {
		return err
	}
	reply := answer(state.Nodes, message)
	result, err := session.Commit(ctx, turnstone.Commit{
		Expected: state.Revision,
		Nodes: []turnstone.NewNode{
			{Kind: "user", Payload: []byte(message)},
			{Kind: "assistant", Payload: []byte(reply)},
		},
	})
	var conflict *turnstone.ConflictError
	if errors.As(err, &conflict) {
		return fmt.Errorf("somebody else answered first, at revision %d: load and decide again", conflict.Revision)
	}
	if err != nil {
		return err
	}
	fmt.Printf("%s\n(revision %d)\n", reply, result.Revision)
	return nil
}

// answer stands in for a model.
func answer(history []turnstone.Node, message string) string {
	return fmt.Sprintf("You said %q; before that, %d messages.", message, len(history))
}
