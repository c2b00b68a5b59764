package adapter

import (
	"context"
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
