package gc

import (
	"context"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file derives edges anew. When vacuum removes a reference of a session to a blob, it
// records that in the same batch: a detached record, and the session's dirty record. It does
// not change the edge, because another node or a checkpoint of the session may refer to the
// blob, too. The next update of the session finds that out here:
//
//	vacuum erases a node ──▶ detached record ──▶ the session's nodes and checkpoints are read
//	                                               │ something refers to the blob: the edge says where
//	                                               └ nothing does: the edge is dropped
//
// A vacuum that was cut off may leave a detached record although it removed no reference. Then the
// edge that is derived is the one that was there.

// detached derives anew the edges of the session to blobs from which vacuum has removed a
// reference. It returns the keys of the detached records, which are to go after the bookmark
// has been written. It reads all turns of the session up to the bookmark, once for all blobs.
func (cy *cycle) detached(ctx context.Context, v *view) (ks [][]byte, err error) {
	var found uses
	err = cy.each(ctx, cy.space.Of(keys.Detached, v.inc), "detached blob", func(e entry) error {
		ks = append(ks, e.Key)
		found.of(keys.Hash(e.fields[16:]))
		return nil
	})
	if err != nil || len(ks) == 0 {
		return nil, err
	}
	// A deleted session has no edges of nodes after the last revision that forks hold.
	err = cy.turns(ctx, v.inc, 0, min(v.mark.revision, v.mark.held), head.CommitID{}, func(t *history.Turn) error {
		for h := range cy.blobsOf(&t.Pack) {
			if u := found.by[h]; u != nil {
				u.at(uint64(t.Revision))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := cy.findParts(ctx, v, &found); err != nil {
		return nil, err
	}
	changes := make([]change, len(found.order))
	for i, h := range found.order {
		changes[i] = v.edit(h, func(use) use { return *found.by[h] })
	}
	return ks, cy.link(ctx, changes, v.guards)
}

// findParts adds to found until when the checkpoints of retained revisions need each blob. It
// reads these checkpoints only if one of the blobs was a checkpoint part. The bookmark's
// checkpoint is then derived anew, too: vacuum may have stored one of its versions whole.
func (cy *cycle) findParts(ctx context.Context, v *view, found *uses) error {
	if v.life.State != head.Live {
		return nil // No checkpoint of a deleted session can be read.
	}
	some, err := cy.anyParts(ctx, v, found)
	if err != nil || !some {
		return err
	}
	refs, err := cy.kept(ctx, v.inc, v.life)
	if err != nil {
		return err
	}
	// The revisions go from the oldest to the newest, so what the newest says of a blob stays.
	var parts []part
	note := func(last uint64) {
		for _, p := range parts {
			if u := found.by[p.blob]; u != nil {
				u.closed(last)
			}
		}
	}
	from := min(v.life.Floor, v.mark.revision)
	for _, r := range append(below(revisions(refs), from), from) {
		if parts, err = cy.partsAt(ctx, v.inc, r); err != nil {
			return err
		}
		note(uint64(r))
	}
	err = cy.turns(ctx, v.inc, from, v.mark.revision, head.CommitID{}, func(t *history.Turn) (err error) {
		parts, err = cy.nextParts(v.inc, parts, &t.Commit, nil)
		note(uint64(t.Revision))
		return err
	})
	note(open)
	v.mark.parts, v.renewed = parts, true
	return err
}

// anyParts reports whether the edge to one of some blobs says that it was a checkpoint part.
func (cy *cycle) anyParts(ctx context.Context, v *view, found *uses) (some bool, err error) {
	edges, err := rows(ctx, cy, found.order, func(h keys.Hash) []byte { return cy.space.Edge(h, bySession, v.inc) })
	if err != nil {
		return false, err
	}
	for _, edge := range edges {
		if edge[0].Value == nil {
			continue
		}
		u, err := decodeUse(edge[0].Key, edge[0].Value)
		if err != nil {
			return false, err
		}
		some = some || u.parts
	}
	return some, nil
}
