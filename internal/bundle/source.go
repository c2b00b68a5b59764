package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A source is a session of the bundle.
type source struct {
	*history.Session
	about  *head.About
	head   *head.Head
	life   *head.Life
	record []byte // of life
	since  head.State
	there  bool                // Source.There
	hidden *history.Tombstones // what it does not show

	parent  *source    // in the bundle, of which it is an attached fork that inherits from it
	copied  *inherited // what it inherits otherwise
	needs   map[partSet]bool
	kept    []head.Kept
	current map[string]head.Part // of each part, the version that the other side has last
}

// A partSet is a version of a checkpoint part: its name, and the revision that set it.
type partSet struct {
	name string
	set  head.Revision
}

// openSource opens a session, and reads what is written of it besides its history.
func (b *writer) openSource(ctx context.Context, from Source) (*source, error) {
	opened, state, err := b.OpenSession(ctx, from.ID)
	if err != nil {
		return nil, err
	}
	if from.Inc != (head.Incarnation{}) && from.Inc != opened.Inc {
		return nil, fmt.Errorf("%w: %q", history.ErrSessionDeleted, from.ID)
	}
	if from.Since > state.Head.Revision {
		return nil, fmt.Errorf("%w: revision %d of session %q, which is at %d", history.ErrRevisionNotFound, from.Since, from.ID, state.Head.Revision)
	}
	s := &source{Session: opened, there: from.There, current: map[string]head.Part{}, needs: map[partSet]bool{}}
	for steady := false; !steady; {
		if steady, err = b.readLife(ctx, s); err != nil {
			return nil, err
		}
	}
	if s.since, err = s.StateAt(ctx, from.Since); err != nil {
		return nil, err
	}
	if from.Since > 0 {
		for _, p := range s.since.Parts {
			s.current[p.Name] = p
		}
	}
	return s, s.need(ctx)
}

// readLife reads the lifecycle record, the tombstones, the kept revisions and the head of a session. It reports whether the
// record was the same before and after.
func (b *writer) readLife(ctx context.Context, s *source) (steady bool, err error) {
	before, err := b.Engine.Get(ctx, s.LifeKey)
	if err != nil {
		return false, err
	}
	s.record = before[0]
	if s.life, err = s.DecodeLife(ctx, s.record); err != nil {
		return false, err
	}
	if s.hidden, err = s.AllTombstones(ctx); err != nil {
		return false, err
	}
	var missing error // fewer names than the record counts, because some were released
	if s.kept, missing = head.ReadKept(ctx, b.Engine, b.Space, s.Inc, s.life); missing != nil {
		s.kept = nil
	}
	var after [][]byte
	if s.head, after, err = s.Head(ctx, s.LifeKey); err != nil {
		return false, err
	}
	if !bytes.Equal(after[0], s.record) {
		return false, nil
	}
	return true, missing
}

// need notes the versions of checkpoint parts below the floor that retained revisions have.
func (s *source) need(ctx context.Context) error {
	at := []head.Revision{s.life.Floor}
	for _, k := range s.kept {
		at = append(at, k.Revision)
	}
	slices.Sort(at)
	for _, r := range slices.Compact(at) {
		if r > s.life.Floor || r > s.head.Revision {
			break
		}
		state, err := s.StateAt(ctx, r)
		if err != nil {
			return err
		}
		for _, p := range state.Parts {
			s.needs[partSet{p.Name, p.Set}] = true
		}
	}
	return nil
}

// needed reports whether a retained revision has a version of a part.
func (s *source) needed(p head.Part) bool {
	return p.Set >= s.life.Floor || s.needs[partSet{p.Name, p.Set}]
}

// unlessChanged returns err, or an error that matches history.ErrConflict if err may come of a change of the session.
func (b *writer) unlessChanged(ctx context.Context, s *source, err error) error {
	var corrupt *damage.CorruptError
	if !errors.As(err, &corrupt) {
		return err
	}
	vs, gerr := b.Engine.Get(ctx, s.LifeKey)
	if gerr == nil && !bytes.Equal(vs[0], s.record) {
		return fmt.Errorf("%w: session %q was changed while it was written: %w", history.ErrConflict, s.ID, err)
	}
	return err
}

// inheritsFrom reports whether a fork inherits what its parent p inherits, and a part of the history of p, or nothing.
func (s *source) inheritsFrom(p *source) bool {
	of := s.Origin.Ancestors
	own := of[len(of)-1]
	var inherits []head.Ancestor
	if p.Origin != nil {
		inherits = p.Origin.Ancestors
	}
	return own.Revision <= p.head.Revision && slices.Equal(of[:len(of)-1], inherits)
}

// shows reports whether s shows a node at a place of p.
func (s *source) shows(p *source, at graph.Position, id graph.ID) bool {
	return s.shares(p, at) && !s.hidden.Has(id)
}

// shares reports whether a place of p is in the graph of s, which may be p, and else follows it in the bundle.
func (s *source) shares(p *source, at graph.Position) bool {
	for below := s; below != p; below = below.parent {
		if below.parent == nil {
			return false
		}
	}
	if s == p {
		return true
	}
	i := slices.IndexFunc(s.Origin.Ancestors, func(a head.Ancestor) bool { return a.Incarnation == p.Inc })
	a := s.Origin.Ancestors[i]
	l := history.Layer{Last: a.Revision, Nodes: a.Nodes}
	return l.Has(at)
}
