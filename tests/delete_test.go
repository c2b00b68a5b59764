package tests

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
)

// A deletion stands, nobody knows, and the id is given again before the store tries once more:
// the session that has it now stays.
func TestD1_DeleteSparesTheNextSessionOfTheID(t *testing.T) {
	mem := memory.New()
	e := &enginetest.Faulty{Engine: mem}
	st, other := openStore(t, e, nil), openStore(t, mem, nil)
	create(t, st, turnstone.Request{ID: "s"})
	loseOutcome(e, func() {
		next, created, err := other.Create(ctx, turnstone.Request{ID: "s"})
		if err != nil || !created {
			t.Fatal(err)
		}
		commitAt(t, next, turnstone.Commit{Nodes: saying([]byte("precious"))})
	})
	remove(t, st, "s")
	l, err := session(t, st, "s").Load(ctx, turnstone.Scope{})
	if err != nil || len(l.Nodes) != 1 || string(l.Nodes[0].Payload) != "precious" {
		t.Errorf("the next session of the id: %+v, %v", l, err)
	}
}

// A cascade deletes the child that it found, which may be renamed meanwhile, and not another
// session that is given the child's id.
func TestF6_ACascadeDeletesTheChildAndNotTheNextSessionOfItsID(t *testing.T) {
	for name, meddle := range map[string]func(*turnstone.Store){
		"create again": func(st *turnstone.Store) {
			remove(t, st, "c")
			create(t, st, turnstone.Request{ID: "c"}, []byte("precious"))
		},
		"rename": func(st *turnstone.Store) {
			if err := rename(ctx, st, "c", "c2"); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			meddled, times := false, 0
			besideEachCall(t,
				func(st *turnstone.Store) {
					meddled = false
					create(t, st, turnstone.Request{ID: "p"})
					create(t, st, turnstone.Request{ID: "c", Parent: "p"})
				},
				func(st *turnstone.Store) error { return st.Delete(ctx, "p", turnstone.CascadeChildren) },
				func(st *turnstone.Store) {
					if _, err := st.Session(ctx, "c"); err != nil {
						return // the cascade has deleted it
					}
					meddled = true
					times++
					meddle(st)
				},
				func(st *turnstone.Store, _ engine.Engine, err error) error {
					if err != nil {
						return errors.New("the cascade failed")
					}
					left, err := st.List(ctx, turnstone.ListOptions{})
					if err != nil {
						return err
					}
					var ids, want []string
					for _, i := range left.Sessions {
						ids = append(ids, i.ID)
					}
					if meddled && name == "create again" {
						want = []string{"c"}
					}
					if !slices.Equal(ids, want) {
						return fmt.Errorf("left are %q, not %q", ids, want)
					}
					return nil
				})
			if times < 3 {
				t.Errorf("the child was met %d times", times)
			}
		})
	}
}

// Whatever commits at whatever moment of a deletion at a revision: of the two, one succeeds.
func TestD6_ADeletionTakesNoCommitThatItDidNotExpect(t *testing.T) {
	for _, policy := range []turnstone.ChildPolicy{turnstone.KeepChildren, turnstone.CascadeChildren} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			var committed error
			refused, went, partly := 0, 0, 0
			besideEachCall(t,
				func(st *turnstone.Store) {
					committed = errors.New("never tried")
					create(t, st, turnstone.Request{ID: "a"}, []byte("seen"))
					create(t, st, turnstone.Request{ID: "child", Parent: "a"})
				},
				func(st *turnstone.Store) error {
					s, err := st.Session(ctx, "a")
					if err != nil {
						return err
					}
					return s.Delete(ctx, 1, policy)
				},
				func(st *turnstone.Store) {
					s, err := st.Session(ctx, "a")
					if err == nil {
						_, err = s.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: saying([]byte("unseen"))})
					}
					committed = err
				},
				func(st *turnstone.Store, _ engine.Engine, err error) error {
					s, there := st.Session(ctx, "a")
					if committed != nil {
						went++
						if err != nil || !errors.Is(there, turnstone.ErrSessionNotFound) {
							return fmt.Errorf("nothing was committed (%w), and the session: %w", committed, there)
						}
						return nil
					}
					refused++
					if !errors.Is(err, turnstone.ErrConflict) || there != nil {
						return fmt.Errorf("a commit was taken, and the session: %w", there)
					}
					_, child := st.Session(ctx, "child")
					if errors.Is(err, turnstone.ErrIncomplete) != (child != nil) {
						return fmt.Errorf("the child: %w", child)
					}
					if child != nil {
						partly++
					}
					l, err := s.Load(ctx, turnstone.Scope{})
					if err == nil && len(l.Nodes) != 2 {
						err = fmt.Errorf("%d nodes", len(l.Nodes))
					}
					return err
				})
			if refused < 3 || went < 2 || (partly > 0) != (policy == turnstone.CascadeChildren) {
				t.Errorf("%d deletions were refused, %d of them in the middle, and %d went", refused, partly, went)
			}
		})
	}
}

// A turn that the handle remembers is answered only where its session lives: not when another process has deleted it,
// or made another one of its id, or renamed it.
func TestD1_ARepeatedTurnIsAnsweredOnlyWhereItsSessionLives(t *testing.T) {
	for name, befall := range fates {
		for _, scope := range []turnstone.Scope{{}, {Full: true}} {
			t.Run(fmt.Sprint(name, scope.Full), func(t *testing.T) {
				e, st := onMemory(t, nil)
				turn := turnstone.Commit{Turn: "t", Nodes: saying([]byte("a")), Expected: turnstone.AnyRevision}
				commitTo(t, create(t, st, turnstone.Request{ID: "a"}), turn)
				other := session(t, openStore(t, e, nil), "a")
				_, err := other.Load(ctx, scope)
				must(t, err)
				befall(t, st)
				for content, payload := range map[string]string{"the same": "a", "another": "b"} {
					turn.Nodes = saying([]byte(payload))
					r, err := other.Commit(ctx, turn)
					switch {
					case name != "living" && errors.Is(err, turnstone.ErrSessionDeleted):
					case name == "living" && payload == "a" && err == nil && r.Replayed:
					case name == "living" && payload == "b" && errors.Is(err, turnstone.ErrTurnConflict):
					default:
						t.Errorf("%s content: %+v, %v", content, r, err)
					}
				}
			})
		}
	}
}

func TestD5_ASessionThatWasDeletedLeavesNothingBehind(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e, st := onMemory(t, &turnstone.Options{Now: func() time.Time { return now }})
	create(t, st, turnstone.Request{ID: "parent"}, []byte("1"))
	vacuum(t, st)
	was := len(pairs(t, e)) + 1 // and the record of forgotten ones
	for day := range 3 {
		for i := range 600 { // more than are forgotten in one batch
			id := fmt.Sprint(day, "-", i)
			create(t, st, turnstone.Request{ID: id})
			if i%100 == 0 {
				if err := rename(ctx, st, id, id+"b"); err != nil {
					t.Fatal(err)
				}
				id += "b"
			}
			remove(t, st, id)
		}
		vacuum(t, st)
		for _, o := range []gc.Options{{}, {DryRun: true}} { // too soon, and nothing
			collect(t, st, o)
			if left := len(pairs(t, e)) - was; left < 605 {
				t.Errorf("day %d: %+v leaves %d records of 606 ids", day, o, left)
			}
			now = now.Add(time.Hour + 1)
		}
		collect(t, st, gc.Options{})
		if left := len(pairs(t, e)) - was; left != 0 {
			t.Errorf("day %d: %d records are left", day, left)
		}
	}

	// A session that is not vacuumed yet is found by its id.
	create(t, st, turnstone.Request{ID: "erased"}, random(3000, 1))
	remove(t, st, "erased")
	now = now.Add(2 * time.Hour)
	collect(t, st, gc.Options{})
	if _, err := st.Erase(ctx, "erased", turnstone.KeepChildren, turnstone.EraseOptions{}); err != nil {
		t.Error("erased after its deletion:", err)
	}
	collect(t, st, gc.Options{})
	if _, err := st.Erase(ctx, "erased", turnstone.KeepChildren, turnstone.EraseOptions{}); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error("erased again:", err)
	}
	verify(t, st)
}

// The reply of a creation is lost, and its session is deleted, and perhaps forgotten, before the creation
// looks again; or the creation comes late, after another session of the id.
func TestD5_ACreationThatComesLateMakesNoSecondSession(t *testing.T) {
	for _, c := range []struct {
		name    string
		applied bool
		takes   time.Duration
	}{{"soon", true, 0}, {"after hours", true, 3 * time.Hour}, {"late", false, 0}, {"late, after hours", false, 3 * time.Hour}} {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		st, other := unsure(t, &now, c.applied, func(other *turnstone.Store) {
			if !c.applied {
				create(t, other, turnstone.Request{ID: "s"})
			}
			remove(t, other, "s")
			vacuum(t, other)
			now = now.Add(c.takes)
			collect(t, other, gc.Options{})
		})
		if _, created, err := st.Create(ctx, turnstone.Request{ID: "s"}); !errors.Is(err, turnstone.ErrOutcomeUnknown) {
			t.Errorf("%s: created: %v, %v", c.name, created, err)
		}
		if _, err := other.Session(ctx, "s"); !errors.Is(err, turnstone.ErrSessionNotFound) {
			t.Errorf("%s: it was made a second time: %v", c.name, err)
		}
	}
}

// The reply of a creation is lost while a collection forgets ids of other sessions: the creation knows its outcome.
func TestD5_WhatIsForgottenOfOthersLeavesNoOutcomeUnknown(t *testing.T) {
	for _, applied := range []bool{true, false} {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		forgot := false
		st, other := unsure(t, &now, applied, func(other *turnstone.Store) {
			collect(t, other, gc.Options{})
			forgot = true
		})
		if err := create(t, other, turnstone.Request{ID: "x"}).Rename(ctx, "y"); err != nil {
			t.Fatal(err)
		}
		now = now.Add(2 * time.Hour)
		if _, created, err := st.Create(ctx, turnstone.Request{ID: "s"}); !created || err != nil || !forgot {
			t.Errorf("applied: %v: created: %v, %v", applied, created, err)
		}
	}
}

// unsure returns a store whose next batch has an unknown outcome, and another one on the same engine, with which
// meddle is called before the first one finds out.
func unsure(t *testing.T, now *time.Time, applied bool, meddle func(other *turnstone.Store)) (st, other *turnstone.Store) {
	t.Helper()
	mem := memory.New()
	e := &enginetest.Faulty{Engine: mem}
	o := &turnstone.Options{Now: func() time.Time { return *now }}
	st, other = openStore(t, e, o), openStore(t, mem, o)
	leaveOpen(e, applied, func() { meddle(other) })
	return st, other
}

func TestD4_ASessionIsOpenedAsItself(t *testing.T) {
	_, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "a"}, []byte("1"))
	i, err := s.Info(ctx)
	if err == nil {
		err = s.Rename(ctx, "b")
	}
	if err != nil {
		t.Fatal(err)
	}
	of := i.Incarnation
	create(t, st, turnstone.Request{ID: "a"}, []byte("another"))
	again, err := st.SessionByIncarnation(ctx, of)
	if err != nil || again.ID() != "b" {
		t.Fatal(again.ID(), err)
	}
	if l, err := again.Load(ctx, turnstone.Scope{}); err != nil || string(l.Nodes[0].Payload) != "1" {
		t.Errorf("%+v, %v", l, err)
	}
	remove(t, st, "b")
	if _, err := st.SessionByIncarnation(ctx, of); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error(err)
	}
	for _, wrong := range []string{"", "b", of[:30], of + "00", of[:31] + "x"} {
		if _, err := st.SessionByIncarnation(ctx, wrong); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
