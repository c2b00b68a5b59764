package gc

import (
	"bytes"
	"testing"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// The decoders of the collector's own records do not panic, and accept a record only if it is
// encoded as the collector would encode it.
func FuzzRecords(f *testing.F) {
	key := []byte("turnkey")
	body := func(record []byte) []byte { return record[2 : len(record)-4] }
	for _, u := range []use{{node: 3}, {parts: true, last: open}, {node: 1, parts: true, last: 300}} {
		f.Add(body(u.encode(key)))
	}
	f.Add(body((&bookmark{revision: 7, held: 9, parts: []part{{name: "p"}}}).encode(key)))
	f.Add(body((&bookmark{revision: 7, floor: 2, kept: []head.Revision{1}, held: 3, stones: 200, due: dueSeal | dueErase}).encode(key)))
	f.Add(body((&cycleState{seq: 3, rebuild: true}).encode(key)))
	f.Add(body(encodeCount(key, 300)))
	f.Fuzz(func(t *testing.T, body []byte) {
		same := func(what string, letter byte, again []byte, err error) {
			if record := codec.Encode(key, letter, body); err == nil && !bytes.Equal(again, record) {
				t.Errorf("%s %x was accepted and is encoded as %x", what, record, again)
			}
		}
		u, err := decodeUse(key, codec.Encode(key, keys.Edge, body))
		same("edge", keys.Edge, u.encode(key), err)
		m, err := decodeBookmark(key, codec.Encode(key, keys.Bookmark, body))
		same("bookmark", keys.Bookmark, m.encode(key), err)
		s, err := decodeCycleState(key, codec.Encode(key, keys.Cycle, body))
		same("cycle", keys.Cycle, s.encode(key), err)
		n, err := decodeCount(key, codec.Encode(key, keys.Count, body))
		same("count", keys.Count, encodeCount(key, n), err)
	})
}
