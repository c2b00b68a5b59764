package turnstone

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A Scope says what of a history to load. The zero Scope is the active path:
// from the root to the head's leaf.
type Scope struct {
	// At reads the state at an earlier revision: nodes except those tombstoned
	// since, checkpoint and usage as they were. 0 means the head's revision.
	At Revision
	// Leaf reads the path to this node instead of the leaf.
	Leaf NodeID
	// Full reads every node, side branches included, in the order of commits.
	Full bool
	// Last reads the last so many nodes of the path, without reading the rest.
	Last int
	// After reads what the commits after this revision added to the path,
	// without reading the rest: nothing, if it is not behind the head. For a
	// fork, its own revisions.
	After Revision
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
	return checkRevision("scope", "After", sc.After)
}

// A Part describes a checkpoint part.
type Part = head.Part

// A State is a session's history, or a part of it, at one revision.
type State struct {
	Revision Revision
	Commit   CommitID
	Leaf     NodeID // may be tombstoned, and then is not among Nodes
	Nodes    []Node
	Parts    []Part  // of the checkpoint, by name; Checkpoint reads them
	Usage    []Usage // totals up to this revision, by model
	Time     time.Time
}

// Load reads what scope says. Every hash is checked; anything missing or
// damaged is a *CorruptError, never a shorter history.
func (s *Session) Load(ctx context.Context, scope Scope) (*State, error) {
	if err := scope.check(); err != nil {
		return nil, err
	}
	return observed(ctx, s, OpLoad, s.ID(), func(ctx context.Context) (*State, error) {
		return history.Retry(ctx, s.session.Session, func() (*State, error) { return s.load(ctx, scope) })
	}, func(st *State, o *Outcome) { tellNodes(st.Nodes, o) })
}

func (s *Session) load(ctx context.Context, scope Scope) (*State, error) {
	h, _, err := s.session.Head(ctx)
	if err != nil {
		return nil, err
	}
	st := &State{Revision: h.Revision, Commit: h.Commit, Leaf: h.Leaf, Parts: slices.Clone(h.Parts), Usage: slices.Clone(h.Usage), Time: h.Updated}
	if scope.At != 0 && scope.At != h.Revision {
		if err := s.stateAt(ctx, st, scope.At, h); err != nil {
			return nil, err
		}
	}
	dead, err := s.session.Tombstones(ctx)
	if err != nil {
		return nil, err
	}
	leaf := st.Leaf
	if !scope.Leaf.IsZero() {
		if leaf = scope.Leaf; dead.Has(leaf) {
			return nil, fmt.Errorf("%w: %s", ErrNodeNotFound, leaf)
		}
		if _, _, err := s.session.Node(ctx, st.Revision, leaf); err != nil {
			return nil, err
		}
	}
	var nodes []history.Node
	switch {
	case scope.Full:
		nodes, err = s.session.All(ctx, st.Revision, st.Commit)
	case scope.Last > 0:
		nodes, err = s.session.Tail(ctx, st.Revision, leaf, scope.Last, dead)
	case scope.After > 0 && scope.After >= st.Revision: // nothing came after
	default:
		nodes, err = s.session.Path(ctx, st.Revision, scope.After, leaf)
	}
	if err != nil {
		return nil, err
	}
	st.Nodes, err = s.present(ctx, st.Revision, nodes, dead)
	return st, err
}

// stateAt makes st the state at revision r.
func (s *Session) stateAt(ctx context.Context, st *State, r Revision, h *head.Head) error {
	if r > h.Revision {
		return fmt.Errorf("%w: %d of session %q, which is at %d", ErrRevisionNotFound, r, s.session.ID, h.Revision)
	}
	l, err := s.session.Lifecycles(ctx)
	if err != nil {
		return err
	}
	if kept, err := s.store.histories.Retained(ctx, s.session.Inc, l.Own, r); err != nil {
		return err
	} else if !kept {
		return fmt.Errorf("%w: %d of session %q, whose floor is %d", ErrRevisionPruned, r, s.session.ID, l.Own.Floor)
	}
	st.Usage = nil
	err = s.session.Commits(ctx, 0, r, func(c *head.Commit, id CommitID) error {
		st.Usage = head.Sum(st.Usage, c.Usage)
		st.Revision, st.Commit, st.Leaf, st.Time = c.Revision, id, c.Leaf, c.Time
		if c.Revision != r {
			return nil
		}
		var err error
		st.Parts, err = s.session.PartsAt(ctx, c)
		return err
	})
	return err
}

// Checkpoint returns the contents of the checkpoint parts at a revision; 0
// means the head's. The result is the caller's.
func (s *Session) Checkpoint(ctx context.Context, at Revision) (map[string][]byte, error) {
	if err := checkRevision("checkpoint", "it", at); err != nil {
		return nil, err
	}
	return observed(ctx, s, OpCheckpoint, s.ID(), func(ctx context.Context) (map[string][]byte, error) {
		return history.Retry(ctx, s.session.Session, func() (map[string][]byte, error) { return s.checkpoint(ctx, at) })
	}, func(parts map[string][]byte, o *Outcome) {
		for _, content := range parts {
			o.Bytes += int64(len(content))
		}
	})
}

func (s *Session) checkpoint(ctx context.Context, at Revision) (map[string][]byte, error) {
	h, _, err := s.session.Head(ctx)
	if err != nil {
		return nil, err
	}
	st := State{Parts: h.Parts}
	current := at == 0 || at == h.Revision
	if !current {
		if err := s.stateAt(ctx, &st, at, h); err != nil {
			return nil, err
		}
	}
	out := make(map[string][]byte, len(st.Parts))
	for _, p := range st.Parts {
		content, deltas, err := s.session.ReadPart(ctx, p)
		if err != nil {
			return nil, err
		}
		if current {
			s.store.commits.Bases.Put(s.session.Inc, p.Name, blob.Base{ID: p.Blob, Revision: uint64(p.Set), Deltas: deltas, Content: content})
		}
		out[p.Name] = content
	}
	return out, nil
}
