package blob

import (
	"context"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// recompressBytes bounds what Recompress compresses: the result fits a batch.
const recompressBytes = 1 << 20

// Recompress makes b replace the values of a blob that was compressed fast, on a commit's path,
// by ones that are compressed as well as can be, and guard its mark. It does nothing, and
// returns false, for a list, for a blob of more than 1 MiB of values, and for one that is
// condemned, missing or compressed so already.
func (s *Store) Recompress(ctx context.Context, b *engine.Batch, h keys.Hash) (done bool, err error) {
	markKey := s.space.Mark(h)
	vs, err := s.engine.Get(ctx, markKey)
	if err != nil || vs[0] == nil {
		return false, err
	}
	mark, err := DecodeMark(markKey, vs[0])
	if err != nil {
		return false, codec.Corrupt(err, "mark of the blob at %x", h)
	}
	if mark.Condemned || !mark.Loose() {
		return false, nil
	}
	r, err := s.first(ctx, h)
	if err != nil {
		return false, err
	}
	content, err := s.Read(ctx, r.id)
	if err != nil {
		return false, err
	}
	r.data = codec.Compress(nil, content, codec.Best)
	ks, values := r.values(s.space, h)
	b.Guard(markKey, vs[0])
	for i := range ks {
		b.Set(ks[i], values[i])
	}
	for i := len(ks); i < mark.Parts; i++ {
		b.Delete(s.space.Blob(h, i))
	}
	next := r.mark(values)
	next.Packed = true
	b.Set(markKey, next.Encode(markKey))
	return true, nil
}
