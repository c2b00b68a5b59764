package commit

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A forker makes a new session a child of another one. An attached fork copies no history,
// unless it would have too many ancestors (flatten.go):
// its origin says how much it shares of the parent and of each of the parent's ancestors.
// The batch that creates the fork guards and sets the lifecycle records of the parent and of these ancestors. So it
// fails if somebody removes or rewrites a part of these histories before it is applied.
type forker struct {
	*Lifecycle
	parent *history.Session
	seen   head.Revision // the revision at which the parent was seen last
	about  *head.About   // the metadata of the new session
	stage  *Stage
	copied *copied      // of what the parent inherits, if the fork is flattened: see flatten
	batch  engine.Batch // what one attempt adds
}

// fork adds to b what makes the new session a child of the session r.Parent, and completes
// its metadata. It returns the origin of the new session, or nil for a detached fork.
func (st *Lifecycle) fork(ctx context.Context, b *engine.Batch, r *CreateRequest, about *head.About, stage *Stage, copied *copied) (*head.Origin, error) {
	parent, state, err := st.OpenSession(ctx, r.Parent)
	if err != nil {
		return nil, fmt.Errorf("parent: %w", err)
	}
	about.Parent, stage.Owner = parent.Inc, parent.Inc
	f := forker{Lifecycle: st, parent: parent, seen: state.Head.Revision, about: about, stage: stage, copied: copied}
	origin, err := history.Read(ctx, parent, func(l *history.Lifecycles) (*head.Origin, error) {
		f.batch = engine.Batch{}
		return f.attempt(ctx, l, r)
	})
	if errors.Is(err, history.ErrSessionDeleted) {
		err = fmt.Errorf("parent: %w: %q", history.ErrSessionNotFound, r.Parent)
	}
	if err != nil {
		return nil, err
	}
	b.Guards = append(b.Guards, f.batch.Guards...)
	b.Sets = append(b.Sets, f.batch.Sets...)
	b.Deletes = append(b.Deletes, f.batch.Deletes...)
	return origin, nil
}

// attempt is one attempt to make the fork that r describes. It notes the fork node in the fork's metadata. A detached
// fork has no origin, but its batch sets the parent's lifecycle record, so that the node can't be removed meanwhile.
func (f *forker) attempt(ctx context.Context, l *history.Lifecycles, r *CreateRequest) (*head.Origin, error) {
	h, _, _, err := f.parent.ReadHead(ctx, f.seen)
	if err != nil {
		return nil, err
	}
	start := history.Start{Node: r.ForkNode, Bare: r.NoCheckpoint}
	if r.ForkAt != nil {
		read := f.parent.At
		if start.Bare { // A pruned revision still has its leaf.
			read = f.parent.AtAny
		}
		if start.At, err = read(ctx, h, *r.ForkAt); err != nil {
			return nil, err
		}
	}
	if start.Node.IsZero() {
		start.Node = cmp.Or(start.At, &h.State).Leaf
	}
	if node := start.Node; node != h.Leaf && !node.IsZero() {
		if err := l.NotPruned(ctx, h.Revision, node); err != nil {
			return nil, err
		}
	}
	f.about.ForkNode = start.Node
	if f.about.Detached {
		next := l.Own.Next()
		f.batch.Guard(l.Keys[0], l.Values[0])
		f.batch.Set(l.Keys[0], next.Encode(l.Keys[0]))
		return nil, nil
	}
	return f.attach(ctx, l, h, start)
}

// attach makes the new session share the history of the parent, whose head is h, up to the
// fork node.
func (f *forker) attach(ctx context.Context, l *history.Lifecycles, h *head.Head, start history.Start) (*head.Origin, error) {
	fork, err := f.parent.ForkAt(ctx, h, start)
	if err != nil {
		return nil, err
	}
	hold := fork.Ancestors
	if len(hold) > f.Limits.Ancestors {
		if err := f.flatten(ctx, l, fork); err != nil {
			return nil, err
		}
		hold = fork.Ancestors[1:]
	}
	for i := range hold {
		if err := f.holdAncestor(ctx, l, fork, &hold[i]); err != nil {
			return nil, err
		}
	}
	if len(fork.Parts) > 0 {
		if err := f.inherit(ctx, fork); err != nil {
			return nil, err
		}
	}
	return &fork.Origin, nil
}

// holdAncestor adds the entry that makes an ancestor keep what the fork shares of it, and
// counts the fork in the ancestor's lifecycle record.
func (f *forker) holdAncestor(ctx context.Context, l *history.Lifecycles, fork *history.Fork, a *head.Ancestor) error {
	life, key, value, err := l.Of(a.Incarnation)
	if err != nil {
		return err
	}
	next := life.Next()
	next.Forks++
	f.batch.Guard(key, value)
	f.batch.Set(key, next.Encode(key))
	if a.Incarnation == f.parent.Inc {
		a.Epoch = next.Epoch
	}
	key = f.Space.Fork(a.Incarnation, f.about.Incarnation)
	f.batch.Set(key, head.EncodeFork(key, f.Space.Session(f.about.ID)))
	if a.Incarnation != fork.Of || len(fork.Parts) == 0 {
		return nil
	}
	retained, err := f.Retained(ctx, fork.Of, life, fork.At)
	if err == nil && !retained {
		err = engine.ErrConflict // The revision was pruned since ForkAt chose it, so start over.
	}
	return err
}

// inherit gives the new session the checkpoint parts of a fork. A delta belongs to one
// session alone. So inherit stores the content of each delta as a blob, unless the store
// has that blob already.
func (f *forker) inherit(ctx context.Context, fork *history.Fork) error {
	added := map[blob.ID]bool{} // Parts of equal content are one blob.
	for i := range fork.Parts {
		p := &fork.Parts[i]
		if head.IsDelta(*p) && !added[p.Blob] {
			added[p.Blob] = true
			if err := f.storeWhole(ctx, fork.Of, *p); err != nil {
				return err
			}
		}
		p.Set, p.Whole = 0, 0
	}
	f.stage.Finish(&f.batch)
	key := f.Space.Dirty(f.about.Incarnation)
	f.batch.Set(key, head.EncodeDirty(key))
	return nil
}

// storeWhole makes the batch store or rely on the content of a delta as a blob. owner is
// the incarnation that the delta belongs to.
func (f *forker) storeWhole(ctx context.Context, owner head.Incarnation, delta head.Part) error {
	h, err := f.Open(ctx, owner)
	if err != nil {
		return err
	}
	content, _, err := h.ReadPart(ctx, delta)
	if err != nil {
		return err
	}
	d, err := f.stage.Draft(ctx, delta.Blob, content)
	if err != nil {
		return err
	}
	if _, err := f.Blobs.Refresh(ctx, f.stage.Marks, f.stage.IDs()); err != nil {
		return err
	}
	return f.stage.Add(&f.batch, d)
}
