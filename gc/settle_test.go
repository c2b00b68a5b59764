package gc_test

import (
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A commit sets the dirty record only if the head says that there is none. If the record is lost
// all the same, Verify says so, and the next collection comes to the session and mends the head.
func TestVF1_ALostDirtyRecordIsNamedAndNoCommitHidesBehindIt(t *testing.T) {
	e := memory.New()
	st := openAt(t, e, fixed)
	s, _, err := st.Create(ctx, turnstone.Request{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	commit := func() {
		t.Helper()
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "u", Payload: noise(6000, 1)}}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{1, 1} { // One record stands for two commits.
		if commit(); records(t, e, keys.Dirty) != want {
			t.Fatalf("%d dirty records", records(t, e, keys.Dirty))
		}
	}
	collected(t, st, gc.Options{})
	if n := records(t, e, keys.Dirty); n != 0 {
		t.Fatalf("%d dirty records after a collection", n)
	}
	var b engine.Batch
	space, err := spaceOf(e)
	if err != nil {
		t.Fatal(err)
	}
	for p := range e.Scan(ctx, space.All(keys.Head)) {
		h, err := head.DecodeHead(p.Key, p.Value)
		if err != nil || !h.Collected {
			t.Fatal(h, err)
		}
		h.Collected = false
		b.Set(p.Key, h.Encode(p.Key))
	}
	if err := e.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil || v.OK() || !strings.Contains(v.Problems[0].Error(), "dirty record") {
		t.Errorf("verify: %v, %v", v.Problems, err)
	}
	commit() // It sets no record, as the head says that there is one.
	collected(t, st, gc.Options{})
	if v, err = st.Verify(ctx, turnstone.VerifyOptions{}); err != nil || !v.OK() {
		t.Errorf("verify after a collection: %v, %v", v.Problems, err)
	}
	if commit(); records(t, e, keys.Dirty) != 1 {
		t.Error("the next commit sets no dirty record")
	}
}
