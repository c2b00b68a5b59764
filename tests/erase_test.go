package tests

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A session is renamed, or its id is given again, while Erase works: what is erased is the session
// that had the id at first.
func TestG8_EraseIsAboutTheSessionThatItBeganWith(t *testing.T) {
	secret := random(300, 1)
	for name, other := range map[string]func(*turnstone.Store) error{
		"renamed": func(st *turnstone.Store) error { return rename(ctx, st, "s", "z") },
		"given again": func(st *turnstone.Store) error {
			if err := st.Delete(ctx, "s", turnstone.KeepChildren); err != nil {
				return err
			}
			create(t, st, turnstone.Request{ID: "s"}, []byte("another"))
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			did := false
			besideEachCall(t, func(st *turnstone.Store) { did = false; create(t, st, turnstone.Request{ID: "s"}, secret) },
				func(st *turnstone.Store) error {
					_, err := st.Erase(ctx, "s", turnstone.KeepChildren, turnstone.EraseOptions{})
					return err
				},
				func(st *turnstone.Store) { did = other(st) == nil },
				func(st *turnstone.Store, e engine.Engine, err error) error {
					if err == nil && holds(t, e, secret[:64]) {
						return errors.New("the bytes are there")
					}
					if !did || name != "given again" {
						return nil
					}
					s, serr := st.Session(ctx, "s")
					if serr != nil { // it was there already when Erase began
						return nil
					}
					_, lerr := s.Load(ctx, turnstone.Scope{})
					return lerr
				})
		})
	}
}

// A fork of a fork is made, and the first fork deleted, while Erase works: the receipt names one of
// them as a holder.
func TestG8_EraseKnowsForksThatAreMadeMeanwhile(t *testing.T) {
	secret := random(300, 1)
	var id graph.ID
	var receipt *turnstone.Erasure
	besideEachCall(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		id = commitTo(t, s, turnstone.Commit{Nodes: saying(secret)}).Leaf
		create(t, st, turnstone.Request{ID: "f", Parent: "s"})
	}, func(st *turnstone.Store) error {
		s, err := st.Session(ctx, "s")
		if err == nil {
			receipt, err = s.Erase(ctx, turnstone.EraseOptions{}, id)
		}
		return err
	}, func(st *turnstone.Store) {
		create(t, st, turnstone.Request{ID: "g", Parent: "f"})
		remove(t, st, "f")
	}, func(st *turnstone.Store, e engine.Engine, err error) error {
		if err != nil {
			return err
		}
		if len(receipt.HeldBy) == 0 {
			return errors.New("held by nobody")
		}
		return nil
	})
}

// An Erase that is cut off anywhere can be repeated, and then the bytes are gone.
func TestG8_EraseCanBeRepeated(t *testing.T) {
	secret := random(6000, 1)
	for n, crashed := 1, true; crashed; n++ {
		e, st := onMemory(t, nil)
		s := create(t, st, turnstone.Request{ID: "s"}, secret, []byte("2"))
		if _, err := s.PutAttachment(ctx, bytes.NewReader(random(3000, 2)), -1, "", ""); err != nil {
			t.Fatal(err)
		}
		crashed = false
		f := &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
			crashed = crashed || c.N == n
			return enginetest.Fault{Crash: c.N == n}
		}}
		if cut, err := turnstone.Open(ctx, f, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1}); err == nil {
			_, _ = cut.Erase(ctx, "s", turnstone.KeepChildren, turnstone.EraseOptions{})
			cut.Close()
		}
		r, err := st.Erase(ctx, "s", turnstone.KeepChildren, turnstone.EraseOptions{})
		if err != nil || len(r.HeldBy) > 0 || holds(t, e, secret[:64]) || holds(t, e, random(3000, 2)[:64]) {
			t.Fatalf("cut at call %d: %v %+v", n, err, r)
		}
	}
}

// The receipt of an Erase with CascadeChildren that is repeated counts what children had
// whom the first attempt deleted.
func TestG8_ARepeatedReceiptKnowsChildren(t *testing.T) {
	e, st := onMemory(t, nil)
	create(t, st, turnstone.Request{ID: "p"}, random(6000, 1))
	create(t, st, turnstone.Request{ID: "f", Parent: "p"}, random(6000, 2))
	create(t, st, turnstone.Request{ID: "g", Parent: "f"}, random(6000, 3))
	predecessors := 0
	f := &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
		if c.Batch != nil && slices.ContainsFunc(c.Batch.Sets, func(p engine.Pair) bool { return p.Key[4] == keys.Predecessor }) {
			predecessors++
		}
		return enginetest.Fault{Crash: predecessors == 3, Applied: true}
	}}
	if _, err := openStore(t, f, nil).Erase(ctx, "p", turnstone.CascadeChildren, turnstone.EraseOptions{}); !errors.Is(err, turnstone.ErrIncomplete) {
		t.Fatal("the cut call:", err)
	}
	r, err := st.Erase(ctx, "p", turnstone.CascadeChildren, turnstone.EraseOptions{})
	if err != nil || r.Gone != 3 {
		t.Errorf("%v %+v", err, r)
	}
}

// The receipt of an Erase with CascadeChildren knows nothing of forks that were deleted
// before, and that other sessions hold.
func TestG8_TheReceiptLeavesOtherForksOut(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	create(t, st, turnstone.Request{ID: "f", Parent: "p"}, []byte("1"))
	create(t, st, turnstone.Request{ID: "k", Parent: "f"})
	remove(t, st, "f")
	commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("2"))})
	r, err := st.Erase(ctx, "p", turnstone.CascadeChildren, turnstone.EraseOptions{})
	if err != nil || len(r.HeldBy) > 0 {
		t.Errorf("%v %+v", err, r)
	}
}

// An upload that waits for a commit keeps bytes that are erased: the receipt counts it.
func TestG8_TheReceiptKnowsUploads(t *testing.T) {
	secret := random(3000, 1)
	e, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	r := commitTo(t, s, turnstone.Commit{Nodes: attaching(upload(t, s, secret))})
	upload(t, s, secret) // once more: it waits for a commit
	receipt, err := s.Erase(ctx, turnstone.EraseOptions{}, r.Nodes[0])
	if err != nil || receipt.Uploads != 1 || receipt.Gone != 0 || !holds(t, e, secret[:64]) {
		t.Errorf("%v %+v", err, receipt)
	}
	receipt, err = st.Erase(ctx, "s", turnstone.KeepChildren, turnstone.EraseOptions{})
	if err != nil || receipt.Uploads != 0 || receipt.Gone != 1 || holds(t, e, secret[:64]) {
		t.Errorf("of the session: %v %+v", err, receipt)
	}
}

// A child names its parent by incarnation, not by id: once the parent is erased, nothing has its
// id.
func TestG8_NothingHoldsTheIDOfAnErasedSession(t *testing.T) {
	e, st := onMemory(t, nil)
	create(t, st, turnstone.Request{ID: "a secret id"})
	child := create(t, st, turnstone.Request{ID: "child", Parent: "a secret id", Detached: true})
	if i, err := child.Info(ctx); err != nil || i.Parent != "a secret id" {
		t.Fatal(i.Parent, err)
	}
	if _, err := st.Erase(ctx, "a secret id", turnstone.KeepChildren, turnstone.EraseOptions{}); err != nil {
		t.Fatal(err)
	}
	if holds(t, e, []byte("a secret id")) {
		t.Error("the id is there")
	}
	if i, err := child.Info(ctx); err != nil || i.Parent != "" {
		t.Error(i.Parent, err)
	}
}

// An attempt of an upload whose outcome was not known arrives after its bytes were erased.
func TestG8_ALateUploadDoesNotBringErasedBytesBack(t *testing.T) {
	secret := random(3000, 1)
	for n := 1; n <= 3; n++ {
		e, st := onMemory(t, nil)
		create(t, st, turnstone.Request{ID: "s"})
		var late *engine.Batch
		f := &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
			if c.Apply == n {
				copied := *c.Batch
				late = &copied
				return enginetest.Fault{Err: engine.ErrUnknown}
			}
			return enginetest.Fault{}
		}}
		s := session(t, openStore(t, f, nil), "s")
		r := commitTo(t, s, turnstone.Commit{Nodes: attaching(upload(t, s, secret))})
		_, err := s.Erase(ctx, turnstone.EraseOptions{}, r.Nodes[0])
		if err != nil || late == nil {
			t.Fatal(n, err)
		}
		_ = e.Apply(ctx, late)
		if holds(t, e, secret[:64]) {
			t.Errorf("batch %d, late: the bytes are back", n)
		}
	}
}

// A session that is committed to all the time is erased all the same.
func TestG8_ABusySessionIsErased(t *testing.T) {
	secret := random(300, 1)
	e, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("root"), []byte("side"))
	root, err := s.Load(ctx, turnstone.Scope{At: 1})
	if err != nil {
		t.Fatal(err)
	}
	r := commitTo(t, s, turnstone.Commit{Nodes: sayingAfter(root.Leaf, secret)})
	for range 3 {
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("more"))})
	}
	prune(t, s, 2)
	f := &enginetest.Faulty{Engine: e, Plan: beforeEachApply(func(*engine.Batch) {
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("busy"))})
	})}
	receipt, err := session(t, openStore(t, f, nil), "s").Erase(ctx, turnstone.EraseOptions{}, r.Nodes[0])
	if err != nil || holds(t, e, secret[:64]) || len(receipt.Vacuum.Unfinished) > 0 {
		t.Errorf("%v %+v", err, receipt)
	}
}

// The receipt of an erasure says who holds what is left, and who has equal bytes, until the last
// of them is erased.
func TestG8_EraseSaysWhatIsLeft(t *testing.T) {
	e, st := onMemory(t, nil)
	make := func(r turnstone.Request, payloads ...[]byte) (*turnstone.Session, []graph.ID) {
		t.Helper()
		s := create(t, st, r)
		var c turnstone.Commit
		for _, p := range payloads {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "u", Payload: p})
		}
		res := commitAt(t, s, c)
		return s, res.Nodes
	}
	secret, shared := random(200, 1), random(9000, 2)
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
	verify(t, st)
}

// A receipt does not name the session that erases, nor its fork, as one that has equal bytes.
func TestG8_TheReceiptNamesNobodyWhoErases(t *testing.T) {
	_, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	r := commitTo(t, p, turnstone.Commit{Nodes: saying(random(9000, 1))})
	create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	e, err := p.Erase(ctx, turnstone.EraseOptions{}, r.Nodes...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", e)
	if len(e.SharedBy) == 1 && e.SharedBy[0] == "p" {
		t.Errorf("the session that erases is named as another saying that has equal bytes: %+v", e)
	}
	e, err = st.Erase(ctx, "p", turnstone.KeepChildren, turnstone.EraseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if e.Shared == 1 && len(e.SharedBy) == 0 {
		t.Errorf("shared with nobody: %+v", e)
	}
}

// A fork is made when Erase is about to write for the first time: the receipt has it, or the
// bytes are gone.
func TestG8_TheReceiptHasAForkThatIsMadeMeanwhile(t *testing.T) {
	mem := memory.New()
	e := &enginetest.Faulty{Engine: mem}
	st, other := openStore(t, e, nil), openStore(t, mem, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	r := commitTo(t, p, turnstone.Commit{Nodes: saying(random(100, 1))})
	e.Plan = beforeEachApply(func(*engine.Batch) {
		e.Plan = nil
		create(t, other, turnstone.Request{ID: "f", Parent: "p"})
	})
	receipt, err := p.Erase(ctx, turnstone.EraseOptions{}, r.Nodes...)
	if err != nil {
		t.Fatal(err)
	}
	if holds(t, mem, random(100, 1)[:64]) && len(receipt.HeldBy) == 0 {
		t.Errorf("%+v, and the payload is there", receipt)
	}
	if e.Plan != nil {
		t.Error("no fork was made")
	}
}
