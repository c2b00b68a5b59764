package history_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/cache"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A header that announces a million turns makes a reader allocate no memory for them.
func TestASegmentAllocatesForWhatItHas(t *testing.T) {
	all, states := historyOf(t, 1)
	r := stored(t, all, states, 1)
	values, err := r.Engine.Get(ctx, space.Segment(inc, 1, 0), space.Segment(inc, 1, 1))
	if err != nil {
		t.Fatal(err)
	}
	const last = 1 << 20
	end := codec.Encoder{}
	end.Array(10)
	states[1].Append(&end)
	first, second := space.Segment(inc, last, 0), space.Segment(inc, last, 1)
	header := []byte{0xff, 0xff, 0x3f, 2<<2 | byte(codec.Best)} // the first revision is 1, 2 values
	set(t, r.Engine, [][]byte{first, second}, [][]byte{
		codec.Encode(first, keys.Segment, header, end.B), codec.Encode(second, keys.Segment, values[1][2:len(values[1])-4]),
	}, nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = r.At(ctx, inc, "", last)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, damage.ErrMalformed) || !strings.Contains(err.Error(), "turns of revisions") {
		t.Error(err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes allocated", n)
	}
}

// A segment whose last value is lost at the end of a history is missing it.
func TestASegmentWithoutItsLastValueIsMissingIt(t *testing.T) {
	all, states := historyOf(t, 4)
	r := stored(t, all, states, 4)
	if err := r.Engine.Apply(ctx, &engine.Batch{Deletes: [][]byte{space.Segment(inc, 4, 1)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.At(ctx, inc, "", 2); !errors.Is(err, damage.ErrMissing) {
		t.Error(err)
	}
}

// Payloads that compress well take as much memory in the cache as others do.
func TestTheCacheCountsPayloadsByTheirLength(t *testing.T) {
	const payload, n, maximum = 60 << 10, 40, 1 << 20
	state := head.Begin(inc, nil)
	r := stored(t, nil, []head.State{state})
	r.Cache = history.NewTurnCache(cache.NewBudget(maximum))
	for i := range n { // segments of one turn
		p := graph.Pack{Revision: uint64(i + 1), Salt: graph.Salt{1}, Nodes: []graph.Node{{Parent: state.Last, Kind: "u", Inline: []byte(strings.Repeat("x", payload))}}}
		p.Nodes[0].Derive(p.Salt, 0, nil)
		turn := history.Turn{Pack: p, Commit: head.Commit{Revision: head.Revision(i + 1), Previous: state.Commit, Leaf: p.Nodes[0].ID, Depth: uint64(i + 1), Time: state.Time, Turn: fmt.Sprint(i)}}
		turn.Complete(&turn.Pack, state.Last)
		turn.ID = turn.Commit.ID()
		end, err := state.Then(&turn.Commit, turn.ID)
		if err != nil {
			t.Fatal(err)
		}
		s := history.Segment{First: turn.Revision, Last: turn.Revision, Level: codec.Best, Before: state.Base, End: end, Turns: []history.Turn{turn}}
		ks, vs, err := history.EncodeSealed(space, inc, &s)
		set(t, r.Engine, ks, vs, err)
		state = end
	}
	held := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := held()
	for i := range n {
		if _, err := r.At(ctx, inc, "", head.Revision(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	if after := held(); after > before+maximum*3/2 {
		t.Errorf("%d bytes in a cache of %d", after-before, maximum)
	}
	runtime.KeepAlive(r)
}
