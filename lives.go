package turnstone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// Lives are the lifecycle records of a session and of its ancestors, as they stood
// before anything else was read.
//
// Whatever moves, rewrites or removes records of a session sets its lifecycle record in
// the same batch, to a value that never recurs. So what was read after these records
// is of one state as long as they stand:
//
//   - A read that fails on something absent has found damage only if they stand as they
//     stood. Otherwise the read starts over.
//   - A batch that depends on what was read guards them. If one of them has changed,
//     the batch has no effect, and the call starts over.
//
// A call that is no plain append reads in this order only: withLives is the one place
// where lifecycle records are read for it.
type lives struct {
	session *Session
	keys    [][]byte // of the records: the session's own, then its ancestors' from the first on
	raws    [][]byte
	life    *head.Life // the session's own; it lives
}

// withLives calls f with the lifecycle records of s and its ancestors, and again as
// long as f fails on what may have changed under it.
func withLives[T any](ctx context.Context, s *Session, f func(*lives) (T, error)) (T, error) {
	var none T
	for {
		l, err := s.readLives(ctx)
		if err != nil {
			return none, err
		}
		out, err := f(l)
		if err == nil || !transient(err) {
			return out, err
		}
		after, aerr := s.store.engine.Get(ctx, l.keys...)
		if aerr != nil {
			return none, aerr
		}
		if slices.EqualFunc(l.raws, after, bytes.Equal) {
			return out, err
		}
	}
}

// transient reports whether err may be due to records that moved while they were read.
func transient(err error) bool {
	var damage *CorruptError
	if errors.As(err, &damage) {
		return true
	}
	for _, e := range []error{ErrNodeNotFound, ErrBlobNotFound, ErrInvalid} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// retried is withLives for what reads only.
func retried[T any](ctx context.Context, s *Session, read func() (T, error)) (T, error) {
	return withLives(ctx, s, func(*lives) (T, error) { return read() })
}

// alter is one attempt of a call that changes a session otherwise than by appending
// to it. It reads the lifecycle records first. Then edit reads what depends on them,
// and adds to the batch. edit reports whether there is anything to do. The batch guards
// the session's lifecycle record and sets it to next.
func (s *Session) alter(ctx context.Context, c *change, edit func(next *head.Life, b *engine.Batch) (needed bool, err error)) error {
	_, err := withLives(ctx, s, func(l *lives) (struct{}, error) {
		next := l.life.Next()
		var b engine.Batch
		needed, err := edit(&next, &b)
		if err != nil || !needed {
			return struct{}{}, err
		}
		b.Guard(l.keys[0], l.raws[0])
		b.Set(l.keys[0], next.Seal(l.keys[0]))
		return struct{}{}, c.apply(ctx, &b)
	})
	return err
}

// readLives reads the lifecycle records of s, which is to be alive under its id, and
// of its ancestors.
func (s *Session) readLives(ctx context.Context) (*lives, error) {
	l := &lives{session: s, keys: [][]byte{s.history.LifeKey}}
	if s.history.Origin != nil {
		for _, a := range s.history.Origin.Ancestors {
			l.keys = append(l.keys, s.store.space.Life(a.Incarnation))
		}
	}
	var err error
	if l.raws, err = s.store.engine.Get(ctx, l.keys...); err != nil {
		return nil, err
	}
	if l.life, err = s.history.OpenLife(ctx, l.raws[0]); err == nil && l.life.Session != s.history.Hash { // renamed
		err = fmt.Errorf("%w: %q", ErrSessionDeleted, s.history.ID)
	}
	return l, err
}

// readLife reads the session's lifecycle record, for what reads only.
func (s *Session) readLife(ctx context.Context) (*head.Life, error) {
	l, err := s.readLives(ctx)
	if err != nil {
		return nil, err
	}
	return l.life, nil
}

// of returns the lifecycle record of the session or of an ancestor, and its key and
// value.
func (l *lives) of(inc head.Incarnation) (life *head.Life, key, raw []byte, err error) {
	key = l.session.store.space.Life(inc)
	i := slices.IndexFunc(l.keys, func(k []byte) bool { return bytes.Equal(k, key) })
	life, err = head.OpenLife(key, l.raws[i])
	return life, key, l.raws[i], codec.Corrupt(err, "lifecycle of incarnation %x", inc)
}
