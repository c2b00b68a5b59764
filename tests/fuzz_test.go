package tests

import (
	"bytes"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// The small records: no panic, and what
// is accepted is what would have been written.
func FuzzSmallRecords(f *testing.F) {
	key := keys.StoreKey("")
	r := head.Store{Format: 1, Namespace: "n", Chunks: blob.DefaultChunking}
	sealed := r.Encode(key)
	f.Add(sealed[2 : len(sealed)-4])
	f.Add([]byte{0x80, 0x01})
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, err := head.DecodeStore(key, codec.Encode(key, keys.Store, body), head.Known); err == nil {
			if again := r.Encode(key); !bytes.Equal(again, codec.Encode(key, keys.Store, body)) {
				t.Errorf("store record %x was accepted", body)
			}
		}
		_, _ = head.DecodeTombstone(key, codec.Encode(key, keys.Tombstone, body))
		_, _ = graph.DecodeAttachment(key, codec.Encode(key, keys.Attachment, body))
		st, err := turnstone.Open(ctx, memory.New(), &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		inc := keys.Incarnation{1}
		if p, err := head.DecodePlace(key, codec.Encode(key, keys.Place, body)); err == nil {
			if again := p.Encode(key); !bytes.Equal(again, codec.Encode(key, keys.Place, body)) {
				t.Errorf("place %x was accepted", body)
			}
		}
		child := spaceOf(st).Entry(keys.Children(keys.Incarnation{2}), 1, inc)
		if err := engineOf(st).Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: child, Value: codec.Encode(child, keys.Entry, body)}}}); err != nil {
			t.Fatal(err)
		}
		_, _ = historiesOf(st).Children(ctx, keys.Incarnation{2})
	})
}
