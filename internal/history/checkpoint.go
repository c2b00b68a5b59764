package history

import (
	"context"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// Part returns a checkpoint part as the commit of a revision set it. Revision 0 stands for the
// parts that a fork began with.
func (h *History) Part(ctx context.Context, name string, set head.Revision) (head.Part, error) {
	var parts []head.Part
	if set == 0 && h.Origin != nil {
		parts = h.Origin.Parts
	} else {
		t, err := h.TurnAt(ctx, set)
		if err != nil {
			return head.Part{}, err
		}
		parts = t.Parts
	}
	i := slices.IndexFunc(parts, func(p head.Part) bool { return p.Name == name && p.Set == set })
	if i < 0 || parts[i].Blob.IsZero() {
		return head.Part{}, codec.Corrupt(damage.ErrMissing, "checkpoint part %q of revision %d of %s", name, set, h.Name)
	}
	return parts[i], nil
}

// Chain returns the chain of versions of a part that the session stores as deltas.
func (h *History) Chain(name string) blob.Chain {
	return blob.Chain{Session: h.Inc, Part: h.Space.PartHash(name)}
}

// ReadPart returns the content of a version of a checkpoint part, and the number of deltas
// between this version and one that is stored whole.
func (h *History) ReadPart(ctx context.Context, p head.Part) (content []byte, deltas int, err error) {
	if !head.IsDelta(p) {
		content, err = h.Blobs.Read(ctx, p.Blob)
		return content, 0, err
	}
	return h.Blobs.ReadVersion(ctx, h.Chain(p.Name), uint64(p.Whole), uint64(p.Set), p.Blob, func(ctx context.Context) (blob.ID, error) {
		root, err := h.Part(ctx, p.Name, p.Whole)
		return root.Blob, err
	})
}
