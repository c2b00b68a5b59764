package gc_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// A shadow is what a session has to be like, as far as those who changed it were told.
// What the outcome of a call leaves open is looked up once: see history.catchUp.
type shadow struct {
	id     string
	parent *shadow
	gone   bool
	nodes  map[graph.ID]*shadowNode
	turns  []turn // by revision; turn 0 is what a fork began with
	// floor is below what can be read for sure, and not above upper: a prune of unknown
	// outcome may have moved it up to there.
	floor, upper head.Revision
	kept         map[string]head.Revision
	uploads      map[blob.ID]bool // that no commit has used yet
	tried        bool             // a commit of unknown outcome may have used them
}

type turn struct {
	serial uint64
	leaf   graph.ID
	parts  map[string][]byte
}

type shadowNode struct {
	parent      graph.ID
	payload     []byte
	attachments []blob.Attachment
	revision    head.Revision
	inherited   bool
	secret      bool // no other node has this payload
	dead        bool // tombstoned
	weak        bool // vacuum may have pruned it, or may do so
}

func (s *shadow) head() head.Revision { return head.Revision(len(s.turns) - 1) }

// ids returns the session's nodes in an order that is the same every time.
func (s *shadow) ids() []graph.ID {
	return slices.SortedFunc(maps.Keys(s.nodes), func(a, b graph.ID) int { return bytes.Compare(a[:], b[:]) })
}

// path returns the nodes from the root to leaf, tombstoned ones included.
func (s *shadow) path(leaf graph.ID) []graph.ID {
	var out []graph.ID
	for id := leaf; !id.IsZero(); id = s.nodes[id].parent {
		out = append(out, id)
	}
	slices.Reverse(out)
	return out
}

// alive returns a node, or the nearest one before it that is not tombstoned.
func (s *shadow) alive(id graph.ID) graph.ID {
	for !id.IsZero() && s.nodes[id].dead {
		id = s.nodes[id].parent
	}
	return id
}

// keeps reports whether the state at a revision can be read for sure.
func (s *shadow) keeps(r head.Revision) bool {
	return r >= s.upper || slices.Contains(slices.Collect(maps.Values(s.kept)), r)
}

// mayRefer reports whether a commit may refer to an attachment: it was uploaded and has not
// been used, or a node that the session shows has it.
func (s *shadow) mayRefer(id blob.ID) bool {
	if s.uploads[id] {
		return true
	}
	for _, n := range s.nodes {
		if !n.dead && !n.weak && slices.ContainsFunc(n.attachments, func(a blob.Attachment) bool { return a.ID == id }) {
			return true
		}
	}
	return false
}

// commits adds a turn to the shadow. ids are those of the commit's nodes, as far as they
// are known.
func (s *shadow) commits(in *intent, ids []graph.ID) {
	last := s.turns[s.head()]
	next := turn{serial: in.serial, leaf: last.leaf, parts: maps.Clone(last.parts)}
	parent := last.leaf
	if in.from != nil {
		parent = *in.from
	}
	if in.from != nil && len(in.commit.Nodes) == 0 {
		next.leaf = parent
	}
	for i, n := range in.commit.Nodes {
		s.nodes[ids[i]] = &shadowNode{
			parent: parent, payload: n.Payload, attachments: n.Attachments, revision: s.head() + 1, secret: in.secret && i == 0,
		}
		parent, next.leaf = ids[i], ids[i]
		for _, a := range n.Attachments {
			delete(s.uploads, a.ID)
		}
	}
	for _, name := range in.commit.Drop {
		delete(next.parts, name)
	}
	maps.Copy(next.parts, in.commit.Checkpoint)
	s.turns = append(s.turns, next)
	for _, id := range s.path(next.leaf) { // a commit that goes on from them has found them all
		s.nodes[id].weak = false
	}
	s.weaken()
}

// weaken marks the nodes to which no revision leads that is retained for sure.
func (s *shadow) weaken() {
	if s.upper == 0 {
		return
	}
	reached := map[graph.ID]bool{}
	named := head.Revision(0)
	for _, r := range s.kept {
		named = max(named, r)
	}
	var tips []graph.ID
	for r := s.upper; r <= s.head(); r++ {
		tips = append(tips, s.turns[r].leaf)
	}
	for id, n := range s.nodes {
		if n.inherited || n.revision >= s.upper || n.revision <= named {
			tips = append(tips, id)
		}
	}
	for _, id := range tips {
		for ; !id.IsZero() && !reached[id]; id = s.nodes[id].parent {
			reached[id] = true
		}
	}
	for id, n := range s.nodes {
		n.weak = n.weak || !reached[id]
	}
}

// check compares all that can be read of the session with the shadow: of revisions that
// are retained, and where choose says so, paths and checkpoints.
func (s *shadow) check(hd *turnstone.Session, contents map[blob.ID][]byte, choose func() bool) error {
	if err := s.checkNodes(hd, contents, choose); err != nil {
		return err
	}
	for e, err := range hd.Log(ctx, 0) {
		if err != nil {
			return err
		}
		switch {
		case e.Pruned && s.keeps(e.Revision):
			return fmt.Errorf("revision %d is pruned, the floor is %d", e.Revision, s.upper)
		case !e.Pruned && e.Revision < s.floor && !s.keeps(e.Revision):
			return fmt.Errorf("revision %d is below the floor %d, and can be read", e.Revision, s.floor)
		case e.Revision > s.head() || e.Usage[0].Input != s.turns[e.Revision].serial || e.Leaf != s.turns[e.Revision].leaf:
			return fmt.Errorf("revision %d is another turn: %+v", e.Revision, e)
		case e.Pruned || !choose() && e.Revision != s.head():
			continue
		}
		if err := s.checkRevision(hd, e.Revision); err != nil {
			return err
		}
	}
	if s.head() > 0 {
		return nil
	}
	return s.checkRevision(hd, 0)
}

func (s *shadow) checkRevision(hd *turnstone.Session, r head.Revision) error {
	st, err := hd.Load(ctx, turnstone.Scope{At: r})
	if err != nil {
		return fmt.Errorf("revision %d: %w", r, err)
	}
	var got, want []graph.ID
	for _, n := range st.Nodes {
		got = append(got, n.ID)
	}
	for _, id := range s.path(s.turns[r].leaf) {
		if !s.nodes[id].dead {
			want = append(want, id)
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("revision %d has the path %.8s, not %.8s", r, got, want)
	}
	parts, err := hd.Checkpoint(ctx, r)
	if err != nil {
		return fmt.Errorf("checkpoint of revision %d: %w", r, err)
	}
	if !equalParts(parts, s.turns[r].parts) {
		return fmt.Errorf("checkpoint of revision %d is another: %d parts, not %d", r, len(parts), len(s.turns[r].parts))
	}
	return nil
}

func equalParts(a, b map[string][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }

// checkNodes compares the nodes that the session shows, side branches included.
func (s *shadow) checkNodes(hd *turnstone.Session, contents map[blob.ID][]byte, choose func() bool) error {
	st, err := hd.Load(ctx, turnstone.Scope{Full: true})
	if err != nil {
		return err
	}
	seen := map[graph.ID]bool{}
	for _, n := range st.Nodes {
		want := s.nodes[n.ID]
		if seen[n.ID] = true; want == nil || want.dead {
			return fmt.Errorf("node %.8s is shown: %+v", n.ID, want)
		}
		if !bytes.Equal(n.Payload, want.payload) || !slices.Equal(n.Attachments, want.attachments) || n.Inherited != want.inherited {
			return fmt.Errorf("node %.8s is another one", n.ID)
		}
		if !want.weak && n.Parent != s.alive(want.parent) {
			return fmt.Errorf("node %.8s follows %.8s", n.ID, n.Parent)
		}
		for _, a := range n.Attachments {
			if !choose() {
				continue
			}
			var b bytes.Buffer
			if _, err := hd.ReadAttachment(ctx, &b, a.ID); err != nil || !bytes.Equal(b.Bytes(), contents[a.ID]) {
				return fmt.Errorf("attachment %.8s of node %.8s: %v", a.ID, n.ID, errors.Join(err, errors.New("or it is another one")))
			}
		}
	}
	for id, n := range s.nodes {
		if !seen[id] && !n.dead && !n.weak {
			return fmt.Errorf("node %.8s of revision %d is not shown", id, n.revision)
		}
	}
	return nil
}
