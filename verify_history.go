package turnstone

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

func placeOf(n *found, position int) graph.Place {
	return graph.Place{Revision: uint64(n.revision), Position: position}
}

// history checks the nodes that an incarnation itself added, which are layer l,
// against its commits and its index. Blobs are referred to by the nodes that shown
// reports, nil for all: those of a deleted session that no fork shows may be gone.
func (v *verifier) history(ctx context.Context, ses *Session, l layer, shown func(n *found, position int) bool) error {
	nodes, err := steady(ctx, ses, func() ([]found, error) {
		if shown != nil { // a session that lives has checked its chain already
			if err := ses.commits(ctx, 0, l.last, func(*head.Commit, CommitID) error { return nil }); err != nil {
				return nil, err
			}
		}
		nodes, err := ses.read(ctx, l, 0, nil)
		if err == nil {
			err = ses.checkLayer(ctx, l, nodes)
		}
		return nodes, err
	})
	if err != nil {
		return err
	}
	index, err := v.indexed(ctx, ses)
	if err != nil {
		return err
	}
	known := map[NodeID]graph.Place{}
	if v.forks[ses.inc] > 0 {
		v.places[ses.inc] = known
	}
	layers := ses.layers(l.last)
	firsts := map[keys.Hash]attachmentAt{}
	position := 0
	for i := range nodes {
		n := &nodes[i]
		if position++; i == 0 || nodes[i-1].revision != n.revision {
			position = 0
		}
		here := placeOf(n, position)
		known[n.ID] = here
		if shown == nil {
			v.Nodes++
		}
		if shown == nil || shown(n, position) {
			v.refer(ses, n)
		}
		for _, id := range n.Blobs() {
			use := blobUse{v.s.space.BlobHash(id), ses.inc}
			if _, seen := v.uses[use]; !seen {
				v.uses[use] = n.revision
			}
		}
		for _, a := range n.Attachments {
			h := v.s.space.BlobHash(a.ID)
			if _, seen := firsts[h]; !seen {
				firsts[h] = attachmentAt{here, n.ID}
			}
		}
		if err := v.place(ctx, ses, n, here, index); err != nil {
			return err
		}
		if p := n.Parent; !p.IsZero() && known[p] == (graph.Place{}) && p != l.first && !v.inherits(layers, p) {
			if _, err := ses.find(ctx, l.last, p); stopped(err) {
				return err
			} else if errors.Is(err, ErrSessionDeleted) && v.orphaned(layers) {
				continue
			} else if err != nil {
				v.problem(err, "parent of node %s of session %q", n.ID, ses.id)
			}
		}
	}
	return v.attachments(ctx, ses, firsts, nodes)
}

// inherits reports whether a node is among those that the ancestors share, as far
// as these were read.
func (v *verifier) inherits(layers []layer, id NodeID) bool {
	return slices.ContainsFunc(layers, func(l layer) bool {
		p, ok := v.places[l.inc][id]
		return ok && l.has(p)
	})
}

// orphaned reports whether vacuum has removed an ancestor, or has begun to: it removes
// deleted sessions that nobody holds in any order.
func (v *verifier) orphaned(layers []layer) bool {
	return slices.ContainsFunc(layers, func(l layer) bool {
		life := v.lives[l.inc]
		return life == nil || life.State == head.Deleted && life.Floor <= l.last
	})
}

// refer notes the blobs of a node.
func (v *verifier) refer(ses *Session, n *found) {
	for _, id := range n.Blobs() {
		v.blobs[id] = v.name(ses.inc)
	}
}

// indexed returns where the index of a session says that its nodes are.
func (v *verifier) indexed(ctx context.Context, ses *Session) (map[graph.Entry]bool, error) {
	out := map[graph.Entry]bool{}
	for e, err := range graph.Index(ctx, v.s.engine, v.s.space, ses.inc) {
		if stopped(err) {
			return nil, err
		}
		if err != nil {
			v.problem(err, "index of session %q", ses.id)
			break
		}
		out[e] = true
	}
	return out, nil
}

// place checks the index entries of a node.
func (v *verifier) place(ctx context.Context, ses *Session, n *found, here graph.Place, index map[graph.Entry]bool) error {
	entry := graph.Entry{Prefix: graph.PrefixOf(n.ID), Place: here}
	if !index[entry] { // sealing moves entries: look again
		again, err := steady(ctx, ses, func() (bool, error) {
			for e, err := range graph.Index(ctx, v.s.engine, v.s.space, ses.inc) {
				if err != nil || e == entry {
					return err == nil, err
				}
			}
			return false, codec.Corrupt(codec.ErrMissing, "index entry of node %s of session %q", n.ID, ses.id)
		})
		if stopped(err) || errors.Is(err, ErrSessionDeleted) {
			return err
		}
		if !again {
			v.of(fmt.Sprintf("session %q", ses.id), err)
		}
	}
	if n.Key == "" {
		return nil
	}
	key := v.s.space.EventKey(ses.inc, n.Key)
	vs, err := v.s.engine.Get(ctx, key)
	if err != nil {
		return err
	}
	p, err := graph.OpenPlace(key, vs[0], keys.EventKey)
	if err == nil && p != here {
		err = fmt.Errorf("points to node %d of revision %d", p.Position, p.Revision)
	}
	if err != nil && v.cut(ctx, ses, n.revision) {
		return nil
	}
	v.problem(err, "event key of node %s of session %q", n.ID, ses.id)
	return nil
}

// cut reports whether a vacuum has removed a revision of a deleted session since it
// was read.
func (v *verifier) cut(ctx context.Context, ses *Session, r Revision) bool {
	vs, err := v.s.engine.Get(ctx, ses.lifeKey)
	if err != nil {
		return false
	}
	life, err := head.OpenLife(ses.lifeKey, vs[0])
	return vs[0] == nil || err == nil && life.State != head.Live && life.Floor <= r
}

// An attachmentAt is the first node that has an attachment.
type attachmentAt struct {
	place graph.Place
	node  NodeID
}

// attachments checks the entries by which a session's attachments are found: each
// points to the first node that has it, or, while a vacuum is at work or was cut off,
// to one before that is erased.
func (v *verifier) attachments(ctx context.Context, ses *Session, firsts map[keys.Hash]attachmentAt, nodes []found) error {
	erased := map[graph.Place]bool{}
	position := 0
	for i := range nodes {
		if position++; i == 0 || nodes[i-1].revision != nodes[i].revision {
			position = 0
		}
		if nodes[i].Erased {
			erased[placeOf(&nodes[i], position)] = true
		}
	}
	for h, first := range firsts {
		key := v.s.space.Attachment(ses.inc, h)
		vs, err := v.s.engine.Get(ctx, key)
		if err != nil {
			return err
		}
		p, err := graph.OpenPlace(key, vs[0], keys.Attachment)
		if err == nil && p != first.place && !erased[p] {
			err = fmt.Errorf("points to node %d of revision %d", p.Position, p.Revision)
		}
		if err != nil {
			// A vacuum that erases the node moves the entry, or removes it.
			if again, aerr := v.stillAttached(ctx, ses, first); aerr != nil {
				return aerr
			} else if !again {
				continue
			}
		}
		v.problem(err, "attachment entry of node %s of session %q", first.node, ses.id)
	}
	return nil
}

// stillAttached reports whether the node that was read still has its content.
func (v *verifier) stillAttached(ctx context.Context, ses *Session, at attachmentAt) (bool, error) {
	if v.cut(ctx, ses, Revision(at.place.Revision)) {
		return false, nil
	}
	n, err := steady(ctx, ses, func() (found, error) {
		l := layer{inc: ses.inc, last: Revision(at.place.Revision)}
		if layers := ses.layers(AnyRevision); len(layers) > 1 {
			l.first = layers[len(layers)-1].first
		}
		return ses.at(ctx, spot{layer: l, revision: Revision(at.place.Revision), position: at.place.Position})
	})
	if stopped(err) {
		return false, err
	}
	return err == nil && !n.Erased, nil
}
