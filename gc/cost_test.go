package gc_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
)

// counting opens a store that counts what it reads of its engine: keys and pairs.
func counting(t *testing.T, now func() time.Time) (st *turnstone.Store, read *int) {
	t.Helper()
	c := &readCounter{}
	st, err := turnstone.Open(ctx, memory.New(), &turnstone.Options{InlineBytes: 1, NoAutoSeal: true, TakeOverAfter: -1, Now: now, UploadTTL: time.Hour, Observer: c})
	if err != nil {
		t.Fatal(err)
	}
	return st, &c.read
}

type readCounter struct{ read int }

func (c *readCounter) Begin(ctx context.Context, o turnstone.Operation) (context.Context, func(turnstone.Outcome)) {
	if o.Name != turnstone.OpEngineGet && o.Name != turnstone.OpEngineScan {
		return ctx, nil
	}
	return ctx, func(out turnstone.Outcome) { c.read += out.Items }
}

// G9: what a collection reads follows what changed. Deleted forks let go of their
// deleted parent once, however many they are.
func TestG9_ReleasingForksReadsInProportionToThem(t *testing.T) {
	reads := func(forks int) int {
		st, read := counting(t, fixed)
		commit(t, create(t, st, turnstone.Request{ID: "p"}), says(big))
		for i := range 2 * forks {
			create(t, st, turnstone.Request{ID: fmt.Sprint("f", i), Parent: "p"})
		}
		if err := st.Delete(ctx, "p", turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
		collected(t, st, gc.Options{})
		for i := range forks {
			if err := st.Delete(ctx, fmt.Sprint("f", i), turnstone.KeepChildren); err != nil {
				t.Fatal(err)
			}
		}
		*read = 0
		collected(t, st, gc.Options{})
		return *read
	}
	few, many := reads(20), reads(200)
	if t.Logf("20 forks: %d, 200 forks: %d keys and pairs", few, many); many > 15*few {
		t.Errorf("200 forks read %d keys and pairs, 20 forks %d", many, few)
	}
}

// G9: a collection after the floor moved reads the commits since the floor before.
func TestG9_AMovedFloorReadsFromTheFloor(t *testing.T) {
	reads := func(commits int) int {
		st, read := counting(t, fixed)
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range commits {
			commit(t, s, saves(noise(600, uint64(i))))
		}
		prune(t, s)
		collected(t, st, gc.Options{})
		commit(t, s, saves(noise(600, uint64(commits))))
		prune(t, s)
		*read = 0
		if r := collected(t, st, gc.Options{}); r.Deleted != 1 {
			t.Fatalf("%+v", r)
		}
		return *read
	}
	few, many := reads(50), reads(1000)
	if t.Logf("after 50 commits: %d, after 1,000: %d keys and pairs", few, many); many > few+5 {
		t.Errorf("one commit more reads %d keys and pairs after 1,000 commits, %d after 50", many, few)
	}
}

// G9: what a vacuum reads follows what changed since the last one: neither the number of
// sessions, nor of blobs, nor of tombstones in the store matters.
func TestG9_AVacuumReadsWhatChanged(t *testing.T) {
	reads := func(sessions int) (idle, one int) {
		now := epoch
		st, read := counting(t, func() time.Time { return now })
		for i := range sessions {
			s := create(t, st, turnstone.Request{ID: fmt.Sprint("s", i)})
			r := commit(t, s, turnstone.Commit{Nodes: says([]byte("1"), noise(6000, uint64(i))).Nodes, Checkpoint: map[string][]byte{"p": noise(600, uint64(i))}})
			commit(t, s, saves(noise(600, uint64(sessions+i))))
			create(t, st, turnstone.Request{ID: fmt.Sprint("f", i), Parent: s.ID(), ForkNode: r.Nodes[0]})
			if err := s.Tombstone(ctx, r.Nodes[1]); err != nil {
				t.Fatal(err)
			}
			switch i % 3 {
			case 0:
				prune(t, s)
			case 1:
				if err := st.Delete(ctx, s.ID(), turnstone.KeepChildren); err != nil {
					t.Fatal(err)
				}
			}
		}
		now = now.Add(time.Minute)
		if r := vacuumed(t, st); r.Nodes == 0 || r.Packed == 0 {
			t.Fatalf("%+v", r)
		}
		now = now.Add(time.Minute)
		*read = 0
		vacuumed(t, st)
		idle = *read
		s, err := st.Session(ctx, "s2")
		if err != nil {
			t.Fatal(err)
		}
		commit(t, s, says([]byte("new")))
		r := commit(t, s, says([]byte("newer")))
		if err := s.Tombstone(ctx, r.Nodes[0]); err != nil {
			t.Fatal(err)
		}
		*read = 0
		if r := vacuumed(t, st); r.Nodes != 1 {
			t.Fatalf("%+v", r)
		}
		return idle, *read
	}
	idle, one := reads(6)
	manyIdle, manyOne := reads(300)
	t.Logf("idle, 6 sessions: %d, 300 sessions: %d keys and pairs; one changed: %d, %d", idle, manyIdle, one, manyOne)
	if manyIdle > idle || manyOne > one {
		t.Errorf("a vacuum of 300 sessions reads %d keys and pairs, and %d if one has changed; of 6 sessions %d and %d", manyIdle, manyOne, idle, one)
	}
}
