package gc_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A part takes a value again whose edge went when its revision was pruned.
func TestAPartThatTakesAnEarlierValueAgainIsNoRepair(t *testing.T) {
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

// An upload of several chunks pins their list, which no commit refers to: a full collection finds
// the index as it has to be.
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

// A commit comes while a full collection reads.
func TestAFullRunBesideACommitRepairsNothing(t *testing.T) {
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

// A full collection is cut off before any call of the engine.
func TestAFullRunThatWasCutOffLeavesNoDamage(t *testing.T) {
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

// A collection runs before any call of the engine that a dry run makes.
func TestADryRunBesideARunSucceeds(t *testing.T) {
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

// A dry run can be asked for from the progress of a collection.
func TestADryRunNeedsNoTurn(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s := create(t, st, turnstone.Request{ID: "a"})
	commit(t, s, saves(version(1)))
	c, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := st.GC(ctx, gc.Options{Progress: func(gc.Progress) {
		_, err := st.GC(c, gc.Options{DryRun: true})
		if err != nil {
			t.Error("the dry run:", err)
		}
	}})
	if err != nil {
		t.Error(err)
	}
}

// A collection is cut off, before any call of the engine, while it lets go of what a finished
// upload pinned. Then another session, whose nodes have had the chunks as their payload, is
// vacuumed alone: the upload still pins them.
func TestARunThatWasCutOffLosesNoChunkOfAnUpload(t *testing.T) {
	testkit.Slow(t)
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
		blobs := blob.New(e, space, blob.DefaultChunking)
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

// A node is committed and tombstoned when a vacuum has read the sessions: the vacuums after it
// remove its payload, and the index knows that.
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
