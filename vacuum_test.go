package turnstone_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/disk"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// contents returns what is in the files of a directory.
func contents(t *testing.T, dir string) (files [][]byte) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		files = append(files, data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// inFiles reports whether any of the files has b.
func inFiles(files [][]byte, b []byte) bool {
	return slices.ContainsFunc(files, func(data []byte) bool { return bytes.Contains(data, b) })
}

// T4, D1, G5: what was tombstoned or deleted is in no file after a vacuum.
func TestVacuumLeavesNoByteBehind(t *testing.T) {
	testscale.Slow(t)
	for name, open := range map[string]func(dir string) (engine.Engine, error){
		"badger": func(dir string) (engine.Engine, error) { return badger.Open(dir, nil) },
		"pebble": func(dir string) (engine.Engine, error) { return pebble.Open(dir, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir() + "/store"
			e, err := open(dir)
			if err != nil {
				t.Fatal(err)
			}
			st := openStore(t, e, &turnstone.Options{Retention: 2})
			var gone, stay [][]byte
			fill := func(id string, base uint64) (*turnstone.Session, []graph.ID) {
				s, _, err := st.Create(ctx, turnstone.Request{ID: id})
				if err != nil {
					t.Fatal(err)
				}
				var ids []graph.ID
				for i := range 4 {
					small, large := random(300, base+uint64(2*i)), random(9000, base+uint64(2*i+1))
					r, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Turn: fmt.Sprint("t", i), Nodes: []turnstone.NewNode{
						{Kind: "u", Payload: small}, {Kind: "a", Payload: large},
					}, Checkpoint: map[string][]byte{"p": append(random(40_000, base+50), random(200, base+100+uint64(i))...)}})
					if err != nil {
						t.Fatal(err)
					}
					ids = append(ids, r.Nodes...)
				}
				return s, ids
			}
			a, ids := fill("a", 1000)
			b, _ := fill("b", 2000)
			if err := a.Seal(ctx); err != nil {
				t.Fatal(err)
			}
			if err := a.Tombstone(ctx, ids[2], ids[3]); err != nil {
				t.Fatal(err)
			}
			gone = append(gone, random(300, 1002), random(9000, 1003)) // tombstoned
			for i := range uint64(8) {
				gone = append(gone, random(300, 2000+2*i)[:64], random(9000, 2001+2*i)[:64]) // deleted
				if i != 1 && i < 4 {
					stay = append(stay, random(300, 1000+2*i), random(9000, 1001+2*i))
				}
			}
			for i := range uint64(4) {
				gone = append(gone, random(200, 2100+i))
				if i < 2 {
					gone = append(gone, random(200, 1100+i)) // pruned checkpoints
				} else {
					stay = append(stay, random(200, 1100+i))
				}
			}
			if err := st.Delete(ctx, b.ID(), turnstone.KeepChildren); err != nil {
				t.Fatal(err)
			}
			if n, err := st.Prune(ctx); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			r := vacuum(t, st)
			if r.Nodes != 2+8 || r.Removed != 1 || r.Rewritten == 0 {
				t.Errorf("%+v", r)
			}
			if r := vacuum(t, st); r.Nodes != 0 || r.Records != 0 || r.Removed != 0 || r.Deleted != 0 || r.Rewritten != 0 {
				t.Errorf("again: %+v", r)
			}
			verify(t, st)
			files := contents(t, dir)
			for i, g := range gone {
				if inFiles(files, g) {
					t.Errorf("marker %d is there", i)
				}
			}
			for i, g := range stay {
				if !holds(t, e, g) {
					t.Errorf("marker %d is gone", i)
				}
			}
			state, err := a.Load(ctx, turnstone.Scope{})
			if err != nil || len(state.Nodes) != 6 {
				t.Error(err)
			}
			if err := a.Tombstone(ctx, ids[2]); err != nil {
				t.Error("tombstone twice:", err)
			}
			if _, err := a.Node(ctx, ids[2]); !errors.Is(err, turnstone.ErrNodeNotFound) {
				t.Error(err)
			}
			// The retry of an erased turn finds its result, whatever it brings.
			again, err := a.Commit(ctx, turnstone.Commit{Turn: "t1", Expected: 1, Nodes: []turnstone.NewNode{{Kind: "u", Payload: []byte("other")}}})
			if err != nil || !again.Replayed || again.Revision != 2 || !slices.Equal(again.Nodes, ids[2:4]) {
				t.Error(again, err)
			}
			if r := collect(t, st, gc.Options{Full: true}); r.Deleted != 0 || r.Repaired {
				t.Errorf("full: %+v", r)
			}
			if err := errors.Join(st.Close(), e.Close()); err != nil {
				t.Fatal(err)
			}
			if e, err = open(dir); err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			verify(t, openStore(t, e, nil))
		})
	}
}

func TestMaintain(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, &turnstone.Options{Retention: 1})
	s, _, err := st.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan error, 100)
	stop, err := st.Maintain(turnstone.MaintainOptions{Every: time.Millisecond, VacuumEvery: 3 * time.Millisecond, Report: func(g *gc.Report, v *gc.VacuumReport, err error) {
		select {
		case reports <- err:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Checkpoint: map[string][]byte{"p": random(6000, uint64(i))}}); err != nil {
			t.Fatal(err)
		}
		if err := <-reports; err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		<-reports
	}
	stop()
	stop()
	if n := letters(t, e)[keys.Mark]; n != 1 {
		t.Errorf("%d blobs", n)
	}
	verify(t, st)
	if _, err := st.Maintain(turnstone.MaintainOptions{Every: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

// G5: half of many sessions with a checkpoint every turn are deleted; after gc
// and vacuum the store takes about what one that never had them does.
func TestDeletingHalfGivesTheSpaceBack(t *testing.T) {
	testscale.Slow(t)
	sessions, turns := testscale.Pick(2000, 400, 200), 5
	for name, open := range map[string]func(dir string) (engine.Engine, error){
		"badger": func(dir string) (engine.Engine, error) {
			return badger.Open(dir, &badger.Options{Durability: badger.Process})
		},
		"pebble": func(dir string) (engine.Engine, error) {
			return pebble.Open(dir, &pebble.Options{NoSync: !testscale.Long()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "badger" {
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
				e, err := open(dir)
				if err != nil {
					t.Fatal(err)
				}
				st := openStore(t, e, nil)
				work(st, dir)
				if err := errors.Join(st.Close(), e.Close()); err != nil {
					t.Fatal(err)
				}
				n, err := disk.Allocated(dir)
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
				before, err := disk.Allocated(dir)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("before: %d bytes", before)
				for i := range sessions {
					if !even(i) {
						if err := st.Delete(ctx, fmt.Sprint("s", i), turnstone.KeepChildren); err != nil {
							t.Fatal(err)
						}
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

// A checkpoint that is too large for a batch is stored anew as chunks when the
// version that it was a delta of is pruned.
func TestLargeCheckpointsLetGoOfTheirBase(t *testing.T) {
	testscale.Slow(t)
	e := memory.New()
	st := openStore(t, e, nil)
	s, _, err := st.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	old, now, secret := random(2<<20, 1), random(2<<20, 1), random(300, 2)
	copy(old[1<<20:], secret)
	for i, content := range [][]byte{old, now} {
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Checkpoint: map[string][]byte{"p": content}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Prune(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if r := vacuum(t, st); r.Rewritten != 1 || holds(t, e, secret[:64]) {
		t.Errorf("%+v", r)
	}
	if r := vacuum(t, st); r.Rewritten != 0 || r.Deleted != 0 {
		t.Errorf("again: %+v", r)
	}
	parts, err := s.Checkpoint(ctx, 0)
	if err != nil || !bytes.Equal(parts["p"], now) {
		t.Error(err)
	}
	if r := collect(t, st, gc.Options{Full: true}); r.Deleted != 0 || r.Repaired {
		t.Errorf("full: %+v", r)
	}
	if n := letters(t, e); n[keys.Upload] != 0 || n[keys.Candidate] != 0 {
		t.Errorf("records left: %v", n)
	}
	verify(t, st)
}
