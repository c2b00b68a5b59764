package turnstone_test

import (
	"context"
	"fmt"
	"iter"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// A counter counts what is read of an engine.
type counter struct {
	engine.Engine
	calls   int // Get and Scan
	records int // keys asked for and pairs scanned
}

func (c *counter) Get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	c.calls++
	c.records += len(ks)
	return c.Engine.Get(ctx, ks...)
}

func (c *counter) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	c.calls++
	return func(yield func(engine.Pair, error) bool) {
		for p, err := range c.Engine.Scan(ctx, r) {
			c.records++
			if !yield(p, err) {
				return
			}
		}
	}
}

// VF2: Verify reads in proportion to the store, also when forks follow each other to
// the greatest depth, and go on from what they inherit.
func TestVF2_VerifyReadsEachHistoryOnce(t *testing.T) {
	testscale.Slow(t)
	cost := func(depth int, deleted bool) (calls, records float64) {
		c := &counter{Engine: memory.New()}
		st := openStore(t, c, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
		root := create(t, st, turnstone.Request{ID: "0"})
		first := commitTo(t, root, turnstone.Commit{Nodes: saying([]byte("first")), Checkpoint: map[string][]byte{"p": []byte("0")}}).Nodes[0]
		for i := range depth {
			f := create(t, st, turnstone.Request{ID: fmt.Sprint(i + 1), Parent: fmt.Sprint(i)})
			commitTo(t, f, turnstone.Commit{Nodes: saying(fmt.Append(nil, i)), Checkpoint: map[string][]byte{"p": fmt.Append(nil, i)}})
			commitTo(t, f, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "branch", Parent: turnstone.RefTo(first)}}})
		}
		if _, err := st.GC(ctx, gc.Options{}); err != nil {
			t.Fatal(err)
		}
		if deleted {
			for i := range depth {
				if err := st.Delete(ctx, fmt.Sprint(i), turnstone.KeepChildren); err != nil {
					t.Fatal(err)
				}
			}
		}
		c.calls, c.records = 0, 0
		v, err := st.Verify(ctx, turnstone.VerifyOptions{})
		if err != nil || !v.OK() || v.Records < depth {
			t.Fatal(v.Problems, err)
		}
		return float64(c.calls) / float64(depth+1), float64(c.records) / float64(v.Records)
	}
	for _, deleted := range []bool{false, true} {
		calls16, records16 := cost(16, deleted)
		calls256, records256 := cost(256, deleted)
		t.Logf("deleted: %v; at depth 16: %.1f calls a session, each record read %.1f times; at 256: %.1f, %.1f", deleted, calls16, records16, calls256, records256)
		if calls256 > 1.2*calls16 || records256 > 1.2*records16 {
			t.Error("a deeper chain costs more for each session")
		}
	}
}
