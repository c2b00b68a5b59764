package tests

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// What maintenance leaves when it is cut off at any point is no damage.
func TestVF4_WhatACutMaintenanceLeavesIsNoDamage(t *testing.T) {
	testkit.OneGoroutine(t)
	whole := full(t)
	for name, call := range map[string]func(*turnstone.Store) error{
		"gc": func(st *turnstone.Store) error {
			_, err := st.GC(ctx, gc.Options{})
			return err
		},
		"full gc": func(st *turnstone.Store) error {
			_, err := st.GC(ctx, gc.Options{Full: true})
			return err
		},
		"vacuum": func(st *turnstone.Store) error {
			_, err := st.Vacuum(ctx, gc.VacuumOptions{})
			return err
		},
		"delete and vacuum": func(st *turnstone.Store) error {
			for _, id := range []string{"a", "f", "df"} {
				if err := st.Delete(ctx, id, turnstone.KeepChildren); err != nil {
					return err
				}
			}
			_, err := st.Vacuum(ctx, gc.VacuumOptions{})
			return err
		},
	} {
		n := 1
		for ; ; n += testkit.Pick(1, 3, 9) {
			e := cloned(t, whole)
			st := openStore(t, &enginetest.Faulty{Engine: e, Plan: enginetest.CrashAfter(n)}, &turnstone.Options{NoAutoSeal: true})
			err := call(st)
			verify(t, openStore(t, e, nil))
			if t.Failed() {
				t.Fatalf("%s was cut after %d batches", name, n)
			}
			if err == nil {
				break
			}
			if !errors.Is(err, engine.ErrClosed) {
				t.Fatalf("%s after %d batches: %v", name, n, err)
			}
		}
		t.Logf("%s: cut at up to %d places", name, n-1)
	}
}

// Whatever happens to a store while Verify reads it is no damage.
func TestVF5_WhatHappensMeanwhileIsNoDamage(t *testing.T) {
	testkit.OneGoroutine(t)
	whole := outcomeStore(t)
	st := openStore(t, whole, &turnstone.Options{NoAutoSeal: true})
	a := session(t, st, "a")
	att := upload(t, a, random(300_000, 1))
	commitTo(t, a, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "image", Key: "k", Payload: random(6000, 2), Attachments: []blob.Attachment{att}}}})
	collect(t, st, gc.Options{})
	id := func(s *turnstone.Session) graph.ID {
		i, err := s.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return i.Leaf
	}
	vacuum := func(st *turnstone.Store) error {
		_, err := st.Vacuum(ctx, gc.VacuumOptions{})
		return err
	}
	for name, meddle := range map[string]func(st *turnstone.Store, a *turnstone.Session) error{
		"commit, gc": func(st *turnstone.Store, a *turnstone.Session) error {
			commitTo(t, a, turnstone.Commit{Nodes: saying(random(7000, 3)), Checkpoint: map[string][]byte{"p": []byte("next")}, Turn: "t"})
			_, err := st.GC(ctx, gc.Options{})
			return err
		},
		"commit": func(_ *turnstone.Store, a *turnstone.Session) error {
			commitTo(t, a, turnstone.Commit{Nodes: saying(random(7000, 3)), Checkpoint: map[string][]byte{"p": []byte("next")}, Turn: "t"})
			return nil
		},
		"delete, vacuum": func(st *turnstone.Store, _ *turnstone.Session) error {
			if err := st.Delete(ctx, "a", turnstone.KeepChildren); err != nil {
				return err
			}
			return vacuum(st)
		},
		"delete all, vacuum": func(st *turnstone.Store, _ *turnstone.Session) error {
			for _, id := range []string{"a", "b", "f"} {
				if err := st.Delete(ctx, id, turnstone.KeepChildren); err != nil {
					return err
				}
			}
			return vacuum(st)
		},
		"erase a node": func(_ *turnstone.Store, a *turnstone.Session) error {
			_, err := a.Erase(ctx, turnstone.EraseOptions{}, id(a))
			return err
		},
		"prune, vacuum": func(st *turnstone.Store, _ *turnstone.Session) error {
			if _, err := st.Prune(ctx, gc.PruneOptions{Revisions: 1}); err != nil {
				return err
			}
			return vacuum(st)
		},
		"rename": func(st *turnstone.Store, _ *turnstone.Session) error { return rename(ctx, st, "b", "c") },
		"fork, delete, create again": func(st *turnstone.Store, _ *turnstone.Session) error {
			commitTo(t, create(t, st, turnstone.Request{ID: "g", Parent: "f"}), turnstone.Commit{Nodes: saying([]byte("x"))})
			if err := st.Delete(ctx, "f", turnstone.KeepChildren); err != nil {
				return err
			}
			create(t, st, turnstone.Request{ID: "f", Parent: "a"})
			return nil
		},
		"upload": func(_ *turnstone.Store, a *turnstone.Session) error {
			_, err := a.PutAttachment(ctx, bytes.NewReader(random(300_000, 4)), -1, "", "")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n += testkit.Pick(1, 5, 23) {
				e := cloned(t, whole)
				other := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
				a := session(t, other, "a")
				read := &enginetest.Faulty{Engine: e}
				st := openStore(t, read, &turnstone.Options{NoAutoSeal: true})
				happened := false
				read.Plan = before(n, func() {
					happened = true
					if err := meddle(other, a); err != nil {
						t.Error(err)
					}
				})
				v, err := st.Verify(ctx, turnstone.VerifyOptions{})
				if err != nil || !v.OK() {
					t.Fatal(fmt.Sprint("before call ", n), v.Problems, err)
				}
				if !happened {
					t.Logf("up to %d places", n-1)
					return
				}
			}
		})
	}
}

// A session is deleted while Verify reads.
func TestVF5_ASessionThatIsDeletedMeanwhileIsNoDamage(t *testing.T) {
	var v *turnstone.Verification
	besideEachCall(t,
		func(st *turnstone.Store) { create(t, st, turnstone.Request{ID: "s"}, []byte("x")) },
		func(st *turnstone.Store) (err error) {
			v, err = st.Verify(ctx, turnstone.VerifyOptions{})
			return err
		},
		func(st *turnstone.Store) { remove(t, st, "s") },
		func(st *turnstone.Store, _ engine.Engine, err error) error {
			if err == nil && !v.OK() {
				err = v.Problems[0]
			}
			return err
		})
}

// A session moves in its lists, enters others or is renamed while Verify reads.
func TestVF5_ASessionThatMovesInListsMeanwhileIsNoDamage(t *testing.T) {
	for name, move := range map[string]func(s *turnstone.Session, st *turnstone.Store) error{
		"commit": func(s *turnstone.Session, _ *turnstone.Store) error {
			_, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("1"))})
			return err
		},
		"metadata": func(s *turnstone.Session, _ *turnstone.Store) error {
			return s.SaveMetadata(ctx, head.Metadata{Group: "h", Labels: map[string]string{"l": "", "m": "v"}})
		},
		"rename": func(_ *turnstone.Session, st *turnstone.Store) error { return rename(ctx, st, "s", "t") },
	} {
		var v *turnstone.Verification
		besideEachCall(t,
			func(st *turnstone.Store) {
				create(t, st, turnstone.Request{ID: "s", Metadata: head.Metadata{Group: "g", Labels: map[string]string{"l": "v"}}})
			},
			func(st *turnstone.Store) (err error) {
				v, err = st.Verify(ctx, turnstone.VerifyOptions{})
				return err
			},
			func(st *turnstone.Store) {
				later := openStore(t, engineOf(st), &turnstone.Options{Now: func() time.Time { return time.Now().Add(time.Hour) }})
				if err := move(session(t, later, "s"), later); err != nil {
					t.Error(name, err)
				}
			},
			func(_ *turnstone.Store, _ engine.Engine, err error) error {
				if err == nil && !v.OK() {
					err = v.Problems[0]
				}
				if err != nil {
					err = fmt.Errorf("%s: %w", name, err)
				}
				return err
			})
	}
}

// A session that moves before each call of the engine is no damage, and the check ends.
func TestVF5_ASessionThatMovesAllTheTimeIsNoDamage(t *testing.T) {
	e, st := onMemory(t, nil)
	create(t, st, turnstone.Request{ID: "s", Metadata: head.Metadata{Group: "g"}})
	now := time.Now()
	s := session(t, openStore(t, e, &turnstone.Options{Now: func() time.Time { now = now.Add(time.Hour); return now }}), "s")
	busy := &enginetest.Faulty{Engine: e, Plan: func(enginetest.Call) enginetest.Fault {
		if err := s.SaveMetadata(ctx, head.Metadata{Name: "n"}); err != nil {
			t.Error(err)
		}
		return enginetest.Fault{}
	}}
	verify(t, openStore(t, busy, nil))
}

// A session gets its first commit while Verify reads, which may have seen an empty head.
func TestVF5_AFirstCommitMeanwhileIsNoDamage(t *testing.T) {
	var v *turnstone.Verification
	besideEachCall(t,
		func(st *turnstone.Store) { create(t, st, turnstone.Request{ID: "s"}) },
		func(st *turnstone.Store) (err error) {
			v, err = st.Verify(ctx, turnstone.VerifyOptions{})
			return err
		},
		func(st *turnstone.Store) {
			commitTo(t, session(t, st, "s"), turnstone.Commit{Nodes: saying([]byte("x"))})
		},
		func(st *turnstone.Store, _ engine.Engine, err error) error {
			if err == nil && !v.OK() {
				err = v.Problems[0]
			}
			return err
		})
}

// A session that is renamed while Verify reads is verified all the same: the pack that it has
// lost is missed.
func TestVF5_ASessionThatIsRenamedMeanwhileIsVerified(t *testing.T) {
	var v *turnstone.Verification
	for i := range 8 { // the order of ids is that of their hashes
		besideEachCall(t,
			func(st *turnstone.Store) {
				s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"), []byte("y"))
				lost := spaceOf(st).Segment(incarnationOf(s), 1, 0)
				if err := engineOf(st).Apply(ctx, &engine.Batch{Deletes: [][]byte{lost}}); err != nil {
					t.Fatal(err)
				}
			},
			func(st *turnstone.Store) (err error) {
				v, err = st.Verify(ctx, turnstone.VerifyOptions{})
				return err
			},
			func(st *turnstone.Store) {
				if err := rename(ctx, st, "s", string(rune('a'+i))); err != nil {
					t.Error(err)
				}
			},
			func(_ *turnstone.Store, _ engine.Engine, err error) error {
				var corrupt *damage.CorruptError
				if err == nil && (v.Sessions != 1 || len(v.Problems) != 1 || !errors.As(v.Problems[0], &corrupt)) {
					err = fmt.Errorf("%d sessions, %v", v.Sessions, v.Problems)
				}
				return err
			})
	}
}

// A commit comes when Verify, which scans all records, is at the first commit of many.
func TestVF5_ACommitInTheMiddleOfTheScanIsNoDamage(t *testing.T) {
	e := &interceptor{Engine: memory.New()}
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 1200 {
		commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": fmt.Append(nil, i)}})
	}
	var done atomic.Bool
	e.scan = func(engine.Range) func(engine.Pair) error {
		return func(p engine.Pair) error {
			if l, _, _ := spaceOf(st).Fields(p.Key); l == keys.Segment && !done.Swap(true) {
				commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": []byte("new")}})
			}
			return nil
		}
	}
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil || !v.OK() || !done.Load() {
		t.Error(err, v.Problems, done.Load())
	}
}

// A session is sealed between two pages of what Verify reads of it.
func TestVF5_ASealMeanwhileIsNoDamage(t *testing.T) {
	e := &pager{Engine: memory.New()}
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, SealBytes: 1 << 20})
	s := create(t, st, turnstone.Request{ID: "s"})
	var n []turnstone.NewNode
	for i := range 120 {
		n = append(n, turnstone.NewNode{Kind: "u", Payload: random(5000, uint64(i))})
	}
	commitAt(t, s, turnstone.Commit{Turn: "T", Nodes: n})
	commitAt(t, s, turnstone.Commit{Expected: 1, Nodes: saying([]byte("x"))})
	commitAt(t, s, turnstone.Commit{Expected: 2, Nodes: saying([]byte("x"))})
	k := spaceOf(st).Segment(incarnationOf(s), 1, 0)
	other := session(t, st, "s")
	seen := 0
	e.between = func(key []byte) {
		if string(key) == string(k) {
			if seen++; seen == 2 { // first is the scan of all records
				e.between = nil
				if err := other.Seal(ctx); err != nil {
					t.Error(err)
				}
			}
		}
	}
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil || !v.OK() || seen != 2 {
		t.Errorf("%v, %v; the pack was met %d times", v.Problems, err, seen)
	}
}
