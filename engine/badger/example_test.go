package badger_test

import (
	"context"
	"fmt"

	db "github.com/dgraph-io/badger/v4"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
)

// One database serves its host and a store, whose keys begin with a prefix.
func ExampleUse() {
	ctx := context.Background()
	host, err := db.Open(db.DefaultOptions("").WithInMemory(true).WithLogger(nil)) // or a directory, and WithSyncWrites(true)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer host.Close()
	e, err := badger.Use(host, []byte("turnstone/"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close() // before the database
	var b engine.Batch
	b.Set([]byte("k"), []byte("of the store"))
	if err := e.Apply(ctx, &b); err != nil {
		fmt.Println(err)
	}
	_ = host.Update(func(txn *db.Txn) error { return txn.Set([]byte("k"), []byte("of the host")) })
	values, err := e.Get(ctx, []byte("k"))
	fmt.Printf("%s, %v\n", values[0], err)
	// Output: of the store, <nil>
}
