package turnstone

import (
	"bytes"
	"context"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
)

// The small records that the root package decodes itself: no panic, and what
// is accepted is what would have been written.
func FuzzSmallRecords(f *testing.F) {
	key := keys.StoreKey("")
	r := heads.Store{Format: 1, Namespace: "n", Chunks: blobs.DefaultChunking}
	sealed := r.Seal(key)
	f.Add(sealed[2 : len(sealed)-4])
	f.Add([]byte{0x80, 0x01})
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, err := heads.OpenStore(key, codec.Seal(key, keys.Store, body), heads.Known); err == nil {
			if again := r.Seal(key); !bytes.Equal(again, codec.Seal(key, keys.Store, body)) {
				t.Errorf("store record %x was accepted", body)
			}
		}
		_, _ = heads.OpenTombstone(key, codec.Seal(key, keys.Tombstone, body))
		_, _ = pack.OpenAttachment(key, codec.Seal(key, keys.Attachment, body))
		st, err := Open(context.Background(), memory.New(), &Options{NoAutoSeal: true, TakeOverAfter: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		inc := keys.Incarnation{1}
		if p, err := heads.OpenPlace(key, codec.Seal(key, keys.Place, body)); err == nil {
			if again := p.Seal(key); !bytes.Equal(again, codec.Seal(key, keys.Place, body)) {
				t.Errorf("place %x was accepted", body)
			}
		}
		child := st.space.Entry(keys.Children(keys.Incarnation{2}), 1, inc)
		if err := st.engine.Apply(context.Background(), &engine.Batch{Sets: []engine.Pair{{Key: child, Value: codec.Seal(child, keys.Entry, body)}}}); err != nil {
			t.Fatal(err)
		}
		_, _ = st.histories.Children(context.Background(), keys.Incarnation{2})
	})
}
