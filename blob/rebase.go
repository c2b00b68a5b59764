package blob

import (
	"bytes"
	"context"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// rebaseBytes is the largest representation that Rebase makes: it fits a batch.
const rebaseBytes = 1 << 20

// Rebase makes b store the blob that h stands for by itself, compressed as far as
// it goes: a delta if deltas is set, else one that is stored by itself already
// and was compressed on a commit's path. It is guarded on its mark and on the
// bytes that store it now. It reports whether it did. A delta whose content does
// not fit a batch becomes a list of chunks, which up holds until it is abandoned.
func (s *Store) Rebase(ctx context.Context, b *engine.Batch, h keys.Hash, deltas bool, up *Upload) (done bool, err error) {
	markKey, firstKey := s.space.Mark(h), s.space.Blob(h, 0)
	vs, err := s.engine.Get(ctx, markKey, firstKey)
	if err != nil || vs[0] == nil {
		return false, err
	}
	mark, err := OpenMark(markKey, vs[0])
	if err != nil {
		return false, codec.Corrupt(err, "mark of the blob at %x", h)
	}
	if mark.Condemned || mark.Packed || mark.Depends != deltas {
		return false, nil
	}
	r, err := s.first(ctx, h)
	if err != nil || r.form == list {
		return false, err
	}
	content, err := s.Read(ctx, r.id)
	if err != nil {
		return false, err
	}
	alone := record{id: r.id, form: whole, size: r.size, data: codec.Compress(nil, content, codec.Best)}
	if len(alone.data) > rebaseBytes {
		if !deltas {
			return false, nil
		}
		d, err := up.Write(ctx, bytes.NewReader(content), r.size)
		if err != nil {
			return false, err
		}
		alone = d.rec
		up.hold(b, r.id) // with its chunks: it is represented before they are let go of
	}
	ks, values := alone.values(s.space, h)
	b.Guard(markKey, vs[0])
	b.Guard(firstKey, vs[1])
	for i := range ks {
		b.Set(ks[i], values[i])
	}
	for i := len(ks); i < mark.Parts; i++ {
		b.Delete(s.space.Blob(h, i))
	}
	next := alone.mark(values)
	next.Packed = alone.form == whole
	b.Set(markKey, next.Seal(markKey))
	return true, nil
}
