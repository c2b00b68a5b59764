package sealed_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// changing is an engine on which something happens after each Get.
type changing struct {
	engine.Engine
	after func()
}

func (c *changing) Get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	vs, err := c.Engine.Get(ctx, ks...)
	c.after()
	return vs, err
}

// A scan is guarded by what a record says, whichever key it is encrypted with, and whenever it changes.
func TestES4_AScanIsGuardedThroughARotation(t *testing.T) {
	path, ring := newRing(t, "")
	base := &changing{Engine: memory.New(), after: func() {}}
	e, _ := open(t, base, path, "")
	space := keys.New("", [32]byte{})
	record, absent := keys.StoreKey(""), space.Cycle()
	if err := set(e, record, []byte("here")); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := set(e, space.Head(keys.Hash{byte(i)}), fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	scan := func(guards ...engine.Pair) (n int, err error) {
		r := space.All(keys.Head)
		r.Guards = guards
		pairs := e.Scan(ctx, r)
		for range 2 { // A sequence can be used again.
			n = 0
			for p, failed := range pairs {
				if failed != nil {
					return n, failed
				}
				if n++; p.Key == nil {
					t.Error("a pair without a key")
				}
			}
		}
		return n, nil
	}
	here, elsewhere, none := engine.Pair{Key: record, Value: []byte("here")}, engine.Pair{Key: record, Value: []byte("gone")}, engine.Pair{Key: absent}
	check := func(when string) {
		t.Helper()
		if n, err := scan(here, none); n != 10 || err != nil {
			t.Errorf("%s: %d pairs, %v", when, n, err)
		}
		for _, g := range []engine.Pair{elsewhere, {Key: record}, {Key: absent, Value: []byte("x")}} {
			var c *engine.ConflictError
			if n, err := scan(none, g); n != 0 || !errors.As(err, &c) || !bytes.Equal(c.Key, g.Key) {
				t.Errorf("%s, %q: %d pairs, %v", when, g.Value, n, err)
			}
		}
	}
	check("before")
	if err := ring.Rotate(ctx, ""); err != nil {
		t.Fatal(err)
	}
	e, _ = open(t, base, path, "")
	check("rotated")
	base.after = func() { // The new key is used from now on, and the record changes after it was looked at.
		base.after = func() {}
		if err := set(e, record, []byte("gone")); err != nil {
			t.Error(err)
		}
	}
	if n, err := scan(engine.Pair{Key: record, Value: []byte("other")}); n != 0 || !errors.Is(err, engine.ErrConflict) {
		t.Errorf("%d pairs, %v", n, err)
	}
	if err := set(e, record, []byte("here")); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Reencrypt(ctx); err != nil {
		t.Fatal(err)
	}
	check("encrypted anew")
	// What comes into being between a conflict and the look at it, and goes again.
	other, _ := open(t, base, path, "")
	if err := set(other, absent, []byte("x")); err != nil {
		t.Fatal(err)
	}
	base.after = func() {
		base.after = func() {}
		if err := other.Apply(ctx, &engine.Batch{Deletes: [][]byte{absent}}); err != nil {
			t.Error(err)
		}
	}
	if n, err := scan(none); err != nil && !errors.Is(err, engine.ErrConflict) {
		t.Errorf("%d pairs, %v", n, err)
	}
}
