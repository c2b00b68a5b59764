package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/record"
)

// Lifecycles are the lifecycle records of a session and of its ancestors, as they stood
// before anything else was read.
//
// Whatever moves, rewrites or removes records of a session sets its lifecycle record in
// the same batch, to a value that never recurs. So what was read after these records is
// of one state as long as they stand:
//
//   - A read that fails on something absent has found damage only if the records stand as
//     they stood. Otherwise the read starts over.
//   - A batch that depends on what was read guards the records. If one of them has
//     changed, the batch has no effect, and the call starts over.
//
// A call that is no plain append reads in this order only, by WithLifecycles.
type Lifecycles struct {
	Session *Session
	Keys    [][]byte // of the session's own record, then of its ancestors', oldest first
	Values  [][]byte
	Own     *heads.Life // the session's own; it lives
}

// WithLifecycles calls f with the lifecycle records of a session and its ancestors. When
// f fails on something that may have changed under it, and the records have changed, it
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

// transient reports whether err may be due to records that moved while they were read.
func transient(err error) bool {
	var damage *record.CorruptError
	return errors.As(err, &damage) || errors.Is(err, ErrNodeNotFound) || errors.Is(err, ErrBlobNotFound)
}

// Retry is WithLifecycles for what only reads.
func Retry[T any](ctx context.Context, s *Session, read func() (T, error)) (T, error) {
	return WithLifecycles(ctx, s, func(*Lifecycles) (T, error) { return read() })
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
	if l.Own, err = s.OpenLife(ctx, l.Values[0]); err == nil && l.Own.Session != s.Hash { // renamed
		err = fmt.Errorf("%w: %q", ErrSessionDeleted, s.ID)
	}
	return l, err
}

// Of returns the lifecycle record of the session or of an ancestor, decoded, with its key
// and its value.
func (l *Lifecycles) Of(inc heads.Incarnation) (life *heads.Life, key, value []byte, err error) {
	key = l.Session.Space.Life(inc)
	i := slices.IndexFunc(l.Keys, func(k []byte) bool { return bytes.Equal(k, key) })
	life, err = heads.OpenLife(key, l.Values[i])
	return life, key, l.Values[i], codec.Corrupt(err, "lifecycle of %s", nameOf(inc))
}
