package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// checkpoints follows the checkpoint of a session through its commits. It notes the blobs
// that retained revisions refer to, and the deltas that they need.
type checkpoints struct {
	*verifier
	ses         *checkedSession
	sessionName string // what problems call the session
	floor       head.Revision
	kept        map[head.Revision]bool // by name, below the floor too
	now         map[string]head.Part   // the checkpoint after the last commit that was followed
	// deltas has the versions that commits set as deltas, by part and revision.
	deltas map[string]map[head.Revision]head.Part
	// needed has the deltas that are in the checkpoint of a retained revision.
	needed map[string]map[head.Revision]bool
}

// newCheckpoints returns the checkpoint with which a session began.
func (v *verifier) newCheckpoints(ctx context.Context, ses *checkedSession) (*checkpoints, error) {
	c := &checkpoints{
		verifier: v, ses: ses, sessionName: v.name(ses.Inc), kept: map[head.Revision]bool{}, now: map[string]head.Part{},
		deltas: map[string]map[head.Revision]head.Part{}, needed: map[string]map[head.Revision]bool{},
	}
	if ses.Origin != nil {
		for _, p := range ses.Origin.Parts {
			c.now[p.Name] = p
		}
	}
	err := steady(ctx, &ses.History, func() error { return c.readRetention(ctx) })
	c.noteRetained(0)
	return c, err
}

// readRetention reads which revisions of the session are retained.
func (c *checkpoints) readRetention(ctx context.Context) error {
	life, err := c.ses.life(ctx)
	if err != nil {
		return err
	}
	c.floor = life.Floor
	refs, err := head.ReadKept(ctx, c.store.Engine, c.store.Space, c.ses.Inc, life)
	for _, r := range refs {
		c.kept[r.Revision] = true
	}
	return err
}

// follow goes on with a commit.
func (c *checkpoints) follow(commit *head.Commit) {
	changed := commit.PartsAt == commit.Revision
	if changed {
		c.change(commit)
	}
	if changed || commit.Revision == c.floor || c.kept[commit.Revision] {
		c.noteRetained(commit.Revision)
	}
}

// change sets the checkpoint to that of a commit that changes it.
func (c *checkpoints) change(commit *head.Commit) {
	next := make(map[string]head.Part, len(commit.Parts))
	for _, p := range commit.Parts {
		if p.Set != commit.Revision {
			next[p.Name] = c.now[p.Name]
			continue
		}
		next[p.Name] = p
		if !head.IsDelta(p) {
			continue
		}
		if c.deltas[p.Name] == nil {
			c.deltas[p.Name], c.needed[p.Name] = map[head.Revision]head.Part{}, map[head.Revision]bool{}
		}
		c.deltas[p.Name][p.Set] = p
	}
	c.now = next
}

// noteRetained notes what the checkpoint of revision r, which is the last one that was
// followed, refers to. It does nothing if the revision is not retained.
func (c *checkpoints) noteRetained(r head.Revision) {
	if r < c.floor && !c.kept[r] {
		return
	}
	for _, p := range c.now {
		if head.IsDelta(p) {
			c.needed[p.Name][p.Set] = true
		} else {
			c.referenced[p.Blob] = c.sessionName
		}
	}
}

// check reads the deltas that retained revisions need, up to revision last, and checks that
// the session stores no deltas that no commit set.
func (c *checkpoints) check(ctx context.Context, last head.Revision) error {
	for _, name := range slices.Sorted(maps.Keys(c.deltas)) {
		err := steady(ctx, &c.ses.History, func() error { return c.checkPart(ctx, name, last) })
		if endsSession(err) {
			return err
		}
		c.problem(err, "checkpoint part %q of %s", name, c.sessionName)
	}
	return c.checkUnknownParts(ctx, last)
}

// checkUnknownParts looks for deltas of parts that no commit set as a delta.
func (c *checkpoints) checkUnknownParts(ctx context.Context, last head.Revision) error {
	set := map[keys.Hash]bool{}
	for name := range c.deltas {
		set[c.store.Space.PartHash(name)] = true
	}
	for chain, err := range c.store.Blobs.Chains(ctx, c.ses.Inc) {
		if err != nil {
			return err
		}
		if set[chain.Part] {
			continue
		}
		if err := c.unknownPart(ctx, chain, last); err != nil {
			return err
		}
	}
	return nil
}

// unknownPart is called for a part that no commit set as a delta. It reports the first
// delta that the part has up to revision last.
func (c *checkpoints) unknownPart(ctx context.Context, chain blob.Chain, last head.Revision) error {
	for v, err := range c.store.Blobs.Versions(ctx, chain, 0, uint64(last)) {
		if endsCheck(err) {
			return err
		}
		if _, _, err := c.ses.readHead(ctx); err != nil {
			return err // The session was deleted meanwhile.
		}
		c.problem(errNotSet, "version %d of a checkpoint part of %s", v.Revision, c.sessionName)
		break
	}
	return nil
}

// errNotSet is what is wrong with a stored version that is in no commit.
var errNotSet = fmt.Errorf("%w: no commit set it", damage.ErrHash)

// damaged says that err is about the version of a part that revision r set.
func (c *checkpoints) damaged(err error, name string, r head.Revision) error {
	return codec.Corrupt(err, "version %d of checkpoint part %q of %s", r, name, c.sessionName)
}

// checkPart expands the deltas of a part that retained revisions need, and compares them
// with what the commits say. Other deltas can't be checked: vacuum may have removed what
// they depended on.
func (c *checkpoints) checkPart(ctx context.Context, name string, last head.Revision) error {
	chain := c.ses.Chain(name)
	unread, err := c.useful(ctx, name, chain, last)
	if err != nil {
		return err
	}
	var content []byte
	for v, err := range c.store.Blobs.Versions(ctx, chain, 0, uint64(last)) {
		if err != nil {
			return err
		}
		r := head.Revision(v.Revision)
		if !unread[r] {
			continue
		}
		if content, err = c.expand(ctx, c.deltas[name][r], &v, content); err != nil {
			return err
		}
		delete(unread, r)
	}
	for r := range unread { // They were removed since useful found them.
		return c.damaged(damage.ErrMissing, name, r)
	}
	return nil
}

// expand returns the content of v, which commits set as p, and verifies it. before is the
// content of the version before v in the chain. The first delta of a chain is relative to
// a blob instead, which expand reads.
func (c *checkpoints) expand(ctx context.Context, p head.Part, v *blob.Version, before []byte) ([]byte, error) {
	if v.IsDelta() && head.Revision(v.Base) == p.Whole {
		var err error
		if before, err = c.readWhole(ctx, p); err != nil {
			return nil, err
		}
	}
	content, err := v.Expand(before)
	if err == nil && blob.Sum(content) != p.Blob {
		err = damage.ErrHash
	}
	return content, c.damaged(err, p.Name, p.Set)
}

// readWhole reads the version with which the chain of p began, and notes its blob.
func (c *checkpoints) readWhole(ctx context.Context, p head.Part) ([]byte, error) {
	root, err := c.ses.Part(ctx, p.Name, p.Whole)
	if err != nil {
		return nil, err
	}
	c.referenced[root.Blob] = c.sessionName
	return c.store.Blobs.Read(ctx, root.Blob)
}

// useful returns the revisions of the deltas that retained revisions need, and of the
// deltas that these depend on. It fails if one of them is missing, or if the session
// stores a version that no commit set.
func (c *checkpoints) useful(ctx context.Context, name string, chain blob.Chain, last head.Revision) (map[head.Revision]bool, error) {
	versions, err := c.headers(ctx, name, chain, last)
	if err != nil {
		return nil, err
	}
	useful := map[head.Revision]bool{}
	next := false // whether the version after this one depends on it
	for i, v := range slices.Backward(versions) {
		r := head.Revision(v.Revision)
		if !next && !c.needed[name][r] {
			continue
		}
		useful[r] = true
		next = v.IsDelta() && head.Revision(v.Base) != c.deltas[name][r].Whole
		if next && (i == 0 || versions[i-1].Revision != v.Base) {
			return nil, c.damaged(damage.ErrMissing, name, head.Revision(v.Base))
		}
	}
	return useful, nil
}

// headers returns the stored versions of a part without their data. It fails if a version
// that a retained revision needs is missing, or if no commit set one of the versions.
func (c *checkpoints) headers(ctx context.Context, name string, chain blob.Chain, last head.Revision) ([]blob.Version, error) {
	var versions []blob.Version
	found := map[head.Revision]bool{}
	for v, err := range c.store.Blobs.Versions(ctx, chain, 0, uint64(last)) {
		if err != nil {
			return nil, err
		}
		r := head.Revision(v.Revision)
		if _, set := c.deltas[name][r]; !set {
			return nil, c.damaged(errNotSet, name, r)
		}
		versions, found[r] = append(versions, v.Header()), true
	}
	for _, r := range slices.Sorted(maps.Keys(c.needed[name])) {
		if !found[r] {
			return nil, c.damaged(damage.ErrMissing, name, r)
		}
	}
	return versions, nil
}
