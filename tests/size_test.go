package tests

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// After Close the files of both embedded engines are in proportion to what they
// hold: 100 sessions of 100 events take at most 1.5 times as much on Pebble.
func TestFilesAfterCloseAreInProportion(t *testing.T) {
	testkit.Slow(t)
	testkit.OneGoroutine(t)
	sizes := map[string]int64{}
	for name, start := range map[string]func(dir string) (engine.Engine, error){
		"badger": func(dir string) (engine.Engine, error) {
			return badger.Open(dir, &badger.Options{Durability: badger.Process})
		},
		"pebble": func(dir string) (engine.Engine, error) {
			return pebble.Open(dir, &pebble.Options{Durability: pebble.Process})
		},
	} {
		dir := t.TempDir() + "/store"
		e, err := start(dir)
		if err != nil {
			t.Fatal(err)
		}
		st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
		for i := range 100 {
			s := create(t, st, turnstone.Request{ID: fmt.Sprint("session ", i)})
			for j := range 100 {
				commitTo(t, s, turnstone.Commit{Nodes: saying(fmt.Appendf(nil, "event %d of session %d", j, i))})
			}
		}
		if err := errors.Join(st.Close(), e.Close()); err != nil {
			t.Fatal(err)
		}
		if sizes[name], err = open.Allocated(dir); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("Pebble %d bytes, Badger %d: %.2f times", sizes["pebble"], sizes["badger"], float64(sizes["pebble"])/float64(sizes["badger"]))
	if 2*sizes["pebble"] > 3*sizes["badger"] {
		t.Errorf("Pebble takes %d bytes, Badger %d", sizes["pebble"], sizes["badger"])
	}
}

// Half of many sessions with a checkpoint every turn are deleted; after gc
// and vacuum the store takes about what one that never had them does.
func TestG5_DeletingHalfGivesTheSpaceBack(t *testing.T) {
	testkit.Slow(t)
	sessions, turns := testkit.Pick(1000, 400, 200), 5
	for name, start := range map[string]func(dir string) (engine.Engine, error){
		"badger": func(dir string) (engine.Engine, error) {
			return badger.Open(dir, &badger.Options{Durability: badger.Process})
		},
		"pebble": func(dir string) (engine.Engine, error) {
			o := pebble.Options{}
			if !testkit.Long() {
				o.Durability = pebble.Process
			}
			return pebble.Open(dir, &o)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "pebble" {
				t.Skip("-short: on the default engine alone")
			}
			marker := func(i, turn int) []byte { return random(120, uint64(1_000_000+100*i+turn)) }
			fill := func(st *turnstone.Store, want func(i int) bool) {
				var wg sync.WaitGroup
				for g := range 8 {
					wg.Go(func() {
						for i := g; i < sessions; i += 8 {
							if !want(i) {
								continue
							}
							s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", i)})
							state := random(3000, uint64(i))
							for turn := 0; turn < turns && err == nil; turn++ {
								copy(state[100*turn:], marker(i, turn))
								_, err = s.Commit(ctx, turnstone.Commit{Expected: head.Revision(turn), Nodes: []turnstone.NewNode{
									{Kind: "user", Payload: fmt.Appendf(nil, "turn %d of session %d", turn, i)},
									{Kind: "assistant", Payload: bytes.Repeat([]byte("some text that repeats itself; "), 10)},
								}, Checkpoint: map[string][]byte{"state": state}})
							}
							if err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			}
			even := func(i int) bool { return i%2 == 0 }
			size := func(what string, work func(st *turnstone.Store, dir string)) int64 {
				dir := t.TempDir() + "/store"
				e, err := start(dir)
				if err != nil {
					t.Fatal(err)
				}
				st := openStore(t, e, nil)
				work(st, dir)
				if err := errors.Join(st.Close(), e.Close()); err != nil {
					t.Fatal(err)
				}
				n, err := open.Allocated(dir)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%s: %d bytes", what, n)
				return n
			}
			fresh := size("the other half alone", func(st *turnstone.Store, _ string) {
				fill(st, even)
				vacuum(t, st)
			})
			half := size("after deleting half", func(st *turnstone.Store, dir string) {
				fill(st, func(int) bool { return true })
				collect(t, st, gc.Options{})
				before, err := open.Allocated(dir)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("before: %d bytes", before)
				for i := range sessions {
					if !even(i) {
						remove(t, st, fmt.Sprint("s", i))
					}
				}
				collect(t, st, gc.Options{})
				if r := vacuum(t, st); r.Removed != sessions/2 {
					t.Errorf("%+v", r)
				}
				verify(t, st)
				files := contents(t, dir)
				for i := 1; i < sessions; i += sessions / 20 {
					for turn := range turns {
						if inFiles(files, marker(i|1, turn)[:40]) {
							t.Fatalf("bytes of session %d are there", i|1)
						}
					}
				}
			})
			if ratio := float64(half) / float64(fresh); ratio > 1.15 {
				t.Errorf("%.3f times the size of a fresh store", ratio)
			} else {
				t.Logf("%.3f times the size of a fresh store", ratio)
			}
		})
	}
}
