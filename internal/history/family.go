package history

import (
	"context"
	"errors"
	"iter"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// Children returns the incarnations that are listed as children of a session.
func (s Store) Children(ctx context.Context, parent heads.Incarnation) ([]heads.Incarnation, error) {
	return s.related(ctx, keys.Child, parent, func(p engine.Pair) (heads.Incarnation, error) {
		child, err := heads.OpenChild(s.Space, p)
		return child, codec.Corrupt(err, "child at key %x", p.Key)
	})
}

// Forks returns the attached forks of a session, the forks of these, and so on. It includes
// deleted ones until vacuum has removed them.
func (s Store) Forks(ctx context.Context, ancestor heads.Incarnation) ([]heads.Incarnation, error) {
	return s.related(ctx, keys.Fork, ancestor, func(p engine.Pair) (fork heads.Incarnation, err error) {
		_, fields, ok := s.Space.Fields(p.Key)
		if !ok {
			return fork, codec.Corrupt(record.ErrMalformed, "fork at key %x", p.Key)
		}
		return heads.Incarnation(fields[16:]), nil
	})
}

// related returns the incarnations that the records of one letter and one incarnation name. open
// decodes a record.
func (s Store) related(ctx context.Context, letter byte, to heads.Incarnation, open func(engine.Pair) (heads.Incarnation, error)) ([]heads.Incarnation, error) {
	var out []heads.Incarnation
	for p, err := range s.Engine.Scan(ctx, s.Space.Of(letter, to)) {
		if err != nil {
			return nil, err
		}
		inc, err := open(p)
		if err != nil {
			return nil, err
		}
		out = append(out, inc)
	}
	return out, nil
}

// ByIncarnation returns the live session of an incarnation, and its state, or nil if
// it does not live.
func (s Store) ByIncarnation(ctx context.Context, inc heads.Incarnation) (*Session, *State, error) {
	for {
		about, err := s.About(ctx, inc)
		if err != nil || about == nil {
			return nil, nil, err
		}
		out, st, err := s.OpenSession(ctx, about.ID)
		if err == nil && out.Inc == inc {
			return out, st, nil
		}
		if err != nil && !errors.Is(err, ErrSessionNotFound) {
			return nil, nil, err
		}
		// It was renamed or deleted meanwhile.
	}
}

// Abouts yields the metadata of all sessions that live, in no particular order.
func (s Store) Abouts(ctx context.Context) iter.Seq2[*heads.About, error] {
	return func(yield func(*heads.About, error) bool) {
		for p, err := range s.Engine.Scan(ctx, s.Space.All(keys.About)) {
			var about *heads.About
			if err == nil {
				about, err = heads.OpenAbout(p.Key, p.Value)
				err = codec.Corrupt(err, "metadata at key %x", p.Key)
			}
			if !yield(about, err) || err != nil {
				return
			}
		}
	}
}
