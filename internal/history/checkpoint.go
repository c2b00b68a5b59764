package history

import (
	"context"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/record"
)

// Parts returns the checkpoint parts at revision r of the session itself. Revision 0 stands for
// the parts that a fork began with.
func (h *History) Parts(ctx context.Context, r head.Revision) ([]head.Part, error) {
	if r == 0 {
		return h.originParts(), nil
	}
	c, _, err := h.CommitAt(ctx, r)
	if err != nil {
		return nil, err
	}
	return h.PartsAt(ctx, c)
}

// originParts returns the checkpoint parts that a fork began with.
func (h *History) originParts() []head.Part {
	if h.Origin == nil {
		return nil
	}
	return slices.Clone(h.Origin.Parts)
}

// PartsAt returns the checkpoint parts at a commit of the session itself. A commit records
// the parts that it set, and for each of the others the revision that set it. PartsAt reads the
// commits of these revisions.
func (h *History) PartsAt(ctx context.Context, c *heads.Commit) ([]head.Part, error) {
	if c.PartsAt == 0 {
		return h.originParts(), nil
	}
	if c.PartsAt != c.Revision {
		var err error
		if c, _, err = h.CommitAt(ctx, c.PartsAt); err != nil {
			return nil, err
		}
	}
	parts := slices.Clone(c.Parts)
	for i, p := range parts {
		if p.Set == c.Revision {
			continue
		}
		var err error
		if parts[i], err = h.Part(ctx, p.Name, p.Set); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// Part returns a checkpoint part as the commit of a revision set it. Revision 0 stands for the
// parts that a fork began with.
func (h *History) Part(ctx context.Context, name string, set head.Revision) (head.Part, error) {
	var parts []head.Part
	if set == 0 && h.Origin != nil {
		parts = h.Origin.Parts
	} else {
		c, _, err := h.CommitAt(ctx, set)
		if err != nil {
			return head.Part{}, err
		}
		parts = c.Parts
	}
	i := slices.IndexFunc(parts, func(p head.Part) bool { return p.Name == name && p.Set == set })
	if i < 0 || parts[i].Blob.IsZero() {
		return head.Part{}, codec.Corrupt(record.ErrMissing, "checkpoint part %q of revision %d of %s", name, set, h.Name)
	}
	return parts[i], nil
}

// Chain returns the chain of versions of a part that the session stores as deltas.
func (h *History) Chain(name string) blobs.Chain {
	return blobs.Chain{Session: h.Inc, Part: h.Space.PartHash(name)}
}

// ReadPart returns the content of a version of a checkpoint part, and the number of deltas
// between this version and one that is stored whole.
func (h *History) ReadPart(ctx context.Context, p head.Part) (content []byte, deltas int, err error) {
	if !heads.IsDelta(p) {
		content, err = h.Blobs.Read(ctx, p.Blob)
		return content, 0, err
	}
	return h.Blobs.ReadVersion(ctx, h.Chain(p.Name), uint64(p.Whole), uint64(p.Set), p.Blob, func(ctx context.Context) (blob.ID, error) {
		root, err := h.Part(ctx, p.Name, p.Whole)
		return root.Blob, err
	})
}
