package turnstone

import (
	"context"
)

// Rename gives the session called from the id to, atomically: lists, reads and
// commits see one or the other, and its children have it as their parent under the new
// id. Handles opened before get ErrSessionDeleted. A session that exists under to is
// ErrExists.
func (s *Store) Rename(ctx context.Context, from, to string) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	if err := checkSessionID(to); err != nil {
		return err
	}
	ses, err := s.Session(ctx, from)
	if err != nil {
		return err
	}
	return s.lifecycle.Rename(ctx, ses.session, to)
}
