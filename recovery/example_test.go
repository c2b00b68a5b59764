package recovery_test

import (
	"context"
	"fmt"
	"log"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/recovery"
)

// A store has lost the record of its own identity, and does not open any more.
func ExampleRun() {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	damaged := memory.New() // or what open.Remains returns
	st, err := turnstone.Open(ctx, damaged, nil)
	check(err)
	s, _, err := st.Create(ctx, turnstone.Request{ID: "trip"})
	check(err)
	_, err = s.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("To Kyoto, please.")}}})
	check(err)
	check(st.Close())
	check(damaged.Apply(ctx, &engine.Batch{Deletes: [][]byte{keys.StoreKey("")}}))
	_, err = turnstone.Open(ctx, damaged, nil)
	fmt.Println("it opens:", err == nil)

	to, err := turnstone.Open(ctx, memory.New(), nil)
	check(err)
	r, err := recovery.Run(ctx, damaged, to, recovery.Options{})
	check(err)
	for _, came := range r.Sessions {
		fmt.Println(came.ID, "is at revision", came.To)
	}
	for _, lost := range r.Lost {
		fmt.Println("lost:", lost.What)
	}
	// Output:
	// it opens: false
	// trip is at revision 1
	// lost: store record: versions of checkpoint parts may be lost with it
}
