package turnstone_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// F5: deleting a parent leaves attached forks whole, the rest is reclaimed, and
// what they hold goes with the last of them.
func TestForksHoldWhatTheyShare(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, nil)
	p, _, err := st.Create(ctx, turnstone.Request{ID: "p"})
	if err != nil {
		t.Fatal(err)
	}
	var ids []graph.ID
	for i := range uint64(6) {
		r, err := p.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Nodes: []turnstone.NewNode{
			{Kind: "u", Payload: noise(100, i)}, {Kind: "a", Payload: noise(9000, 50+i)},
		}, Checkpoint: map[string][]byte{"p": noise(9000, 100+i)}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, r.Nodes...)
	}
	fork := func(id, parent string, at graph.ID) *turnstone.Session {
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
	remove := func(id string) *gc.VacuumReport {
		t.Helper()
		if err := st.Delete(ctx, id, turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
		r := vacuum(t, st)
		if again := vacuum(t, st); again.Deleted != 0 || again.Nodes != 0 || again.Records != 0 {
			t.Errorf("again: %+v", again)
		}
		if full := collect(t, st, gc.Options{Full: true}); full.Deleted != 0 || full.Repaired {
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
		if letter != keys.Store && letter != keys.Predecessor && letter != keys.Cycle {
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
		if s, err := s.Load(ctx, turnstone.Scope{}); err != nil || len(s.Nodes) != 1 || s.Nodes[0].Parent != (graph.ID{}) {
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
	commit := func(i uint64, leaf turnstone.Ref, parent turnstone.Ref) graph.ID {
		t.Helper()
		a, err := s.PutAttachment(ctx, bytes.NewReader(noise(500, 100+i)), -1, "", "")
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Leaf: leaf, Nodes: []turnstone.NewNode{
			{Kind: "u", Parent: parent, Payload: noise(9000, i), Attachments: []blob.Attachment{a}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Nodes[0]
	}
	root := commit(0, turnstone.Ref{}, turnstone.Ref{})
	side := commit(1, turnstone.Ref{}, turnstone.Ref{})
	held := commit(2, turnstone.Ref{}, turnstone.RefTo(root))
	if _, _, err := st.Create(ctx, turnstone.Request{ID: "f", Parent: "s", ForkNode: held}); err != nil {
		t.Fatal(err)
	}
	main := commit(3, turnstone.Ref{}, turnstone.RefTo(root))
	other := commit(4, turnstone.RefTo(main), turnstone.RefTo(main))
	last := commit(5, turnstone.Ref{}, turnstone.RefTo(main))
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
	if r := collect(t, st, gc.Options{Full: true}); r.Deleted != 0 || r.Repaired {
		t.Errorf("full: %+v", r)
	}
}

func TestEraseSaysWhatIsLeft(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, nil)
	make := func(r turnstone.Request, payloads ...[]byte) (*turnstone.Session, []graph.ID) {
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
	r, err := p.Erase(ctx, turnstone.EraseOptions{}, ids...)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.HeldBy, []string{"f"}) || r.Vacuum.Nodes != 0 || r.Shared != 1 || !holds(t, e, secret[:64]) {
		t.Errorf("%+v %+v", r, r.Vacuum)
	}
	if r, err = f.Erase(ctx, turnstone.EraseOptions{}, ids...); err != nil {
		t.Fatal(err)
	}
	if len(r.HeldBy) != 0 || r.Vacuum.Nodes != 2 || !slices.Equal(r.SharedBy, []string{"other"}) || holds(t, e, secret[:64]) || !holds(t, e, shared[:64]) {
		t.Errorf("%+v %+v", r, r.Vacuum)
	}
	if r, err = st.Erase(ctx, "p", turnstone.KeepChildren, turnstone.EraseOptions{}); err != nil || !slices.Equal(r.HeldBy, []string{"f"}) {
		t.Errorf("%+v %v", r, err)
	}
	if r, err = st.Erase(ctx, "other", turnstone.KeepChildren, turnstone.EraseOptions{}); err != nil || len(r.HeldBy) != 0 || r.Shared != 0 || holds(t, e, shared[:64]) {
		t.Errorf("%+v %v", r, err)
	}
	if r, err = st.Erase(ctx, "other", turnstone.KeepChildren, turnstone.EraseOptions{}); err != nil || len(r.HeldBy) != 0 || r.Gone != 0 {
		t.Errorf("of what was erased: %+v %v", r, err)
	}
	if _, err := st.Erase(ctx, "nobody", turnstone.KeepChildren, turnstone.EraseOptions{}); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error(err)
	}
	healthy(t, st)
}
