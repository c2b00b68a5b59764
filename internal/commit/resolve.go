package commit

import (
	"bytes"
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
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

// resolve finds out why a guard was false. It returns the head, with its record, for another
// attempt, or the error that the commit ends with.
func (w *writer) resolve(ctx context.Context, conflict error) (*heads.Head, []byte, error) {
	s, space := w.s, w.store.Space
	turnKey := space.Turn(s.Inc, w.in.Turn)
	h, vs, err := s.Head(ctx, s.HeadKey, space.Place(s.Inc), turnKey)
	if err != nil {
		return nil, nil, err
	}
	s.SeePlace(vs[1])
	if w.Unknown && h.Revision >= w.built.commit.Revision {
		_, id, err := s.CommitAt(ctx, w.built.commit.Revision)
		if err != nil {
			return nil, nil, err
		}
		if id == w.built.id {
			return nil, nil, errStands
		}
	}
	if w.in.Turn != "" && vs[2] != nil {
		return nil, nil, w.replay(ctx, turnKey, vs[2])
	}
	if w.in.Expected != Any && h.Revision != w.in.Expected {
		return nil, nil, conflictOf(s, w.in.Expected, h)
	}
	var ce *engine.ConflictError
	if errors.As(conflict, &ce) {
		switch space.Letter(ce.Key) {
		case keys.Mark: // A mark has changed, or the cache of marks was wrong.
			ids := w.stage.IDs()
			for i := range w.in.Nodes {
				for _, a := range w.in.Nodes[i].Attachments {
					ids = append(ids, a.ID)
				}
			}
			if _, err := w.store.Blobs.Refresh(ctx, w.stage.Marks, ids); err != nil {
				return nil, nil, err
			}
		case keys.EventKey:
			if err := w.duplicateKey(ctx, ce.Key); err != nil {
				return nil, nil, err
			}
		}
	}
	return h, vs[0], nil
}

// duplicateKey returns the error for the new node whose event key is taken. key is the key of
// its entry. If the entry has gone meanwhile, duplicateKey returns nil.
func (w *writer) duplicateKey(ctx context.Context, key []byte) error {
	vs, err := w.store.Engine.Get(ctx, key)
	if err != nil || vs[0] == nil {
		return err
	}
	place, err := pack.OpenPosition(key, vs[0], keys.EventKey)
	if err != nil {
		return codec.Corrupt(err, "event key of session %q", w.s.ID)
	}
	for i := range w.in.Nodes {
		if k := w.in.Nodes[i].Key; k != "" && bytes.Equal(w.store.Space.EventKey(w.s.Inc, k), key) {
			return w.keyTaken(i, place, "")
		}
	}
	return nil
}

// conflictOf returns the error for a head that is not at the expected revision.
func conflictOf(s *history.Session, expected head.Revision, h *heads.Head) error {
	return &Conflict{Session: s.ID, Expected: expected, Revision: h.Revision, Leaf: h.Leaf, Commit: h.Commit}
}

// orReplay returns err, unless the turn was committed before. Then it returns the result of that
// commit or, if the content differs, a turn conflict.
func (w *writer) orReplay(ctx context.Context, err error) (Result, error) {
	if w.in.Turn == "" {
		return Result{}, err
	}
	key := w.store.Space.Turn(w.s.Inc, w.in.Turn)
	vs, gerr := w.store.Engine.Get(ctx, key)
	if gerr != nil {
		return Result{}, gerr
	}
	if vs[0] != nil {
		err = w.replay(ctx, key, vs[0])
		var r *replayed
		if errors.As(err, &r) {
			return r.result, nil
		}
	}
	return Result{}, err
}

// replay compares the commit with the one that is stored under its turn id. key and value are
// those of the turn's record. The error is a *replayed if the commits are the same.
func (w *writer) replay(ctx context.Context, key, value []byte) error {
	s := w.s
	revision, err := heads.OpenTurn(key, value)
	if err != nil {
		return codec.Corrupt(err, "turn %q of session %q", w.in.Turn, s.ID)
	}
	stored, id, err := s.CommitAt(ctx, revision)
	if err != nil {
		return err
	}
	if stored.Turn != w.in.Turn {
		return codec.Corrupt(record.ErrHash, "turn %q of session %q", w.in.Turn, s.ID)
	}
	before, err := baseBefore(ctx, s, revision)
	if err != nil {
		return err
	}
	var p pack.Pack
	if stored.Nodes > 0 {
		if p, err = history.Retry(ctx, s, func() (pack.Pack, error) { return s.Pack(ctx, s.Inc, revision) }); err != nil {
			return err
		}
	}
	if p.Erased() { // The content can't be compared any more, so the turn id decides.
		ids, err := resolved(&p, before.last)
		if err != nil {
			return codec.Corrupt(err, "pack of revision %d of session %q", revision, s.ID)
		}
		return &replayed{Result{Revision: revision, Commit: id, Leaf: stored.Leaf, Nodes: ids, Replayed: true}}
	}
	payloads, parts := w.digests(stored)
	again, err := assemble(w.in, payloads, parts, before, p.Salt, stored.Time)
	if err != nil || again.id != id {
		return &TurnConflict{Session: s.ID, Turn: w.in.Turn, Revision: revision, Commit: id}
	}
	return &replayed{Result{Revision: revision, Commit: id, Leaf: stored.Leaf, Nodes: again.ids, Replayed: true}}
}

// resolved returns the ids of the nodes of a pack. before is the node before them.
func resolved(p *pack.Pack, before graph.ID) ([]graph.ID, error) {
	_, err := p.Resolve(before)
	ids := make([]graph.ID, len(p.Nodes))
	for i := range ids {
		ids[i] = p.Nodes[i].ID
	}
	return ids, err
}

// digests returns the payloads and parts of the request as assemble takes them, but only with
// their ids and sizes. Whether a part is a delta is taken from the commit to compare with, since
// it depends on what the cache had at that time.
func (w *writer) digests(with *heads.Commit) (payloads []*blobs.Draft, parts map[string]*version) {
	payloads, parts = make([]*blobs.Draft, len(w.in.Nodes)), map[string]*version{}
	for i := range w.in.Nodes {
		if p := w.in.Nodes[i].Payload; uint64(len(p)) > w.store.Inline {
			payloads[i] = &blobs.Draft{ID: blob.Sum(p), Size: int64(len(p))}
		}
	}
	for name, content := range w.in.Checkpoint {
		parts[name] = &version{id: blob.Sum(content), size: int64(len(content))}
	}
	for _, p := range with.Parts {
		if v := parts[p.Name]; v != nil && p.Set == with.Revision {
			v.delta = heads.IsDelta(p)
		}
	}
	return payloads, parts
}

// baseBefore returns the state that the commit of revision r was built on.
func baseBefore(ctx context.Context, s *history.Session, r head.Revision) (base, error) {
	b := base{revision: r - 1}
	if r == 1 {
		b.commit = heads.Genesis(s.Inc, s.Origin)
		if o := s.Origin; o != nil {
			b.leaf = o.Ancestors[len(o.Ancestors)-1].Node
			b.last, b.parts = b.leaf, o.Parts
		}
		return b, nil
	}
	c, id, err := s.CommitAt(ctx, r-1)
	if err != nil {
		return base{}, err
	}
	b.commit, b.leaf, b.last, b.partsAt = id, c.Leaf, c.Last, c.PartsAt
	b.parts, err = s.PartsAt(ctx, c)
	return b, err
}
