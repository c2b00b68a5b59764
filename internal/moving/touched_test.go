package moving

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A note is small, and each key of its batch is in it, or begins as one of its entries does.
func TestMV4_ANoteHasAllKeysAndIsSmall(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	widths := map[uint64]int{}
	for range testkit.Pick(300, 60, 12) {
		var b engine.Batch
		alike := rnd.IntN(2) == 0
		for range 1 + rnd.IntN(1+rnd.IntN(9_999)) {
			key := append(keys.Prefix("team"), 'a'+byte(rnd.IntN(26)))
			for i := range 20 + rnd.IntN(60) {
				if alike && i < 16 {
					key = append(key, 'x')
				} else {
					key = append(key, byte(rnd.IntN(256)))
				}
			}
			if rnd.IntN(2) == 0 {
				b.Set(key, []byte("v"))
			} else {
				b.Delete(key)
			}
		}
		noted := touched(&b)
		key := keys.TouchedKey("team", [16]byte{1})
		value := noted.Encode(key)
		if len(key)+len(value) > noteBytes {
			t.Fatalf("%d bytes for %d keys", len(key)+len(value), b.Ops())
		}
		note, err := head.DecodeTouched(key, value)
		if err != nil {
			t.Fatal(err)
		}
		widths[note.Width]++
		all := append(b.Deletes, keysOf(b.Sets)...)
		for _, k := range all[:min(len(all), 20)] { // These are as good as any.
			found := false
			for _, n := range note.Keys {
				n = append(keys.Prefix("team"), n...)
				found = found || bytes.Equal(n, k) || note.Width > 0 && bytes.HasPrefix(k, n)
			}
			if !found {
				t.Fatalf("key %x is not in a note of width %d", k, note.Width)
			}
		}
	}
	if len(widths) < testkit.Pick(3, 3, 2) {
		t.Errorf("widths %v", widths)
	}
}

func keysOf(pairs []engine.Pair) (out [][]byte) {
	for _, p := range pairs {
		out = append(out, p.Key)
	}
	return out
}
