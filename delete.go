package turnstone

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/internal/lifecycle"
)

// A ChildPolicy says what Delete does with the children of a session.
type ChildPolicy int

const (
	// KeepChildren leaves them whole: attached forks keep what they share alive.
	// They have no parent any more.
	KeepChildren ChildPolicy = iota
	// RefuseChildren deletes nothing and returns ErrHasChildren.
	RefuseChildren
	// CascadeChildren deletes them too, deepest first. It is not one atomic
	// step: an error that matches ErrIncomplete leaves some deleted.
	CascadeChildren
)

// Delete removes a session from all reads and lists at once. Deleting one that
// does not exist is no error. Its data is garbage as far as no fork holds it. An
// error that matches ErrOutcomeUnknown leaves open whether the session is deleted,
// and one of CascadeChildren that matches ErrIncomplete leaves some deleted.
func (s *Store) Delete(ctx context.Context, id string, policy ChildPolicy) error {
	_, err := observed(ctx, s, OpDelete, id, func(ctx context.Context) (struct{}, error) {
		if err := policy.check(); err != nil {
			return struct{}{}, err
		}
		ses, err := s.Session(ctx, id)
		if errors.Is(err, ErrSessionNotFound) {
			return struct{}{}, nil
		}
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, s.lifecycle.Delete(ctx, ses.session.Inc, lifecycle.Policy(policy))
	}, nil)
	return err
}
