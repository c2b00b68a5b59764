package gc

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file derives the index anew: it deletes the index, reads all sessions, and makes every
// blob without edges a candidate. The cycle record says that this is under way. A cycle that
// finds that record begins the same work again, so no cycle deletes blobs by half an index.
//
// To report whether the index was right, its digests are compared before and after. The index is
// brought up to date before, as one that only lags behind the commits is not wrong.

// rebuild derives the index anew from the commits. It reports in Repaired whether the index
// was wrong before.
func (cy *cycle) rebuild(ctx context.Context) error {
	cy.enter("sessions")
	before, err := cy.refresh(ctx)
	if err != nil {
		return err
	}
	cy.Sessions, cy.Commits = 0, 0 // What is read twice is reported once.
	if err := cy.clearIndex(ctx); err != nil {
		return err
	}
	err = cy.each(ctx, cy.space.All(keys.Life), "lifecycle", func(e entry) error {
		err := cy.session(ctx, e.inc())
		if err == nil {
			cy.step(1)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := cy.freed(ctx); err != nil {
		return err
	}
	if before != nil {
		after, err := cy.digest(ctx)
		if err != nil {
			return err
		}
		// If a session changed meanwhile, its edges did, too.
		cy.Repaired = after.bookmarks == before.bookmarks && after.edges != before.edges
	}
	return cy.addUnreferred(ctx)
}

// refresh brings the index up to date and returns its digests, to be compared with those of
// the index that is derived anew. It returns nil if there is nothing to compare: the index
// is damaged, or only half derived.
func (cy *cycle) refresh(ctx context.Context) (*digests, error) {
	if cy.state.rebuild {
		return nil, nil
	}
	err := cy.changes(ctx, cy.state.last)
	if isCorrupt(err) {
		cy.Repaired = true
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return cy.digest(ctx)
}

// clearIndex deletes the index. The first batch says so in the cycle record. Candidates stay:
// a sweep takes those off the list that have edges then.
func (cy *cycle) clearIndex(ctx context.Context) error {
	cy.state.rebuild = true
	cy.state.sessions, cy.state.blobs = 0, 0
	if err := cy.apply(ctx, &batch{}); err != nil {
		return err
	}
	// clear deletes a record whether or not it can be decoded.
	for _, letter := range []byte{keys.Edge, keys.Count, keys.Bookmark, keys.Detached, keys.Stale, keys.Loose} {
		if err := cy.clear(ctx, cy.space.All(letter)); err != nil {
			return err
		}
	}
	return nil
}

// addUnreferred makes all blobs without edges candidates, and gives the items of lists among
// them their edges. The last batch says in the cycle record that the index is whole. A blob that
// only an upload pins is a candidate, too: the sweep condemns it, and then revives it.
func (cy *cycle) addUnreferred(ctx context.Context) error {
	w := newWriter(cy.apply)
	err := cy.each(ctx, cy.space.All(keys.Mark), "mark", func(e entry) error {
		vs, err := cy.get(ctx, cy.space.Count(e.hash()))
		if err != nil {
			return err
		}
		if vs[0] == nil {
			if err := cy.linkItems(ctx, []keys.Hash{e.hash()}, nil); err != nil {
				return err
			}
			cy.addCandidate(w.batch, e.hash())
		}
		return w.flushMany(ctx)
	})
	if err != nil {
		return err
	}
	cy.state.rebuild = false
	return cy.apply(ctx, w.batch)
}

// digests are sums over the edges of sessions, and over the bookmarks that say how far the
// sessions were read. They do not depend on the order of records. Edges of lists are left out:
// which lists have them depends on what was a candidate.
type digests struct{ edges, bookmarks uint64 }

// digest computes the digests of the index as it stands.
func (cy *cycle) digest(ctx context.Context) (*digests, error) {
	d, floors := &digests{}, map[head.Incarnation]head.Revision{}
	err := cy.eachKnown(ctx, cy.space.All(keys.Bookmark), func(e entry) error {
		m, err := decodeBookmark(e.Key, e.Value)
		if err != nil {
			return codec.Corrupt(err, "bookmark at key %x", e.Key)
		}
		floors[e.inc()] = m.floor
		d.addBookmark(e.Key, &m)
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = cy.eachKnown(ctx, cy.space.All(keys.Edge), func(e entry) error {
		if e.fields[16] != bySession {
			return nil
		}
		return d.addEdge(e.Pair, floors[head.Incarnation(e.fields[17:])])
	})
	return d, err
}

// addBookmark adds a bookmark, but for what may differ between an index that grew and one
// that was derived at once: a session without commits may have no bookmark, and vacuum cuts
// the commits of a deleted one.
func (d *digests) addBookmark(key []byte, m *bookmark) {
	switch revision := m.revision; {
	case !m.live():
		d.bookmarks += sum(key, fmt.Append(nil, 0, m.floor, m.kept, m.held))
	case revision > 0:
		d.bookmarks += sum(key, fmt.Append(nil, revision, m.floor, m.kept, m.held))
	}
}

// addEdge adds the edge of a session whose bookmark has a floor. If a kept revision below the
// floor has the blob, the edge may name any such revision.
func (d *digests) addEdge(p engine.Pair, floor head.Revision) error {
	u, err := decodeUse(p.Key, p.Value)
	if err != nil {
		return err
	}
	if u.parts && u.last < uint64(floor) {
		u.last = 0
	}
	d.edges += sum(p.Key, u.encode(p.Key))
	return nil
}

// sum returns 8 bytes of a hash of parts.
func sum(parts ...[]byte) uint64 {
	one := codec.ContentHash.Sum(parts...)
	return binary.LittleEndian.Uint64(one[:])
}
