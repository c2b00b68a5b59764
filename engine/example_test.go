package engine_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// A counter that loses nothing: read, then write on the condition that what
// was read still stands.
func Example() {
	ctx := context.Background()
	e := memory.New()
	defer e.Close()
	add := func() error {
		values, err := e.Get(ctx, []byte("counter"))
		if err != nil {
			return err
		}
		var b engine.Batch
		b.Guard([]byte("counter"), values[0]) // nil: still absent
		b.Set([]byte("counter"), append(values[0], '|'))
		return e.Apply(ctx, &b)
	}
	fmt.Println(add(), add())
	var stale engine.Batch
	stale.Guard([]byte("counter"), []byte("|"))
	stale.Delete([]byte("counter"))
	err := e.Apply(ctx, &stale)
	fmt.Println(errors.Is(err, engine.ErrConflict))
	for p, err := range e.Scan(ctx, engine.PrefixRange([]byte("c"))) {
		fmt.Println(string(p.Key), string(p.Value), err)
	}
	// Output:
	// <nil> <nil>
	// true
	// counter || <nil>
}

func ExamplePrefixEnd() {
	fmt.Printf("%q %q\n", engine.PrefixEnd([]byte("ab")), engine.PrefixEnd([]byte("a\xff")))
	fmt.Println(engine.PrefixEnd([]byte{0xff}) == nil)
	// Output:
	// "ac" "b"
	// true
}
