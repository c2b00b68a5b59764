package head

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// EncodeKept returns the record of a kept revision for key.
func EncodeKept(key []byte, r Kept) []byte {
	var e codec.Encoder
	e.Array(2)
	e.Text(r.Name)
	e.Uint(uint64(r.Revision))
	return codec.Encode(key, keys.Ref, e.B)
}

// DecodeKept decodes the record of key.
func DecodeKept(key, value []byte) (*Kept, error) {
	body, err := codec.Decode(key, value, keys.Ref)
	if err != nil {
		return nil, err
	}
	d := codec.Decoder{B: body}
	d.Shape(2)
	r := &Kept{Name: d.Text(), Revision: Revision(d.Uint())}
	return r, d.Done()
}

// ReadKept reads the revisions of inc that are kept by name, in the order of their
// keys. life is the lifecycle record of inc. It has the number of kept revisions, because a scan alone
// can't show that one is missing.
func ReadKept(ctx context.Context, e engine.Engine, space *keys.Space, inc Incarnation, life *Life) ([]Kept, error) {
	if life.Refs == 0 {
		return nil, nil
	}
	var out []Kept
	for p, err := range e.Scan(ctx, space.Of(keys.Ref, inc)) {
		if err != nil {
			return nil, err
		}
		r, err := DecodeKept(p.Key, p.Value)
		if err != nil {
			return nil, codec.Corrupt(err, "kept revision at key %x", p.Key)
		}
		out = append(out, *r)
	}
	if uint64(len(out)) != life.Refs {
		return nil, codec.Corrupt(fmt.Errorf("%w: %d of %d", damage.ErrMissing, len(out), life.Refs), "kept revisions of incarnation %x", inc)
	}
	return out, nil
}

// A Tombstone hides a node from reads of a session, and of forks made later.
type Tombstone struct {
	Epoch  uint64 // of the lifecycle record that its batch set
	Pruned bool   // it was vacuum that hid it: no retained revision leads to it
	// Before is the nearest node before it that no call of Tombstone had hidden then, the one that set
	// this tombstone included, or the zero id if there was none. All nodes in between are hidden as
	// long as this one is; Before may be pruned, or hidden since. It is zero if the node is pruned.
	Before graph.ID
}

// Encode returns t's record for key.
func (t Tombstone) Encode(key []byte) []byte {
	n := t.Epoch << 1
	if t.Pruned {
		n |= 1
	}
	b := binary.AppendUvarint(make([]byte, 0, 42), n)
	if !t.Before.IsZero() {
		b = append(b, t.Before[:]...)
	}
	return codec.Encode(key, keys.Tombstone, b)
}

// DecodeTombstone decodes the record of key.
func DecodeTombstone(key, value []byte) (t Tombstone, err error) {
	body, err := codec.Decode(key, value, keys.Tombstone)
	if err != nil {
		return t, err
	}
	v, n := codec.Uvarint(body)
	before := body[max(n, 0):]
	copy(t.Before[:], before)
	t.Epoch, t.Pruned = v>>1, v&1 != 0
	wrong := len(before) > 0 && (len(before) != len(t.Before) || t.Before.IsZero() || t.Pruned)
	if n <= 0 || wrong {
		return Tombstone{}, fmt.Errorf("%w: tombstone", damage.ErrMalformed)
	}
	return t, nil
}
