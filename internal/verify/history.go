package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
)

// history checks the nodes that an incarnation itself added, which are layer l,
// against its commits and its index. Blobs are referred to by the nodes that shown
// reports, nil for all: those of a deleted session that no fork shows may be gone.
func (v *verifier) history(ctx context.Context, h *history.History, l history.Layer, shown func(n *history.Node) bool) error {
	nodes, err := steady(ctx, h, func() ([]history.Node, error) {
		if shown != nil { // a session that lives has checked its chain already
			if err := h.Commits(ctx, 0, l.Last, func(*heads.Commit, head.CommitID) error { return nil }); err != nil {
				return nil, err
			}
		}
		nodes, err := h.AppendNodes(ctx, l, 0, nil)
		if err == nil {
			err = h.VerifyLayer(ctx, l, nodes)
		}
		return nodes, err
	})
	if err != nil {
		return err
	}
	index, err := v.indexed(ctx, h)
	if err != nil {
		return err
	}
	known := map[graph.ID]pack.Position{}
	if v.forks[h.Inc] > 0 {
		v.places[h.Inc] = known
	}
	layers := h.Layers(l.Last)
	firsts := map[keys.Hash]attachmentAt{}
	for i := range nodes {
		n := &nodes[i]
		here := n.Position()
		known[n.ID] = here
		if shown == nil {
			v.Nodes++
		}
		if shown == nil || shown(n) {
			v.refer(h, n)
		}
		for _, id := range n.Blobs() {
			use := blobUse{v.store.Space.BlobHash(id), h.Inc}
			if _, seen := v.uses[use]; !seen {
				v.uses[use] = n.Revision
			}
		}
		for _, a := range n.Attachments {
			hash := v.store.Space.BlobHash(a.ID)
			if _, seen := firsts[hash]; !seen {
				firsts[hash] = attachmentAt{here, n.ID}
			}
		}
		if err := v.place(ctx, h, n, here, index); err != nil {
			return err
		}
		if p := n.Parent; !p.IsZero() && known[p] == (pack.Position{}) && p != l.First && !v.inherits(layers, p) {
			_, err := steady(ctx, h, func() (history.Node, error) {
				n, _, err := h.Node(ctx, l.Last, p)
				return n, err
			}, layers[:len(layers)-1]...)
			switch {
			case stopped(err) || errors.Is(err, history.ErrSessionDeleted):
				return err
			case err != nil && (shown == nil || !v.orphaned(layers)):
				v.problem(err, "parent of node %s of %s", n.ID, h.Name)
			}
		}
	}
	return v.attachments(ctx, h, firsts, nodes)
}

// inherits reports whether a node is among those that the ancestors share, as far
// as these were read.
func (v *verifier) inherits(layers []history.Layer, id graph.ID) bool {
	return slices.ContainsFunc(layers, func(l history.Layer) bool {
		p, ok := v.places[l.Inc][id]
		return ok && l.Has(p)
	})
}

// orphaned reports whether vacuum has removed an ancestor, or has begun to: it removes
// deleted sessions that nobody holds in any order.
func (v *verifier) orphaned(layers []history.Layer) bool {
	return slices.ContainsFunc(layers, func(l history.Layer) bool {
		life := v.lives[l.Inc]
		return life == nil || life.State == heads.Deleted && life.Floor <= l.Last
	})
}

// refer notes the blobs of a node.
func (v *verifier) refer(h *history.History, n *history.Node) {
	for _, id := range n.Blobs() {
		v.blobs[id] = v.name(h.Inc)
	}
}

// indexed returns where the index of a session says that its nodes are.
func (v *verifier) indexed(ctx context.Context, h *history.History) (map[pack.Entry]bool, error) {
	out := map[pack.Entry]bool{}
	for e, err := range pack.Index(ctx, v.store.Engine, v.store.Space, h.Inc) {
		if stopped(err) {
			return nil, err
		}
		if err != nil {
			v.problem(err, "index of %s", h.Name)
			break
		}
		out[e] = true
	}
	return out, nil
}

// place checks the index entries of a node.
func (v *verifier) place(ctx context.Context, h *history.History, n *history.Node, here pack.Position, index map[pack.Entry]bool) error {
	entry := pack.Entry{Prefix: pack.PrefixOf(n.ID), Position: here}
	if !index[entry] { // sealing moves entries: look again
		again, err := steady(ctx, h, func() (bool, error) {
			for e, err := range pack.Index(ctx, v.store.Engine, v.store.Space, h.Inc) {
				if err != nil || e == entry {
					return err == nil, err
				}
			}
			return false, codec.Corrupt(record.ErrMissing, "index entry of node %s of %s", n.ID, h.Name)
		})
		if stopped(err) || errors.Is(err, history.ErrSessionDeleted) {
			return err
		}
		if !again {
			v.of(h.Name, err)
		}
	}
	if n.Key == "" {
		return nil
	}
	key := v.store.Space.EventKey(h.Inc, n.Key)
	vs, err := v.store.Engine.Get(ctx, key)
	if err != nil {
		return err
	}
	p, err := pack.OpenPosition(key, vs[0], keys.EventKey)
	if err == nil && p != here {
		err = fmt.Errorf("points to node %d of revision %d", p.Index, p.Revision)
	}
	if err != nil && v.cut(ctx, h, n.Revision) {
		return nil
	}
	v.problem(err, "event key of node %s of %s", n.ID, h.Name)
	return nil
}

// cut reports whether a vacuum has removed a revision of a deleted session since it
// was read.
func (v *verifier) cut(ctx context.Context, h *history.History, r head.Revision) bool {
	key := v.store.Space.Life(h.Inc)
	vs, err := v.store.Engine.Get(ctx, key)
	if err != nil {
		return false
	}
	life, err := heads.OpenLife(key, vs[0])
	return vs[0] == nil || err == nil && life.State != heads.Live && life.Floor <= r
}

// An attachmentAt is the first node that has an attachment.
type attachmentAt struct {
	position pack.Position
	node     graph.ID
}

// attachments checks the entries by which a session's attachments are found: each
// points to the first node that has it, or, while a vacuum is at work or was cut off,
// to one before that is erased.
func (v *verifier) attachments(ctx context.Context, h *history.History, firsts map[keys.Hash]attachmentAt, nodes []history.Node) error {
	erased := map[pack.Position]bool{}
	for i := range nodes {
		if nodes[i].Erased {
			erased[nodes[i].Position()] = true
		}
	}
	for hash, first := range firsts {
		key := v.store.Space.Attachment(h.Inc, hash)
		vs, err := v.store.Engine.Get(ctx, key)
		if err != nil {
			return err
		}
		p, err := pack.OpenPosition(key, vs[0], keys.Attachment)
		if err == nil && p != first.position && !erased[p] {
			err = fmt.Errorf("points to node %d of revision %d", p.Index, p.Revision)
		}
		if err != nil {
			// A vacuum that erases the node moves the entry, or removes it.
			if again, aerr := v.stillAttached(ctx, h, first); aerr != nil {
				return aerr
			} else if !again {
				continue
			}
		}
		v.problem(err, "attachment entry of node %s of %s", first.node, h.Name)
	}
	return nil
}

// stillAttached reports whether the node that was read still has its content.
func (v *verifier) stillAttached(ctx context.Context, h *history.History, at attachmentAt) (bool, error) {
	if v.cut(ctx, h, head.Revision(at.position.Revision)) {
		return false, nil
	}
	n, err := steady(ctx, h, func() (history.Node, error) {
		return h.NodeAt(ctx, history.Position{Layer: h.Own(head.Revision(at.position.Revision)), Position: at.position})
	})
	if stopped(err) {
		return false, err
	}
	return err == nil && !n.Erased, nil
}
