package bundle

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/session"
)

// A checker checks a section as it is received.
type checker struct {
	*reader
	in      *incoming
	state   head.State // after the turns that were received
	nodes   uint64
	turns   uint64
	lacking map[string]bool       // the parts whose current version is not at hand
	given   map[partSet]given     // the versions that were received, and that no turn has set yet
	deltas  map[head.Revision]int // how many bytes of them are deltas, by the revision that sets them
	known   map[blob.ID]head.Part
	record  string // the key of the last record
	twins   *twins
}

// begin finds the session that the section brings forward, and what the turns build on.
func (c *checker) begin(ctx context.Context) error {
	in := c.in
	in.id = c.options.ID(in.about.ID)
	if err := errors.Join(c.options.CheckID(in.id), c.options.CheckAbout(in.about)); err != nil {
		return err
	}
	if c.ids[in.id] {
		return malformed("session %q twice", in.id)
	}
	if c.options.Branch != "" && len(c.ids) > 0 { // A fork of a branch would not begin where it says.
		return history.NewInvalid("bundle", "it has several sessions, and one is to become a branch")
	}
	c.ids[in.id] = true
	if in.copied > 0 {
		c.users[in.copied-1] = append(c.users[in.copied-1], in)
	}
	if err := c.relatives(); err != nil {
		return err
	}
	c.lacking, c.given, c.known = map[string]bool{}, map[partSet]given{}, map[blob.ID]head.Part{}
	c.deltas = map[head.Revision]int{}
	if err := c.find(ctx, in); err != nil {
		return err
	}
	if in.since.Revision > 0 {
		return c.goOn(ctx)
	}
	var err error
	if c.state, err = c.start(ctx, in); err != nil {
		return err
	}
	c.wanted[c.state.Leaf] = true
	for _, p := range c.state.Parts {
		c.lacking[p.Name] = true // until the first turn: see atBegin
	}
	return nil
}

// relatives checks that the sections that a fork names as its parent and as its copy are such, and fit it.
func (c *checker) relatives() error {
	in := c.in
	if n := in.copied; n > 0 && !c.sections[n-1].copy {
		return malformed("section %d is no copy", n-1)
	}
	if n := in.parent; n > 0 && c.sections[n-1].copy {
		return malformed("section %d is a copy, and no parent", n-1)
	}
	if in.sees == nil {
		return nil
	}
	// It inherits what its parent inherits, and a part of the parent.
	p := c.sections[in.parent-1]
	if p.since.Revision == 0 {
		var of []head.Ancestor
		if p.origin != nil {
			of = p.origin.Ancestors
		}
		if len(of) != len(in.origin.Ancestors)-1 {
			return malformed("fork of %q with other ancestors", p.about.ID)
		}
	}
	if a := in.own(); a.Revision > p.end.last.Revision || a.Epoch > p.epoch {
		return malformed("fork of %q at revision %d of %d, epoch %d of %d", p.about.ID, a.Revision, p.end.last.Revision, a.Epoch, p.epoch)
	}
	return nil
}

// goOn begins with what the other side is said to have.
func (c *checker) goOn(ctx context.Context) error {
	in := c.in
	if in.target == nil {
		return fmt.Errorf("%w: %q, and the bundle goes on from its revision %d", history.ErrSessionNotFound, in.id, in.since.Revision)
	}
	if in.since.Revision > in.here.Revision {
		return fmt.Errorf("%w: the bundle goes on from revision %d, and the session is at %d", history.ErrRevisionNotFound, in.since.Revision, in.here.Revision)
	}
	state, err := c.start(ctx, in)
	if err != nil {
		return err
	}
	if state.Base != in.since {
		return &Diverged{Session: in.id, Here: pointOf(in.here), There: pointOf(in.since)}
	}
	if in.since.Revision == in.here.Revision {
		in.meets = in.since.Commit
	}
	c.state = state
	for _, p := range state.Parts {
		c.known[p.Blob] = p
	}
	return nil
}

// takeStones takes tombstones.
func (c *checker) takeStones(stones []commit.Stone) error {
	if c.turns > 0 {
		return malformed("tombstones behind turns")
	}
	for _, s := range stones {
		if _, twice := c.in.stones[s.ID]; twice || !c.in.copy && s.Epoch > c.in.epoch {
			return malformed("tombstone of %x, of epoch %d", s.ID, s.Epoch)
		}
		c.in.stones[s.ID] = s.Epoch
	}
	return c.room.take(len(stones))
}

// takeTurns takes a frame of turns.
func (c *checker) takeTurns(ctx context.Context, raw []byte) error {
	if err := c.atBegin(ctx); err != nil {
		return err
	}
	turns, err := history.DecodeTurns(raw, c.state.Base)
	if err != nil {
		return err
	}
	if len(turns) == 0 {
		return malformed("frame without turns")
	}
	for i := range turns {
		if err := c.turn(ctx, &turns[i]); err != nil {
			return fmt.Errorf("commit %d: %w", turns[i].Revision, err)
		}
	}
	return nil
}

// turn checks a turn.
func (c *checker) turn(ctx context.Context, t *history.Turn) error {
	if err := c.options.CheckTurn(t); err != nil {
		return err
	}
	before := c.state.Base
	next, err := c.state.Then(&t.Commit, t.ID)
	if err != nil {
		return err
	}
	if len(next.Usage) > head.MaxModels || len(next.Parts) > head.MaxParts {
		return malformed("%d models, %d checkpoint parts", len(next.Usage), len(next.Parts))
	}
	c.turns, c.nodes = c.turns+1, c.nodes+uint64(len(t.Pack.Nodes))
	if err := c.checkNodes(ctx, t); err != nil {
		return err
	}
	if err := c.checkSize(t); err != nil {
		return err
	}
	if err := c.checkTwins(ctx, t); err != nil {
		return err
	}
	for _, id := range namedBy(t, &before) {
		if !c.wanted[id] {
			c.wanted[id] = true
			if err := c.room.take(1); err != nil {
				return err
			}
		}
	}
	if !c.in.copy {
		if err := c.checkParts(ctx, t); err != nil {
			return err
		}
	}
	c.state = next
	if c.in.target != nil && t.Revision == c.in.here.Revision {
		c.in.meets = t.ID
	}
	if c.in.copy {
		return nil
	}
	for name := range c.lacking {
		if !slices.ContainsFunc(next.Parts, func(p head.Part) bool { return p.Name == name }) {
			delete(c.lacking, name)
		}
	}
	return c.settle()
}

// namedBy returns the nodes that a turn names out of turn: not one of its own, nor the leaf or the last node before it.
func namedBy(t *history.Turn, before *head.Base) (ids []graph.ID) {
	add := func(id graph.ID, own []graph.Node) {
		if id.IsZero() || id == before.Leaf || id == before.Last {
			return
		}
		for i := range own {
			if own[len(own)-1-i].ID == id {
				return
			}
		}
		ids = append(ids, id)
	}
	for i := range t.Pack.Nodes {
		add(t.Pack.Nodes[i].Parent, t.Pack.Nodes[:i])
	}
	add(t.Leaf, t.Pack.Nodes)
	return ids
}

// checkNodes checks that the nodes of a turn have their blobs, or are hidden.
func (c *checker) checkNodes(ctx context.Context, t *history.Turn) error {
	var ids []blob.ID
	var want []int64
	for i := range t.Pack.Nodes {
		n := &t.Pack.Nodes[i]
		if n.Erased {
			if _, hidden := c.in.stones[[8]byte(n.ID[:])]; !hidden && !c.in.copy {
				return fmt.Errorf("%w: content of node %s", damage.ErrMissing, n.ID)
			}
			c.in.erased = append(c.in.erased, erasedNode{graph.Position{Revision: uint64(t.Revision), Index: i}, [8]byte(n.ID[:])})
			if err := c.room.take(1); err != nil {
				return err
			}
			continue
		}
		if !n.Blob.IsZero() {
			ids, want = append(ids, n.Blob), append(want, n.Size)
		}
		for _, a := range n.Attachments {
			ids, want = append(ids, a.ID), append(want, a.Size)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	sizes, err := c.stock.sizes(ctx, ids)
	if err != nil {
		return err
	}
	for i, id := range ids {
		switch {
		case sizes[i] < 0:
			return fmt.Errorf("%w: blob %s", damage.ErrMissing, id)
		case sizes[i] != want[i]:
			return malformed("blob %s is of %d bytes, not of %d", id, sizes[i], want[i])
		}
		if err := c.stock.pin(ctx, id, sizes[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkSize checks that a turn fits a batch, as the commit that made it did.
func (c *checker) checkSize(t *history.Turn) error {
	most := c.Store.Limits.Bytes
	size := c.deltas[t.Revision]
	delete(c.deltas, t.Revision)
	if n := history.SizeOf(t); n+size <= most {
		return nil
	}
	_, vs, err := history.EncodeTurn(c.Space, head.Incarnation{}, t.Body(), &t.Pack)
	if err != nil {
		return malformed("%v", err)
	}
	for _, v := range vs {
		size += len(v)
	}
	if size > most {
		return &history.LimitError{Limit: "bytes", Where: "commit", Have: int64(size), Max: int64(most)}
	}
	return nil
}

// takeRecords checks records.
func (c *checker) takeRecords(records []*session.Record) error {
	if c.in.copy {
		return malformed("records of a copy")
	}
	for _, r := range records {
		if err := c.options.CheckRecord(r); err != nil {
			return err
		}
		if r.Key <= c.record {
			return malformed("record %.80q behind record %.80q", r.Key, c.record)
		}
		c.record = r.Key
	}
	return nil
}

// finish checks the end of a section.
func (c *checker) finish(ctx context.Context, n end) error {
	in := c.in
	if err := c.atBegin(ctx); err != nil {
		return err
	}
	if n.turns != c.turns || n.nodes != c.nodes {
		return malformed("%d turns and %d nodes, and there are %d and %d", n.turns, n.nodes, c.turns, c.nodes)
	}
	said := c.state.Base
	if said.Revision == 0 {
		said = head.Base{}
	}
	if n.last != said {
		return fmt.Errorf("%w: it ends with another commit than it says", damage.ErrHash)
	}
	if len(c.given) > 0 {
		return malformed("%d versions of checkpoint parts that no commit sets", len(c.given))
	}
	in.end = n
	if in.copy {
		return nil
	}
	if c.options.Branch != "" && in.target != nil {
		if err := c.holdParts(ctx); err != nil {
			return err
		}
	}
	if in.floor > n.last.Revision {
		return malformed("floor %d", in.floor)
	}
	names := map[string]bool{}
	for _, k := range in.kept {
		if k.Revision > n.last.Revision || names[k.Name] || k.Name == "" || len(k.Name) > maxName {
			return malformed("revision %d kept as %.80q", k.Revision, k.Name)
		}
		names[k.Name] = true
	}
	return nil
}
