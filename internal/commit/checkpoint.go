package commit

import (
	"context"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
)

// Checkpoint returns the contents of the checkpoint parts at a revision. A nil revision stands for that
// of the head.
func (st *Store) Checkpoint(ctx context.Context, s *history.Session, at *head.Revision) (map[string][]byte, error) {
	h, _, err := s.Head(ctx)
	if err != nil {
		return nil, err
	}
	state := &h.State
	if at != nil && *at != h.Revision {
		if state, err = s.At(ctx, h, *at); err != nil {
			return nil, err
		}
	}
	return st.Contents(ctx, s, state.Parts, state.Revision)
}

// Contents returns the contents of checkpoint parts as they stand at a revision, by name. If that is the revision of
// the head that was seen last, Contents also puts them into st.Bases, so that the next versions can be stored as
// deltas.
func (st *Store) Contents(ctx context.Context, s *history.Session, parts []head.Part, at head.Revision) (map[string][]byte, error) {
	seen, _ := s.Seen()
	out := make(map[string][]byte, len(parts))
	for _, p := range parts {
		content, deltas, err := s.ReadPart(ctx, p)
		if err != nil {
			return nil, err
		}
		if seen != nil && seen.Revision == at {
			st.Bases.Put(s.Inc, p.Name, blob.Base{ID: p.Blob, Revision: uint64(p.Set), Deltas: deltas, Content: content})
		}
		out[p.Name] = content
	}
	return out, nil
}
