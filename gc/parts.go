package gc

import (
	"context"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file follows the checkpoint parts of a session from commit to commit, as far as
// blobs go. A version of a part is a blob, or a delta that the session stores itself. For the
// index a delta prolongs the use of the blob that its chain began with: versions.go has the
// chains.
//
//	revision   1        2        3        4        5
//	commits    blob A   delta    delta    blob B   –          – the part carries over
//	needs      A        A        A        B        B
//
// A commit records the parts that it set, and for each of the others the revision that set it.
// The collector follows parts forward, from the bookmark's checkpoint, where it can: that takes
// the commits alone. Where it needs a single checkpoint it reads the commits that set its parts.

// A part is a checkpoint part as the collector follows it: its name, and the blob that its
// version needs. That is the version itself, if it is stored as a blob. For a delta it is the
// blob that the chain of deltas began with. It is the zero hash if vacuum has stored a version
// of the chain whole, so that the chain needs no blob any more.
type part struct {
	name string
	blob keys.Hash
}

// wholes are the versions of a session that commits made as deltas and that vacuum has
// stored whole.
type wholes map[versionAt]bool

// A versionAt is a version of a checkpoint part: the part's hash, and the revision that set
// the version.
type versionAt struct {
	part     keys.Hash
	revision head.Revision
}

// wholes reads which versions, from one revision up to another, vacuum has stored whole.
func (cy *cycle) wholes(ctx context.Context, inc head.Incarnation, from, to head.Revision) (wholes, error) {
	out := wholes{}
	for c, err := range cy.blobs.Chains(ctx, inc) {
		if err != nil {
			return nil, err
		}
		for v, err := range cy.blobs.Versions(ctx, c, uint64(from), uint64(to)) {
			if err != nil {
				return nil, err
			}
			if !v.IsDelta() {
				out[versionAt{c.Part, head.Revision(v.Revision)}] = true
			}
		}
	}
	return out, nil
}

// inherited returns the checkpoint that a fork began with. A fork begins with whole versions.
func (cy *cycle) inherited(origin *head.Origin) []part {
	if origin == nil {
		return nil
	}
	out := make([]part, len(origin.Parts))
	for i, p := range origin.Parts {
		out[i] = part{p.Name, cy.space.BlobHash(p.Blob)}
	}
	return out
}

// nextParts returns the checkpoint after commit c. before is the checkpoint before c, and
// stored has the versions that the session stores whole. If before has a part that c does not
// list, then c removed that part.
func (cy *cycle) nextParts(inc head.Incarnation, before []part, c *head.Commit, stored wholes) ([]part, error) {
	if c.PartsAt != c.Revision {
		return before, nil
	}
	after := make([]part, 0, len(c.Parts))
	for _, p := range c.Parts {
		set := p.Set == c.Revision
		switch {
		case set && !head.IsDelta(p):
			after = append(after, part{p.Name, cy.space.BlobHash(p.Blob)})
		case set && len(stored) > 0 && stored[versionAt{cy.space.PartHash(p.Name), c.Revision}]:
			after = append(after, part{name: p.Name})
		default: // It carries over, or goes on with the chain of the version before.
			i := slices.IndexFunc(before, func(q part) bool { return q.name == p.Name })
			if i < 0 {
				return nil, codec.Corrupt(damage.ErrMissing, "checkpoint part %q of commit %d of incarnation %x", p.Name, c.Revision, inc)
			}
			after = append(after, before[i])
		}
	}
	return after, nil
}

// lost returns the blobs of parts that are not among those of others, each once.
func lost(parts, others []part) []keys.Hash {
	var out []keys.Hash
	for _, p := range parts {
		has := func(q part) bool { return q.blob == p.blob }
		if p.blob != (keys.Hash{}) && !slices.ContainsFunc(others, has) && !slices.Contains(out, p.blob) {
			out = append(out, p.blob)
		}
	}
	return out
}

// checkpointAt returns the parts of the checkpoint at a revision as they stand in the commit
// that set the checkpoint. Of parts that carried over, it has Name and Set only.
func (cy *cycle) checkpointAt(ctx context.Context, inc head.Incarnation, revision head.Revision) ([]head.Part, error) {
	if revision == 0 {
		return cy.originParts(ctx, inc)
	}
	c, err := cy.commit(ctx, inc, revision)
	if err != nil {
		return nil, err
	}
	switch c.PartsAt {
	case c.Revision:
		return c.Parts, nil
	case 0:
		return cy.originParts(ctx, inc)
	}
	if c, err = cy.commit(ctx, inc, c.PartsAt); err != nil {
		return nil, err
	}
	return c.Parts, nil
}

// originParts returns the checkpoint that a fork began with, and none for other sessions.
func (cy *cycle) originParts(ctx context.Context, inc head.Incarnation) ([]head.Part, error) {
	origin, err := cy.origin(ctx, inc)
	if err != nil || origin == nil {
		return nil, err
	}
	return origin.Parts, nil
}

// partSet returns a part as the commit of revision set has it or, for revision 0, as the fork
// began with it. The origin is read for revision 0 only.
func (cy *cycle) partSet(ctx context.Context, inc head.Incarnation, name string, set head.Revision) (head.Part, error) {
	h := history.History{Store: cy.history(), Inc: inc, Name: nameOf(inc)}
	var err error
	if set == 0 {
		h.Origin, err = cy.origin(ctx, inc)
	} else {
		err = cy.beat(ctx)
	}
	if err != nil {
		return head.Part{}, err
	}
	return h.Part(ctx, name, set)
}

// partsAt returns the checkpoint at a revision. It reads the commits that set the parts, not
// those between.
func (cy *cycle) partsAt(ctx context.Context, inc head.Incarnation, revision head.Revision) ([]part, error) {
	parts, err := cy.checkpointAt(ctx, inc, revision)
	if err != nil {
		return nil, err
	}
	out := make([]part, len(parts))
	for i, p := range parts {
		if out[i], err = cy.partOf(ctx, inc, p.Name, p.Set); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// partOf returns the part whose version a revision set. For a delta it reads the chain back to
// the blob that it began with, to see whether vacuum has stored a version of it whole.
func (cy *cycle) partOf(ctx context.Context, inc head.Incarnation, name string, set head.Revision) (part, error) {
	p, err := cy.partSet(ctx, inc, name, set)
	if err != nil {
		return part{}, err
	}
	if head.IsDelta(p) {
		whole, err := cy.hasWhole(ctx, inc, p)
		if err != nil || whole {
			return part{name: name}, err
		}
		if p, err = cy.partSet(ctx, inc, name, p.Whole); err != nil {
			return part{}, err
		}
	}
	return part{name, cy.space.BlobHash(p.Blob)}, nil
}

// hasWhole reports whether vacuum has stored a version whole in the chain of a delta, from
// after the blob that the chain began with up to the delta itself.
func (cy *cycle) hasWhole(ctx context.Context, inc head.Incarnation, delta head.Part) (bool, error) {
	chain := blob.Chain{Session: inc, Part: cy.space.PartHash(delta.Name)}
	for v, err := range cy.blobs.Versions(ctx, chain, uint64(delta.Whole)+1, uint64(delta.Set)) {
		if err != nil {
			return false, err
		}
		if !v.IsDelta() {
			return true, nil
		}
	}
	return false, nil
}

// blobsAt returns the blobs that the checkpoints at some revisions need.
func (cy *cycle) blobsAt(ctx context.Context, inc head.Incarnation, revisions []head.Revision) (map[keys.Hash]bool, error) {
	out := map[keys.Hash]bool{}
	for _, r := range revisions {
		parts, err := cy.partsAt(ctx, inc, r)
		if err != nil {
			return nil, err
		}
		for _, p := range parts {
			out[p.blob] = true
		}
	}
	return out, nil
}
