package gc

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
)

// incarnation returns the incarnation to erase under a session id: that of the session
// which has the id or, if none has it, the last one that was deleted under it. The error is
// history.ErrSessionNotFound if there is neither.
func (s Eraser) incarnation(ctx context.Context, id string) (head.Incarnation, error) {
	live, _, err := s.OpenSession(ctx, id)
	if err == nil {
		return live.Inc, nil
	}
	if !errors.Is(err, history.ErrSessionNotFound) {
		return head.Incarnation{}, err
	}
	inc, found, perr := s.lastDeleted(ctx, id)
	if perr != nil {
		return head.Incarnation{}, perr
	}
	if !found {
		return head.Incarnation{}, err
	}
	return inc, nil
}

// lastDeleted returns the last incarnation that was deleted under a session id. If that
// incarnation lives, it left the id by a rename, and found is false.
func (s Eraser) lastDeleted(ctx context.Context, id string) (inc head.Incarnation, found bool, err error) {
	key := s.Space.Predecessor(s.Space.Session(id))
	vs, err := s.Engine.Get(ctx, key)
	if err != nil || vs[0] == nil {
		return inc, false, err
	}
	if inc, _, err = head.DecodePredecessor(key, vs[0]); err != nil {
		return inc, false, codec.Corrupt(err, "predecessor of session %q", id)
	}
	lives, err := s.lives(ctx, inc)
	return inc, err == nil && !lives, err
}

// lives reports whether an incarnation lives.
func (s Eraser) lives(ctx context.Context, inc head.Incarnation) (bool, error) {
	life, err := s.Life(ctx, inc)
	return life != nil && life.State == head.Live, err
}

// family returns the incarnation to erase under a session id, first, and, if cascade is
// set, its children and theirs.
func (s Eraser) family(ctx context.Context, id string, cascade bool) ([]head.Incarnation, error) {
	inc, err := s.incarnation(ctx, id)
	if err != nil {
		return nil, err
	}
	if !cascade {
		return []head.Incarnation{inc}, nil
	}
	return s.descendants(ctx, inc)
}

// descendants returns an incarnation, its children and theirs.
func (s Eraser) descendants(ctx context.Context, inc head.Incarnation) ([]head.Incarnation, error) {
	out, seen := []head.Incarnation{inc}, map[head.Incarnation]bool{inc: true}
	for i := 0; i < len(out); i++ {
		children, err := s.children(ctx, out[i])
		if err != nil {
			return nil, err
		}
		for _, child := range children {
			if !seen[child] { // A fork of a fork is listed as a fork of both.
				seen[child] = true
				out = append(out, child)
			}
		}
	}
	return out, nil
}

// children returns the children of an incarnation. An erasure that is repeated must find
// the children that the first call deleted, which are no longer listed as children. So
// children also returns deleted forks that no live fork needs.
func (s Eraser) children(ctx context.Context, inc head.Incarnation) ([]head.Incarnation, error) {
	children, err := s.Children(ctx, inc)
	if err != nil {
		return nil, err
	}
	forks, err := s.unneededForks(ctx, inc)
	return append(children, forks...), err
}

// unneededForks returns the forks of an incarnation for which isUnneeded is true.
func (s Eraser) unneededForks(ctx context.Context, inc head.Incarnation) (out []head.Incarnation, err error) {
	forks, err := s.Forks(ctx, inc)
	if err != nil {
		return nil, err
	}
	for _, fork := range forks {
		unneeded, err := s.isUnneeded(ctx, fork)
		if err != nil {
			return nil, err
		}
		if unneeded {
			out = append(out, fork)
		}
	}
	return out, nil
}

// isUnneeded reports whether an incarnation and all its forks are deleted, and vacuum has
// not removed the incarnation yet.
func (s Eraser) isUnneeded(ctx context.Context, inc head.Incarnation) (bool, error) {
	life, err := s.Life(ctx, inc)
	if err != nil || life == nil || life.State == head.Live {
		return false, err
	}
	forks, err := s.Forks(ctx, inc)
	if err != nil {
		return false, err
	}
	needed, err := s.anyLives(ctx, forks)
	return err == nil && !needed, err
}

// anyLives reports whether one of the incarnations lives.
func (s Eraser) anyLives(ctx context.Context, incs []head.Incarnation) (bool, error) {
	for _, inc := range incs {
		if lives, err := s.lives(ctx, inc); lives || err != nil {
			return lives, err
		}
	}
	return false, nil
}
