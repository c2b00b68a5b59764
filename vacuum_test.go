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
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/internal/disk"
	"github.com/turnstonedb/turnstone/internal/keys"
)

func vacuum(t *testing.T, st *turnstone.Store) *turnstone.VacuumReport {
	t.Helper()
	r, err := st.Vacuum(ctx, turnstone.VacuumOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// inFiles reports whether any file below dir contains b.
func inFiles(t *testing.T, dir string, b []byte) (found bool) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		found = found || bytes.Contains(data, b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// T4, D1, G5: what was tombstoned or deleted is in no file after a vacuum.
func TestVacuumLeavesNoByteBehind(t *testing.T) {
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
			fill := func(id string, base uint64) (*turnstone.Session, []turnstone.NodeID) {
				s, _, err := st.Create(ctx, turnstone.Request{ID: id})
				if err != nil {
					t.Fatal(err)
				}
				var ids []turnstone.NodeID
				for i := range 4 {
					small, large := noise(300, base+uint64(2*i)), noise(9000, base+uint64(2*i+1))
					r, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.Revision(i), Turn: fmt.Sprint("t", i), Nodes: []turnstone.NewNode{
						{Kind: "u", Payload: small}, {Kind: "a", Payload: large},
					}, Checkpoint: map[string][]byte{"p": append(noise(40_000, base+50), noise(200, base+100+uint64(i))...)}})
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
			gone = append(gone, noise(300, 1002), noise(9000, 1003)) // tombstoned
			for i := range uint64(8) {
				gone = append(gone, noise(300, 2000+2*i)[:64], noise(9000, 2001+2*i)[:64]) // deleted
				if i != 1 && i < 4 {
					stay = append(stay, noise(300, 1000+2*i), noise(9000, 1001+2*i))
				}
			}
			for i := range uint64(4) {
				gone = append(gone, noise(200, 2100+i))
				if i < 2 {
					gone = append(gone, noise(200, 1100+i)) // pruned checkpoints
				} else {
					stay = append(stay, noise(200, 1100+i))
				}
			}
			if err := st.Delete(ctx, b.ID(), turnstone.KeepChildren); err != nil {
				t.Fatal(err)
			}
			if n, err := st.Prune(ctx); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			r := vacuum(t, st)
			if r.Nodes != 2+8 || r.Removed != 1 || r.Rebased == 0 {
				t.Errorf("%+v", r)
			}
			if r := vacuum(t, st); r.Nodes != 0 || r.Records != 0 || r.Removed != 0 || r.Deleted != 0 || r.Rebased != 0 {
				t.Errorf("again: %+v", r)
			}
			healthy(t, st)
			for i, g := range gone {
				if inFiles(t, dir, g) {
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
			if r := collect(t, st, turnstone.GCOptions{Full: true}); r.Deleted != 0 || r.Repaired {
				t.Errorf("full: %+v", r)
			}
			if err := errors.Join(st.Close(), e.Close()); err != nil {
				t.Fatal(err)
			}
			if e, err = open(dir); err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			healthy(t, openStore(t, e, nil))
		})
	}
}

// F5: deleting a parent leaves attached forks whole, the rest is reclaimed, and
// what they hold goes with the last of them.
func TestForksHoldWhatTheyShare(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, nil)
	p, _, err := st.Create(ctx, turnstone.Request{ID: "p"})
	if err != nil {
		t.Fatal(err)
	}
	var ids []turnstone.NodeID
	for i := range uint64(6) {
		r, err := p.Commit(ctx, turnstone.Commit{Expected: turnstone.Revision(i), Nodes: []turnstone.NewNode{
			{Kind: "u", Payload: noise(100, i)}, {Kind: "a", Payload: noise(9000, 50+i)},
		}, Checkpoint: map[string][]byte{"p": noise(9000, 100+i)}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, r.Nodes...)
	}
	fork := func(id, parent string, at turnstone.NodeID) *turnstone.Session {
		t.Helper()
		f, _, err := st.Create(ctx, turnstone.Request{ID: id, Parent: parent, ForkNode: at})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := fork("f", "p", ids[7]) // four turns
	g := fork("g", "f", ids[2]) // half of the second turn
	if _, err := f.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Payload: noise(9000, 200)}}}); err != nil {
		t.Fatal(err)
	}
	check := func(s *turnstone.Session, n int) {
		t.Helper()
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil || len(state.Nodes) != n {
			t.Fatal(s.ID(), err)
		}
		if _, err := s.Checkpoint(ctx, 0); err != nil {
			t.Fatal(err)
		}
		for _, n := range state.Nodes {
			if got, err := s.Node(ctx, n.ID); err != nil || !bytes.Equal(got.Payload, n.Payload) {
				t.Fatal(err)
			}
		}
		healthy(t, st)
	}
	remove := func(id string) *turnstone.VacuumReport {
		t.Helper()
		if err := st.Delete(ctx, id, turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
		r := vacuum(t, st)
		if again := vacuum(t, st); again.Deleted != 0 || again.Nodes != 0 || again.Records != 0 {
			t.Errorf("again: %+v", again)
		}
		if full := collect(t, st, turnstone.GCOptions{Full: true}); full.Deleted != 0 || full.Repaired {
			t.Errorf("full: %+v", full)
		}
		return r
	}
	present := func(want ...uint64) {
		t.Helper()
		for _, i := range []uint64{0, 1, 2, 3, 4, 5, 50, 51, 52, 53, 54, 55, 100, 101, 102, 103, 104, 105, 200} {
			n := 9000
			if i < 50 {
				n = 100
			}
			if holds(t, e, noise(n, i)[:64]) != slices.Contains(want, i) {
				t.Errorf("payload %d is there: %v", i, !slices.Contains(want, i))
			}
		}
	}
	remove("p")
	check(f, 9)
	check(g, 3)
	present(0, 1, 2, 3, 50, 51, 52, 53, 103, 200, 100)
	// A fork at an inherited node whose checkpoint went with its session.
	if _, _, err := st.Create(ctx, turnstone.Request{ID: "late", Parent: "f", ForkNode: ids[3]}); !errors.Is(err, turnstone.ErrRevisionPruned) {
		t.Error(err)
	}
	fork("same", "f", ids[7])
	remove("f")
	check(g, 3)
	present(0, 1, 2, 3, 50, 51, 52, 53, 103, 100)
	remove("same")
	check(g, 3)
	present(0, 1, 50, 100)
	remove("g")
	present()
	for letter, n := range letters(t, e) {
		if letter != keys.Store && letter != keys.Grave && letter != keys.Run {
			t.Errorf("%d records %q are left", n, letter)
		}
	}
}

// A node that several sessions show goes when the last of them has tombstoned it.
func TestSharedNodesGoWithTheLast(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, nil)
	p, _, err := st.Create(ctx, turnstone.Request{ID: "p"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Payload: noise(100, 1)}, {Kind: "u", Payload: noise(9000, 2)}, {Kind: "u", Payload: []byte("end")}}})
	if err != nil {
		t.Fatal(err)
	}
	f, _, err := st.Create(ctx, turnstone.Request{ID: "f", Parent: "p"})
	if err != nil {
		t.Fatal(err)
	}
	there := func(want bool) {
		t.Helper()
		if holds(t, e, noise(100, 1)[:64]) != want || holds(t, e, noise(9000, 2)[:64]) != want {
			t.Errorf("the payloads are there: %v", !want)
		}
		healthy(t, st)
	}
	if err := p.Tombstone(ctx, r.Nodes[0], r.Nodes[1]); err != nil {
		t.Fatal(err)
	}
	if v := vacuum(t, st); v.Nodes != 0 {
		t.Errorf("%+v", v)
	}
	there(true)
	if s, err := f.Load(ctx, turnstone.Scope{}); err != nil || len(s.Nodes) != 3 {
		t.Error(err)
	}
	if err := f.Tombstone(ctx, r.Nodes[0], r.Nodes[1]); err != nil {
		t.Fatal(err)
	}
	if v := vacuum(t, st); v.Nodes != 2 {
		t.Errorf("%+v", v)
	}
	there(false)
	for _, s := range []*turnstone.Session{p, f} {
		if s, err := s.Load(ctx, turnstone.Scope{}); err != nil || len(s.Nodes) != 1 || s.Nodes[0].Parent != (turnstone.NodeID{}) {
			t.Error(err)
		}
	}
	late, _, err := st.Create(ctx, turnstone.Request{ID: "late", Parent: "p"})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := late.Load(ctx, turnstone.Scope{Full: true}); err != nil || len(s.Nodes) != 1 {
		t.Error(err)
	}
}

// Side branches go that no retained revision leads to and no fork holds.
func TestSideBranchesArePruned(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, nil)
	s, _, err := st.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	commit := func(i uint64, leaf turnstone.Ref, parent turnstone.Ref) turnstone.NodeID {
		t.Helper()
		a, err := s.PutAttachment(ctx, bytes.NewReader(noise(500, 100+i)), -1, "", "")
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Leaf: leaf, Nodes: []turnstone.NewNode{
			{Kind: "u", Parent: parent, Payload: noise(9000, i), Attachments: []turnstone.Attachment{a}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Nodes[0]
	}
	root := commit(0, turnstone.Ref{}, turnstone.Ref{})
	side := commit(1, turnstone.Ref{}, turnstone.Ref{})
	held := commit(2, turnstone.Ref{}, turnstone.At(root))
	if _, _, err := st.Create(ctx, turnstone.Request{ID: "f", Parent: "s", ForkNode: held}); err != nil {
		t.Fatal(err)
	}
	main := commit(3, turnstone.Ref{}, turnstone.At(root))
	other := commit(4, turnstone.At(main), turnstone.At(main))
	last := commit(5, turnstone.Ref{}, turnstone.At(main))
	if err := s.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prune(ctx, 1); err != nil {
		t.Fatal(err)
	}
	// The fork holds all of the first three turns, its own side branch included.
	if r := vacuum(t, st); r.Nodes != 1 {
		t.Errorf("%+v", r)
	}
	_, _, _ = side, other, last
	if err := st.Delete(ctx, "f", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prune(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if r := vacuum(t, st); r.Nodes != 2 {
		t.Errorf("%+v", r)
	}
	state, err := s.Load(ctx, turnstone.Scope{Full: true})
	if err != nil || len(state.Nodes) != 3 {
		t.Error(err, len(state.Nodes))
	}
	for i := range uint64(6) {
		want := i == 0 || i == 3 || i == 5
		if holds(t, e, noise(9000, i)[:64]) != want || holds(t, e, noise(500, 100+i)[:64]) != want {
			t.Errorf("payload %d is there: %v", i, !want)
		}
		var w bytes.Buffer
		a, err := s.Load(ctx, turnstone.Scope{})
		_ = a
		if _, rerr := s.ReadAttachment(ctx, &w, blob.Sum(noise(500, 100+i))); err != nil || (rerr == nil) != want || rerr != nil && !errors.Is(rerr, turnstone.ErrBlobNotFound) {
			t.Errorf("attachment %d: %v", i, rerr)
		}
	}
	healthy(t, st)
	if r := collect(t, st, turnstone.GCOptions{Full: true}); r.Deleted != 0 || r.Repaired {
		t.Errorf("full: %+v", r)
	}
}

func TestEraseSaysWhatIsLeft(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, nil)
	make := func(r turnstone.Request, payloads ...[]byte) (*turnstone.Session, []turnstone.NodeID) {
		t.Helper()
		s, _, err := st.Create(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		var c turnstone.Commit
		for _, p := range payloads {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "u", Payload: p})
		}
		res, err := s.Commit(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		return s, res.Nodes
	}
	secret, shared := noise(200, 1), noise(9000, 2)
	p, ids := make(turnstone.Request{ID: "p"}, secret, shared)
	f, _ := make(turnstone.Request{ID: "f", Parent: "p"}, []byte("x"))
	make(turnstone.Request{ID: "other"}, shared)
	r, err := p.Erase(ctx, nil, ids...)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.HeldBy, []string{"f"}) || r.Vacuum.Nodes != 0 || r.Shared != 1 || !holds(t, e, secret[:64]) {
		t.Errorf("%+v %+v", r, r.Vacuum)
	}
	if r, err = f.Erase(ctx, nil, ids...); err != nil {
		t.Fatal(err)
	}
	if len(r.HeldBy) != 0 || r.Vacuum.Nodes != 2 || !slices.Equal(r.SharedBy, []string{"other"}) || holds(t, e, secret[:64]) || !holds(t, e, shared[:64]) {
		t.Errorf("%+v %+v", r, r.Vacuum)
	}
	if r, err = st.Erase(ctx, "p", turnstone.KeepChildren, nil); err != nil || !slices.Equal(r.HeldBy, []string{"f"}) {
		t.Errorf("%+v %v", r, err)
	}
	if r, err = st.Erase(ctx, "other", turnstone.KeepChildren, nil); err != nil || len(r.HeldBy) != 0 || r.Shared != 0 || holds(t, e, shared[:64]) {
		t.Errorf("%+v %v", r, err)
	}
	if _, err := st.Erase(ctx, "other", turnstone.KeepChildren, nil); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error(err)
	}
	healthy(t, st)
}

func TestMaintain(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, &turnstone.Options{Retention: 1})
	s, _, err := st.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan error, 100)
	stop := st.Maintain(turnstone.MaintainOptions{Every: time.Millisecond, VacuumEvery: 3 * time.Millisecond, Report: func(g *turnstone.GCReport, v *turnstone.VacuumReport, err error) {
		select {
		case reports <- err:
		default:
		}
	}})
	for i := range 20 {
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.Revision(i), Checkpoint: map[string][]byte{"p": noise(6000, uint64(i))}}); err != nil {
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
	healthy(t, st)
	st.Maintain(turnstone.MaintainOptions{Every: time.Millisecond})
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

// G5: half of many sessions with a checkpoint every turn are deleted; after gc
// and vacuum the store takes about what one that never had them does.
func TestDeletingHalfGivesTheSpaceBack(t *testing.T) {
	sessions, turns := 2000, 5
	if testing.Short() || race {
		sessions = 200
	}
	for name, open := range map[string]func(dir string) (engine.Engine, error){
		"badger": func(dir string) (engine.Engine, error) {
			return badger.Open(dir, &badger.Options{Durability: badger.Process})
		},
		"pebble": func(dir string) (engine.Engine, error) {
			return pebble.Open(dir, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			marker := func(i, turn int) []byte { return noise(120, uint64(1_000_000+100*i+turn)) }
			fill := func(st *turnstone.Store, want func(i int) bool) {
				var wg sync.WaitGroup
				for g := range 8 {
					wg.Go(func() {
						for i := g; i < sessions; i += 8 {
							if !want(i) {
								continue
							}
							s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", i)})
							state := noise(3000, uint64(i))
							for turn := 0; turn < turns && err == nil; turn++ {
								copy(state[100*turn:], marker(i, turn))
								_, err = s.Commit(ctx, turnstone.Commit{Expected: turnstone.Revision(turn), Nodes: []turnstone.NewNode{
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
				collect(t, st, turnstone.GCOptions{})
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
				collect(t, st, turnstone.GCOptions{})
				if r := vacuum(t, st); r.Removed != sessions/2 {
					t.Errorf("%+v", r)
				}
				healthy(t, st)
				for i := 1; i < sessions; i += sessions / 20 {
					for turn := range turns {
						if inFiles(t, dir, marker(i|1, turn)[:40]) {
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
	e := memory.New()
	st := openStore(t, e, nil)
	s, _, err := st.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	old, now, secret := noise(2<<20, 1), noise(2<<20, 1), noise(300, 2)
	copy(old[1<<20:], secret)
	for i, content := range [][]byte{old, now} {
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.Revision(i), Checkpoint: map[string][]byte{"p": content}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Prune(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if r := vacuum(t, st); r.Rebased != 1 || holds(t, e, secret[:64]) {
		t.Errorf("%+v", r)
	}
	if r := vacuum(t, st); r.Rebased != 0 || r.Deleted != 0 {
		t.Errorf("again: %+v", r)
	}
	parts, err := s.Checkpoint(ctx, 0)
	if err != nil || !bytes.Equal(parts["p"], now) {
		t.Error(err)
	}
	if r := collect(t, st, turnstone.GCOptions{Full: true}); r.Deleted != 0 || r.Repaired {
		t.Errorf("full: %+v", r)
	}
	if n := letters(t, e); n[keys.Upload] != 0 || n[keys.Candidate] != 0 {
		t.Errorf("records left: %v", n)
	}
	healthy(t, st)
}
