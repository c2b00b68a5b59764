package gc_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// One segment refers to more attachments than a batch takes.
func TestASegmentOfManyAttachmentsIsErased(t *testing.T) {
	testkit.Slow(t)
	e := memory.New()
	st, err := turnstone.Open(ctx, e, &turnstone.Options{InlineBytes: 1, NoAutoSeal: true, TakeOverAfter: -1})
	if err != nil {
		t.Fatal(err)
	}
	s := create(t, st, turnstone.Request{ID: "s"})
	n := 0
	var ids []graph.ID
	for _, total := range testkit.Pick([]int{2900, 9000}, []int{2900}, []int{2900}) {
		var c turnstone.Commit
		for range total / 16 {
			node := turnstone.NewNode{Kind: "u", Payload: []byte("x")}
			for range 16 {
				n++
				a, err := s.PutAttachment(ctx, bytes.NewReader(fmt.Append(nil, "attachment ", n)), -1, "", "")
				if err != nil {
					t.Fatal(err)
				}
				node.Attachments = append(node.Attachments, a)
			}
			c.Nodes = append(c.Nodes, node)
		}
		ids = append(ids, commit(t, s, c).Nodes...)
	}
	vacuumed(t, st)
	if err := s.Tombstone(ctx, ids...); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
			t.Error(err)
		}
	}
	for p := range e.Scan(ctx, engine.Range{}) {
		if l := letter(p.Key); l == keys.Attachment || l == keys.Detached {
			t.Fatalf("record %q is left", l)
		}
	}
	if err := reachable(e, true); err != nil {
		t.Error(err)
	}
	if r, err := s.Erase(ctx, turnstone.EraseOptions{}, ids[0]); err != nil || len(r.HeldBy) > 0 {
		t.Error(r, err)
	}
}
