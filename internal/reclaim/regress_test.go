package reclaim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// Each test here is a bug that a review found, and stays to show that it is gone.

// atCall returns an engine on e that calls f before its n-th call.
func atCall(e engine.Engine, n int, f func()) engine.Engine {
	return &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
		if c.N == n {
			f()
		}
		return enginetest.Fault{}
	}}
}

func prune(t *testing.T, s *turnstone.Session) {
	t.Helper()
	if _, err := s.Prune(ctx, 1); err != nil {
		t.Fatal(err)
	}
}

func openAt(t testing.TB, e engine.Engine, now func() time.Time) *turnstone.Store {
	st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1, Now: now, UploadTTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return st
}
func fixed() time.Time { return epoch }
func create(t testing.TB, st *turnstone.Store, r turnstone.Request) *turnstone.Session {
	s, _, err := st.Create(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func commit(t testing.TB, s *turnstone.Session, c turnstone.Commit) turnstone.Result {
	c.Expected = turnstone.AnyRevision
	r, err := s.Commit(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func collected(t testing.TB, st *turnstone.Store, o gc.Options) *gc.Report {
	r, err := st.GC(ctx, o)
	if err != nil {
		t.Fatal("gc:", err)
	}
	return r
}

func vacuumed(t testing.TB, st *turnstone.Store) *gc.VacuumReport {
	r, err := st.Vacuum(ctx, gc.VacuumOptions{})
	if err != nil {
		t.Fatal("vacuum:", err)
	}
	return r
}

func healthy(t testing.TB, st *turnstone.Store) {
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil || !v.OK() {
		t.Error("verify:", err, v.Problems)
	}
}

func holds(e engine.Engine, b []byte) bool {
	for p := range e.Scan(ctx, engine.Range{}) {
		if bytes.Contains(p.Value, b) {
			return true
		}
	}
	return false
}

// A checkpoint part gets a value again whose edge retention had dropped.
func TestAPartReturnsToAnEarlierValue(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 4 {
		commit(t, s, saves(noise(6000, uint64(i))))
	}
	collected(t, st, gc.Options{})
	prune(t, s)
	collected(t, st, gc.Options{})
	commit(t, s, saves(noise(6000, 0)))
	collected(t, st, gc.Options{})
	if r := collected(t, st, gc.Options{Full: true}); r.Repaired {
		t.Error("repaired")
	}
	healthy(t, st)
}

// A revision is kept that does not have a blob which was a checkpoint part before and after it.
func TestARevisionKeptInAGap(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	for _, i := range []uint64{1, 2, 1, 3} {
		commit(t, s, saves(noise(6000, i)))
	}
	if err := s.Keep(ctx, "x", 2); err != nil {
		t.Fatal(err)
	}
	prune(t, s)
	vacuumed(t, st)
	vacuumed(t, st)
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
}

// A full collection gives the chunks of an uploaded list edges, though nothing refers to the list.
// That does not count as a repair of the index.
func TestAnUploadIsNoRepair(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	if _, err := s.PutAttachment(ctx, bytes.NewReader(noise(2<<20, 1)), -1, "", ""); err != nil {
		t.Fatal(err)
	}
	collected(t, st, gc.Options{})
	if r := collected(t, st, gc.Options{Full: true}); r.Repaired {
		t.Error("repaired")
	}
}

// A session is forked at the node that it forked at itself, after it has pruned its first
// checkpoint.
func TestAForkAtTheNodeThatItsParentForkedAt(t *testing.T) {
	for _, del := range []bool{false, true} {
		e := memory.New()
		st := openAt(t, e, fixed)
		s := create(t, st, turnstone.Request{ID: "s"})
		c := says([]byte("hello"))
		c.Checkpoint = map[string][]byte{"p": noise(6000, 1)}
		n := commit(t, s, c).Nodes[0]
		f := create(t, st, turnstone.Request{ID: "f", Parent: "s"})
		for i := range 3 {
			c := says([]byte(fmt.Sprint("f", i)))
			c.Checkpoint = map[string][]byte{"p": noise(6000, uint64(i)+2)}
			commit(t, f, c)
		}
		if del {
			if err := st.Delete(ctx, "s", turnstone.KeepChildren); err != nil {
				t.Fatal(err)
			}
		} else {
			commit(t, s, saves(noise(6000, 50)))
			prune(t, s)
		}
		prune(t, f)
		collected(t, st, gc.Options{})
		g, _, err := st.Create(ctx, turnstone.Request{ID: "g", Parent: "f", ForkNode: n})
		if !errors.Is(err, turnstone.ErrRevisionPruned) {
			t.Error("what f and s had at the node is pruned:", g, err)
		}
		if _, err := st.GC(ctx, gc.Options{}); err != nil {
			t.Error("gc:", err)
		}
		healthy(t, st)
	}
}

// A part is set more often than a chain may have deltas.
func TestAChainOfDeltasStaysShort(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	a := create(t, st, turnstone.Request{ID: "a"})
	v := func(i int) []byte {
		b := noise(20000, 77)
		for j := range i {
			b[j*100]++
		}
		return b
	}
	commit(t, a, saves(v(120))) // whole: its base is kept at depth 0
	commit(t, a, turnstone.Commit{Drop: []string{"p"}})
	prune(t, a)
	collected(t, st, gc.Options{})
	b := create(t, st, turnstone.Request{ID: "b"})
	for i := range 121 {
		commit(t, b, saves(v(i)))
	}
	healthy(t, st)
	commit(t, a, saves(v(121)))
	if _, err := a.Checkpoint(ctx, 0); err != nil {
		t.Error("checkpoint of a:", err)
	}
	healthy(t, st)
}

// Vacuum comes to a tombstoned node that the index has not reached.
func TestVacuumDoesNotOvertakeTheIndex(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	commit(t, s, says([]byte("first")))
	once := false
	secret := noise(20000, 9)
	_, err := st.Vacuum(ctx, gc.VacuumOptions{Progress: func(p gc.Progress) {
		if p.Phase == "sessions" && !once {
			once = true
			r := commit(t, s, says(secret))
			if err := s.Tombstone(ctx, r.Nodes[0]); err != nil {
				t.Fatal(err)
			}
		}
	}})
	if err != nil || !once {
		t.Fatal(err, once)
	}
	for range 3 {
		vacuumed(t, st)
	}
	if holds(e, secret[:64]) {
		t.Error("the erased bytes are there for ever")
	}
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
	if r := collected(t, st, gc.Options{Full: true}); r.Deleted != 0 {
		t.Errorf("full: %+v", r)
	}
}

// A dry run meets a collection that changes the index meanwhile.
func TestADryRunBesideACycle(t *testing.T) {
	for at, met := 2, true; met; at++ { // the first call is that of opening
		e := memory.New()
		st := openAt(t, e, fixed)
		a := create(t, st, turnstone.Request{ID: "a"})
		for i := range 5 {
			commit(t, a, saves(version(i)))
		}
		collected(t, st, gc.Options{})
		if err := st.Delete(ctx, "a", turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
		met = false
		other := openAt(t, atCall(e, at, func() {
			met = true
			collected(t, st, gc.Options{})
		}), fixed)
		if _, err := other.GC(ctx, gc.Options{DryRun: true}); err != nil {
			t.Errorf("at %d: %v", at, err)
		}
	}
}

// A commit is made while the index is derived anew.
func TestAFullCollectionBesideACommit(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "s"})
	commit(t, s, says(noise(6000, 1)))
	n := 0
	r := collected(t, st, gc.Options{Full: true, Progress: func(gc.Progress) {
		if n++; n == 1 {
			commit(t, s, says(noise(6000, 2)))
		}
	}})
	if r.Repaired {
		t.Error("repaired")
	}
}

// Verify meets an index that is only half derived anew.
func TestVerifyAfterAFullCollectionThatWasCut(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	for _, id := range []string{"a", "b", "c"} {
		commit(t, create(t, st, turnstone.Request{ID: id}), says(noise(9000, uint64(id[0]))))
	}
	collected(t, st, gc.Options{})
	for at, cut := 2, true; cut; at++ { // the first call is that of opening
		cut = false
		c, cancel := context.WithCancel(ctx)
		other := openAt(t, atCall(e, at, func() {
			cut = true
			cancel()
		}), fixed)
		if _, err := other.GC(c, gc.Options{Full: true}); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		cancel()
		if v, err := st.Verify(ctx, turnstone.VerifyOptions{}); err != nil || !v.OK() {
			t.Fatal("cut at", at, err, v.Problems)
		}
		collected(t, st, gc.Options{})
	}
}

// A collection is cut off while it removes the pins of a finished upload. Then a session that
// refers to the same chunks lets go of them, and only that session is collected.
func TestACutBetweenTheChunksOfAnUpload(t *testing.T) {
	testscale.Slow(t)
	for cut := 2; ; cut++ { // the first call is that of opening
		e := memory.New()
		st := openAt(t, e, fixed)
		s, d := create(t, st, turnstone.Request{ID: "s"}), create(t, st, turnstone.Request{ID: "d"})
		content := noise(1<<20, 3)
		a, err := s.PutAttachment(ctx, bytes.NewReader(content), -1, "", "")
		if err != nil {
			t.Fatal(err)
		}
		space, err := spaceOf(e)
		if err != nil {
			t.Fatal(err)
		}
		blobs := blobs.New(e, space, blobs.DefaultChunking)
		chunks, err := blobs.Items(ctx, a.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range chunks {
			c, err := blobs.Read(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			r := commit(t, d, says(c))
			if err := d.Tombstone(ctx, r.Nodes...); err != nil {
				t.Fatal(err)
			}
		}
		c, cancel := context.WithCancel(ctx)
		_, err = openAt(t, atCall(e, cut, cancel), fixed).GC(c, gc.Options{})
		cancel()
		if _, verr := d.Vacuum(ctx, gc.VacuumOptions{}); verr != nil {
			t.Fatal(verr)
		}
		if err := reachable(e, false); err != nil {
			t.Fatalf("cut at call %d: %v", cut, err)
		}
		if err == nil {
			return
		}
	}
}
