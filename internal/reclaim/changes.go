package reclaim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// changes brings the index up to date with all sessions that changed: those that
// have a dirty record, and as a second witness those that stand in the order of
// last updates since the last complete run.
func (cy *cycle) changes(ctx context.Context, since uint64) error {
	var incs []heads.Incarnation
	flush := func() error {
		for _, inc := range incs {
			if err := cy.session(ctx, inc); err != nil {
				return err
			}
			cy.step(1)
		}
		incs = incs[:0]
		return nil
	}
	add := func(inc heads.Incarnation) error {
		if incs = append(incs, inc); len(incs) < 1000 {
			return nil
		}
		return flush()
	}
	for p, err := range cy.engine.Scan(ctx, cy.space.All(keys.Dirty)) {
		if err != nil {
			return err
		}
		_, fields, ok := cy.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(fmt.Errorf("%w: key", record.ErrMalformed), "dirty record at key %x", p.Key)
		}
		if err := add(heads.Incarnation(fields)); err != nil {
			return err
		}
	}
	if err := flush(); err != nil {
		return err
	}
	var entries []heads.OrderEntry
	for p, err := range cy.engine.Scan(ctx, cy.space.All(keys.Order)) {
		if err != nil {
			return err
		}
		e, err := heads.OpenOrder(cy.space, p)
		if err != nil {
			return err
		}
		if e.Time+uint64(skew) < since {
			break
		}
		if entries = append(entries, e); len(entries) == 500 {
			if err := cy.behind(ctx, entries, add); err != nil {
				return err
			}
			entries = entries[:0]
		}
	}
	if err := cy.behind(ctx, entries, add); err != nil {
		return err
	}
	if err := flush(); err != nil {
		return err
	}
	return cy.freed(ctx)
}

// skew is by how much the clocks of hosts may differ, and the order of sessions
// lag, for it to be a witness of what changed.
const skew = 5 * time.Second

// freed looks at the deleted sessions that forks have let go of, once for all forks.
func (cy *cycle) freed(ctx context.Context) error {
	for len(cy.again) > 0 {
		incs := slices.Collect(maps.Keys(cy.again))
		clear(cy.again)
		for _, inc := range incs {
			if err := cy.session(ctx, inc); err != nil {
				return err
			}
			cy.step(1)
		}
	}
	return nil
}

// behind calls add for the sessions that the index does not follow to their
// heads.
func (cy *cycle) behind(ctx context.Context, entries []heads.OrderEntry, add func(heads.Incarnation) error) error {
	ks := make([][]byte, 0, 2*len(entries))
	for _, e := range entries {
		ks = append(ks, cy.space.Head(e.Session), cy.space.Bookmark(e.Incarnation))
	}
	vs, err := cy.get(ctx, ks...)
	if err != nil {
		return err
	}
	for i, e := range entries {
		h, herr := heads.OpenHead(ks[2*i], vs[2*i])
		at := head.Revision(0)
		if vs[2*i+1] != nil {
			m, err := openBookmark(ks[2*i+1], vs[2*i+1])
			if err != nil {
				return codec.Corrupt(err, "bookmark of incarnation %x", e.Incarnation)
			}
			at = m.revision
		}
		if herr == nil && h.Incarnation == e.Incarnation && h.Revision == at {
			continue
		}
		if err := add(e.Incarnation); err != nil {
			return err
		}
	}
	return nil
}
