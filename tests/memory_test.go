package tests

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// misses counts the parts of commits whose last version was not in memory.
type misses struct{ n int }

func (m *misses) Begin(ctx context.Context, _ turnstone.Operation) (context.Context, func(turnstone.Outcome)) {
	return ctx, func(out turnstone.Outcome) { m.n += out.BaseMisses }
}

func TestR21_StoresOfOneMemoryShareItAndACloseGivesItBack(t *testing.T) {
	shared, e := engine.NewMemoryBudget(engine.MinMemory), memory.New()
	r := rand.NewChaCha8([32]byte{1})
	part := func() []byte { // Of 3.5 MB at most in the smallest Memory, which keeps 16 MB.
		b := make([]byte, 3<<20)
		_, _ = r.Read(b)
		return b
	}
	type held struct {
		*turnstone.Store
		s    *turnstone.Session
		part []byte
		seen *misses
	}
	open := func(name string, m *engine.MemoryBudget) held {
		h := held{part: part(), seen: &misses{}}
		h.Store = openStore(t, e, &turnstone.Options{Namespace: name, Memory: m, Observer: h.seen, NoAutoSeal: true})
		var err error
		if h.s, _, err = h.Create(t.Context(), turnstone.Request{ID: "a"}); err != nil {
			t.Fatal(err)
		}
		return h
	}
	// commit saves the part with a little more in it, and reports whether that was stored as a delta.
	commit := func(h *held) bool {
		t.Helper()
		before := h.seen.n
		h.part = append(bytes.Clone(h.part), fmt.Sprint(before)...)
		if _, err := h.s.Commit(t.Context(), turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"p": h.part}}); err != nil {
			t.Fatal(err)
		}
		return h.seen.n == before
	}
	one, other, alone := open("one", shared), open("other", shared), open("alone", engine.NewMemoryBudget(engine.MinMemory))
	for _, h := range []*held{&one, &other, &alone} {
		commit(h)
	}
	more := []held{other}
	for n := range 4 { // With one and other they have 18 MB.
		h := open(fmt.Sprint("more ", n), shared)
		commit(&h)
		more = append(more, h)
	}
	if commit(&one) {
		t.Error("six stores keep more than their Memory")
	}
	if !commit(&alone) {
		t.Error("a store with a Memory of its own lost what it has to others")
	}
	for _, h := range more {
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if two := open("two", shared); commit(&two) || !commit(&two) || !commit(&one) || !commit(&two) {
		t.Error("stores that were closed keep what they had")
	}
}
