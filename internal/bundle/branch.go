package bundle

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
)

// This file brings what a session that has diverged has got elsewhere, as a branch: each commit there that added nodes
// becomes a new one here, with the same nodes, usage and labels, and the leaf where it is here. Then one batch has two
// commits: at the first one, which gets a name, leaf and checkpoint are those of there, and at the second those of here
// again.

// holdParts stores the checkpoint at the end of a section as blobs, for the commit at the end of a branch.
func (c *checker) holdParts(ctx context.Context) error {
	for _, p := range c.state.Parts {
		content, err := c.content(ctx, p.Blob)
		if err != nil {
			return err
		}
		if err := c.stock.hold(ctx, p.Blob, content); err != nil {
			return err
		}
	}
	return nil
}

// hold stores content whose id is known, in chunks if it is large.
func (k *stock) hold(ctx context.Context, id blob.ID, content []byte) error {
	if _, pinned := k.pinned[k.space.BlobHash(id)]; pinned {
		return nil
	}
	if len(content) > pieceBytes {
		return k.write(ctx, bytes.NewReader(content), id, int64(len(content)))
	}
	_, err := k.put(ctx, content)
	return err
}

// branchTurn makes a turn of the other side one of the branch, unless its nodes are here.
func (a *applier) branchTurn(ctx context.Context, t *history.Turn) error {
	here := 0
	for i := range t.Pack.Nodes {
		_, _, err := a.in.target.Find(ctx, a.head.Revision, t.Pack.Nodes[i].ID)
		if err == nil {
			here++
		} else if !errors.Is(err, history.ErrNodeNotFound) {
			return err
		}
	}
	switch here {
	case len(t.Pack.Nodes): // or there are none
		return nil
	case 0:
		out := a.onto()
		out.Leaf, out.Depth = a.tip.Leaf, a.tip.Depth
		out.Usage, out.Labels, out.Pack = t.Usage, t.Labels, t.Pack
		return a.addToBranch(ctx, out)
	}
	return malformed("commit %d has nodes of another commit here", t.Revision)
}

// onto returns a commit that follows the branch.
func (a *applier) onto() *history.Turn {
	out := &history.Turn{}
	out.Revision, out.Previous = a.tip.Revision+1, a.tip.Commit
	out.PartsAt = a.tip.PartsAt
	out.Time = a.Now()
	if out.Time.Before(a.tip.Time) {
		out.Time = a.tip.Time
	}
	return out
}

// addToBranch adds a commit to the branch.
func (a *applier) addToBranch(ctx context.Context, t *history.Turn) error {
	before := a.tip.Base
	t.Pack.Revision = uint64(t.Revision)
	t.Complete(&t.Pack, before.Last)
	t.ID = t.Commit.ID()
	next, err := a.tip.Then(&t.Commit, t.ID)
	if err != nil {
		return err
	}
	if n := len(next.Usage); n > head.MaxModels {
		return &history.LimitError{Limit: "models", Where: "session " + a.in.id, Have: int64(n), Max: head.MaxModels}
	}
	a.tip = next
	return a.step(ctx, t, &before)
}

// endBranch adds the two commits at the end of a branch, unless the name stands for the same already.
func (a *applier) endBranch(ctx context.Context) error {
	name := a.options.Branch
	there, here := &a.state, a.tip // a.tip has the leaf and the checkpoint of here.
	same := func(p, q head.Part) bool { return p.Name == q.Name && p.Blob == q.Blob }
	kept, err := history.Read(ctx, a.in.target, func(l *history.Lifecycles) ([]head.Kept, error) {
		return head.ReadKept(ctx, a.Engine, a.Space, a.in.target.Inc, l.Own)
	})
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(kept, func(k head.Kept) bool { return k.Name == name }); i >= 0 {
		state, err := a.in.target.StateAt(ctx, kept[i].Revision)
		if err != nil {
			return err
		}
		if state.Leaf == there.Leaf && slices.EqualFunc(state.Parts, there.Parts, same) {
			a.in.branchEnd = kept[i].Revision
			return nil
		}
	}
	end := a.onto()
	end.Leaf, end.Depth = there.Leaf, there.Depth
	if !slices.EqualFunc(there.Parts, here.Parts, same) {
		end.PartsAt, end.Parts = end.Revision, partsFrom(there.Parts, here.Parts, end.Revision)
		if err := a.holdOwnParts(ctx, end.Parts); err != nil {
			return err
		}
	}
	if err := a.addToBranch(ctx, end); err != nil {
		return err
	}
	last := &a.steps[len(a.steps)-1]
	last.Kept = append(last.Kept, head.Kept{Name: name, Revision: end.Revision})
	again := a.onto()
	again.Leaf, again.Depth = here.Leaf, here.Depth
	if end.PartsAt == end.Revision {
		again.PartsAt, again.Parts = again.Revision, partsFrom(here.Parts, a.tip.Parts, again.Revision)
	}
	if err := a.addToBranch(ctx, again); err != nil {
		return err
	}
	a.in.branchEnd = end.Revision
	return a.flush(ctx)
}

// partsFrom returns a checkpoint of the contents that parts have, set by a commit of a revision after one that has
// before.
func partsFrom(parts, before []head.Part, r head.Revision) []head.Part {
	out := slices.Clone(parts)
	for i := range out {
		p := &out[i]
		if old := slices.IndexFunc(before, func(q head.Part) bool { return q.Name == p.Name && q.Blob == p.Blob }); old >= 0 {
			*p = before[old]
		} else {
			p.Set, p.Whole = r, r
		}
	}
	return out
}

// holdOwnParts stores, as blobs, the parts of the checkpoint of here that the end of the branch does not have.
func (a *applier) holdOwnParts(ctx context.Context, end []head.Part) error {
	for _, p := range a.tip.Parts {
		if slices.Contains(end, p) {
			continue
		}
		content, _, err := a.in.target.ReadPart(ctx, p)
		if err != nil {
			return err
		}
		if err := a.stock.hold(ctx, p.Blob, content); err != nil {
			return err
		}
	}
	return a.stock.flush(ctx)
}
