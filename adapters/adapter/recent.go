package adapter

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// LatePart is the part of a checkpoint that says that an event of the session has a time of its own which is later than
// that of its commit. A session without it has no events of a time in the commits before that time.
const LatePart = "late"

// skew is by how much the clocks of those who make events and those who commit them may differ.
const skew = time.Hour

// Late reports whether a commit with an event of that time has to set LatePart.
func Late(t time.Time) bool { return t.After(time.Now().Add(skew / 2)) }

// Before reports whether no event of a node, or of those before it, has a time from since on. parts are those of the
// session's checkpoint.
func Before(n *turnstone.Node, since time.Time, parts map[string][]byte) bool {
	_, late := parts[LatePart]
	return !late && n.Time.Before(since.Add(-skew))
}

// Newest returns nodes of the active path at a revision, up to the last one. It reads from the end of the path on,
// until enough reports true for a node.
func Newest(ctx context.Context, h turnstone.Persistence, at head.Revision, enough func(*turnstone.Node) bool) (nodes []turnstone.Node, err error) {
	for n, err := range h.Nodes(ctx, turnstone.Scope{At: at, Reverse: true}) {
		if err != nil {
			return nil, err
		}
		if nodes = append(nodes, n); enough(&n) {
			break
		}
	}
	slices.Reverse(nodes)
	return nodes, nil
}

// Rewind makes a node the last one of the active path, and the checkpoint what it was after the commit that added the
// node: what came since stays in the store, on a branch of its own. is reports whether a node is the one; without it,
// the path is empty then, and the checkpoint what it was before the first node. The error matches
// turnstone.ErrNodeNotFound if the path has no such node, turnstone.ErrRevisionPruned if the checkpoint of then is not
// kept any more, and turnstone.ErrConflict if somebody else commits meanwhile.
func Rewind(ctx context.Context, h turnstone.Persistence, is func(*turnstone.Node) bool) error {
	st, err := h.Load(ctx, turnstone.Scope{Last: 1})
	if err != nil {
		return err
	}
	found := false
	nodes, err := Newest(ctx, h, cmp.Or(st.Revision, turnstone.RevisionZero), func(n *turnstone.Node) bool {
		found = is != nil && is(n)
		return found
	})
	if err != nil {
		return err
	}
	if !found && is != nil {
		return turnstone.ErrNodeNotFound
	}
	if len(nodes) == 0 {
		return nil
	}
	last := &nodes[0]
	c := turnstone.Commit{Expected: st.Revision, Turn: rand.Text(), Leaf: turnstone.RefTo(last.ID)}
	at := last.Revision
	if is == nil {
		c.Leaf = turnstone.RefNone()
		at = cmp.Or(last.Revision-1, turnstone.RevisionZero)
	}
	if last.Inherited {
		return &turnstone.InvalidError{Where: "rewind", Reason: "the event is of the session that this one was forked from"}
	}
	if c.Checkpoint, err = h.Checkpoint(ctx, at); err != nil {
		return err
	}
	for _, p := range st.Parts {
		if _, kept := c.Checkpoint[p.Name]; !kept && p.Name != LatePart {
			c.Drop = append(c.Drop, p.Name)
		}
	}
	_, err = h.Commit(ctx, c)
	return err
}
