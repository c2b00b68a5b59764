package reclaim

import (
	"context"
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// A part is a checkpoint part as the collector follows it: its name, and the blob
// that its version needs. That is the version itself, if it is stored as a blob. For a
// version that the session stores as a delta, it is the blob that the chain of deltas
// began with; or the zero hash, if vacuum has stored a version of the chain whole, so
// that the chain needs no blob any more.
type part struct {
	name string
	blob keys.Hash
}

// Wholes are the versions of a session that vacuum has stored whole.
type wholes map[versionAt]bool

type versionAt struct {
	part     keys.Hash
	revision head.Revision
}

// wholes reads which versions, from one revision up to another, vacuum has stored whole.
func (cy *cycle) wholes(ctx context.Context, inc heads.Incarnation, from, to head.Revision) (wholes, error) {
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

// inherited returns the checkpoint that a fork began with.
func (cy *cycle) inherited(origin *heads.Origin) []part {
	if origin == nil {
		return nil
	}
	out := make([]part, len(origin.Parts))
	for i, p := range origin.Parts {
		out[i] = part{p.Name, cy.space.BlobHash(p.Blob)}
	}
	return out
}

// nextParts returns the checkpoint after commit c, of which before was the one before.
// Versions among stored are stored whole by the session.
func (cy *cycle) nextParts(inc heads.Incarnation, before []part, c *heads.Commit, stored wholes) ([]part, error) {
	if c.PartsAt != c.Revision {
		return before, nil
	}
	after := make([]part, 0, len(c.Parts))
	for _, p := range c.Parts {
		if p.Set == c.Revision && !heads.IsDelta(p) {
			after = append(after, part{p.Name, cy.space.BlobHash(p.Blob)})
			continue
		}
		if p.Set == c.Revision && len(stored) > 0 && stored[versionAt{cy.space.PartHash(p.Name), c.Revision}] {
			after = append(after, part{name: p.Name})
			continue
		}
		// It carries over, or goes on with the chain of the version before.
		i := slices.IndexFunc(before, func(q part) bool { return q.name == p.Name })
		if i < 0 {
			return nil, codec.Corrupt(record.ErrMissing, "checkpoint part %q of commit %d of incarnation %x", p.Name, c.Revision, inc)
		}
		after = append(after, before[i])
	}
	return after, nil
}

// lost returns the blobs of parts that are not among those of others.
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

// checkpointAt returns the parts of the checkpoint at a revision as the commit that
// set it has them: of parts that carried over, Name and Set only.
func (cy *cycle) checkpointAt(ctx context.Context, inc heads.Incarnation, revision head.Revision) ([]head.Part, error) {
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

func (cy *cycle) originParts(ctx context.Context, inc heads.Incarnation) ([]head.Part, error) {
	origin, err := cy.origin(ctx, inc)
	if err != nil || origin == nil {
		return nil, err
	}
	return origin.Parts, nil
}

func (cy *cycle) commit(ctx context.Context, inc heads.Incarnation, revision head.Revision) (*heads.Commit, error) {
	key := cy.space.Commit(inc, uint64(revision))
	vs, err := cy.get(ctx, key)
	if err != nil {
		return nil, err
	}
	c, _, err := heads.OpenCommit(key, vs[0])
	return c, codec.Corrupt(err, "commit %d of incarnation %x", revision, inc)
}

// partSet returns a part as the revision that set it did.
func (cy *cycle) partSet(ctx context.Context, inc heads.Incarnation, name string, set head.Revision) (head.Part, error) {
	parts, err := cy.checkpointAt(ctx, inc, set)
	if err != nil {
		return head.Part{}, err
	}
	i := slices.IndexFunc(parts, func(p head.Part) bool { return p.Name == name && p.Set == set })
	if i < 0 {
		return head.Part{}, codec.Corrupt(record.ErrMissing, "checkpoint part %q of commit %d of incarnation %x", name, set, inc)
	}
	return parts[i], nil
}

// partsAt returns the checkpoint at a revision. It reads the commits that set the
// parts, not those between.
func (cy *cycle) partsAt(ctx context.Context, inc heads.Incarnation, revision head.Revision) ([]part, error) {
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

// partOf returns the part whose version a revision set.
func (cy *cycle) partOf(ctx context.Context, inc heads.Incarnation, name string, set head.Revision) (part, error) {
	p, err := cy.partSet(ctx, inc, name, set)
	if err != nil {
		return part{}, err
	}
	if heads.IsDelta(p) {
		chain := blobs.Chain{Session: inc, Part: cy.space.PartHash(name)}
		for v, err := range cy.blobs.Versions(ctx, chain, uint64(p.Whole)+1, uint64(set)) {
			if err != nil {
				return part{}, err
			}
			if !v.IsDelta() {
				return part{name: name}, nil
			}
		}
		if p, err = cy.partSet(ctx, inc, name, p.Whole); err != nil {
			return part{}, err
		}
	}
	return part{name, cy.space.BlobHash(p.Blob)}, nil
}

// partsOfAll returns the blobs that the checkpoints at some revisions below another
// one need.
func (cy *cycle) partsOfAll(ctx context.Context, inc heads.Incarnation, revisions []head.Revision, below head.Revision) (map[keys.Hash]bool, error) {
	out := map[keys.Hash]bool{}
	for _, k := range revisions {
		if k >= below {
			break
		}
		parts, err := cy.partsAt(ctx, inc, k)
		if err != nil {
			return nil, err
		}
		for _, p := range parts {
			out[p.blob] = true
		}
	}
	return out, nil
}
