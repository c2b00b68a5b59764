package history

import (
	"context"
	"errors"
	"iter"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Children returns the incarnations that are listed as children of a session. A child moves in the
// list when it is updated, and may pass a scan that reads several pages. So Children scans until
// it finds no child that it has not found before.
func (s Store) Children(ctx context.Context, parent head.Incarnation) (out []head.Incarnation, err error) {
	seen := map[head.Incarnation]bool{}
	for more := true; more; {
		more = false
		found, err := s.related(ctx, keys.Entry, keys.Children(parent), func(p engine.Pair) (head.Incarnation, error) {
			e, err := head.DecodeEntry(s.Space, p)
			return e.Incarnation, err
		})
		if err != nil {
			return nil, err
		}
		for _, child := range found {
			if !seen[child] {
				seen[child], more = true, true
				out = append(out, child)
			}
		}
	}
	return out, nil
}

// Forks returns the attached forks of a session, the forks of these, and so on. It includes
// deleted ones until vacuum has removed them.
func (s Store) Forks(ctx context.Context, ancestor head.Incarnation) ([]head.Incarnation, error) {
	return s.related(ctx, keys.Fork, ancestor, func(p engine.Pair) (fork head.Incarnation, err error) {
		_, fields, ok := s.Space.Fields(p.Key)
		if !ok {
			return fork, codec.Corrupt(damage.ErrMalformed, "fork at key %x", p.Key)
		}
		return head.Incarnation(fields[16:]), nil
	})
}

// related returns the incarnations that the records of one letter and one first field name. open
// decodes a record.
func (s Store) related(ctx context.Context, letter byte, to [16]byte, open func(engine.Pair) (head.Incarnation, error)) ([]head.Incarnation, error) {
	var out []head.Incarnation
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
func (s Store) ByIncarnation(ctx context.Context, inc head.Incarnation) (*Session, *State, error) {
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
func (s Store) Abouts(ctx context.Context) iter.Seq2[*head.About, error] {
	return func(yield func(*head.About, error) bool) {
		for p, err := range s.Engine.Scan(ctx, s.Space.All(keys.About)) {
			var about *head.About
			if err == nil {
				about, err = head.DecodeAbout(p.Key, p.Value)
				err = codec.Corrupt(err, "metadata at key %x", p.Key)
			}
			if !yield(about, err) || err != nil {
				return
			}
		}
	}
}
