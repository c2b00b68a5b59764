package turnstone_test

import (
	"testing"

	"github.com/turnstonedb/turnstone"

	"github.com/turnstonedb/turnstone/engine/memory"
)

// SealBytes at its maximum with ordinary nodes of two attachments each
func TestSealCountsKeys(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes 16,000 nodes")
	}
	st := openStore(t, memory.New(), &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1, SealBytes: 1 << 20})
	s := create(t, st, turnstone.Request{ID: "s"})
	c := uint64(0)
	for i := range 40 {
		var n []turnstone.NewNode
		for range 400 {
			c++
			key := random(256, c)
			for j, x := range key {
				key[j] = '!' + x%90
			}
			n = append(n, turnstone.NewNode{Kind: "u", Key: string(key), Payload: []byte("hi")})
		}
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: n}); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := s.Seal(ctx); err != nil {
		t.Error(err)
	}
	if stats, err := st.Stats(ctx); err != nil || stats.Sealed == 0 || stats.Loose != 0 {
		t.Errorf("%d segments are sealed and %d packs loose, %v", stats.Sealed, stats.Loose, err)
	}
}
