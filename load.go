package turnstone

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/session"
)

// A Scope says what of a history to load. The zero Scope is the active path:
// from the root to the head's leaf.
type Scope struct {
	// At reads the state at an earlier revision: nodes except those tombstoned
	// since, checkpoint and usage as they were. 0 means the head's revision, and RevisionZero
	// the state before the first commit.
	At head.Revision `json:"at,omitzero"`
	// Leaf reads the path to this node instead of the path to the leaf.
	Leaf graph.ID `json:"leaf,omitzero"`
	// Full reads every node, side branches included, in the order of commits.
	Full bool `json:"full,omitzero"`
	// Last reads the last so many nodes of the path, without reading the rest.
	Last int `json:"last,omitzero"`
	// After reads what the commits after this revision added to the path, without reading the rest.
	// After the loaded revision that is nothing, and a revision that the session has not reached is
	// ErrRevisionNotFound. With At it reads what was added between the two. A fork counts only its own
	// revisions. 0 reads all, and RevisionZero is an *InvalidError.
	After head.Revision `json:"after,omitzero"`
	// Reverse gives the newest node first.
	Reverse bool `json:"reverse,omitzero"`
	// Parts are names of checkpoint parts whose contents Load reads as well, of the revision that
	// is loaded. One that the checkpoint does not have is left out.
	Parts []string `json:"parts,omitempty"`
	// Records are keys of records that Load reads as well, as they stood when the head was
	// read, whatever revision is loaded.
	Records []string `json:"records,omitempty"`
}

func (sc *Scope) check() error {
	n := 0
	for _, set := range []bool{sc.Full, sc.Last != 0, sc.After != 0} {
		if set {
			n++
		}
	}
	switch {
	case n > 1:
		return invalid("scope", "Full, Last and After exclude each other")
	case sc.Full && !sc.Leaf.IsZero():
		return invalid("scope", "Full and Leaf exclude each other")
	case sc.Last < 0:
		return invalid("scope", "Last is %d", sc.Last)
	}
	if err := checkRevision("scope", "At", sc.At); err != nil {
		return err
	}
	if len(sc.Parts) > MaxParts {
		return &LimitError{Limit: "checkpoint parts", Where: "scope", Have: int64(len(sc.Parts)), Max: MaxParts}
	}
	if err := checkRecordKeys(sc.Records...); err != nil {
		return err
	}
	if sc.After == RevisionZero {
		return invalid("scope", "After is RevisionZero: 0 reads all")
	}
	return checkRevision("scope", "After", sc.After)
}

// A State is a session's history, or a part of it, at one revision.
type State struct {
	Revision head.Revision     `json:"revision"`
	Commit   head.CommitID     `json:"commit,omitzero"`
	Leaf     graph.ID          `json:"leaf,omitzero"` // may be tombstoned, and then is not among Nodes
	Nodes    []Node            `json:"nodes,omitempty"`
	Parts    []head.Part       `json:"parts,omitempty"` // of the checkpoint, by name; Checkpoint reads them
	Usage    []head.Usage      `json:"usage,omitempty"` // totals up to this revision, by model
	Time     time.Time         `json:"time"`
	Contents map[string][]byte `json:"contents,omitempty"` // of the parts that Scope.Parts names, by name; the caller's
	Records  map[string]Record `json:"records,omitempty"`  // those of Scope.Records, by key; one that is not there has the version NoRecord
}

// Load reads what scope says. Every hash is checked; anything missing or
// damaged is a *damage.CorruptError, never a shorter history.
func (s *Session) Load(ctx context.Context, scope Scope) (*State, error) {
	if err := scope.check(); err != nil {
		return nil, err
	}
	return observed(ctx, s, OpLoad, s.ID(), func(ctx context.Context) (*State, error) {
		return history.Read(ctx, s.session, func(l *history.Lifecycles) (*State, error) { return s.load(ctx, l, scope) })
	}, func(st *State, o *Outcome) { tellNodes(st.Nodes, o) })
}

// load reads what scope says, once: Load tries again if maintenance came between.
func (s *Session) load(ctx context.Context, l *history.Lifecycles, scope Scope) (*State, error) {
	st, leaf, hidden, err := s.stateOf(ctx, l, scope)
	if err != nil {
		return nil, err
	}
	var nodes []history.Node
	switch {
	case scope.Full:
		nodes, err = s.session.All(ctx, st.Revision, st.Commit)
	case scope.Last > 0:
		nodes, err = s.session.Tail(ctx, st.Revision, leaf, scope.Last, hidden)
	case scope.After > 0 && scope.After >= st.Revision: // nothing came after
	default:
		nodes, err = s.session.Path(ctx, st.Revision, scope.After, leaf)
	}
	if err != nil {
		return nil, err
	}
	if st.Nodes, err = s.show(ctx, st.Revision, nodes, hidden); scope.Reverse {
		slices.Reverse(st.Nodes)
	}
	if err != nil || len(scope.Parts) == 0 {
		return st, err
	}
	chosen := slices.DeleteFunc(slices.Clone(st.Parts), func(p head.Part) bool { return !slices.Contains(scope.Parts, p.Name) })
	st.Contents, err = s.store.commits.Contents(ctx, s.session, chosen, st.Revision)
	return st, err
}

// stateOf returns the state that a scope is about, without its nodes, the leaf of the path to read,
// and the tombstones.
func (s *Session) stateOf(ctx context.Context, l *history.Lifecycles, scope Scope) (st *State, leaf graph.ID, hidden *history.Tombstones, err error) {
	h, values, err := s.session.Head(ctx, session.RecordKeys(s.session, scope.Records)...)
	if err != nil {
		return nil, leaf, nil, err
	}
	if err := s.session.Reached(h, scope.After); err != nil {
		return nil, leaf, nil, err
	}
	at := &h.State
	if r := revisionAt(scope.At); r != nil && *r != h.Revision {
		if at, err = s.session.At(ctx, h, *r); err != nil {
			return nil, leaf, nil, err
		}
	}
	st = &State{Revision: at.Revision, Commit: at.Commit, Leaf: at.Leaf, Parts: slices.Clone(at.Parts), Usage: slices.Clone(at.Usage), Time: at.Time}
	if len(scope.Records) > 0 {
		if st.Records, err = s.records(scope.Records, values); err != nil {
			return nil, leaf, nil, err
		}
	}
	if hidden, err = l.Tombstones(); err != nil || scope.Leaf.IsZero() {
		return st, st.Leaf, hidden, err
	}
	if err = hidden.Look(ctx, scope.Leaf); err != nil {
		return nil, leaf, nil, err
	}
	if hidden.Has(scope.Leaf) {
		return nil, leaf, nil, fmt.Errorf("%w: %s", ErrNodeNotFound, scope.Leaf)
	}
	_, _, err = s.session.Find(ctx, st.Revision, scope.Leaf)
	return st, scope.Leaf, hidden, err
}

// revisionAt returns the revision that an argument names, or nil for that of the head.
func revisionAt(at head.Revision) *head.Revision {
	switch at {
	case 0:
		return nil
	case RevisionZero:
		at = 0
	}
	return &at
}

// Nodes yields the nodes that Load returns, one at a time. The history may have any length: Nodes holds only a
// part of it in memory. It ignores the Parts and Records of a scope. The nodes are those of the revision that the
// head has when the sequence begins, except nodes that are tombstoned and vacuumed while it goes on. To yield a
// path from its first node on, the store reads the path twice. The sequence ends with the first error.
func (s *Session) Nodes(ctx context.Context, scope Scope) iter.Seq2[Node, error] {
	return func(yield func(Node, error) bool) {
		_, err := s.usable(ctx)
		if err == nil {
			err = scope.check()
		}
		if err == nil {
			err = s.stream(ctx, scope, func(n Node) bool { return yield(n, nil) })
		}
		if err != nil {
			yield(Node{}, err)
		}
	}
}

// stream calls yield for the nodes of a scope until it reports false.
func (s *Session) stream(ctx context.Context, scope Scope, yield func(Node) bool) error {
	scope.Parts, scope.Records = nil, nil
	if scope.Last > 0 { // so many that they fit in memory
		st, err := s.Load(ctx, scope)
		for i := 0; err == nil && i < len(st.Nodes) && yield(st.Nodes[i]); i++ {
		}
		return err
	}
	var w history.Walk
	_, err := history.Read(ctx, s.session, func(l *history.Lifecycles) (_ struct{}, err error) {
		st, leaf, _, err := s.stateOf(ctx, l, scope)
		if err == nil {
			w = history.Walk{Last: st.Revision, After: scope.After, Leaf: leaf, All: scope.Full, Reverse: scope.Reverse}
		}
		return struct{}{}, err
	})
	if err != nil || w.After > 0 && w.Last <= w.After {
		return err
	}
	return s.session.Stream(ctx, w, func(n history.Node) bool { return yield(nodeOf(n)) })
}

// Leaves returns the nodes without children, which are the ends of branches, in the order in which they were
// committed, and without payloads. Scope.Leaf loads the path to one. Leaves reads the whole history, a part at a
// time, and holds the leaves in memory. Kept has the branches that have names.
func (s *Session) Leaves(ctx context.Context) ([]Node, error) {
	return observed(ctx, s, OpLoad, s.ID(), func(ctx context.Context) ([]Node, error) {
		h, _, err := s.session.Head(ctx)
		if err != nil {
			return nil, err
		}
		type leaf struct {
			Node
			at int
		}
		leaves, read := map[graph.ID]leaf{}, 0
		err = s.session.Stream(ctx, history.Walk{Last: h.Revision, All: true, Bare: true}, func(n history.Node) bool {
			delete(leaves, n.Parent)
			n.Inline = nil
			leaves[n.ID] = leaf{nodeOf(n), read}
			read++
			return true
		})
		if err != nil {
			return nil, err
		}
		out := make([]Node, 0, len(leaves))
		for _, l := range slices.SortedFunc(maps.Values(leaves), func(a, b leaf) int { return a.at - b.at }) {
			out = append(out, l.Node)
		}
		return out, nil
	}, func(leaves []Node, o *Outcome) { o.Items = len(leaves) })
}

// Checkpoint returns the contents of the checkpoint parts at a revision; 0
// means the head's, and RevisionZero what a fork began with. The result is the caller's. To read some
// parts, or parts with the history that they belong to, see Scope.Parts.
func (s *Session) Checkpoint(ctx context.Context, at head.Revision) (map[string][]byte, error) {
	if err := checkRevision("checkpoint", "it", at); err != nil {
		return nil, err
	}
	return observed(ctx, s, OpCheckpoint, s.ID(), func(ctx context.Context) (map[string][]byte, error) {
		return history.Read(ctx, s.session, func(*history.Lifecycles) (map[string][]byte, error) {
			return s.store.commits.Checkpoint(ctx, s.session, revisionAt(at))
		})
	}, func(parts map[string][]byte, o *Outcome) {
		for _, content := range parts {
			o.Bytes += int64(len(content))
		}
	})
}

// A Node is one event as it is read. Its slices are the caller's.
type Node struct {
	ID graph.ID `json:"id"`
	// Parent is the node before, tombstoned ones skipped; zero for a root.
	Parent      graph.ID          `json:"parent,omitzero"`
	Kind        string            `json:"kind"`
	Key         string            `json:"key,omitempty"`
	Payload     []byte            `json:"payload"`
	Attachments []blob.Attachment `json:"attachments,omitempty"`
	Revision    head.Revision     `json:"revision"`           // of the commit that added it, in the session that did or, in a flattened fork, in the copy of its history
	Inherited   bool              `json:"inherited,omitzero"` // added by an ancestor, before this session forked from it
	Time        time.Time         `json:"time"`               // of that commit
}

// Node returns one node by its id.
func (s *Session) Node(ctx context.Context, id graph.ID) (Node, error) {
	return s.nodeRead(ctx, func(ctx context.Context, h *head.Head) (n history.Node, err error) {
		n, _, err = s.session.Find(ctx, h.Revision, id)
		return n, err
	})
}

// NodeByKey returns the node that was committed with the caller's key. If several branches have one, it is that of the
// active path, or else the newest.
func (s *Session) NodeByKey(ctx context.Context, key string) (Node, error) {
	return s.nodeRead(ctx, func(ctx context.Context, h *head.Head) (history.Node, error) {
		return s.session.NodeByKey(ctx, h.Revision, h.Leaf, key)
	})
}

// NodesByKey returns the nodes that were committed with the caller's keys, by key, from one read of the
// session. It leaves out the keys that NodeByKey does not find. There are at most MaxNodes keys.
func (s *Session) NodesByKey(ctx context.Context, keys ...string) (map[string]Node, error) {
	if len(keys) > MaxNodes {
		return nil, &LimitError{Limit: "keys", Where: "read", Have: int64(len(keys)), Max: MaxNodes}
	}
	return observed(ctx, s, OpNode, s.ID(), func(ctx context.Context) (map[string]Node, error) {
		return history.Read(ctx, s.session, func(l *history.Lifecycles) (map[string]Node, error) {
			h, _, err := s.session.Head(ctx)
			if err != nil {
				return nil, err
			}
			hidden, err := l.Tombstones()
			if err != nil {
				return nil, err
			}
			out := make(map[string]Node, len(keys))
			found, err := s.session.NodesByKey(ctx, h.Revision, h.Leaf, slices.Compact(slices.Sorted(slices.Values(keys)))...)
			if err != nil {
				return nil, err
			}
			shown, err := s.show(ctx, h.Revision, found, hidden)
			for _, n := range shown {
				out[n.Key] = n
			}
			return out, err
		})
	}, func(nodes map[string]Node, o *Outcome) { tellNodes(slices.Collect(maps.Values(nodes)), o) })
}

// nodeRead returns the node that find finds up to a revision, or ErrNodeNotFound if it is tombstoned.
func (s *Session) nodeRead(ctx context.Context, find func(context.Context, *head.Head) (history.Node, error)) (Node, error) {
	return observed(ctx, s, OpNode, s.ID(), func(ctx context.Context) (Node, error) {
		return history.Read(ctx, s.session, func(l *history.Lifecycles) (Node, error) {
			h, _, err := s.session.Head(ctx)
			if err != nil {
				return Node{}, err
			}
			n, err := find(ctx, h)
			if err != nil {
				return Node{}, err
			}
			return s.visible(ctx, l, h.Revision, n)
		})
	}, func(n Node, o *Outcome) { tellNodes([]Node{n}, o) })
}

// visible returns a node that was read, or ErrNodeNotFound if it is tombstoned.
func (s *Session) visible(ctx context.Context, l *history.Lifecycles, last head.Revision, n history.Node) (Node, error) {
	hidden, err := l.Tombstones()
	if err == nil {
		err = hidden.Look(ctx, n.ID, n.Parent)
	}
	if err != nil {
		return Node{}, err
	}
	if hidden.Has(n.ID) {
		return Node{}, fmt.Errorf("%w: %s is tombstoned", ErrNodeNotFound, n.ID)
	}
	out, err := s.show(ctx, last, []history.Node{n}, hidden)
	if err != nil {
		return Node{}, err
	}
	return out[0], nil
}

// show returns nodes that were read as the session shows them.
func (s *Session) show(ctx context.Context, last head.Revision, nodes []history.Node, hidden *history.Tombstones) ([]Node, error) {
	shown, err := s.session.Show(ctx, last, nodes, hidden)
	if err != nil {
		return nil, err
	}
	out := make([]Node, len(shown))
	for i, n := range shown {
		out[i] = nodeOf(n)
	}
	return out, nil
}

func nodeOf(n history.Node) Node {
	return Node{
		ID: n.ID, Parent: n.Parent, Kind: n.Kind, Key: n.Key,
		Payload: n.Inline, Attachments: n.Attachments, Revision: n.Revision, Inherited: n.Inherited, Time: n.Time,
	}
}

// A LogEntry is one commit, as the log of its session tells of it.
type LogEntry struct {
	Revision head.Revision     `json:"revision"`
	Commit   head.CommitID     `json:"commit"`
	Time     time.Time         `json:"time"`
	Turn     string            `json:"turn,omitempty"`
	Leaf     graph.ID          `json:"leaf,omitzero"`   // where the leaf was then; it may be tombstoned now
	Nodes    int               `json:"nodes"`           // how many it added, tombstoned ones included
	Parts    []head.Part       `json:"parts,omitempty"` // the checkpoint parts that it set
	Usage    []head.Usage      `json:"usage,omitempty"` // of this turn
	Labels   map[string]string `json:"labels,omitempty"`
	// Pruned: the state at this revision can't be read any more.
	Pruned bool `json:"pruned,omitzero"`
}

// Log yields the commits of the session after a revision up to the head, in
// their order, each verified to follow the one before: all after 0 or RevisionZero. A fork's log is that of
// its own commits. The sequence ends with the first error: ErrRevisionNotFound if the session has not come so far.
func (s *Session) Log(ctx context.Context, after head.Revision) iter.Seq2[LogEntry, error] {
	return func(yield func(LogEntry, error) bool) {
		if _, err := s.usable(ctx); err != nil {
			yield(LogEntry{}, err)
			return
		}
		err := s.log(ctx, after, func(e LogEntry) bool { return yield(e, nil) })
		if err == nil || errors.Is(err, errEnough) {
			return
		}
		var ce *damage.CorruptError
		if errors.As(err, &ce) { // unless the session was deleted and vacuumed meanwhile
			if _, _, gone := s.session.Head(ctx); errors.Is(gone, ErrSessionDeleted) {
				err = gone
			}
		}
		yield(LogEntry{}, err)
	}
}

// errEnough: the caller wants no more.
var errEnough = errors.New("enough")

func (s *Session) log(ctx context.Context, after head.Revision, yield func(LogEntry) bool) error {
	if err := checkRevision("log", "after", after); err != nil {
		return err
	}
	if after == RevisionZero {
		after = 0
	}
	h, _, err := s.session.Head(ctx)
	if err == nil {
		err = s.session.Reached(h, after)
	}
	if err != nil || after == h.Revision {
		return err
	}
	retained, err := s.session.RetainedNow(ctx)
	if err != nil {
		return err
	}
	return s.session.Turns(ctx, after, h.Revision, func(c *history.Turn) error {
		e := LogEntry{
			Revision: c.Revision, Commit: c.ID, Time: c.Time, Turn: c.Turn, Leaf: c.Leaf, Nodes: c.Nodes, Usage: slices.Clone(c.Usage),
			Labels: maps.Clone(c.Labels), Pruned: !retained(c.Revision),
		}
		for _, p := range c.Parts {
			if p.Set == c.Revision {
				e.Parts = append(e.Parts, p)
			}
		}
		if !yield(e) {
			return errEnough
		}
		return nil
	})
}
