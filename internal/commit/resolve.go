package commit

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/turns"
)

// decided reports whether err says that no attempt of the commit stands.
func decided(err error) bool {
	return errors.Is(err, change.ErrConflict) || errors.Is(err, ErrTurnConflict) || errors.Is(err, change.ErrInvalid)
}

// errStands says that the commit stands: an earlier attempt, whose outcome was unknown, has
// succeeded.
var errStands = errors.New("the commit stands")

// A replayed is the error for a turn that was committed before with the same content. It has
// the result of that commit.
type replayed struct{ result Result }

func (*replayed) Error() string { return "turn replayed" }

// isReplay reports whether err says that the turn was committed before.
func isReplay(err error) bool {
	if err == nil {
		return false
	}
	var r *replayed
	return errors.As(err, &r) || errors.Is(err, ErrTurnConflict)
}

// resolve finds out why a guard was false. It returns the head, with its record, for another
// attempt, or the error that the commit ends with.
func (w *writer) resolve(ctx context.Context, conflict error) (*heads.Head, []byte, error) {
	s, space := w.s, w.store.Space
	h, vs, err := s.Head(ctx, s.HeadKey, space.Place(s.Inc))
	if err != nil {
		return nil, nil, err
	}
	s.SeePlace(vs[1])
	if w.Unknown && h.Revision >= w.built.turn.Revision {
		t, err := s.TurnAt(ctx, w.built.turn.Revision)
		if err != nil {
			return nil, nil, err
		}
		if t.ID == w.built.turn.ID {
			return nil, nil, errStands
		}
	}
	if err := w.orReplayed(ctx, h, nil); err != nil {
		return nil, nil, err
	}
	if w.in.Expected != Any && h.Revision != w.in.Expected {
		return nil, nil, conflictOf(s, w.in.Expected, h)
	}
	var ce *engine.ConflictError
	if errors.As(conflict, &ce) && space.Letter(ce.Key) == keys.Mark { // A mark has changed, or the cache of marks was wrong.
		ids := w.stage.IDs()
		for i := range w.in.Nodes {
			for _, a := range w.in.Nodes[i].Attachments {
				ids = append(ids, a.ID)
			}
		}
		if _, err := w.store.Blobs.Refresh(ctx, w.stage.Marks, ids); err != nil {
			return nil, nil, err
		}
	}
	return h, vs[0], nil
}

// conflictOf returns the error for a head that is not at the expected revision.
func conflictOf(s *history.Session, expected head.Revision, h *heads.Head) error {
	return &Conflict{Session: s.ID, Expected: expected, Revision: h.Revision, Leaf: h.Leaf, Commit: h.Commit}
}

// orReplay ends the commit with err, unless the turn was committed before, up to head h.
func (w *writer) orReplay(ctx context.Context, h *heads.Head, err error) (Result, error) {
	err = w.orReplayed(ctx, h, err)
	if isReplay(err) {
		return w.resolved(err)
	}
	return Result{}, err
}

// orReplayed returns err, unless the turn was committed before, up to head h. Then it returns what
// replay does.
func (w *writer) orReplayed(ctx context.Context, h *heads.Head, err error) error {
	if w.in.Turn == "" {
		return err
	}
	t, ferr := history.Retry(ctx, w.s, func() (*turns.Turn, error) { return w.s.FindTurn(ctx, h.Revision, w.in.Turn) })
	if ferr != nil {
		return ferr
	}
	if t == nil {
		return err
	}
	return w.replay(ctx, t)
}

// replay compares the commit with the one that is stored under its turn id. The error is a
// *replayed if the commits are the same, and else a TurnConflict.
func (w *writer) replay(ctx context.Context, stored *turns.Turn) error {
	again := &replayed{Result{Revision: stored.Revision, Commit: stored.ID, Leaf: stored.Leaf, Replayed: true}}
	for i := range stored.Pack.Nodes {
		again.result.Nodes = append(again.result.Nodes, stored.Pack.Nodes[i].ID)
	}
	if stored.Pack.Erased() { // The content can't be compared any more, so the turn id decides.
		return again
	}
	before, err := history.Retry(ctx, w.s, func() (heads.State, error) { return w.s.StateAt(ctx, stored.Revision-1) })
	if err != nil {
		return err
	}
	made, err := assemble(w.in, make([]payload, len(w.in.Nodes)), w.digests(&stored.Commit), &before, stored.Pack.Salt, stored.Time)
	if err != nil || made.turn.ID != stored.ID {
		return &TurnConflict{Session: w.s.ID, Turn: w.in.Turn, Revision: stored.Revision, Commit: stored.ID}
	}
	return again
}

// digests returns the parts of the request as assemble takes them, but only with their ids and
// sizes. Whether a part is a delta is taken from the commit to compare with, since it depends on
// what the cache had at that time.
func (w *writer) digests(with *heads.Commit) map[string]*version {
	parts := map[string]*version{}
	for name, content := range w.in.Checkpoint {
		parts[name] = &version{id: blob.Sum(content), size: int64(len(content))}
	}
	for _, p := range with.Parts {
		if v := parts[p.Name]; v != nil && p.Set == with.Revision {
			v.delta = heads.IsDelta(p)
		}
	}
	return parts
}
