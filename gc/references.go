package gc

import (
	"context"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
)

// blobsOf returns the blobs that incarnations refer to, as far as their records are left.
func (s Eraser) blobsOf(ctx context.Context, incs []head.Incarnation) (ids []blob.ID, err error) {
	for _, inc := range incs {
		of, err := s.blobsOfOne(ctx, inc)
		if err != nil {
			return nil, err
		}
		ids = append(ids, of...)
	}
	return ids, nil
}

// blobsOfOne returns the blobs that one incarnation refers to. If it finds damage and the
// lifecycle record has changed meanwhile, it starts over.
func (s Eraser) blobsOfOne(ctx context.Context, inc head.Incarnation) ([]blob.ID, error) {
	for {
		life, err := s.Life(ctx, inc)
		if err != nil || life == nil {
			return nil, err
		}
		out, err := s.readBlobs(ctx, inc, life)
		var corrupt *damage.CorruptError
		if err == nil || !errors.As(err, &corrupt) {
			return out, err
		}
		if now, lerr := s.Life(ctx, inc); lerr != nil || now != nil && now.Epoch == life.Epoch {
			return nil, errors.Join(lerr, err)
		}
	}
}

// readBlobs reads the blobs of an incarnation: those of its checkpoints, of its nodes and
// of the uploads that it may commit.
func (s Eraser) readBlobs(ctx context.Context, inc head.Incarnation, life *head.Life) ([]blob.ID, error) {
	last, err := s.lastRevision(ctx, inc, life)
	if err != nil {
		return nil, err
	}
	h, err := s.Open(ctx, inc)
	if err != nil {
		return nil, err
	}
	parts, err := checkpointBlobs(ctx, h, last)
	if err != nil {
		return nil, err
	}
	payloads, err := nodeBlobs(ctx, h, last)
	if err != nil {
		return nil, err
	}
	out := slices.Concat(parts, payloads)
	granted, err := s.Blobs.Granted(ctx, inc)
	for i := range granted {
		out = append(out, granted[i].Granted.ID)
	}
	return out, err
}

// nodeBlobs returns the blobs of the nodes that a session itself added.
func nodeBlobs(ctx context.Context, h *history.History, last head.Revision) (out []blob.ID, err error) {
	nodes, err := h.NodesOf(ctx, h.Own(last))
	for i := range nodes {
		out = append(out, nodes[i].Blobs()...)
	}
	return out, err
}

// lastRevision returns the last revision of an incarnation of which records are left.
func (s Eraser) lastRevision(ctx context.Context, inc head.Incarnation, life *head.Life) (head.Revision, error) {
	if life.State != head.Live { // A deleted session has the revisions below its floor.
		return max(life.Floor, 1) - 1, nil
	}
	key := s.Space.Head(life.Session)
	vs, err := s.Engine.Get(ctx, key)
	if err != nil {
		return 0, err
	}
	h, err := head.DecodeHead(key, vs[0])
	if err == nil && h.Incarnation != inc {
		err = damage.ErrHash
	}
	if err != nil {
		return 0, codec.Corrupt(err, "head of incarnation %x", inc)
	}
	return h.Revision, nil
}

// checkpointBlobs returns the blobs of the checkpoint parts that a session began with, and
// of those that its commits set.
func checkpointBlobs(ctx context.Context, h *history.History, last head.Revision) (out []blob.ID, err error) {
	if h.Origin != nil {
		for _, p := range h.Origin.Parts {
			out = append(out, p.Blob)
		}
	}
	err = h.Turns(ctx, 0, last, func(t *history.Turn) error {
		for _, p := range t.Parts {
			if p.Set == t.Revision && !head.IsDelta(p) {
				out = append(out, p.Blob)
			}
		}
		return nil
	})
	return out, err
}
