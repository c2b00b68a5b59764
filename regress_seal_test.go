package turnstone_test

import (
	"testing"

	"github.com/turnstonedb/turnstone"

	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

func TestCorruptWhileSealing(t *testing.T) {
	testscale.Slow(t)
	for _, op := range []string{"commit", "tombstone", "fork", "replay", "load", "seal"} {
		e := &pager{Engine: memory.New()}
		st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1, SealBytes: 1 << 20})
		s := create(t, st, turnstone.Request{ID: "s"})
		var n []turnstone.NewNode
		for i := range 120 {
			n = append(n, turnstone.NewNode{Kind: "u", Payload: random(5000, uint64(i))})
		}
		r := commitAt(t, s, turnstone.Commit{Turn: "T", Nodes: n})
		commitAt(t, s, turnstone.Commit{Expected: 1, Nodes: saying([]byte("x"))})
		commitAt(t, s, turnstone.Commit{Expected: 2, Nodes: saying([]byte("x"))})
		other, err := st.Session(ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		k := turnstone.SpaceOf(st).Pack(turnstone.IncarnationOf(s), 1, 0)
		seen := 0
		e.between = func(key []byte) {
			if string(key) == string(k) {
				if seen++; seen == 2 || op == "seal" || op == "load" { // the rescan with the limit known
					e.between = nil
					if err := other.Seal(ctx); err != nil {
						t.Error("seal", err)
					}
				}
			}
		}
		switch op {
		case "commit":
			_, err = s.Commit(ctx, turnstone.Commit{Expected: 3, Nodes: []turnstone.NewNode{{Kind: "u", Parent: turnstone.RefTo(r.Leaf)}}})
		case "tombstone":
			err = s.Tombstone(ctx, r.Nodes[0])
		case "fork":
			_, _, err = st.Create(ctx, turnstone.Request{ID: "f", Parent: "s", ForkNode: r.Leaf})
		case "replay":
			_, err = s.Commit(ctx, turnstone.Commit{Turn: "T", Nodes: n})
		case "load":
			_, err = s.Load(ctx, turnstone.Scope{})
		case "seal":
			err = s.Seal(ctx)
		}
		if err != nil || seen == 0 {
			t.Error(op, seen, err)
		}
	}
}
