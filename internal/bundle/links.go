package bundle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
)

// This file reads the spool. A first reading, of links, checks that nodes and commits name nodes of their graphs, that
// commits say how long the paths to their leaves are, and that forks begin where they say. It needs memory for those
// nodes only that are named out of turn: see namedBy.

// each calls f for each frame of the spool, with the section that it belongs to. Data are read by f.
func (r *reader) each(ctx context.Context, f func(in *incoming, kind byte, body []byte, frames *frameReader) error) error {
	frames := &frameReader{r: bufio.NewReaderSize(r.spool.reader(), 64<<10)}
	n := 0
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		kind, body, err := frames.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if kind == kindSection {
			n++
		}
		in := r.sections[n-1]
		if err := f(in, kind, body, frames); err != nil {
			return r.of(in, err)
		}
	}
}

// start returns what the turns of a section build on.
func (r *reader) start(ctx context.Context, in *incoming) (head.State, error) {
	switch {
	case in.copy:
		return head.Begin(head.Incarnation{}, nil), nil
	case in.since.Revision > 0:
		return in.target.StateAt(ctx, in.since.Revision)
	}
	s := head.Begin(head.Incarnation{}, &head.Origin{Genesis: in.genesis})
	if o := in.origin; o != nil {
		s.Leaf, s.Last, s.Depth, s.Parts = o.Node(), o.Node(), o.Depth, o.Parts
	}
	return s, nil
}

// A place is where a node of the bundle is.
type place struct {
	section int
	at      graph.Position
	depth   uint64 // how many nodes the path to it has
}

// A share is what a section inherits of another one.
type share struct {
	of    *incoming
	layer history.Layer // all of it, if it is a copy
	epoch uint64        // up to which tombstones count
}

// shares returns what a section inherits of those before it, its parent first.
func (r *reader) shares(in *incoming) (out []share) {
	if in.origin == nil {
		return nil
	}
	of := in.origin.Ancestors
	for s := in; ; {
		switch {
		case s.sees != nil && len(of) > 0:
			a := of[len(of)-1]
			s, of = r.sections[s.parent-1], of[:len(of)-1]
			out = append(out, share{s, history.Layer{Last: a.Revision, Nodes: a.Nodes}, a.Epoch})
		case s.copied > 0:
			return append(out, share{r.sections[s.copied-1], history.Layer{Last: history.Unsealed}, ^uint64(0)})
		default:
			return out
		}
	}
}

// A linker checks a section.
type linker struct {
	*reader
	in     *incoming
	shares []share
	base   head.Base
	last   uint64 // how many nodes the path to the last node has
}

// links checks what the sections refer to.
func (r *reader) links(ctx context.Context) error {
	r.found = map[graph.ID][]place{}
	r.ends, r.left = map[revisionOf]bool{}, map[revisionOf]leaving{}
	for _, in := range r.sections {
		if in.sees != nil {
			r.ends[revisionOf{in.parent - 1, in.own().Revision}] = true
		}
	}
	var l *linker
	return r.each(ctx, func(in *incoming, kind byte, body []byte, _ *frameReader) (err error) {
		switch kind {
		case kindSection:
			l = &linker{reader: r, in: in, shares: r.shares(in)}
			return l.begin(ctx)
		case kindTurns:
			turns, err := history.DecodeTurns(body, l.base)
			if err != nil {
				return err
			}
			for i := range turns {
				if err := l.turn(ctx, &turns[i]); err != nil {
					return fmt.Errorf("commit %d: %w", turns[i].Revision, err)
				}
			}
		}
		return nil
	})
}

// A revisionOf is a revision of a section at which a fork leaves it.
type revisionOf struct {
	section  int
	revision head.Revision
}

// begin checks where the section begins.
func (l *linker) begin(ctx context.Context) error {
	state, err := l.start(ctx, l.in)
	if err != nil {
		return err
	}
	l.base, l.last = state.Base, state.Depth
	if l.base.Last != l.base.Leaf {
		if l.last, err = l.in.target.Depth(ctx, l.base.Revision, l.base.Last); err != nil {
			return err
		}
	}
	in := l.in
	if in.origin == nil || len(in.origin.Ancestors) == 0 || in.since.Revision > 0 {
		return nil
	}
	if node := in.origin.Node(); !node.IsZero() {
		depth, err := l.depth(ctx, node)
		if err == nil && depth != in.origin.Depth {
			err = malformed("%d nodes on the path to the fork node, and there are %d", in.origin.Depth, depth)
		}
		if err != nil {
			return err
		}
	}
	if in.sees != nil {
		if err := l.leaves(ctx); err != nil {
			return err
		}
	}
	return l.view()
}

// leaves checks that the parent has the commit at which the fork leaves it.
func (l *linker) leaves(ctx context.Context) error {
	a, p := l.in.own(), l.sections[l.in.parent-1]
	if a.Revision == 0 {
		if a.Nodes > 0 || !a.Commit.IsZero() && a.Commit != p.genesis {
			return malformed("a part of what its parent was before the first commit")
		}
		return nil
	}
	if got, ok := l.left[revisionOf{l.in.parent - 1, a.Revision}]; ok {
		if got.commit != a.Commit || a.Nodes > got.nodes {
			return fmt.Errorf("%w: the parent has another commit %d", damage.ErrHash, a.Revision)
		}
		return nil
	}
	if p.target == nil {
		return malformed("its parent does not have revision %d", a.Revision)
	}
	t, err := p.target.TurnAt(ctx, a.Revision)
	if err == nil && (t.ID != a.Commit || a.Nodes > t.Nodes) {
		err = fmt.Errorf("%w: the parent has another commit %d here", damage.ErrHash, a.Revision)
	}
	return err
}

// view checks that the section shows no node of an ancestor that has no content.
func (l *linker) view() error {
	for _, s := range l.shares {
		if l.views += len(s.of.erased); l.views > maxViews {
			return &history.LimitError{Limit: "erased nodes that forks inherit", Where: "bundle", Have: int64(l.views), Max: maxViews}
		}
		for _, e := range s.of.erased {
			if !l.hides(e.id) && s.layer.Has(e.at) {
				return fmt.Errorf("%w: content of node %x, which it inherits", damage.ErrMissing, e.id)
			}
		}
	}
	return nil
}

// maxViews bounds how many nodes without content are looked at for all forks.
const maxViews = 1 << 27

// hides reports whether the section does not show the node whose id begins so.
func (l *linker) hides(id [8]byte) bool {
	if _, hidden := l.in.stones[id]; hidden {
		return true
	}
	for _, s := range l.shares {
		if epoch, hidden := s.of.stones[id]; hidden && epoch <= s.epoch {
			return true
		}
	}
	return false
}

// turn checks what a turn names, and notes where the nodes are that others name.
func (l *linker) turn(ctx context.Context, t *history.Turn) error {
	nodes := t.Pack.Nodes
	depths := make([]uint64, len(nodes))
	of := func(id graph.ID, before int) (uint64, error) {
		for i := before - 1; i >= 0; i-- {
			if nodes[i].ID == id {
				return depths[i], nil
			}
		}
		switch id {
		case graph.ID{}:
			return 0, nil
		case l.base.Last:
			return l.last, nil
		case l.base.Leaf:
			return l.base.Depth, nil
		}
		return l.depth(ctx, id)
	}
	if t.Turn != "" {
		if err := l.once(turnTwin(t.Turn)); err != nil {
			return err
		}
	}
	for i := range nodes {
		if err := l.once(nodes[i].ID); err != nil {
			return err
		}
		n, err := of(nodes[i].Parent, i)
		if err != nil {
			return err
		}
		depths[i] = n + 1
		if l.wanted[nodes[i].ID] {
			at := graph.Position{Revision: uint64(t.Revision), Index: i}
			l.found[nodes[i].ID] = append(l.found[nodes[i].ID], place{l.in.number, at, depths[i]})
		}
	}
	depth, err := of(t.Leaf, len(nodes))
	if err != nil {
		return err
	}
	if depth != t.Depth {
		return malformed("%d nodes on the path to its leaf, and there are %d", t.Depth, depth)
	}
	last, err := of(t.Last, len(nodes))
	if err != nil {
		return err
	}
	if key := (revisionOf{l.in.number, t.Revision}); l.ends[key] {
		l.left[key] = leaving{t.ID, t.Nodes}
	}
	l.base, l.last = t.Base(t.ID), last
	return nil
}

// once fails if a suspect comes a second time.
func (l *linker) once(id [32]byte) error {
	key := suspect{l.in.number, id}
	n, suspected := l.suspects[key]
	if !suspected {
		return nil
	}
	if l.suspects[key] = n + 1; n > 0 {
		return malformed("a node or a turn id twice")
	}
	return nil
}

// A leaving is a commit at which a fork leaves its parent.
type leaving struct {
	commit head.CommitID
	nodes  int
}

// depth returns how many nodes the path to a node has, which has to be in the graph of the section.
func (l *linker) depth(ctx context.Context, id graph.ID) (uint64, error) {
	for _, p := range l.found[id] {
		if p.section == l.in.number {
			return p.depth, nil
		}
		for _, s := range l.shares {
			if s.of.number == p.section && s.layer.Has(p.at) {
				return p.depth, nil
			}
		}
	}
	if l.in.since.Revision > 0 {
		return l.stored(ctx, l.in.target, l.in.since.Revision, id)
	}
	for _, s := range l.shares {
		if s.of.since.Revision == 0 {
			continue
		}
		// What the bundle does not have of the ancestor is here.
		if _, at, err := s.of.target.Find(ctx, s.of.since.Revision, id); err == nil && (at.Layer.Inc != s.of.target.Inc || s.layer.Has(at.Position)) {
			return l.stored(ctx, s.of.target, s.of.since.Revision, id)
		} else if err != nil && !errors.Is(err, history.ErrNodeNotFound) {
			return 0, err
		}
	}
	return 0, malformed("names node %s, which is not in its graph", id)
}

// stored is depth for a node that a session has here.
func (l *linker) stored(ctx context.Context, s *history.Session, r head.Revision, id graph.ID) (uint64, error) {
	n, err := s.Depth(ctx, r, id)
	if errors.Is(err, history.ErrNodeNotFound) {
		err = malformed("names node %s, which is not in its graph", id)
	}
	return n, err
}
