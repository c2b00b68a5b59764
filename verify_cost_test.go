package turnstone_test

import (
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// VF2: Verify reads in proportion to the store, also when forks follow each other to
// the greatest depth, and go on from what they inherit.
func TestVF2_VerifyReadsEachHistoryOnce(t *testing.T) {
	testscale.Slow(t)
	cost := func(depth int, deleted bool) (calls, records float64) {
		read, called := 0, 0 // keys asked for and pairs scanned; Get and Scan
		e := &enginetest.Faulty{Engine: memory.New(), Done: func(c enginetest.Call, _ error) {
			if c.Op == "Get" || c.Op == "Scan" {
				read += c.Read
				called++
			}
		}}
		st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
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
		read, called = 0, 0
		v, err := st.Verify(ctx, turnstone.VerifyOptions{})
		if err != nil || !v.OK() || v.Records < depth {
			t.Fatal(v.Problems, err)
		}
		return float64(called) / float64(depth+1), float64(read) / float64(v.Records)
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
