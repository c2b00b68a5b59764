package blobs

import (
	"context"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// packBytes bounds what Pack compresses: the result fits a batch.
const packBytes = 1 << 20

// Pack makes b store the blob that h stands for compressed as far as it goes, if the
// blob is stored whole and was compressed fast, on a commit's path. b guards the
// blob's mark. Pack reports whether it added anything to b.
func (s *Store) Pack(ctx context.Context, b *engine.Batch, h keys.Hash) (done bool, err error) {
	markKey := s.space.Mark(h)
	vs, err := s.engine.Get(ctx, markKey)
	if err != nil || vs[0] == nil {
		return false, err
	}
	mark, err := OpenMark(markKey, vs[0])
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
	b.Set(markKey, next.Seal(markKey))
	return true, nil
}
