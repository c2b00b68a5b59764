package gc

import (
	"context"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file removes versions of checkpoint parts that a session stores itself. They are deltas
// of each other, and nothing outside the session depends on them. A version is needed if a
// retained revision has it. A collection removes what no needed version depends on. Vacuum
// also stores a needed version whole, if the version that it is a delta of is not needed, so
// that this one can go, too:
//
//	            floor ──┐
//	blob ◄─ 2 ◄─ 3 ◄─ 4 ◄─ 5 ◄─ 6        before: 4 needs 3, 2 and the blob
//	                  4 ◄─ 5 ◄─ 6        after:  4 is stored whole
//
// A reader that meets the change finds a version missing, and reads again. Only what two readings
// find alike is damage. The batch that stores 4 whole guards the lifecycle record, like all
// batches of a cleaning.

// needed says which versions below a session's floor are in the checkpoints of retained
// revisions. The versions that a revision from the floor on set are all needed.
type needed struct {
	floor head.Revision
	below map[versionAt]bool
	names map[keys.Hash]string // of the parts
}

// has reports whether the version of a part that a revision set is needed.
func (n *needed) has(part keys.Hash, revision uint64) bool {
	return head.Revision(revision) >= n.floor || n.below[versionAt{part, head.Revision(revision)}]
}

// needed reads which versions are needed by the floor and the kept revisions. Kept revisions after
// the floor add nothing: the versions that were set after the floor are needed anyway, and those
// that carry over are in the floor's checkpoint.
func (cy *cycle) needed(ctx context.Context, inc head.Incarnation, floor head.Revision, kept []head.Revision) (*needed, error) {
	n := &needed{floor: floor, below: map[versionAt]bool{}, names: map[keys.Hash]string{}}
	for _, at := range append(slices.Clone(kept), floor) {
		if at > floor {
			continue
		}
		parts, err := cy.checkpointAt(ctx, inc, at)
		if err != nil {
			return nil, err
		}
		for _, p := range parts {
			h := cy.space.PartHash(p.Name)
			n.below[versionAt{h, p.Set}], n.names[h] = true, p.Name
		}
	}
	return n, nil
}

// chains returns, as chains, the versions of a part that the session itself stores, up to the
// floor: each version of a chain but the first is a delta of the one before.
func (cy *cycle) chains(ctx context.Context, c blob.Chain, floor head.Revision) ([][]blob.Version, error) {
	var out [][]blob.Version
	last := uint64(0)
	for v, err := range cy.blobs.Versions(ctx, c, 0, uint64(floor)) {
		if err != nil {
			return nil, err
		}
		if n := len(out); n > 0 && v.IsDelta() && v.Base == last {
			out[n-1] = append(out[n-1], v.Header())
		} else {
			out = append(out, []blob.Version{v.Header()})
		}
		last = v.Revision
	}
	return out, nil
}

// dropVersions removes the versions below the floor that no needed version depends on: from
// the end of each chain back to the first needed one. What is left of a chain is whole whenever
// the work is cut off. apply applies a batch of deletions.
func (cy *cycle) dropVersions(ctx context.Context, c blob.Chain, need *needed, apply func(context.Context, *batch) error) error {
	chains, err := cy.chains(ctx, c, need.floor)
	if err != nil {
		return err
	}
	w := newWriter(apply)
	for _, versions := range chains {
		for i := len(versions) - 1; i >= 0 && !need.has(c.Part, versions[i].Revision); i-- {
			w.Deletes = append(w.Deletes, cy.blobs.Keys(c, &versions[i])...)
			if err := w.flushMany(ctx); err != nil {
				return err
			}
		}
	}
	return w.flush(ctx)
}

// dropBelow removes, of all parts of a session that lives, the versions below its floor that
// no needed version depends on.
func (cy *cycle) dropBelow(ctx context.Context, v *view, kept []head.Revision) error {
	if v.life.Floor == 0 {
		return nil
	}
	need, err := cy.needed(ctx, v.inc, v.life.Floor, kept)
	if err != nil {
		return err
	}
	apply := func(ctx context.Context, b *batch) error {
		b.Guards = v.guards
		return cy.apply(ctx, b)
	}
	for c, err := range cy.blobs.Chains(ctx, v.inc) {
		if err == nil {
			err = cy.dropVersions(ctx, c, need, apply)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cutChains stores each needed version whole that is a delta of one that is not needed, and
// removes the versions that it depended on. Without a floor all versions are needed.
func (c *cleaning) cutChains(ctx context.Context, kept []head.Revision) error {
	if c.life.Floor == 0 {
		return nil
	}
	if c.mark.floor != c.life.Floor || c.mark.revision < c.life.Floor {
		// The index does not know the floor yet.
		if err := c.cycle.session(ctx, c.inc); err != nil {
			return err
		}
		return errMoved
	}
	need, err := c.needed(ctx, c.inc, c.life.Floor, kept)
	if err != nil {
		return err
	}
	for chain, err := range c.blobs.Chains(ctx, c.inc) {
		if err == nil {
			err = c.cutChain(ctx, need, chain)
		}
		if err == nil {
			err = c.dropVersions(ctx, chain, need, c.applyPlain)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cutChain stores the needed versions of one part whole that are deltas of versions which are
// not needed.
func (c *cleaning) cutChain(ctx context.Context, need *needed, chain blob.Chain) error {
	chains, err := c.chains(ctx, chain, need.floor)
	if err != nil {
		return err
	}
	for i := range chains {
		for j := range chains[i] {
			v := &chains[i][j]
			if !v.IsDelta() || !need.has(chain.Part, v.Revision) || need.has(chain.Part, v.Base) {
				continue
			}
			if err := c.storeWhole(ctx, need.names[chain.Part], chain, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// storeWhole stores a version of the part name whole. The batch also asks the collector to derive
// anew the session's edge to the blob at the beginning of the chain. A version that takes several
// values is whole when the first of them is: the others are stored before.
func (c *cleaning) storeWhole(ctx context.Context, name string, chain blob.Chain, v *blob.Version) error {
	p, err := c.partSet(ctx, c.inc, name, head.Revision(v.Revision))
	if err != nil {
		return err
	}
	content, err := c.readVersion(ctx, chain, p, v)
	if err != nil {
		return err
	}
	pairs := c.blobs.Whole(chain, v.Revision, content)
	for ; len(pairs) > 1; pairs = pairs[:len(pairs)-1] {
		b, last := &batch{}, pairs[len(pairs)-1]
		b.Set(last.Key, last.Value)
		if err := c.apply(ctx, b, nil); err != nil {
			return err
		}
	}
	needs, err := c.partOf(ctx, c.inc, name, p.Set)
	if err != nil {
		return err
	}
	b := &batch{}
	if needs.blob != (keys.Hash{}) {
		c.detach(b, needs.blob)
	}
	b.Set(pairs[0].Key, pairs[0].Value)
	if err := c.apply(ctx, b, nil); err != nil {
		return err
	}
	c.out.Rewritten++
	return nil
}

// readVersion returns the content of a version of part p.
func (c *cleaning) readVersion(ctx context.Context, chain blob.Chain, p head.Part, v *blob.Version) ([]byte, error) {
	root := func(ctx context.Context) (blob.ID, error) {
		first, err := c.partSet(ctx, c.inc, p.Name, p.Whole)
		return first.Blob, err
	}
	content, _, err := c.blobs.ReadVersion(ctx, chain, uint64(p.Whole), v.Revision, p.Blob, root)
	return content, err
}
