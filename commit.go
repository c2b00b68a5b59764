package turnstone

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/internal/commit"
)

// AnyRevision as Commit.Expected appends to whatever the head is. It goes nowhere
// else: as a revision to read or to keep it is an *InvalidError.
const AnyRevision = ^Revision(0)

// A Commit is one turn: all of it is stored, or nothing. One that changes nothing
// is a turn as well, and moves the revision.
type Commit struct {
	// Expected is the revision that the caller loaded. If the head is at
	// another one, the commit fails with *ConflictError. See AnyRevision.
	Expected Revision
	// Turn, if set, makes the commit idempotent: committing the same content
	// under the same turn id again returns the first result, however far the
	// head has moved, and another content is *TurnConflictError.
	Turn string
	// Nodes are appended in this order.
	Nodes []NewNode
	// Leaf moves the leaf: to an earlier node to rewind, with NoNode to an
	// empty conversation. The zero Ref means the last of Nodes, or where the
	// leaf is when there are none.
	Leaf Ref
	// Checkpoint sets parts; parts not mentioned carry over, at no cost.
	Checkpoint map[string][]byte
	// Drop removes parts; one that is not there is no error.
	Drop []string
	// Usage of this turn, by model.
	Usage []Usage
}

// A NewNode is a node to append.
type NewNode struct {
	// Parent is the node before. The zero Ref means the one before in
	// Commit.Nodes, and for the first one the leaf of the head.
	Parent Ref
	Kind   string // for example "user", "assistant", "tool_result"
	// Key is the caller's name for the event, unique in the session's graph, which
	// includes what a fork inherited; may be empty.
	Key         string
	Payload     []byte // opaque, returned byte for byte
	Attachments []Attachment
}

// A Ref names a node in a Commit. The zero Ref stands for a default.
type Ref struct{ ref commit.Ref }

// At refers to a node that exists.
func At(id NodeID) Ref { return Ref{commit.Ref{Kind: commit.RefExisting, ID: id}} }

// New refers to Commit.Nodes[i].
func New(i int) Ref { return Ref{commit.Ref{Kind: commit.RefNew, Index: i}} }

// NoNode is the parent of a root, and the leaf of an empty conversation.
func NoNode() Ref { return Ref{commit.Ref{Kind: commit.RefNone}} }

// A Result says where a commit stands.
type Result struct {
	Revision Revision
	Commit   CommitID
	Leaf     NodeID
	Nodes    []NodeID // ids of Commit.Nodes, in order
	// Replayed says that the turn had been committed before and this call
	// changed nothing.
	Replayed bool
}

// Commit stores c: all of it or nothing. If nobody else has committed since this handle
// saw the head last, it takes one call of the engine.
//
// An error that matches ErrOutcomeUnknown leaves open whether the commit
// stands; after any other error nothing of it is visible.
func (s *Session) Commit(ctx context.Context, c Commit) (Result, error) {
	store, err := s.usable(ctx)
	if err != nil {
		return Result{}, err
	}
	ctx, end := store.begin(ctx, OpCommit, s.session.ID)
	if end == nil {
		r, _, err := s.commit(ctx, &c)
		return r, err
	}
	o := Outcome{Err: errPanicked}
	defer func() { end(o) }()
	r, stats, err := s.commit(ctx, &c)
	o = outcomeOf(&c, &r, &stats, err)
	return r, err
}

func (s *Session) commit(ctx context.Context, c *Commit) (Result, commit.Stats, error) {
	if err := c.Check(); err != nil {
		return Result{}, commit.Stats{}, err
	}
	if v := s.store.opts.Validator; v != nil {
		if err := v(ctx, s.session.ID, c.clone()); err != nil {
			return Result{}, commit.Stats{}, fmt.Errorf("%w: %w", ErrRejected, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return Result{}, commit.Stats{}, err
	}
	r, stats, err := s.store.commits.Commit(ctx, s.session, c.request())
	if err == nil && !r.Replayed && stats.Raw-s.sealedRaw.Load() >= uint64(s.store.opts.SealBytes) {
		s.sealLater()
	}
	return Result(r), stats, public(err)
}

// request returns what c asks for. It shares memory with c.
func (c *Commit) request() *commit.Request {
	r := &commit.Request{
		Expected: c.Expected, Turn: c.Turn, Nodes: make([]commit.Node, len(c.Nodes)), Leaf: c.Leaf.ref,
		Checkpoint: c.Checkpoint, Drop: c.Drop, Usage: c.Usage,
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		r.Nodes[i] = commit.Node{Parent: n.Parent.ref, Kind: n.Kind, Key: n.Key, Payload: n.Payload, Attachments: n.Attachments}
	}
	return r
}

// clone returns a copy of in that shares no memory with it.
func (in *Commit) clone() *Commit {
	out := *in
	out.Nodes = slices.Clone(in.Nodes)
	for i := range out.Nodes {
		n := &out.Nodes[i]
		n.Payload, n.Attachments = bytes.Clone(n.Payload), slices.Clone(n.Attachments)
	}
	out.Checkpoint = maps.Clone(in.Checkpoint)
	for name, content := range out.Checkpoint {
		out.Checkpoint[name] = bytes.Clone(content)
	}
	out.Drop, out.Usage = slices.Clone(in.Drop), slices.Clone(in.Usage)
	return &out
}
