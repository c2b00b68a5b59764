package turnstone_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// cloned returns an engine with the same records.
func cloned(t *testing.T, e engine.Engine) *memory.Engine {
	t.Helper()
	out := memory.New()
	var b engine.Batch
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		b.Set(p.Key, p.Value)
	}
	if err := out.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	return out
}

// VF4: what maintenance leaves when it is cut off at any point is no damage.
func TestVF4_WhatACutMaintenanceLeavesIsNoDamage(t *testing.T) {
	if race {
		t.Skip("one goroutine, hundreds of stores: there is nothing for the race detector")
	}
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
		for ; ; n += testscale.Pick(1, 3, 9) {
			e := cloned(t, whole)
			st := openStore(t, &enginetest.Faulty{Engine: e, Plan: enginetest.CrashAfter(n)}, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
			err := call(st)
			verify(t, openStore(t, e, nil))
			if t.Failed() {
				t.Fatalf("%s was cut after %d batches", name, n)
			}
			if err == nil {
				break
			}
		}
		t.Logf("%s: cut at up to %d places", name, n-1)
	}
}

// VF5: whatever happens to a store while Verify reads it is no damage.
func TestVF5_WhatHappensMeanwhileIsNoDamage(t *testing.T) {
	if race {
		t.Skip("one goroutine, hundreds of stores: there is nothing for the race detector")
	}
	whole := outcomeStore(t)
	st := openStore(t, whole, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
	a, err := st.Session(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	att, err := a.PutAttachment(ctx, bytes.NewReader(random(300_000, 1)), -1, "", "")
	if err != nil {
		t.Fatal(err)
	}
	commitTo(t, a, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "image", Key: "k", Payload: random(6000, 2), Attachments: []blob.Attachment{att}}}})
	if _, err := st.GC(ctx, gc.Options{}); err != nil {
		t.Fatal(err)
	}
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
			if _, err := st.Prune(ctx); err != nil {
				return err
			}
			return vacuum(st)
		},
		"rename": func(st *turnstone.Store, _ *turnstone.Session) error { return st.Rename(ctx, "b", "c") },
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
			for n := 1; ; n += testscale.Pick(1, 5, 23) {
				e := cloned(t, whole)
				other := openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
				a, err := other.Session(ctx, "a")
				if err != nil {
					t.Fatal(err)
				}
				read := &enginetest.Faulty{Engine: e}
				st := openStore(t, read, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
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
