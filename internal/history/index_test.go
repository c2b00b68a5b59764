package history_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/cache"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
)

// sealUpTo seals the turns after the last sealed one up to a revision, as another process does: no
// index in memory is told. It returns the lifecycle record.
func sealUpTo(t *testing.T, r history.Reader, all []history.Turn, states []head.State, life head.Life, end int) head.Life {
	t.Helper()
	life = life.Next()
	from := int(life.Indexed())
	s := history.Segment{First: head.Revision(from + 1), Last: head.Revision(end), Level: codec.Medium, Before: states[from].Base, End: states[end], Turns: all[from:end]}
	var b engine.Batch
	ks, vs, err := history.EncodeSealed(space, inc, &s)
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.Turns[:len(s.Turns)-1] {
		b.Delete(space.Segment(inc, uint64(s.Turns[i].Revision), 0))
	}
	for i := range ks {
		b.Set(ks[i], vs[i])
	}
	if err := r.Append(ctx, &b, inc, &life, s.Turns); err != nil {
		t.Fatal(err)
	}
	b.Set(space.Life(inc), life.Encode(space.Life(inc)))
	if err := r.Engine.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	return life
}

// mustFind checks that an index has the turn ids of all turns.
func mustFind(t *testing.T, r history.Reader, ix *history.Index, all []history.Turn) {
	t.Helper()
	for i := range all {
		got, err := r.Find(ctx, ix, history.Name{Kind: history.TurnEntry, Text: all[i].Turn})
		if want := (graph.Position{Revision: uint64(i + 1)}); err != nil || !slices.Contains(got, want) {
			t.Fatalf("turn %d: %v, %v", i+1, got, err)
		}
	}
}

func TestAnIndexIsNotSetBackByAnOlderLifecycleRecord(t *testing.T) {
	// The first run is too large to be taken in by the second one, so that it stays.
	const n = 2400
	all, states := historyOf(t, n)
	r := stored(t, all, states)
	begun := head.Life{State: head.Live}
	set(t, r.Engine, [][]byte{space.Life(inc)}, [][]byte{begun.Encode(space.Life(inc))}, nil)
	ix, err := r.Index(ctx, inc, n)
	if err != nil {
		t.Fatal(err)
	}
	first := sealUpTo(t, r, all, states, begun, 2000)
	second := sealUpTo(t, r, all, states, first, 2300)
	if len(second.Runs) != 2 {
		t.Fatalf("runs %v", second.Runs)
	}
	ix.Sealed(&second)
	ix.Sealed(&first)
	mustFind(t, r, ix, all)
}

// A flaky engine fails every scan while fail is set.
type flaky struct {
	engine.Engine
	fail error
}

func (f *flaky) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	if f.fail != nil {
		return func(yield func(engine.Pair, error) bool) { yield(engine.Pair{}, f.fail) }
	}
	return f.Engine.Scan(ctx, r)
}

// When runs were merged, whoever looks something up reads the index anew. Another one, who asks the same
// index, finds all that is in it meanwhile, and also when that fails.
func TestAnIndexThatCannotBeReadAnewStaysAsItIs(t *testing.T) {
	const n = 60
	all, states := historyOf(t, n)
	r := stored(t, all, states)
	e := &flaky{Engine: r.Engine}
	r.Engine, r.Pages = e, nil
	begun := head.Life{State: head.Live}
	set(t, e, [][]byte{space.Life(inc)}, [][]byte{begun.Encode(space.Life(inc))}, nil)
	first := sealUpTo(t, r, all, states, begun, 20)
	ix, err := r.Index(ctx, inc, n)
	if err != nil {
		t.Fatal(err)
	}
	second := sealUpTo(t, r, all, states, first, 40) // which takes in the run of the first
	if len(second.Runs) != 1 {
		t.Fatalf("runs %v", second.Runs)
	}
	e.fail = errors.New("no connection")
	if _, err := r.Find(ctx, ix, history.Name{Kind: history.TurnEntry, Text: all[50].Turn}); !errors.Is(err, e.fail) {
		t.Fatal(err)
	}
	e.fail = nil
	mustFind(t, r, ix, all)
}

// An index may grow for several readers at once, each of which tells the cache its size.
func TestAnIndexThatGrowsForManyAtOnceIsKept(t *testing.T) {
	const n = 2000
	all, states := historyOf(t, n)
	r := stored(t, all, states)
	begun := head.Life{State: head.Live}
	set(t, r.Engine, [][]byte{space.Life(inc)}, [][]byte{begun.Encode(space.Life(inc))}, nil)
	for range 5 {
		r.Indexes = history.NewIndexes(cache.NewBudget(1 << 20))
		r.Begin(inc)
		var readers sync.WaitGroup
		for i := range 8 {
			readers.Go(func() {
				for last := 10 + i; last <= n; last *= 2 {
					if _, err := r.Index(ctx, inc, head.Revision(last)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		readers.Wait()
	}
	ix, err := r.Index(ctx, inc, n)
	if err != nil {
		t.Fatal(err)
	}
	mustFind(t, r, ix, all)
}
