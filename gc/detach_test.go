package gc_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// One segment refers to more attachments than a batch takes.
func TestASegmentOfManyAttachmentsIsErased(t *testing.T) {
	e := memory.New()
	st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
	if err != nil {
		t.Fatal(err)
	}
	s := create(t, st, turnstone.Request{ID: "s"})
	n := 0
	var ids []turnstone.NodeID
	for _, total := range []int{2900, 9000} {
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
	t.Log(n, "attachments")
	vacuumed(t, st)
	if err := s.Tombstone(ctx, ids...); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := st.Vacuum(ctx, turnstone.VacuumOptions{}); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Erase(ctx, nil, ids[0]); err != nil {
		t.Error(err)
	}
}
