package repair

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// apply writes the records that make a session whole.
func (r *repairer) apply(ctx context.Context, s *survey) error {
	old := s.hash
	if s.hash = r.Space.Session(s.id); s.hash != old {
		if err := r.removeNames(ctx, old); err != nil {
			return err
		}
	}
	life := head.Life{State: head.Live}
	if s.life != nil {
		life = *s.life
	}
	life.Session, life.Epoch, life.Floor = s.hash, s.epoch, s.floor
	life.Refs, life.Stones = uint64(len(s.kept)), uint64(len(s.stones))
	if s.anew {
		life.Sealed, life.SealedBytes, life.Packed, life.Runs = 0, 0, 0, nil
	}
	h := head.Head{Incarnation: s.inc, State: s.state, Bytes: s.bytes, PackBytes: s.packBytes}
	if s.head != nil {
		h.Fed = s.head.Fed
	}
	s.about.ID = s.id
	sets := []engine.Pair{}
	set := func(key []byte, value func(key []byte) []byte) {
		sets = append(sets, engine.Pair{Key: key, Value: value(key)})
	}
	set(r.Space.About(s.hash), s.about.Encode)
	set(r.Space.Head(s.hash), h.Encode)
	set(r.Space.Life(s.inc), life.Encode)
	if s.origin != nil {
		set(r.Space.Origin(s.inc), s.origin.Encode)
	}
	for id, stone := range s.stones {
		full := [codec.HashSize]byte{}
		copy(full[:], id[:])
		set(r.Space.Tombstone(s.inc, full), stone.Encode)
	}
	for _, p := range sets {
		if err := r.w.set(ctx, p.Key, p.Value); err != nil {
			return err
		}
	}
	return r.keptAnew(ctx, s)
}

// bury makes a session one that was deleted, which its forks may go on from.
func (r *repairer) bury(ctx context.Context, s *survey) error {
	if err := r.removeNames(ctx, s.hash); err != nil {
		return err
	}
	life := head.Life{State: head.Deleted, Session: s.hash, Floor: 1, Epoch: s.epoch, Stones: uint64(len(s.stones))}
	key := r.Space.Life(s.inc)
	return errors.Join(r.w.set(ctx, key, life.Encode(key)), r.w.flush(ctx))
}

// follow makes a fork name the commits of its ancestors as they are now.
func (r *repairer) follow(s *survey) {
	if s.origin == nil {
		return
	}
	o := *s.origin
	o.Ancestors = slices.Clone(o.Ancestors)
	changed := false
	for i := range o.Ancestors {
		a := &o.Ancestors[i]
		if id, ok := r.commits[forkedAt{a.Incarnation, a.Revision}]; ok {
			a.Commit, changed = id, true
		}
	}
	if changed {
		o.Genesis = head.Genesis(s.inc, s.origin)
		s.origin, s.changed = &o, true
	}
}

// keptAnew removes the records of kept revisions that are not kept any more.
func (r *repairer) keptAnew(ctx context.Context, s *survey) error {
	for p, err := range r.Engine.Scan(ctx, r.Space.Of(keys.Ref, s.inc)) {
		if err != nil {
			return err
		}
		k, err := head.DecodeKept(p.Key, p.Value)
		if err == nil && slices.Contains(s.kept, *k) {
			continue
		}
		if err := r.w.remove(ctx, p.Key); err != nil {
			return err
		}
	}
	return r.w.flush(ctx)
}

// shorten writes the commits of a session that can be read again, one segment each. It leaves out the checkpoint parts
// that are dropped.
func (r *repairer) shorten(ctx context.Context, s *survey) error {
	if err := r.w.flush(ctx); err != nil {
		return err
	}
	state := head.Begin(s.inc, s.origin)
	if s.state.Revision > 0 {
		for segment, err := range r.Segments(ctx, history.Revisions{Inc: s.inc, Name: s.name, Last: s.state.Revision}) {
			if err != nil {
				return err
			}
			for _, key := range segment.Keys {
				if err := r.w.remove(ctx, key); err != nil {
					return err
				}
			}
			for i := range segment.Turns {
				t := segment.Turns[i]
				if t.Revision <= state.Revision || t.Revision > s.state.Revision { // Older segments may be back.
					continue
				}
				if state, err = r.rewrite(ctx, s, state, &t); err != nil {
					return err
				}
			}
			if err := r.w.flush(ctx); err != nil {
				return err
			}
		}
	}
	s.state = state
	return r.removeRest(ctx, s)
}

// rewrite writes a turn that follows a state, and returns the next one.
func (r *repairer) rewrite(ctx context.Context, s *survey, state head.State, t *history.Turn) (head.State, error) {
	was := t.ID
	t.Previous = state.Commit
	if t.Parts = s.without(t.Parts); t.PartsAt != t.Revision {
		t.Parts = nil
	}
	if t.ID = t.Commit.ID(); t.ID != was {
		r.commits[forkedAt{s.inc, t.Revision}] = t.ID
	}
	next, err := state.Then(&t.Commit, t.ID)
	if err == nil {
		err = r.writeTurn(ctx, s.inc, t)
	}
	return next, err
}

// writeTurn writes a turn as a segment of its own.
func (r *repairer) writeTurn(ctx context.Context, inc head.Incarnation, t *history.Turn) error {
	ks, vs, err := history.EncodeTurn(r.Space, inc, t.Body(), &t.Pack)
	if err != nil {
		return err
	}
	for i := range ks {
		if err := r.w.set(ctx, ks[i], vs[i]); err != nil {
			return err
		}
	}
	return nil
}

// removeRest removes the segments behind the end of a session, and its index.
func (r *repairer) removeRest(ctx context.Context, s *survey) error {
	for _, letter := range []byte{keys.Segment, keys.Index} {
		for p, err := range r.Engine.Scan(ctx, r.Space.Of(letter, s.inc)) {
			if err != nil {
				return err
			}
			_, fields, ok := r.Space.Fields(p.Key)
			if last := uint64(0); ok {
				if last, _ = keys.SegmentFields(fields); letter == keys.Segment && head.Revision(last) <= s.state.Revision {
					continue
				}
			}
			if err := r.w.remove(ctx, p.Key); err != nil {
				return err
			}
		}
	}
	return r.w.flush(ctx)
}

// removeNames removes the head and the metadata of an id.
func (r *repairer) removeNames(ctx context.Context, hash keys.Hash) error {
	return errors.Join(r.w.remove(ctx, r.Space.Head(hash)), r.w.remove(ctx, r.Space.About(hash)))
}

// park copies the turns that come after a gap to another place.
func (r *repairer) park(ctx context.Context, s *survey) error {
	if s.state.Revision > 0 && !s.anew {
		return nil
	}
	name := s.name + " after a gap"
	var lasts []head.Revision
	for p, err := range r.Engine.Scan(ctx, r.Space.Of(keys.Segment, s.inc)) {
		if err != nil {
			return err
		}
		_, fields, ok := r.Space.Fields(p.Key)
		if !ok {
			continue
		}
		if last, value := keys.SegmentFields(fields); value == 0 && head.Revision(last) > s.state.Revision {
			lasts = append(lasts, head.Revision(last))
		}
	}
	rest := &Rest{History: &history.History{Store: r.Store, Inc: s.inc, Name: name}, About: s.about, Hidden: s.hides}
	if _, err := rand.Read(rest.Turns[:]); err != nil {
		return err
	}
	for _, last := range lasts {
		segment, err := r.At(ctx, s.inc, name, last)
		if why, fatal := damaged(err); fatal != nil {
			return fatal
		} else if why != nil || segment.Last != last {
			continue
		}
		for i := range segment.Turns {
			t := &segment.Turns[i]
			if n := len(rest.At); t.Revision <= s.state.Revision || n > 0 && t.Revision <= rest.At[n-1] { // Older segments may be back.
				continue
			}
			if err := r.writeTurn(ctx, rest.Turns, t); err != nil {
				return err
			}
			rest.At = append(rest.At, t.Revision)
		}
	}
	if len(rest.At) > 0 {
		s.rest = rest
	}
	return r.w.flush(ctx)
}
