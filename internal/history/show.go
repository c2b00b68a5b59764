package history

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// Show returns nodes as the session shows them. It leaves out hidden nodes. If the parent of a node
// is hidden, the nearest node before it that is not becomes the parent. All payloads are in
// Inline. Show changes the slice nodes.
func (h *History) Show(ctx context.Context, last head.Revision, nodes []Node, hidden *Tombstones) (out []Node, err error) {
	if out = nodes; len(hidden.layers) > 0 {
		if out, err = hidden.leaveOut(ctx, last, nodes); err != nil {
			return nil, err
		}
	}
	for i := range out {
		if out[i].Erased {
			return nil, codec.Corrupt(damage.ErrMissing, "tombstone of erased node %s of %s", out[i].ID, h.Name)
		}
	}
	return out, h.readPayloads(ctx, out)
}

// readPayloads reads the payloads that are stored as blobs, and copies what may be in the cache: the
// nodes are the caller's.
func (h *History) readPayloads(ctx context.Context, nodes []Node) error {
	const atOnce = 64
	copyPayloads(nodes)
	var ids []blob.ID
	var at []int // the indexes of their nodes
	flush := func() error {
		contents, err := h.Blobs.ReadAll(ctx, ids)
		if err != nil {
			return err
		}
		for i, content := range contents {
			nodes[at[i]].Inline = content
		}
		ids, at = ids[:0], at[:0]
		return nil
	}
	for i := range nodes {
		nodes[i].Attachments = slices.Clone(nodes[i].Attachments)
		if nodes[i].Blob.IsZero() {
			continue
		}
		if ids, at = append(ids, nodes[i].Blob), append(at, i); len(ids) == atOnce {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(ids) > 0 {
		return flush()
	}
	return nil
}

// copyPayloads replaces the payloads that are in the nodes by copies. Small ones share pieces of
// memory, which is what is kept when a caller keeps one.
func copyPayloads(nodes []Node) {
	const piece = 16 << 10
	for len(nodes) > 0 {
		n, bytes := 0, 0
		for n < len(nodes) && (n == 0 || bytes+len(nodes[n].Inline) <= piece) {
			bytes += len(nodes[n].Inline)
			n++
		}
		copied := make([]byte, 0, bytes)
		for i := range nodes[:n] {
			if at := len(copied); nodes[i].Inline != nil {
				copied = append(copied, nodes[i].Inline...)
				nodes[i].Inline = copied[at:len(copied):len(copied)]
			}
		}
		nodes = nodes[n:]
	}
}

// Reached returns ErrRevisionNotFound if the session, whose head is h, has not got as far as revision r.
func (s *Session) Reached(h *head.Head, r head.Revision) error {
	if r > h.Revision {
		return fmt.Errorf("%w: %d of %s, which is at %d", ErrRevisionNotFound, r, s.Name, h.Revision)
	}
	return nil
}

// At returns the state at revision r of the session, whose head is h. The error is
// ErrRevisionNotFound if the session has not reached the revision, and ErrRevisionPruned if the
// session does not retain it.
func (s *Session) At(ctx context.Context, h *head.Head, r head.Revision) (*head.State, error) {
	if err := s.Reached(h, r); err != nil {
		return nil, err
	}
	l, err := s.Lifecycles(ctx)
	if err != nil {
		return nil, err
	}
	if kept, err := s.Retained(ctx, s.Inc, l.Own, r); err != nil {
		return nil, err
	} else if !kept {
		return nil, fmt.Errorf("%w: %d of %s, whose floor is %d", ErrRevisionPruned, r, s.Name, l.Own.Floor)
	}
	return s.AtAny(ctx, h, r)
}

// AtAny is At for a revision that need not be retained: what the checkpoint refers to may be gone then.
func (s *Session) AtAny(ctx context.Context, h *head.Head, r head.Revision) (*head.State, error) {
	if err := s.Reached(h, r); err != nil {
		return nil, err
	}
	st, err := s.StateAt(ctx, r)
	st.Parts, st.Usage = slices.Clone(st.Parts), slices.Clone(st.Usage) // The cache may have them.
	return &st, err
}

// Shows reports whether the session shows a node: the node is in its graph and is not
// tombstoned.
func (s *Session) Shows(ctx context.Context, id graph.ID) (bool, error) {
	shown, err := Read(ctx, s, func(l *Lifecycles) (bool, error) {
		h, _, _, err := s.ReadHead(ctx, 0)
		if err != nil {
			return false, err
		}
		if _, _, err := s.Find(ctx, h.Revision, id); err != nil {
			return false, err
		}
		hidden, err := l.Tombstones()
		if err != nil {
			return false, err
		}
		err = hidden.Look(ctx, id)
		return !hidden.Has(id), err
	})
	if errors.Is(err, ErrNodeNotFound) {
		err = nil
	}
	return shown, err
}
