package gc_test

import (
	"context"
	"fmt"
	"iter"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// A counting engine counts what is read: keys that are got, and pairs that are scanned.
type counting struct {
	engine.Engine
	read int
}

func (c *counting) Get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	c.read += len(ks)
	return c.Engine.Get(ctx, ks...)
}

func (c *counting) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		for p, err := range c.Engine.Scan(ctx, r) {
			c.read++
			if !yield(p, err) {
				return
			}
		}
	}
}

// G9: what a collection reads follows what changed. Deleted forks let go of their
// deleted parent once, however many they are.
func TestG9_ReleasingForksReadsInProportionToThem(t *testing.T) {
	reads := func(forks int) int {
		e := &counting{Engine: memory.New()}
		st := openAt(t, e, fixed)
		commit(t, create(t, st, turnstone.Request{ID: "p"}), says(big))
		for i := range 2 * forks {
			create(t, st, turnstone.Request{ID: fmt.Sprint("f", i), Parent: "p"})
		}
		if err := st.Delete(ctx, "p", turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
		collected(t, st, turnstone.GCOptions{})
		for i := range forks {
			if err := st.Delete(ctx, fmt.Sprint("f", i), turnstone.KeepChildren); err != nil {
				t.Fatal(err)
			}
		}
		e.read = 0
		collected(t, st, turnstone.GCOptions{})
		return e.read
	}
	few, many := reads(20), reads(200)
	if t.Logf("20 forks: %d, 200 forks: %d keys and pairs", few, many); many > 15*few {
		t.Errorf("200 forks read %d keys and pairs, 20 forks %d", many, few)
	}
}

// G9: a collection after the floor moved reads the commits since the floor before.
func TestG9_AMovedFloorReadsFromTheFloor(t *testing.T) {
	reads := func(commits int) int {
		e := &counting{Engine: memory.New()}
		st := openAt(t, e, fixed)
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range commits {
			commit(t, s, saves(noise(600, uint64(i))))
		}
		prune(t, s)
		collected(t, st, turnstone.GCOptions{})
		commit(t, s, saves(noise(600, uint64(commits))))
		prune(t, s)
		e.read = 0
		if r := collected(t, st, turnstone.GCOptions{}); r.Deleted != 1 {
			t.Fatalf("%+v", r)
		}
		return e.read
	}
	few, many := reads(50), reads(1000)
	if t.Logf("after 50 commits: %d, after 1,000: %d keys and pairs", few, many); many > few+5 {
		t.Errorf("one commit more reads %d keys and pairs after 1,000 commits, %d after 50", many, few)
	}
}
