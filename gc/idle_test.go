package gc_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// G9: what a vacuum reads follows what changed since the last one: neither the number of
// sessions, nor of blobs, nor of tombstones in the store matters.
func TestG9_AVacuumReadsWhatChanged(t *testing.T) {
	reads := func(sessions int) (idle, one int) {
		e := &counting{Engine: memory.New()}
		now := epoch
		st := openAt(t, e, func() time.Time { return now })
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
		e.read = 0
		vacuumed(t, st)
		idle = e.read
		s, err := st.Session(ctx, "s2")
		if err != nil {
			t.Fatal(err)
		}
		commit(t, s, says([]byte("new")))
		r := commit(t, s, says([]byte("newer")))
		if err := s.Tombstone(ctx, r.Nodes[0]); err != nil {
			t.Fatal(err)
		}
		e.read = 0
		if r := vacuumed(t, st); r.Nodes != 1 {
			t.Fatalf("%+v", r)
		}
		return idle, e.read
	}
	idle, one := reads(6)
	manyIdle, manyOne := reads(300)
	t.Logf("idle, 6 sessions: %d, 300 sessions: %d keys and pairs; one changed: %d, %d", idle, manyIdle, one, manyOne)
	if manyIdle > idle || manyOne > one {
		t.Errorf("a vacuum of 300 sessions reads %d keys and pairs, and %d if one has changed; of 6 sessions %d and %d", manyIdle, manyOne, idle, one)
	}
}
