package commit

import (
	"context"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/history"
)

// Checkpoint returns the contents of the checkpoint parts at a revision. 0 stands for the
// revision of the head. The parts of the head go into st.Bases, so that the next versions can be
// stored as deltas.
func (st *Store) Checkpoint(ctx context.Context, s *history.Session, at head.Revision) (map[string][]byte, error) {
	h, _, err := s.Head(ctx)
	if err != nil {
		return nil, err
	}
	parts, current := h.Parts, at == 0 || at == h.Revision
	if !current {
		past, err := s.At(ctx, h, at)
		if err != nil {
			return nil, err
		}
		parts = past.Parts
	}
	out := make(map[string][]byte, len(parts))
	for _, p := range parts {
		content, deltas, err := s.ReadPart(ctx, p)
		if err != nil {
			return nil, err
		}
		if current {
			st.Bases.Put(s.Inc, p.Name, blobs.Base{ID: p.Blob, Revision: uint64(p.Set), Deltas: deltas, Content: content})
		}
		out[p.Name] = content
	}
	return out, nil
}
