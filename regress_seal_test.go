package turnstone

import (
	"context"
	"iter"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// pages of one pair, as Badger and Pebble make of 480 KiB values (pageBytes 256 KiB)
type small struct {
	engine.Engine
	between func(k []byte)
}

func (e *small) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return engine.Paged(r, func(r engine.Range) ([]engine.Pair, bool, error) {
		limit := r.Limit
		r.Limit = 1
		var out []engine.Pair
		for p, err := range e.Engine.Scan(ctx, r) {
			if err != nil {
				return nil, false, err
			}
			out = append(out, p)
		}
		if len(out) > 0 && e.between != nil {
			e.between(out[0].Key)
		}
		return out, len(out) > 0 && limit != 1, nil
	})
}

func TestCorruptWhileSealing(t *testing.T) {
	testscale.Slow(t)
	for _, op := range []string{"commit", "tombstone", "fork", "replay", "load", "seal"} {
		e := &small{Engine: memory.New()}
		st := open(t, e, &Options{NoAutoSeal: true, TakeOverAfter: -1, SealBytes: 1 << 20})
		s := mk(t, st, Request{ID: "s"})
		var n []NewNode
		for i := range 120 {
			n = append(n, NewNode{Kind: "u", Payload: rnd(5000, uint64(i))})
		}
		r := must(t, s, Commit{Turn: "T", Nodes: n})
		must(t, s, Commit{Expected: 1, Nodes: node("x")})
		must(t, s, Commit{Expected: 2, Nodes: node("x")})
		other, err := st.Session(bg, "s")
		if err != nil {
			t.Fatal(err)
		}
		k := st.space.Pack(s.session.Inc, 1, 0)
		seen := 0
		e.between = func(key []byte) {
			if string(key) == string(k) {
				if seen++; seen == 2 || op == "seal" || op == "load" { // the rescan with the limit known
					e.between = nil
					if err := other.Seal(bg); err != nil {
						t.Error("seal", err)
					}
				}
			}
		}
		switch op {
		case "commit":
			_, err = s.Commit(bg, Commit{Expected: 3, Nodes: []NewNode{{Kind: "u", Parent: RefTo(r.Leaf)}}})
		case "tombstone":
			err = s.Tombstone(bg, r.Nodes[0])
		case "fork":
			_, _, err = st.Create(bg, Request{ID: "f", Parent: "s", ForkNode: r.Leaf})
		case "replay":
			_, err = s.Commit(bg, Commit{Turn: "T", Nodes: n})
		case "load":
			_, err = s.Load(bg, Scope{})
		case "seal":
			err = s.Seal(bg)
		}
		if err != nil || seen == 0 {
			t.Error(op, seen, err)
		}
	}
}
