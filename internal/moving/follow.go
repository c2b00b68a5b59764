package moving

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// mostMoves bounds how far a namespace is followed: the records of databases that were set back could lead in a circle.
const mostMoves = 64

// Follow returns the database that a namespace is in. It begins in e. If the namespace has moved, and of.Open is nil,
// the error is an *engine.MovedError. A namespace that is nowhere yet is in e.
func Follow(ctx context.Context, e engine.Engine, of Namespace) (engine.Engine, error) {
	vs, err := e.Get(ctx, keys.StoreKey(of.Name))
	if err != nil || vs[0] == nil {
		return e, err
	}
	s, err := decode(of, vs[0])
	if err != nil || s.Move.Phase != head.Moved {
		return e, err
	}
	e, _, _, err = follow(ctx, of, s)
	return e, err
}

// follow returns the database that a namespace is in, and its store record there. It begins with a store record that
// says that the namespace has moved.
func follow(ctx context.Context, of Namespace, s head.Store) (e engine.Engine, record []byte, _ head.Store, err error) {
	for range mostMoves {
		if of.Open == nil {
			return nil, nil, s, &engine.MovedError{Path: fmt.Sprintf("namespace %q", of.Name), To: s.Move.To}
		}
		if e, err = of.Open(ctx, s.Move.To); err != nil {
			return nil, nil, s, fmt.Errorf("database %q, to which namespace %q has moved: %w", s.Move.To, of.Name, err)
		}
		if record, err = arrive(ctx, e, of, &s); err != nil {
			return nil, nil, s, fmt.Errorf("database %q, to which namespace %q has moved: %w", s.Move.To, of.Name, err)
		}
		there, err := decode(of, record)
		if err != nil {
			return nil, nil, s, err
		}
		if !there.Same(&s) {
			return nil, nil, s, fmt.Errorf("%w: database %q, to which namespace %q has moved, has another store", engine.ErrInvalid, s.Move.To, of.Name)
		}
		if s = there; s.Move.Phase != head.Moved {
			return e, record, s, nil
		}
	}
	return nil, nil, s, fmt.Errorf("%w: the databases that namespace %q has moved to lead in a circle", engine.ErrInvalid, of.Name)
}

// arrive returns the store record of a namespace that has moved to e, as s says. If nobody has written it yet, arrive
// does.
func arrive(ctx context.Context, e engine.Engine, of Namespace, s *head.Store) (record []byte, err error) {
	key, noteKey := keys.StoreKey(of.Name), keys.CopyingKey(of.Name)
	for {
		vs, err := e.Get(ctx, key, noteKey)
		if err != nil {
			return nil, err
		}
		note, err := decodeNote(of, vs[1])
		if err != nil {
			return nil, err
		}
		if note.Run != s.Move.Run || len(note.Store) == 0 {
			there, err := decode(of, vs[0])
			if err == nil && there.Moves <= s.Moves { // It is older than the move.
				err = damage.ErrMissing
			}
			if err != nil {
				return nil, fmt.Errorf("%w: is it the database of that name?", err)
			}
			return vs[0], nil
		}
		var b engine.Batch
		b.Guard(key, vs[0])
		b.Guard(noteKey, vs[1])
		b.Set(key, note.Store)
		b.Delete(noteKey)
		if _, err := engine.ApplyUntilKnown(ctx, e, &b); err != nil && !errors.Is(err, engine.ErrConflict) {
			return nil, err
		}
	}
}

// decodeNote decodes the note of the last copy into a namespace, or returns a zero one if there is none.
func decodeNote(of Namespace, value []byte) (n head.CopyNote, err error) {
	if value != nil {
		n, err = head.DecodeCopyNote(keys.CopyingKey(of.Name), value)
	}
	return n, codec.Corrupt(err, "note of the last copy, namespace %q", of.Name)
}

// Where returns what the store record in e says of moves. found is false if there is none.
func Where(ctx context.Context, e engine.Engine, of Namespace) (m head.Move, found bool, err error) {
	vs, err := e.Get(ctx, keys.StoreKey(of.Name))
	if err != nil || vs[0] == nil {
		return m, false, err
	}
	s, err := decode(of, vs[0])
	return s.Move, err == nil, err
}
