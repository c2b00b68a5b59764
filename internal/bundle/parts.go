package bundle

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
)

// This file checks the checkpoints of a section: each retained revision has to have all its parts. A part is a blob, or a
// version that the session stores itself, mostly as a delta of the one before. Whoever checks deltas needs the contents
// that they are relative to: contents keeps those that came last.

// checkParts checks the versions of checkpoint parts that a turn sets.
func (c *checker) checkParts(ctx context.Context, t *history.Turn) error {
	for _, p := range t.Parts {
		if p.Set != t.Revision {
			continue
		}
		if !head.IsDelta(p) {
			if err := c.partBlob(ctx, p); err != nil {
				return err
			}
			continue
		}
		key := partSet{p.Name, p.Set}
		v, given := c.given[key]
		if err := c.chained(&p); err != nil {
			return err
		}
		switch {
		case !given:
			c.lacking[p.Name] = true
		case v.id != p.Blob || v.length != p.Size:
			return fmt.Errorf("%w: checkpoint part %q", damage.ErrHash, p.Name)
		case v.base != p.Set && !c.follows(p.Name, v.version):
			return fmt.Errorf("%w: what version %d of checkpoint part %q is relative to", damage.ErrMissing, p.Set, p.Name)
		default:
			delete(c.lacking, p.Name)
			delete(c.given, key)
		}
	}
	return nil
}

// A given is a version that was received, with the id of its content.
type given struct {
	*version
	id     blob.ID
	length int64
}

// chained checks that a part that is set as a delta goes on with the chain of its version before.
func (c *checker) chained(p *head.Part) error {
	for i := range c.state.Parts {
		if before := &c.state.Parts[i]; before.Name == p.Name && (before.Whole == p.Whole) {
			return nil // The whole version that it began with is its own Whole.
		}
	}
	return malformed("checkpoint part %q of revision %d is a delta of another chain", p.Name, p.Set)
}

// follows reports whether a part has, before the turn that is checked, the version that v is relative to.
func (c *checker) follows(name string, v *version) bool {
	return !c.lacking[name] && slices.ContainsFunc(c.state.Parts, func(p head.Part) bool {
		return p.Name == name && p.Set == v.base && p.Blob == v.baseID
	})
}

// version takes a version of a checkpoint part, whose data follow.
func (c *checker) version(ctx context.Context, v *version) error {
	if c.in.copy || len(v.part) > maxName || v.revision <= c.state.Revision {
		return malformed("version %d of checkpoint part %.80q", v.revision, v.part)
	}
	key := partSet{v.part, v.revision}
	if _, twice := c.given[key]; twice || len(c.given) > 1<<16 {
		return malformed("version %d of checkpoint part %q twice", v.revision, v.part)
	}
	var data bytes.Buffer
	err := c.frames.content(v.size, func(b []byte) error {
		data.Write(b)
		return c.spooled.write(kindData, b)
	})
	if err != nil {
		return err
	}
	var base []byte
	if !v.baseID.IsZero() {
		if base, err = c.content(ctx, v.baseID); err != nil {
			return err
		}
	}
	content, err := codec.Decompress(data.Bytes(), base, int(c.Store.Limits.Part))
	if err != nil {
		return err
	}
	id := blob.Sum(content)
	c.given[key] = given{v, id, int64(len(content))}
	if v.base != v.revision {
		c.deltas[v.revision] += int(v.size)
	}
	return c.contents.keep(ctx, &c.stock, id, content)
}

// content returns the content of a version before.
func (c *checker) content(ctx context.Context, id blob.ID) ([]byte, error) {
	if content, ok := c.contents.by[id]; ok {
		return content, nil
	}
	sizes, err := c.stock.sizes(ctx, []blob.ID{id})
	if err != nil {
		return nil, err
	}
	if sizes[0] >= 0 && sizes[0] <= c.Store.Limits.Part {
		if err := c.stock.flush(ctx); err != nil {
			return nil, err
		}
		return c.Blobs.Read(ctx, id)
	}
	if p, known := c.known[id]; known {
		retained, err := c.in.target.RetainedNow(ctx)
		if err != nil {
			return nil, err
		}
		if !retained(c.in.since.Revision) {
			return nil, fmt.Errorf("%w: %d, from which the bundle goes on", history.ErrRevisionPruned, c.in.since.Revision)
		}
		content, _, err := c.in.target.ReadPart(ctx, p)
		return content, err
	}
	return nil, fmt.Errorf("%w: what a version of a checkpoint part is relative to", damage.ErrMissing)
}

// contents keeps the contents of versions, which later ones may be relative to.
type contents struct {
	by    map[blob.ID][]byte
	order []blob.ID
	bytes int
}

const contentsBytes = 64 << 20

// keep keeps content, and stores what it has no room for any more as blobs.
func (k *contents) keep(ctx context.Context, to *stock, id blob.ID, content []byte) error {
	if _, known := k.by[id]; known {
		return nil
	}
	k.by[id], k.order, k.bytes = content, append(k.order, id), k.bytes+len(content)
	for k.bytes > contentsBytes && len(k.order) > 1 {
		old := k.order[0]
		gone := k.by[old]
		delete(k.by, old)
		k.order, k.bytes = k.order[1:], k.bytes-len(gone)
		if err := to.write(ctx, bytes.NewReader(gone), old, int64(len(gone))); err != nil {
			return err
		}
	}
	return nil
}

// retained reports whether the checkpoint of a revision has to be at hand.
func (c *checker) retained(r head.Revision) bool {
	if r >= c.in.floor {
		return true
	}
	for _, k := range c.in.kept {
		if k.Revision == r {
			return true
		}
	}
	return false
}

// settle checks the checkpoint of the revision at which the section stands.
func (c *checker) settle() error {
	if len(c.lacking) > 0 && c.retained(c.state.Revision) {
		for name := range c.lacking {
			return fmt.Errorf("%w: checkpoint part %q of revision %d", damage.ErrMissing, name, c.state.Revision)
		}
	}
	return nil
}

// atBegin looks which parts that a fork begins with are at hand, once the blobs before the first turn are there.
func (c *checker) atBegin(ctx context.Context) error {
	if c.turns > 0 || c.in.copy || c.in.since.Revision > 0 {
		return nil
	}
	for _, p := range c.state.Parts {
		if err := c.partBlob(ctx, p); err != nil {
			return err
		}
	}
	return c.settle()
}

// partBlob notes whether the content of a part that is a blob is at hand.
func (c *checker) partBlob(ctx context.Context, p head.Part) error {
	sizes, err := c.stock.sizes(ctx, []blob.ID{p.Blob})
	switch {
	case err != nil:
		return err
	case sizes[0] < 0:
		c.lacking[p.Name] = true
		return nil
	case sizes[0] != p.Size:
		return malformed("checkpoint part %q is of %d bytes, not of %d", p.Name, sizes[0], p.Size)
	}
	delete(c.lacking, p.Name)
	return c.stock.pin(ctx, p.Blob, p.Size)
}
