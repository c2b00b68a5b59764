package gc_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// An intent is a call that changes a session, from when it is made until its outcome is
// known. What is seen of a session must be what its shadow says, or the effect of an
// intent that is open.
type intent struct {
	on       *shadow
	flying   bool // the call has not returned
	late     int  // batches of it that have not landed
	happened bool // its effect was seen
	start    head.Revision

	// What it does: one of these, or a commit that also hides nodes or has a name.
	commit  *turnstone.Commit
	stones  []graph.ID
	keep    head.Retention // of Prune
	name    string         // of Keep and, with revision 0, Release
	at      head.Revision
	removes bool
	to      string // of Rename
	born    *shadow

	// Of a commit.
	serial uint64
	from   *graph.ID // that it goes on from, unless from the leaf
	secret bool
	// Of a fork.
	node graph.ID
	dead map[graph.ID]bool // nodes of the parent that were tombstoned before
}

// open returns an open intent on a session for which is says so, if there is one. Which of
// several it was that had the effect can't be told.
func (h *randomHistory) open(s *shadow, is func(*intent) bool) (found *intent) {
	n := 0
	for _, in := range h.intents {
		if in.on == s && is(in) {
			found = in
			n++
		}
	}
	if n == 1 {
		found.happened = true
	}
	return found
}

// lookAgain brings the shadows up to date after the calls of intents have returned and
// what was on its way has landed, and forgets these.
func (h *randomHistory) lookAgain() error {
	for _, in := range slices.Clone(h.intents) {
		if in.flying || in.late > 0 {
			continue
		}
		if err := h.look(in); err != nil {
			return err
		}
		h.forget(in)
	}
	return nil
}

func (h *randomHistory) forget(in *intent) {
	h.intents = slices.DeleteFunc(h.intents, func(other *intent) bool { return other == in })
}

// look reads the session that an intent is about, and takes over into its shadow what the
// intent did.
func (h *randomHistory) look(in *intent) error {
	if in.born != nil && !in.happened {
		hd, err := h.observer().Session(ctx, in.born.id)
		if errors.Is(err, turnstone.ErrSessionNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		in.happened = true
		if err := h.birth(in, hd); err != nil {
			return fmt.Errorf("session %s: %w", in.born.id, err)
		}
		h.live = append(h.live, in.born)
		return nil
	}
	if in.on == nil {
		return nil
	}
	if err := h.catchUp(in.on); err != nil {
		return fmt.Errorf("session %s: %w", in.on.id, err)
	}
	return nil
}

// holds reports whether what the intent is about has been done, by whomever.
func (in *intent) holds() bool {
	s := in.on
	switch {
	case in.happened:
		return true
	case s == nil || in.born != nil:
		return false
	case in.removes:
		return s.gone
	case s.gone: // what else was done went with it
		return true
	case len(in.stones) > 0:
		return !slices.ContainsFunc(in.stones, func(id graph.ID) bool { return !s.nodes[id].dead })
	case in.keep > 0:
		return true // see history.prune
	case in.name != "":
		return s.kept[in.name] == in.at
	}
	return in.commit == nil && in.to == ""
}

// catchUp takes over into a shadow what intents have done to its session.
func (h *randomHistory) catchUp(s *shadow) error {
	if s.gone {
		return nil
	}
	hd, err := h.observer().Session(ctx, s.id)
	if errors.Is(err, turnstone.ErrSessionNotFound) {
		if in := h.open(s, func(in *intent) bool {
			if in.to == "" || err == nil {
				return false
			}
			hd, err = h.observer().Session(ctx, in.to)
			return err == nil
		}); in != nil {
			s.id = in.to
		} else if h.open(s, func(in *intent) bool { return in.removes }) != nil {
			s.gone = true
			h.live = slices.DeleteFunc(h.live, func(other *shadow) bool { return other == s })
			return nil
		}
	}
	if err != nil {
		return err
	}
	if err := h.newTurns(s, hd); err != nil {
		return err
	}
	if err := h.newNames(s, hd); err != nil {
		return err
	}
	if err := h.newFloor(s, hd); err != nil {
		return err
	}
	s.weaken()
	return h.newStones(s, hd)
}

func (h *randomHistory) newTurns(s *shadow, hd *turnstone.Session) error {
	for e, err := range hd.Log(ctx, s.head()) {
		if err != nil {
			return err
		}
		in := h.open(s, func(in *intent) bool { return in.commit != nil && in.serial == e.Usage[0].Input })
		if in == nil {
			return fmt.Errorf("nobody has committed revision %d: %+v", e.Revision, e)
		}
		st, err := hd.Load(ctx, turnstone.Scope{Full: true})
		if err != nil {
			return err
		}
		var ids []graph.ID
		for _, n := range st.Nodes {
			if !n.Inherited && n.Revision == e.Revision {
				ids = append(ids, n.ID)
			}
		}
		if len(ids) != len(in.commit.Nodes) {
			return fmt.Errorf("revision %d has %d nodes, %d were committed", e.Revision, len(ids), len(in.commit.Nodes))
		}
		s.commits(in, ids)
		in.at = e.Revision
	}
	return nil
}

func (h *randomHistory) newNames(s *shadow, hd *turnstone.Session) error {
	kept, err := hd.Kept(ctx)
	if err != nil {
		return err
	}
	now := map[string]head.Revision{}
	for _, k := range kept {
		now[k.Name] = k.Revision
	}
	names := slices.Sorted(maps.Keys(now))
	for name := range s.kept {
		names = append(names, name)
	}
	for _, name := range names {
		was, is := s.kept[name], now[name]
		if was == is {
			continue
		}
		if h.open(s, func(in *intent) bool { return in.name == name && in.at == is }) == nil {
			return fmt.Errorf("%q keeps revision %d, not %d", name, is, was)
		}
		if s.kept[name] = is; is == 0 {
			delete(s.kept, name)
		}
	}
	return nil
}

func (h *randomHistory) newFloor(s *shadow, hd *turnstone.Session) error {
	for _, in := range h.intents {
		if in.on == s && in.keep > 0 && s.head() >= head.Revision(in.keep) {
			s.upper = max(s.upper, s.head()-head.Revision(in.keep)+1)
		}
	}
	for e, err := range hd.Log(ctx, 0) {
		if err != nil {
			return err
		}
		if e.Pruned && e.Revision >= s.floor {
			if e.Revision >= s.upper {
				return fmt.Errorf("nobody has pruned revision %d", e.Revision)
			}
			s.floor = e.Revision + 1
		}
	}
	return nil
}

func (h *randomHistory) newStones(s *shadow, hd *turnstone.Session) error {
	st, err := hd.Load(ctx, turnstone.Scope{Full: true})
	if err != nil {
		return err
	}
	shown := map[graph.ID]bool{}
	for _, n := range st.Nodes {
		shown[n.ID] = true
	}
	for id, n := range s.nodes {
		if n.dead || shown[id] {
			continue
		}
		in := h.open(s, func(in *intent) bool { // all of its nodes went, or none
			return slices.Contains(in.stones, id) && !slices.ContainsFunc(in.stones, func(id graph.ID) bool { return shown[id] })
		})
		if in == nil && !n.weak {
			return fmt.Errorf("nobody has tombstoned node %.8s of revision %d", id, n.revision)
		}
		if in == nil {
			n.dead = true // pruned
			continue
		}
		for _, id := range in.stones {
			s.nodes[id].dead = true
		}
	}
	return nil
}

// birth makes the shadow of a session that was created.
func (h *randomHistory) birth(in *intent, hd *turnstone.Session) error {
	n, p := in.born, in.on
	path, err := hd.Load(ctx, turnstone.Scope{})
	if err != nil {
		return err
	}
	parts, err := hd.Checkpoint(ctx, 0)
	if err != nil {
		return err
	}
	n.turns = []turn{{leaf: path.Leaf, parts: parts}}
	if path.Revision != 0 {
		return fmt.Errorf("it is born with revision %d", path.Revision)
	}
	if p == nil {
		if len(path.Nodes) > 0 || len(parts) > 0 {
			return errors.New("it is born with content")
		}
		return nil
	}
	if err := h.catchUp(p); err != nil {
		return fmt.Errorf("parent %s: %w", p.id, err)
	}
	began := slices.ContainsFunc(p.turns[in.start:], func(t turn) bool { return t.leaf == path.Leaf })
	if !in.node.IsZero() {
		began = path.Leaf == in.node
	}
	if !began {
		return fmt.Errorf("it begins at node %.8s", path.Leaf)
	}
	if !p.hadParts(path.Leaf, parts) {
		return fmt.Errorf("it begins with a checkpoint of %d parts that %s has never had there", len(parts), p.id)
	}
	full, err := hd.Load(ctx, turnstone.Scope{Full: true})
	if err != nil {
		return err
	}
	take := func(id graph.ID, dead bool) error {
		of := p.nodes[id]
		if of == nil {
			return fmt.Errorf("node %.8s is none of %s", id, p.id)
		}
		c := *of
		c.dead, c.inherited, c.weak = dead, true, false
		n.nodes[id] = &c
		return nil
	}
	for _, id := range p.path(path.Leaf) {
		if err := take(id, true); err != nil {
			return err
		}
	}
	for _, node := range full.Nodes {
		if err := take(node.ID, false); err != nil {
			return err
		}
		if in.dead[node.ID] {
			return fmt.Errorf("node %.8s was tombstoned before, and is shown", node.ID)
		}
		if !bytes.Equal(node.Payload, n.nodes[node.ID].payload) {
			return fmt.Errorf("node %.8s is another one", node.ID)
		}
	}
	for _, id := range p.path(path.Leaf) {
		if n.nodes[id].dead && !p.nodes[id].dead {
			return fmt.Errorf("node %.8s of the path is missing", id)
		}
	}
	for _, node := range full.Nodes { // what a side branch goes on from may be tombstoned
		for id := n.nodes[node.ID].parent; !id.IsZero() && n.nodes[id] == nil; id = n.nodes[id].parent {
			if err := take(id, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// hadParts reports whether a turn of the session or an ancestor that ended at a node, or
// the one before the node was made, had this checkpoint.
func (s *shadow) hadParts(leaf graph.ID, parts map[string][]byte) bool {
	for a := s; a != nil; a = a.parent {
		for i, t := range a.turns {
			made := i+1 < len(a.turns) && a.nodes[leaf] != nil && !a.nodes[leaf].inherited && a.nodes[leaf].revision == head.Revision(i+1)
			if (t.leaf == leaf || made) && equalParts(t.parts, parts) {
				return true
			}
		}
	}
	return false
}
