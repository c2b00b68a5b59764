package memory_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
)

var ctx = context.Background()

func list(t *testing.T, e engine.Engine, r engine.Range) (s string) {
	t.Helper()
	for p, err := range e.Scan(ctx, r) {
		if err != nil {
			t.Fatal(err)
		}
		s += fmt.Sprintf("%s=%s ", p.Key, p.Value)
	}
	return s
}

// What an overlay shows is what the engine beneath would show had it got the
// writes, which it has not.
func TestAgreesWithAnEngine(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	key := func() []byte { return fmt.Appendf(nil, "%02d", rng.IntN(40)) }
	base, model := memory.New(), memory.New()
	var b engine.Batch
	for i := 0; i < 40; i += 2 {
		b.Set(fmt.Appendf(nil, "%02d", i), []byte("base"))
	}
	for _, e := range []engine.Engine{base, model} {
		if err := e.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
	}
	before := list(t, base, engine.Range{})
	over := memory.NewOverlay(base)
	conflicts := 0
	for step := range 2000 {
		var b engine.Batch
		g, k := key(), key()
		vs, err := model.Get(ctx, g)
		if err != nil {
			t.Fatal(err)
		}
		if rng.IntN(4) == 0 {
			vs[0] = []byte("something else")
		}
		b.Guard(g, vs[0])
		if rng.IntN(2) == 0 {
			b.Delete(k)
		} else {
			b.Set(k, fmt.Appendf(nil, "%d", step))
		}
		want, got := model.Apply(ctx, &b), over.Apply(ctx, &b)
		if (want == nil) != (got == nil) || want != nil && !errors.Is(got, engine.ErrConflict) {
			t.Fatalf("step %d: %v, want %v", step, got, want)
		}
		if want != nil {
			conflicts++
		}
		r := engine.Range{Start: key(), Limit: rng.IntN(6)}
		if rng.IntN(2) == 0 {
			r.End = key()
		}
		if got, want := list(t, over, r), list(t, model, r); got != want {
			t.Fatalf("step %d: %+v: %s, want %s", step, r, got, want)
		}
		a, err := over.Get(ctx, g, k)
		if err != nil {
			t.Fatal(err)
		}
		c, err := model.Get(ctx, g, k)
		if err != nil || fmt.Sprint(a) != fmt.Sprint(c) {
			t.Fatalf("step %d: %q, want %q, %v", step, a, c, err)
		}
	}
	if after := list(t, base, engine.Range{}); after != before || conflicts == 0 {
		t.Errorf("%d conflicts; beneath it was\n%s, and is\n%s", conflicts, before, after)
	}
}
