package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
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
// All calls except plain commits read in this order, by Read.
type Lifecycles struct {
	Session *Session
	Keys    [][]byte // The key of the session's own record, then those of its ancestors, oldest first.
	Values  [][]byte
	Own     *head.Life // The session's own record. It says that the session lives.
}

// Read calls f with the lifecycle records of a session and its ancestors. If f finds something missing or damaged, and
// they have changed meanwhile, Read reads them again and calls f again.
func Read[T any](ctx context.Context, s *Session, f func(*Lifecycles) (T, error)) (T, error) {
	keys := s.lifecycleKeys()
	return ReadBeside(ctx, s.Engine, keys, func(values [][]byte) (out T, err error) {
		l, err := s.lifecycles(ctx, keys, values)
		if err != nil {
			return out, err
		}
		return f(l)
	})
}

// ReadBeside calls read with the values of keys, which are those of lifecycle records. It calls read again as long as
// read finds something missing or damaged and one of the values has changed meanwhile.
func ReadBeside[T any](ctx context.Context, e engine.Engine, keys [][]byte, read func(values [][]byte) (T, error)) (T, error) {
	before, err := e.Get(ctx, keys...)
	for {
		var out T
		if err != nil {
			return out, err
		}
		out, err = read(before)
		if err == nil || !transient(err) {
			return out, err
		}
		after, failed := e.Get(ctx, keys...)
		if failed == nil && slices.EqualFunc(before, after, bytes.Equal) {
			return out, err
		}
		before, err = after, failed
	}
}

// transient reports whether the reason for err may be that records moved while they were read.
func transient(err error) bool {
	var corrupt *damage.CorruptError
	return errors.As(err, &corrupt) || errors.Is(err, ErrNodeNotFound) || errors.Is(err, ErrBlobNotFound)
}

// Try is Read for a function that needs no lifecycle records: they are read only if it fails.
func Try[T any](ctx context.Context, s *Session, read func() (T, error)) (T, error) {
	out, err := read()
	if err == nil || !transient(err) {
		return out, err
	}
	return Read(ctx, s, func(*Lifecycles) (T, error) { return read() })
}

// Lifecycles reads the lifecycle records of a session and its ancestors. The error is
// ErrSessionDeleted if the session does not live under its id.
func (s *Session) Lifecycles(ctx context.Context) (*Lifecycles, error) {
	keys := s.lifecycleKeys()
	values, err := s.Engine.Get(ctx, keys...)
	if err != nil {
		return nil, err
	}
	return s.lifecycles(ctx, keys, values)
}

func (s *Session) lifecycleKeys() [][]byte {
	keys := [][]byte{s.LifeKey}
	if s.Origin != nil {
		for _, a := range s.Origin.Ancestors {
			keys = append(keys, s.Space.Life(a.Incarnation))
		}
	}
	return keys
}

func (s *Session) lifecycles(ctx context.Context, keys, values [][]byte) (*Lifecycles, error) {
	own, err := s.DecodeLife(ctx, values[0])
	if err == nil && own.Session != s.Hash { // It was renamed.
		err = fmt.Errorf("%w: %q", ErrSessionDeleted, s.ID)
	}
	return &Lifecycles{Session: s, Keys: keys, Values: values, Own: own}, err
}

// Of returns the lifecycle record of the session or of an ancestor, decoded, with its key
// and its value.
func (l *Lifecycles) Of(inc head.Incarnation) (life *head.Life, key, value []byte, err error) {
	key = l.Session.Space.Life(inc)
	i := slices.IndexFunc(l.Keys, func(k []byte) bool { return bytes.Equal(k, key) })
	life, err = head.DecodeLife(key, l.Values[i])
	return life, key, l.Values[i], codec.Corrupt(err, "lifecycle of %s", nameOf(inc))
}
