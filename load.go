package turnstone

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
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
		return retried(ctx, s, func() (*State, error) { return s.load(ctx, scope) })
	}, func(st *State, o *Outcome) { tellNodes(st.Nodes, o) })
}

func (s *Session) load(ctx context.Context, scope Scope) (*State, error) {
	h, _, err := s.readHead(ctx)
	if err != nil {
		return nil, err
	}
	st := &State{Revision: h.Revision, Commit: h.Commit, Leaf: h.Leaf, Parts: slices.Clone(h.Parts), Usage: slices.Clone(h.Usage), Time: h.Updated}
	if scope.At != 0 && scope.At != h.Revision {
		if err := s.stateAt(ctx, st, scope.At, h); err != nil {
			return nil, err
		}
	}
	dead, err := s.tombstones(ctx)
	if err != nil {
		return nil, err
	}
	leaf := st.Leaf
	if !scope.Leaf.IsZero() {
		if leaf = scope.Leaf; dead.has(leaf) {
			return nil, fmt.Errorf("%w: %s", ErrNodeNotFound, leaf)
		}
		if _, err := s.locate(ctx, st.Revision, leaf); err != nil {
			return nil, err
		}
	}
	var nodes []found
	switch {
	case scope.Full:
		nodes, err = s.full(ctx, st.Revision, st.Commit)
	case scope.Last > 0:
		nodes, err = s.tail(ctx, st.Revision, leaf, scope.Last, dead)
	case scope.After > 0 && scope.After >= st.Revision: // nothing came after
	default:
		nodes, err = s.path(ctx, st.Revision, scope.After, leaf)
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
		return fmt.Errorf("%w: %d of session %q, which is at %d", ErrRevisionNotFound, r, s.id, h.Revision)
	}
	life, err := s.readLife(ctx)
	if err != nil {
		return err
	}
	if kept, err := s.store.retained(ctx, s.inc, life, r); err != nil {
		return err
	} else if !kept {
		return fmt.Errorf("%w: %d of session %q, whose floor is %d", ErrRevisionPruned, r, s.id, life.Floor)
	}
	st.Usage = nil
	err = s.commits(ctx, 0, r, func(c *head.Commit, id CommitID) error {
		st.Usage = head.Sum(st.Usage, c.Usage)
		st.Revision, st.Commit, st.Leaf, st.Time = c.Revision, id, c.Leaf, c.Time
		if c.Revision != r {
			return nil
		}
		var err error
		st.Parts, err = s.partsAt(ctx, c)
		return err
	})
	return err
}

// partsAt returns the checkpoint at commit c, with the blobs of parts that
// carried over.
func (s *Session) partsAt(ctx context.Context, c *head.Commit) ([]head.Part, error) {
	if c.PartsAt == 0 {
		if s.origin != nil {
			return slices.Clone(s.origin.Parts), nil
		}
		return nil, nil
	}
	if c.PartsAt != c.Revision {
		var err error
		if c, _, err = s.commitAt(ctx, c.PartsAt); err != nil {
			return nil, err
		}
	}
	parts := slices.Clone(c.Parts)
	for i, p := range parts {
		if p.Set == c.Revision {
			continue
		}
		var err error
		if parts[i], err = s.partSet(ctx, p.Name, p.Set); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// path reads the nodes of the session's commits after a revision (0: all, with
// the ancestors') and returns those on the path to leaf, root first.
func (s *Session) path(ctx context.Context, last, after Revision, leaf NodeID) ([]found, error) {
	if leaf.IsZero() {
		return nil, nil
	}
	layers := s.layers(last)
	if after > 0 {
		layers = layers[len(layers)-1:]
	}
	var all []found
	for _, l := range layers {
		var err error
		if all, err = s.read(ctx, l, after, all); err != nil {
			return nil, err
		}
	}
	// A parent always comes before its children in the order of commits, so
	// one pass from the end finds the path.
	out := all[:0:0]
	want := leaf
	for i := len(all) - 1; i >= 0 && !want.IsZero(); i-- {
		if all[i].ID == want {
			out, want = append(out, all[i]), all[i].Parent
		}
	}
	if !want.IsZero() { // then the index must say that it is before what was read
		at, err := s.place(ctx, last, want)
		if errors.Is(err, ErrNodeNotFound) || err == nil && (after == 0 || at.layer.inc == s.inc && at.revision > after) {
			err = codec.Corrupt(codec.ErrMissing, "node %s of session %q", want, s.id)
		}
		if err != nil {
			return nil, err
		}
	}
	slices.Reverse(out)
	return out, nil
}

// full reads every node up to revision last, and checks them against the
// commits: a side branch has no leaf that vouches for it.
func (s *Session) full(ctx context.Context, last Revision, commit CommitID) ([]found, error) {
	var all []found
	layers := s.layers(last)
	layers[len(layers)-1].commit = commit
	for _, l := range layers {
		start := len(all)
		var err error
		if all, err = s.read(ctx, l, 0, all); err != nil {
			return nil, err
		}
		if err := s.checkLayer(ctx, l, all[start:]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// tail reads the last n live nodes of the path to leaf, from the end. Most often
// the leaf is in the last commit and each segment goes on with the one before it,
// so there it looks first, and asks the index only if the node is elsewhere.
func (s *Session) tail(ctx context.Context, last Revision, leaf NodeID, n int, dead tombstones) ([]found, error) {
	var out []found
	layers := s.layers(last)
	l, next := layers[len(layers)-1], last
	for want := leaf; !want.IsZero() && n > 0; {
		seg, err := s.segmentAt(ctx, l, next)
		if errors.Is(err, codec.ErrMissing) || err == nil && !slices.ContainsFunc(seg, func(f found) bool { return f.ID == want }) {
			l, seg, err = s.segmentOf(ctx, last, want)
		}
		if err != nil {
			return nil, linked(err, want)
		}
		next = seg[0].revision - 1
		progress := false
		for i := len(seg) - 1; i >= 0 && n > 0; i-- {
			if seg[i].ID != want || seg[i].revision > l.last {
				continue
			}
			if progress = true; !dead.has(want) {
				n--
			}
			out, want = append(out, seg[i]), seg[i].Parent
		}
		if !progress {
			return nil, codec.Corrupt(codec.ErrMissing, "node %s of session %q", want, s.id)
		}
	}
	slices.Reverse(out)
	return out, nil
}

// Checkpoint returns the contents of the checkpoint parts at a revision; 0
// means the head's. The result is the caller's.
func (s *Session) Checkpoint(ctx context.Context, at Revision) (map[string][]byte, error) {
	if err := checkRevision("checkpoint", "it", at); err != nil {
		return nil, err
	}
	return observed(ctx, s, OpCheckpoint, s.ID(), func(ctx context.Context) (map[string][]byte, error) {
		return retried(ctx, s, func() (map[string][]byte, error) { return s.checkpoint(ctx, at) })
	}, func(parts map[string][]byte, o *Outcome) {
		for _, content := range parts {
			o.Bytes += int64(len(content))
		}
	})
}

func (s *Session) checkpoint(ctx context.Context, at Revision) (map[string][]byte, error) {
	h, _, err := s.readHead(ctx)
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
		content, deltas, err := s.readPart(ctx, p)
		if err != nil {
			return nil, err
		}
		if current {
			s.store.bases.put(s.inc, p.Name, blob.Base{ID: p.Blob, Revision: uint64(p.Set), Deltas: deltas, Content: content})
		}
		out[p.Name] = content
	}
	return out, nil
}

// chain returns the versions of a part that the session stores itself.
func (s *Session) chain(name string) blob.Chain {
	return blob.Chain{Session: s.inc, Part: s.store.space.PartHash(name)}
}

// readPart returns the content of a version of a checkpoint part, and how many deltas
// it is away from one that is stored whole.
func (s *Session) readPart(ctx context.Context, p Part) (content []byte, deltas int, err error) {
	if !p.IsDelta() {
		content, err = s.store.blobs.Read(ctx, p.Blob)
		return content, 0, err
	}
	return s.store.blobs.ReadVersion(ctx, s.chain(p.Name), uint64(p.Whole), uint64(p.Set), p.Blob, func(ctx context.Context) (BlobID, error) {
		root, err := s.partSet(ctx, p.Name, p.Whole)
		return root.Blob, err
	})
}

// partSet returns a part as the commit of a revision set it, or as the session began
// with it.
func (s *Session) partSet(ctx context.Context, name string, set Revision) (Part, error) {
	var from []Part
	if set == 0 && s.origin != nil {
		from = s.origin.Parts
	} else {
		c, _, err := s.commitAt(ctx, set)
		if err != nil {
			return Part{}, err
		}
		from = c.Parts
	}
	i := slices.IndexFunc(from, func(p Part) bool { return p.Name == name && p.Set == set })
	if i < 0 || from[i].Blob.IsZero() {
		return Part{}, codec.Corrupt(codec.ErrMissing, "checkpoint part %q of revision %d of session %q", name, set, s.id)
	}
	return from[i], nil
}
