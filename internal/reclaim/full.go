package reclaim

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/hash"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// rebuild derives the index anew from the commits, and lists every blob that it
// has no edge for. The cycle record says so until it is done: no run deletes
// anything meanwhile.
func (cy *cycle) rebuild(ctx context.Context) error {
	cy.enter("sessions")
	var before, after digests
	compare := !cy.state.rebuild
	if compare {
		// What is not damaged is brought up to date first, to be compared.
		if err := cy.changes(ctx, cy.state.last); err == nil {
			if before, err = cy.digest(ctx); err != nil {
				return err
			}
		} else if !isCorrupt(err) {
			return err
		} else {
			cy.Repaired, compare = true, false
		}
	}
	cy.Sessions, cy.Commits = 0, 0 // what was read twice is reported once
	cy.state.rebuild = true
	cy.state.sessions, cy.state.blobs = 0, 0
	if err := cy.apply(ctx, &batch{}); err != nil {
		return err
	}
	for _, letter := range []byte{keys.Edge, keys.Count, keys.Bookmark, keys.Detached, keys.Stale, keys.Loose} {
		if err := cy.clear(ctx, cy.space.All(letter)); err != nil {
			return err
		}
	}
	for p, err := range cy.engine.Scan(ctx, cy.space.All(keys.Life)) {
		if err != nil {
			return err
		}
		_, fields, ok := cy.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(record.ErrMalformed, "lifecycle at key %x", p.Key)
		}
		if err := cy.session(ctx, heads.Incarnation(fields)); err != nil {
			return err
		}
		cy.step(1)
	}
	if err := cy.freed(ctx); err != nil {
		return err
	}
	if compare {
		var err error
		if after, err = cy.digest(ctx); err != nil {
			return err
		}
		// If a session changed meanwhile, its edges did, too.
		cy.Repaired = after.bookmarks == before.bookmarks && after.edges != before.edges
	}
	b := &batch{}
	for p, err := range cy.engine.Scan(ctx, cy.space.All(keys.Mark)) {
		if err != nil {
			return err
		}
		_, fields, ok := cy.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(record.ErrMalformed, "mark at key %x", p.Key)
		}
		h := keys.Hash(fields)
		vs, err := cy.get(ctx, cy.space.Count(h))
		if err != nil {
			return err
		}
		if vs[0] == nil {
			if err := cy.represent(ctx, []keys.Hash{h}, nil); err != nil {
				return err
			}
			cy.list(b, h)
		}
		if b.Ops() >= batchOps {
			if err := cy.apply(ctx, b); err != nil {
				return err
			}
			b = &batch{}
		}
	}
	cy.state.rebuild = false
	return cy.apply(ctx, b)
}

// clear deletes all records of a range.
func (cy *cycle) clear(ctx context.Context, all engine.Range) error {
	b := &batch{}
	for p, err := range cy.engine.Scan(ctx, all) {
		if err != nil {
			return err
		}
		b.Delete(p.Key)
		if b.Ops() >= batchOps {
			if err := cy.apply(ctx, b); err != nil {
				return err
			}
			b = &batch{}
		}
	}
	return cy.apply(ctx, b)
}

// Digests are numbers for the edges of sessions, and for how far these are read.
type digests struct{ edges, bookmarks uint64 }

func (cy *cycle) digest(ctx context.Context) (d digests, err error) {
	sum := func(parts ...[]byte) uint64 {
		one := hash.Content.Sum(parts...)
		return binary.LittleEndian.Uint64(one[:])
	}
	floors := map[heads.Incarnation]head.Revision{}
	for p, err := range cy.engine.Scan(ctx, cy.space.All(keys.Bookmark)) {
		if err != nil {
			return d, err
		}
		m, err := openBookmark(p.Key, p.Value)
		if err != nil {
			return d, codec.Corrupt(err, "bookmark at key %x", p.Key)
		}
		if _, fields, ok := cy.space.Fields(p.Key); ok {
			floors[heads.Incarnation(fields)] = m.floor
		}
		if m.held != head.Revision(open) {
			m.revision = 0 // vacuum cuts it
		} else if m.revision == 0 {
			continue // it may have none
		}
		d.bookmarks += sum(p.Key, fmt.Append(nil, m.revision, m.floor, m.kept, m.held))
	}
	for p, err := range cy.engine.Scan(ctx, cy.space.All(keys.Edge)) {
		if err != nil {
			return d, err
		}
		_, fields, ok := cy.space.Fields(p.Key)
		if !ok || fields[16] != bySession {
			continue
		}
		u, err := openUse(p.Key, p.Value)
		if err != nil {
			return d, err
		}
		if u.parts && u.last < uint64(floors[heads.Incarnation(fields[17:])]) {
			u.last = 0 // of a kept revision: which of those below the floor is all the same
		}
		d.edges += sum(p.Key, u.seal(p.Key)) // whatever their order
	}
	return d, nil
}
