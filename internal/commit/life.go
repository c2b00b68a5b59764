package commit

import (
	"bytes"
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
)

// This file has what a commit does to the lifecycle record of its session. One that goes on from the leaf does
// nothing to it.

// altersMore reports whether the commit changes what the lifecycle record counts: nodes that are hidden, and names.
func (w *writer) altersMore() bool { return len(w.in.Tombstone) > 0 || w.in.Keep != "" }

// alterLife guards and sets the lifecycle record if the commit names nodes other than new ones and the leaf of the
// head, hides nodes, or is kept by name. Nodes that it names must be in the session's graph. With that guard nobody
// removes one of them meanwhile, and a vacuum that has read the head before the commit can't remove it as unreachable
// afterwards.
func (w *writer) alterLife(ctx context.Context, b *engine.Batch) error {
	older := w.in.named(w.head.Leaf)
	switch {
	case len(older) == 0 && !w.altersMore():
		return nil
	case w.born != nil:
		return w.keepBirth(b)
	}
	var id graph.ID // the node that is checked
	_, err := history.Read(ctx, w.s, func(l *history.Lifecycles) (none struct{}, err error) {
		for _, id = range older {
			if err := l.NotPruned(ctx, w.head.Revision, id); err != nil {
				return none, err
			}
		}
		id = graph.ID{}
		next, extra := l.Own.Next(), engine.Batch{}
		if _, err := history.TombstoneNodes(ctx, l, w.head.Revision, w.in.Tombstone, &next, &extra); err != nil {
			return none, err
		}
		if w.in.Keep != "" {
			was, err := w.s.Engine.Get(ctx, w.store.Space.Ref(w.s.Inc, w.in.Keep))
			if err == nil {
				err = w.keep(was[0] == nil, &next, &extra)
			}
			if err != nil {
				return none, err
			}
		}
		b.Guard(l.Keys[0], l.Values[0])
		b.Set(l.Keys[0], next.Encode(l.Keys[0]))
		b.Sets = append(b.Sets, extra.Sets...)
		return none, nil
	})
	if !id.IsZero() {
		err = notInGraph(err, w.s, id)
	}
	return err
}

// keep keeps the revision of the commit.
func (w *writer) keep(isNew bool, next *head.Life, b *engine.Batch) error {
	return history.KeepRevision(w.s, head.Kept{Name: w.in.Keep, Revision: w.built.turn.Revision}, isNew, w.store.Limits.Kept, next, b)
}

// keepBirth keeps the revision of a commit that makes its session.
func (w *writer) keepBirth(b *engine.Batch) error {
	if len(w.in.Tombstone) > 0 {
		return w.onlyFromLeaf(w.in.Tombstone[0])
	}
	for _, p := range w.born.Sets {
		if !bytes.Equal(p.Key, w.s.LifeKey) {
			continue
		}
		life, err := head.DecodeLife(p.Key, p.Value)
		if err != nil {
			return codec.Corrupt(err, "lifecycle of session %q", w.s.ID)
		}
		err = w.keep(true, life, b)
		w.bornLife = life.Encode(p.Key)
		return err
	}
	return nil
}

func (w *writer) onlyFromLeaf(id graph.ID) error {
	return history.NewInvalid("commit", "the commit that creates session %q can only go on from its leaf, and names node %s", w.s.ID, id)
}

// onPath reports whether a node is on the path to the leaf of the head.
func (w *writer) onPath(ctx context.Context, id graph.ID) (bool, error) {
	if w.born != nil {
		return false, w.onlyFromLeaf(id)
	}
	found, err := w.s.OnPath(ctx, w.head.Revision, w.head.Leaf, id)
	return found, notInGraph(err, w.s, id)
}

// notInGraph returns err, or a *history.InvalidError if it says that a node was not found.
func notInGraph(err error, s *history.Session, id graph.ID) error {
	if errors.Is(err, history.ErrNodeNotFound) {
		return history.NewInvalid("commit", "node %s is not in the graph of session %q", id, s.ID)
	}
	return err
}
