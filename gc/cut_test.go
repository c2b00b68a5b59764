package gc_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A cutOff is an operation that is cut off at one of its calls of the engine.
type cutOff struct {
	before func(*turnstone.Store)
	do     func(*turnstone.Store) error
	// next, if not nil, is done afterwards, on a store that was open all the time.
	next func(*turnstone.Store) error
	// applies is set if the operation is cut off at calls of Apply only.
	applies bool
}

// everywhere does the operation on a new store for each call of the engine, and cuts it off at
// that call. Afterwards it does next, and checks that two vacuums leave nothing behind.
func (c *cutOff) everywhere(t *testing.T) {
	t.Helper()
	for n, cut := 1, true; cut; n++ {
		e := memory.New()
		st := openAt(t, e, fixed)
		c.before(st)
		cut = false
		its := openAt(t, &enginetest.Faulty{Engine: e, Plan: func(call enginetest.Call) enginetest.Fault {
			at := call.N - 1 // the first call is that of opening
			if c.applies {
				at = call.Apply
			}
			cut = cut || at == n
			return enginetest.Fault{Crash: at == n}
		}}, fixed)
		if err := c.do(its); (err != nil) != cut || cut && !errors.Is(err, engine.ErrClosed) {
			t.Errorf("cut off at call %d: %v, %v", n, cut, err)
		}
		healthy(t, st)
		w := &world{st, ctx, 0}
		var err error
		if c.next != nil {
			err = c.next(st)
		}
		if err := both(err, vacuum(w), vacuum(w), reachable(e, true)); err != nil {
			t.Errorf("after it was cut off at call %d: %v", n, err)
		}
		healthy(t, st)
	}
}

func vacuumOnce(st *turnstone.Store) error {
	_, err := st.Vacuum(ctx, gc.VacuumOptions{})
	return err
}

// eightVersions makes a session whose part has eight versions, of which the last is
// retained.
func eightVersions(t *testing.T) func(*turnstone.Store) {
	return func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range 8 {
			commit(t, s, saves(version(i)))
		}
		prune(t, s)
	}
}

// Vacuum is cut off. Then a collection runs, and the store is verified.
func TestACutVacuumAndACollectionLeaveNoDamage(t *testing.T) {
	c := cutOff{before: eightVersions(t), do: vacuumOnce, next: func(st *turnstone.Store) error {
		collected(t, st, gc.Options{})
		healthy(t, st)
		s, err := st.Session(ctx, "s")
		if err != nil {
			return err
		}
		parts, err := s.Checkpoint(ctx, 8)
		if err == nil && !bytes.Equal(parts["p"], version(7)) {
			err = errors.New("the checkpoint is another")
		}
		return err
	}}
	c.everywhere(t)
}

// Vacuum is cut off between the values of a version that it stores whole.
func TestValuesOfAVersionThatWasNotFinishedGo(t *testing.T) {
	testkit.Slow(t)
	large := noise(700<<10, 9) // 2 values
	part := func(i int) []byte { return append(bytes.Clone(large), noise(100, uint64(i))...) }
	c := cutOff{applies: true, do: vacuumOnce, before: func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range 4 {
			commit(t, s, saves(part(i)))
		}
		prune(t, s)
	}}
	for name, parts := range map[string][][]byte{
		"the part goes on": {part(5), part(6)},
		"it is replaced":   {part(5), []byte("small")},
	} {
		if name == "the part goes on" && !testkit.Long() {
			continue
		}
		c.next = func(st *turnstone.Store) error {
			s, err := st.Session(ctx, "s")
			if err != nil {
				return err
			}
			for _, p := range parts {
				commit(t, s, saves(p))
			}
			prune(t, s)
			return nil
		}
		t.Run(name, c.everywhere)
	}
}

// A vacuum that removes a deleted session is cut off. Then the index is derived anew.
func TestAFullCollectionAfterAVacuumWasCutOff(t *testing.T) {
	c := cutOff{before: func(st *turnstone.Store) {
		eightVersions(t)(st)
		collected(t, st, gc.Options{})
		if err := st.Delete(ctx, "s", turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
	}, do: vacuumOnce, next: func(st *turnstone.Store) error {
		_, err := st.GC(ctx, gc.Options{Full: true})
		return err
	}}
	c.everywhere(t)
}

// An erasure of a session that was forked before its first commit is cut off between
// the packs that it removes, and repeated.
func TestAnErasureIsRepeatedWhereAForkHoldsNoCommit(t *testing.T) {
	erase := func(st *turnstone.Store) error {
		_, err := st.Erase(ctx, "s", turnstone.KeepChildren, turnstone.EraseOptions{})
		return err
	}
	c := cutOff{before: func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		create(t, st, turnstone.Request{ID: "f", Parent: "s"})
		for range 3 {
			commit(t, s, says(big, []byte("x")))
		}
		collected(t, st, gc.Options{})
	}, do: erase, next: erase}
	c.everywhere(t)
}

// Erase with CascadeChildren is cut off, and repeated.
func TestACascadeCanBeRepeated(t *testing.T) {
	erase := func(st *turnstone.Store) (*turnstone.Erasure, error) {
		return st.Erase(ctx, "a", turnstone.CascadeChildren, turnstone.EraseOptions{})
	}
	c := cutOff{before: func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "a"})
		commit(t, s, turnstone.Commit{Nodes: says([]byte("x")).Nodes, Checkpoint: map[string][]byte{"p": version(0)}})
		f := create(t, st, turnstone.Request{ID: "b", Parent: "a"})
		commit(t, f, saves(noise(6000, 3)))
		create(t, st, turnstone.Request{ID: "c", Parent: "b", Detached: true})
	}, do: func(st *turnstone.Store) error {
		r, err := erase(st)
		if err == nil && (r.Gone != 2 || r.Vacuum.Deleted != 2) {
			t.Errorf("a part of the parent's and one of the child's are to go: %+v, vacuum has deleted %d", *r, r.Vacuum.Deleted)
		}
		return err
	}, next: func(st *turnstone.Store) error {
		if _, err := erase(st); err != nil && !errors.Is(err, turnstone.ErrSessionNotFound) {
			return err
		}
		page, err := st.List(ctx, turnstone.ListOptions{Limit: 10})
		if err == nil && len(page.Sessions) > 0 {
			err = fmt.Errorf("left: %v", page.Sessions)
		}
		return err
	}}
	c.everywhere(t)
}
