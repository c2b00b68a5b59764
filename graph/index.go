package graph

import (
	"encoding/binary"
	"fmt"

	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// The nodes of loose packs have an index entry each. Those of a sealed segment
// have one record together, of prefixes of their ids in order: an entry takes 35
// bytes and what the engine adds, a prefix takes 6. Who looks for an old node
// reads the records of the session, 6 bytes a node; two nodes of a million in
// one session share a prefix with a probability of 0.2 %, and then both are
// read.
const prefixBytes = 4

// SealIndex returns the record that says which nodes packs have, which are the
// segment of inc that ends with the last of them.
func SealIndex(space *keys.Space, inc keys.Incarnation, packs []Pack) (key, value []byte) {
	key = space.Index(inc, packs[len(packs)-1].Revision)
	var body []byte
	before := uint64(0)
	for i := range packs {
		p := &packs[i]
		body = binary.AppendUvarint(body, p.Revision-before)
		body = binary.AppendUvarint(body, uint64(len(p.Nodes)))
		for j := range p.Nodes {
			body = append(body, p.Nodes[j].ID[:prefixBytes]...)
		}
		before = p.Revision
	}
	return key, codec.Seal(key, keys.Index, body)
}

// Alike reports whether an index may take one id for the other.
func Alike(a, b ID) bool { return [prefixBytes]byte(a[:]) == [prefixBytes]byte(b[:]) }

// FindIndexed returns the places that a record of SealIndex gives for id: the
// places of all nodes whose ids begin like it.
func FindIndexed(key, value []byte, id ID) (out []Place, err error) {
	body, err := codec.Open(key, value, keys.Index)
	if err != nil {
		return nil, err
	}
	want := [prefixBytes]byte(id[:])
	revision := uint64(0)
	for len(body) > 0 {
		step, n := codec.Uvarint(body)
		if n <= 0 {
			return nil, fmt.Errorf("%w: index", codec.ErrMalformed)
		}
		count, m := codec.Uvarint(body[n:])
		if m <= 0 || count > MaxNodes || len(body) < n+m+int(count)*prefixBytes {
			return nil, fmt.Errorf("%w: index", codec.ErrMalformed)
		}
		revision, body = revision+step, body[n+m:]
		for i := range int(count) {
			if [prefixBytes]byte(body[i*prefixBytes:]) == want {
				out = append(out, Place{Revision: revision, Position: i})
			}
		}
		body = body[int(count)*prefixBytes:]
	}
	return out, nil
}
