package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// Lifecycles are the lifecycle records of a session and of its ancestors, as they stood
// before anything else was read.
//
// A batch that moves, rewrites or removes records of a session also sets the session's
// lifecycle record, to a value that never recurs. So everything that was read after the
// lifecycle records belongs together, as long as they have not changed:
//
//   - If a read finds something missing or damaged, and a lifecycle record has changed, the
//     read starts over. Otherwise it has found damage.
//   - A batch that depends on what was read guards the lifecycle records. If one of them has
//     changed, the batch has no effect, and the call starts over.
//
// All calls except plain commits read in this order, by WithLifecycles.
type Lifecycles struct {
	Session *Session
	Keys    [][]byte // The key of the session's own record, then those of its ancestors, oldest first.
	Values  [][]byte
	Own     *head.Life // The session's own record. It says that the session lives.
}

// WithLifecycles calls f with the lifecycle records of a session and its ancestors. If f finds
// something missing or damaged, and the lifecycle records have changed meanwhile, WithLifecycles
// reads them again and calls f again.
func WithLifecycles[T any](ctx context.Context, s *Session, f func(*Lifecycles) (T, error)) (T, error) {
	var none T
	for {
		l, err := s.Lifecycles(ctx)
		if err != nil {
			return none, err
		}
		out, err := f(l)
		if err == nil || !transient(err) {
			return out, err
		}
		after, aerr := s.Engine.Get(ctx, l.Keys...)
		if aerr != nil {
			return none, aerr
		}
		if slices.EqualFunc(l.Values, after, bytes.Equal) {
			return out, err
		}
	}
}

// transient reports whether the reason for err may be that records moved while they were read.
func transient(err error) bool {
	var corrupt *damage.CorruptError
	return errors.As(err, &corrupt) || errors.Is(err, ErrNodeNotFound) || errors.Is(err, ErrBlobNotFound)
}

// Retry is WithLifecycles for a function that does not need the lifecycle records.
func Retry[T any](ctx context.Context, s *Session, read func() (T, error)) (T, error) {
	return WithLifecycles(ctx, s, func(*Lifecycles) (T, error) { return read() })
}

// Try is Retry that does not read the lifecycle records as long as read succeeds.
func Try[T any](ctx context.Context, s *Session, read func() (T, error)) (T, error) {
	out, err := read()
	if err == nil || !transient(err) {
		return out, err
	}
	return Retry(ctx, s, read)
}

// Lifecycles reads the lifecycle records of a session and its ancestors. The error is
// ErrSessionDeleted if the session does not live under its id.
func (s *Session) Lifecycles(ctx context.Context) (*Lifecycles, error) {
	l := &Lifecycles{Session: s, Keys: [][]byte{s.LifeKey}}
	if s.Origin != nil {
		for _, a := range s.Origin.Ancestors {
			l.Keys = append(l.Keys, s.Space.Life(a.Incarnation))
		}
	}
	var err error
	if l.Values, err = s.Engine.Get(ctx, l.Keys...); err != nil {
		return nil, err
	}
	if l.Own, err = s.DecodeLife(ctx, l.Values[0]); err == nil && l.Own.Session != s.Hash { // It was renamed.
		err = fmt.Errorf("%w: %q", ErrSessionDeleted, s.ID)
	}
	return l, err
}

// Of returns the lifecycle record of the session or of an ancestor, decoded, with its key
// and its value.
func (l *Lifecycles) Of(inc head.Incarnation) (life *head.Life, key, value []byte, err error) {
	key = l.Session.Space.Life(inc)
	i := slices.IndexFunc(l.Keys, func(k []byte) bool { return bytes.Equal(k, key) })
	life, err = head.DecodeLife(key, l.Values[i])
	return life, key, l.Values[i], codec.Corrupt(err, "lifecycle of %s", nameOf(inc))
}
