package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// Checkpoints follows a session's checkpoint through its commits. It refers to the
// blobs of the revisions that are retained, and knows which of the versions that the
// session stores itself they need.
type checkpoints struct {
	v        *verifier
	ses      *session
	name     string // of the session
	floor    head.Revision
	kept     map[head.Revision]bool
	now      map[string]head.Part
	versions map[string]map[head.Revision]head.Part // deltas, as commits set them
	needed   map[string]map[head.Revision]bool      // of those, the ones that retained revisions have
}

func (v *verifier) checkpoints(ctx context.Context, ses *session) (*checkpoints, error) {
	c := &checkpoints{
		v: v, ses: ses, name: v.name(ses.Inc), kept: map[head.Revision]bool{}, now: map[string]head.Part{},
		versions: map[string]map[head.Revision]head.Part{}, needed: map[string]map[head.Revision]bool{},
	}
	if ses.Origin != nil {
		for _, p := range ses.Origin.Parts {
			c.now[p.Name] = p
		}
	}
	_, err := steady(ctx, &ses.History, func() (struct{}, error) {
		life, err := ses.life(ctx)
		if err != nil {
			return struct{}{}, err
		}
		c.floor = life.Floor
		refs, err := heads.Kept(ctx, v.store.Engine, v.store.Space, ses.Inc, life)
		for _, r := range refs {
			c.kept[r.Revision] = true
		}
		return struct{}{}, err
	})
	c.retain(0)
	return c, err
}

// at goes on with a commit.
func (c *checkpoints) at(commit *heads.Commit) {
	if commit.PartsAt == commit.Revision {
		next := make(map[string]head.Part, len(commit.Parts))
		for _, p := range commit.Parts {
			if p.Set != commit.Revision {
				next[p.Name] = c.now[p.Name]
				continue
			}
			next[p.Name] = p
			if heads.IsDelta(p) {
				if c.versions[p.Name] == nil {
					c.versions[p.Name], c.needed[p.Name] = map[head.Revision]head.Part{}, map[head.Revision]bool{}
				}
				c.versions[p.Name][p.Set] = p
			}
		}
		c.now = next
	}
	if commit.PartsAt == commit.Revision || commit.Revision == c.floor || c.kept[commit.Revision] {
		c.retain(commit.Revision)
	}
}

// retain refers to the checkpoint of a revision, if that is retained.
func (c *checkpoints) retain(r head.Revision) {
	if r < c.floor && !c.kept[r] {
		return
	}
	for _, p := range c.now {
		if heads.IsDelta(p) {
			c.needed[p.Name][p.Set] = true
		} else {
			c.v.blobs[p.Blob] = c.name
		}
	}
}

// check reads the versions that the session stores itself, and what they depend on, as
// far as retained revisions need them.
func (c *checkpoints) check(ctx context.Context, last head.Revision) error {
	for _, name := range slices.Sorted(maps.Keys(c.versions)) {
		problem, err := steady(ctx, &c.ses.History, func() (error, error) { return c.part(ctx, name, last) })
		if err != nil {
			return err
		}
		c.v.problem(problem, "checkpoint part %q of %s", name, c.name)
	}
	return c.strangers(ctx, last)
}

// strangers finds versions, up to a revision, of parts that no commit set as a delta.
func (c *checkpoints) strangers(ctx context.Context, last head.Revision) error {
	known := map[keys.Hash]bool{}
	for name := range c.versions {
		known[c.v.store.Space.PartHash(name)] = true
	}
	for chain, err := range c.v.store.Blobs.Chains(ctx, c.ses.Inc) {
		if err != nil {
			return err
		}
		if known[chain.Part] {
			continue
		}
		for v, err := range c.v.store.Blobs.Versions(ctx, chain, 0, uint64(last)) {
			if stopped(err) {
				return err
			}
			if _, _, err := c.ses.readHead(ctx); err != nil {
				return err // deleted meanwhile
			}
			c.v.problem(fmt.Errorf("%w: no commit set it", record.ErrHash), "version %d of a checkpoint part of %s", v.Revision, c.name)
			break
		}
	}
	return nil
}

// part checks one checkpoint part: the versions that are needed, and those that they
// depend on. Others may have lost what they depended on. What is wrong is the first
// result, unless reading failed.
func (c *checkpoints) part(ctx context.Context, name string, last head.Revision) (problem, err error) {
	damaged := func(err error, r head.Revision) error {
		return codec.Corrupt(err, "version %d of checkpoint part %q of %s", r, name, c.name)
	}
	chain := blobs.Chain{Session: c.ses.Inc, Part: c.v.store.Space.PartHash(name)}
	useful, err := c.useful(ctx, name, chain, last)
	if err != nil {
		return onlyDamage(err)
	}
	var content []byte
	for v, err := range c.v.store.Blobs.Versions(ctx, chain, 0, uint64(last)) {
		if err != nil {
			return onlyDamage(err)
		}
		r := head.Revision(v.Revision)
		if !useful[r] {
			continue
		}
		p := c.versions[name][r]
		if v.IsDelta() && head.Revision(v.Base) == p.Whole {
			root, err := c.ses.Part(ctx, name, p.Whole)
			if err == nil {
				c.v.blobs[root.Blob] = c.name
				content, err = c.v.store.Blobs.Read(ctx, root.Blob)
			}
			if err != nil {
				return onlyDamage(err)
			}
		}
		content, err = v.Expand(content)
		if err == nil && blob.Sum(content) != p.Blob {
			err = record.ErrHash
		}
		if err != nil {
			return damaged(err, r), nil
		}
		delete(useful, r)
	}
	for r := range useful { // removed since
		return damaged(record.ErrMissing, r), nil
	}
	return nil, nil
}

// useful returns the versions that are needed, and those that they depend on. It fails
// if one of them is missing, or one is there that no commit set.
func (c *checkpoints) useful(ctx context.Context, name string, chain blobs.Chain, last head.Revision) (map[head.Revision]bool, error) {
	damaged := func(err error, r head.Revision) error {
		return codec.Corrupt(err, "version %d of checkpoint part %q of %s", r, name, c.name)
	}
	var versions []blobs.Version
	found := map[head.Revision]bool{}
	for v, err := range c.v.store.Blobs.Versions(ctx, chain, 0, uint64(last)) {
		if err != nil {
			return nil, err
		}
		r := head.Revision(v.Revision)
		if _, known := c.versions[name][r]; !known {
			return nil, damaged(fmt.Errorf("%w: no commit set it", record.ErrHash), r)
		}
		versions, found[r] = append(versions, v.Header()), true
	}
	for _, r := range slices.Sorted(maps.Keys(c.needed[name])) {
		if !found[r] {
			return nil, damaged(record.ErrMissing, r)
		}
	}
	out := map[head.Revision]bool{}
	asked := false // by the version behind
	for i := len(versions) - 1; i >= 0; i-- {
		v := &versions[i]
		r := head.Revision(v.Revision)
		if !asked && !c.needed[name][r] {
			continue
		}
		out[r] = true
		asked = v.IsDelta() && head.Revision(v.Base) != c.versions[name][r].Whole
		if asked && (i == 0 || versions[i-1].Revision != v.Base) {
			return nil, damaged(record.ErrMissing, head.Revision(v.Base))
		}
	}
	return out, nil
}

// onlyDamage tells damage from errors that end a reading.
func onlyDamage(err error) (damage, other error) {
	if stopped(err) {
		return nil, err
	}
	return err, nil
}
