package history

import (
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
)

// KeepRevision makes b keep a revision of a session under a name. If the name is new, next counts it, and the error is
// a *LimitError if the session has so many already.
func KeepRevision(s *Session, k head.Kept, isNew bool, most int, next *head.Life, b *engine.Batch) error {
	if isNew {
		if int(next.Refs) >= most {
			return &LimitError{Limit: "kept revisions", Where: "session " + s.ID, Have: int64(next.Refs) + 1, Max: int64(most)}
		}
		next.Refs++
	}
	key := s.Space.Ref(s.Inc, k.Name)
	b.Set(key, head.EncodeKept(key, k))
	return nil
}
