package reclaim

import (
	"context"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
)

// window is how many commits are indexed at once.
const window = 256

// index adds the edges of the commits past the bookmark, and moves it.
func (cy *cycle) index(ctx context.Context, v *view) error {
	if v.mark.revision == 0 {
		origin, err := cy.origin(ctx, v.inc)
		if err != nil {
			return err
		}
		v.mark.commit = heads.Genesis(v.inc, origin)
		if origin != nil && !v.known {
			var found uses
			v.mark.parts = cy.inherited(origin)
			for _, p := range v.mark.parts {
				found.of(p.blob).opened()
			}
			if err := cy.add(ctx, v, &found, 0); err != nil {
				return err
			}
		}
	}
	if v.mark.revision < v.life.Floor && v.life.State == heads.Live { // vacuum may have stored versions whole
		var err error
		if v.wholes, err = cy.wholes(ctx, v.inc, v.mark.revision+1, v.life.Floor); err != nil {
			return err
		}
	}
	if v.mark.revision < v.target {
		if v.mark.commit == (head.CommitID{}) {
			key := cy.space.Commit(v.inc, uint64(v.mark.revision))
			vs, err := cy.get(ctx, key)
			if err != nil {
				return err
			}
			if _, v.mark.commit, err = heads.OpenCommit(key, vs[0]); err != nil {
				return codec.Corrupt(err, "commit %d of incarnation %x", v.mark.revision, v.inc)
			}
		}
	}
	for v.mark.revision < v.target {
		if err := cy.window(ctx, v, min(v.target, v.mark.revision+window)); err != nil {
			return err
		}
	}
	if v.commit != (head.CommitID{}) && v.mark.commit != v.commit && v.mark.commit != (head.CommitID{}) {
		return codec.Corrupt(record.ErrHash, "commit %d of incarnation %x: it is not the head's", v.target, v.inc)
	}
	return nil
}

// Uses are those that a run of commits has of blobs, in order.
type uses struct {
	order []keys.Hash
	by    map[keys.Hash]*use
}

func (u *uses) of(h keys.Hash) *use {
	if u.by == nil {
		u.by = map[keys.Hash]*use{}
	}
	if u.by[h] == nil {
		u.by[h] = &use{}
		u.order = append(u.order, h)
	}
	return u.by[h]
}

// add adds edges for what commits refer to. What is not wanted any more, because
// the session was deleted or its floor rose before it was read, may be there or
// not: it gets no edge, but is listed, with its items. end is
// the last revision of those commits.
func (cy *cycle) add(ctx context.Context, v *view, found *uses, end head.Revision) error {
	var changes []change
	var past []keys.Hash
	for _, h := range found.order {
		u := *found.by[h]
		if v.life.State == heads.Deleted {
			if u.parts, u.last = false, 0; u.node > uint64(v.held) {
				u.node = 0
			}
		}
		old := u.node == 0 && (!u.parts || min(u.last, uint64(end)) < uint64(v.life.Floor))
		if old {
			past = append(past, h)
		}
		if u != (use{}) {
			changes = append(changes, v.edit(h, func(was use) use { return was.then(u) }))
		}
	}
	if len(past) > 0 {
		absent, err := cy.past(ctx, past, v.life.State == heads.Deleted)
		if err != nil {
			return err
		}
		changes = slices.DeleteFunc(changes, func(c change) bool { return absent[c.blob] })
	}
	return cy.link(ctx, changes, nil)
}

// past returns which of blobs are not stored, and lists the others if they have
// no edges and list is set.
func (cy *cycle) past(ctx context.Context, blobs []keys.Hash, list bool) (absent map[keys.Hash]bool, err error) {
	absent = map[keys.Hash]bool{}
	var there []keys.Hash
	ks := make([][]byte, len(blobs))
	for i, h := range blobs {
		ks[i] = cy.space.Mark(h)
	}
	vs, err := cy.get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	for i, h := range blobs {
		if vs[i] == nil {
			absent[h] = true
		} else {
			there = append(there, h)
		}
	}
	if !list {
		return absent, nil
	}
	return absent, cy.abandon(ctx, there, nil)
}

// edit is a change of the session's edge to a blob; the zero use is no edge.
func (v *view) edit(h keys.Hash, f func(use) use) change {
	return change{blob: h, kind: bySession, holder: v.inc, edit: func(key, old []byte) ([]byte, error) {
		was := use{}
		if old != nil {
			var err error
			if was, err = openUse(key, old); err != nil {
				return nil, err
			}
		}
		u := f(was)
		if u == (use{}) {
			return nil, nil
		}
		return u.seal(key), nil
	}}
}

// window indexes the commits up to last.
func (cy *cycle) window(ctx context.Context, v *view, last head.Revision) error {
	mark := v.mark
	mark.parts = slices.Clone(mark.parts)
	var found uses
	var nodes []int // of each commit
	err := cy.commits(ctx, v.inc, mark.revision, last, mark.commit, func(c *heads.Commit, id head.CommitID) error {
		mark.revision, mark.commit = c.Revision, id
		nodes = append(nodes, c.Nodes)
		if c.PartsAt != c.Revision {
			return nil
		}
		parts, err := cy.nextParts(v.inc, mark.parts, c, v.wholes)
		if err != nil {
			return err
		}
		for _, h := range lost(mark.parts, parts) {
			found.of(h).closed(uint64(c.Revision) - 1)
		}
		for _, h := range lost(parts, mark.parts) {
			found.of(h).opened()
		}
		mark.parts = parts
		return nil
	})
	if err != nil {
		return err
	}
	err = cy.packs(ctx, v.inc, v.mark.revision, last, func(p *pack.Pack) error {
		i := int(p.Revision - uint64(v.mark.revision) - 1)
		if nodes[i] -= len(p.Nodes); nodes[i] != 0 {
			return codec.Corrupt(fmt.Errorf("%w: %d nodes more or fewer", record.ErrMissing, nodes[i]), "pack of revision %d of incarnation %x", p.Revision, v.inc)
		}
		for j := range p.Nodes {
			for _, id := range p.Nodes[j].Blobs() {
				found.of(cy.space.BlobHash(id)).at(p.Revision)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, n := range nodes {
		if n != 0 {
			return codec.Corrupt(record.ErrMissing, "pack of revision %d of incarnation %x", int(v.mark.revision)+1+i, v.inc)
		}
	}
	if err := cy.add(ctx, v, &found, last); err != nil {
		return err
	}
	v.read += len(nodes)
	v.mark = mark
	if len(found.order) == 0 || mark.revision == v.target {
		return nil // the bookmark is written in the end
	}
	b := &batch{}
	key := cy.space.Bookmark(v.inc)
	b.Set(key, v.mark.seal(key))
	if !v.known {
		b.sessions++
	}
	v.known = true
	if err := cy.apply(ctx, b); err != nil {
		return err
	}
	cy.Commits, v.read = cy.Commits+v.read, 0
	return nil
}

// history returns where the run reads histories from.
func (cy *cycle) history() history.Store { return history.Store{Engine: cy.engine, Space: cy.space} }

// commits calls f for the commits of an incarnation after one revision up to another, of
// which the one before has the id previous, or any if that is zero. Between commits the
// run shows that it makes progress.
func (cy *cycle) commits(ctx context.Context, inc heads.Incarnation, after, last head.Revision, previous head.CommitID, f func(*heads.Commit, head.CommitID) error) error {
	of := history.Range{Inc: inc, Name: fmt.Sprintf("incarnation %x", inc), After: after, Last: last, Previous: previous}
	return cy.history().Commits(ctx, of, func(c *heads.Commit, id head.CommitID) error {
		if err := f(c, id); err != nil {
			return err
		}
		return cy.beat(ctx)
	})
}

// packs calls f for the packs of an incarnation after one revision up to another. Between
// packs the run shows that it makes progress.
func (cy *cycle) packs(ctx context.Context, inc heads.Incarnation, after, last head.Revision, f func(*pack.Pack) error) error {
	return cy.history().Packs(ctx, inc, after, last, func(p *pack.Pack) error {
		if err := f(p); err != nil {
			return err
		}
		return cy.beat(ctx)
	})
}

// origin returns what a fork began with, or nil for a session that is no attached fork. The
// run shows that it makes progress.
func (cy *cycle) origin(ctx context.Context, inc heads.Incarnation) (*heads.Origin, error) {
	if err := cy.beat(ctx); err != nil {
		return nil, err
	}
	return cy.history().Origin(ctx, inc)
}
