package turnstone_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/pack"
)

// In the background segments are sealed fast; who asks for it gets them as small
// as they can be, once, however many there are.
func TestSealedFastIsSealedAgain(t *testing.T) {
	batches := 0
	e := &enginetest.Faulty{Engine: memory.New(), Plan: beforeEachApply(func(*engine.Batch) { batches++ })}
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1, SealBytes: 20_000})
	s := create(t, st, turnstone.Request{ID: "s"})
	var want []string
	commit := func(n int) {
		t.Helper()
		for range n {
			text := strings.Repeat(fmt.Sprint("turn ", len(want), " of a conversation; "), 40)
			commitAt(t, s, turnstone.Commit{Expected: head.Revision(len(want)), Nodes: []turnstone.NewNode{{Kind: "u", Payload: []byte(text)}}})
			want = append(want, text)
		}
	}
	levels := func() (out []codec.Level) {
		t.Helper()
		for seg, err := range pack.Segments(ctx, e, turnstone.SpaceOf(st), turnstone.IncarnationOf(s), 1, uint64(len(want))) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, seg.Level)
		}
		return out
	}
	complete := func() {
		t.Helper()
		l, err := s.Load(ctx, turnstone.Scope{})
		if err != nil || len(l.Nodes) != len(want) {
			t.Fatal(len(l.Nodes), err)
		}
		for i, n := range l.Nodes {
			if string(n.Payload) != want[i] {
				t.Fatalf("node %d differs", i)
			}
			if got, err := s.Node(ctx, n.ID); err != nil || string(got.Payload) != want[i] {
				t.Fatalf("node %d by id: %v", i, err)
			}
		}
		if v, err := st.Verify(ctx, turnstone.VerifyOptions{}); err != nil || !v.OK() {
			t.Fatal(v, err)
		}
	}
	for round := range 2 {
		commit(70)
		if err := turnstone.SealFast(ctx, s); err != nil { // what the background does
			t.Fatal(err)
		}
		got := levels()
		sealed := slices.IndexFunc(got, func(l codec.Level) bool { return l == codec.Medium })
		if sealed < 0 || !slices.Contains(got[sealed:], codec.Fast) || slices.Contains(got[sealed:], codec.Best) || round == 0 && sealed > 0 {
			t.Errorf("round %d: levels %v after sealing in the background", round, got)
		}
		complete()
		if err := s.Seal(ctx); err != nil {
			t.Fatal(err)
		}
		if got := levels(); len(got) < 2 || slices.ContainsFunc(got, func(l codec.Level) bool { return l != codec.Best }) {
			t.Errorf("round %d: levels %v after Seal", round, got)
		}
		complete()
		batches = 0
		if err := s.Seal(ctx); err != nil || batches != 0 {
			t.Errorf("round %d: sealing again writes %d batches, %v", round, batches, err)
		}
	}
}
