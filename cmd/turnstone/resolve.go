package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// session opens the session with the id name, or the only one whose id begins with name.
func session(ctx context.Context, st *turnstone.Store, name string) (*turnstone.Session, error) {
	s, err := st.Session(ctx, name)
	if name == "" || !errors.Is(err, turnstone.ErrSessionNotFound) {
		return s, err
	}
	const shown = 5
	ids, lerr := idsBeginning(ctx, st, name, shown+1)
	switch {
	case lerr != nil:
		return nil, lerr
	case len(ids) == 0:
		return nil, explainPlace(ctx, st, name, err)
	case len(ids) == 1:
		return st.Session(ctx, ids[0])
	}
	more := ""
	if len(ids) > shown {
		ids, more = ids[:shown], ", …"
	}
	return nil, fmt.Errorf("%w: several begin with %q: %s%s", turnstone.ErrSessionNotFound, name, strings.Join(ids, ", "), more)
}

// idsBeginning returns up to limit ids of sessions that begin with prefix.
func idsBeginning(ctx context.Context, st *turnstone.Store, prefix string, limit int) ([]string, error) {
	var ids []string
	for i, err := range importer.Sessions(ctx, st, turnstone.ListOptions{}) {
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(i.ID, prefix) {
			ids = append(ids, i.ID)
		}
		if len(ids) == limit {
			break
		}
	}
	return ids, nil
}

// explainPlace adds to err, which says that there is no session called name, that name
// is a place in a session if it is.
func explainPlace(ctx context.Context, st *turnstone.Store, name string, err error) error {
	if i := strings.LastIndexAny(name, "@:"); i > 0 {
		if _, serr := st.Session(ctx, name[:i]); serr == nil {
			return fmt.Errorf("%w (this command takes a SESSION, not a place in it)", err)
		}
	}
	return err
}

// exact opens the session with the id name. Commands that delete use it, because they
// must not guess.
func exact(ctx context.Context, st *turnstone.Store, name string) (*turnstone.Session, error) {
	s, err := st.Session(ctx, name)
	if errors.Is(err, turnstone.ErrSessionNotFound) {
		if like, lerr := session(ctx, st, name); lerr == nil {
			err = fmt.Errorf("%w: give the whole id: %s", err, like.ID())
		}
	}
	return s, err
}

// minPrefix is the least number of characters of an id that a command accepts.
const minPrefix = 4

// node finds a node of s by its key, its id, or the beginning of its id.
func node(ctx context.Context, s *turnstone.Session, name string) (graph.ID, error) {
	n, err := s.NodeByKey(ctx, name)
	if err == nil {
		return n.ID, nil
	}
	if !errors.Is(err, turnstone.ErrNodeNotFound) && !errors.Is(err, turnstone.ErrLimit) {
		return graph.ID{}, err
	}
	if !mayBeginID(name) {
		return graph.ID{}, fmt.Errorf("%w: %q of session %q: give its key, or at least %d characters of its id", turnstone.ErrNodeNotFound, name, s.ID(), minPrefix)
	}
	found, err := nodesBeginning(ctx, s, name)
	switch {
	case err != nil:
		return graph.ID{}, err
	case len(found) == 0:
		return graph.ID{}, fmt.Errorf("%w: no node of session %q begins with %q", turnstone.ErrNodeNotFound, s.ID(), name)
	case len(found) == 1:
		return found[0], nil
	}
	return graph.ID{}, fmt.Errorf("%w: %d nodes of session %q begin with %q: give a longer beginning", turnstone.ErrNodeNotFound, len(found), s.ID(), name)
}

// nodesBeginning returns the nodes of s whose ids begin with prefix.
func nodesBeginning(ctx context.Context, s *turnstone.Session, prefix string) ([]graph.ID, error) {
	state, err := s.Load(ctx, turnstone.Scope{Full: true})
	if err != nil {
		return nil, err
	}
	var found []graph.ID
	for _, n := range state.Nodes {
		if strings.HasPrefix(n.ID.String(), strings.ToLower(prefix)) {
			found = append(found, n.ID)
		}
	}
	return found, nil
}

// mayBeginID reports whether s may be the beginning of an id.
func mayBeginID(s string) bool {
	return len(s) >= minPrefix && strings.Trim(strings.ToLower(s), "0123456789abcdef") == ""
}

// A place is a session, or a revision or node of it.
type place struct {
	*turnstone.Session
	scope turnstone.Scope
	bare  bool // the name has neither a revision nor a node
}

const placeForms = "PLACE is SESSION, SESSION@REVISION, or SESSION:NODE. NODE is the beginning of a node's id, or its key;\n" +
	"SESSION is a session's id, or a beginning of it that no other id has."

// find finds the place that name stands for. It takes name for the id of a session
// first, then for a place in a session, and last for the beginning of an id.
func find(ctx context.Context, st *turnstone.Store, name string) (place, error) {
	s, err := st.Session(ctx, name)
	if !errors.Is(err, turnstone.ErrSessionNotFound) {
		return place{Session: s, bare: true}, err
	}
	for _, open := range []opener{whole, session} {
		p, err := findWithin(ctx, st, name, open)
		if !errors.Is(err, errNoPlace) {
			return p, err
		}
	}
	s, err = session(ctx, st, name)
	return place{Session: s, bare: true}, err
}

// An opener opens the session that name stands for.
type opener func(ctx context.Context, st *turnstone.Store, name string) (*turnstone.Session, error)

// whole is the opener that takes whole ids only.
func whole(ctx context.Context, st *turnstone.Store, name string) (*turnstone.Session, error) {
	return st.Session(ctx, name)
}

// errNoPlace means that a name is not SESSION@REVISION or SESSION:NODE of a session.
var errNoPlace = errors.New("not a place in a session")

// findWithin splits name at each sign, the last one first, until the part before the
// sign is a session.
func findWithin(ctx context.Context, st *turnstone.Store, name string, open opener) (place, error) {
	for i := len(name) - 1; i > 0; i-- {
		if name[i] != '@' && name[i] != ':' {
			continue
		}
		s, err := open(ctx, st, name[:i])
		if errors.Is(err, turnstone.ErrSessionNotFound) {
			continue
		}
		if err != nil {
			return place{}, err
		}
		return within(ctx, s, name, name[i], name[i+1:])
	}
	return place{}, errNoPlace
}

// within returns the place in s that is at a revision if sign is '@', or at a node if
// sign is ':'.
func within(ctx context.Context, s *turnstone.Session, name string, sign byte, what string) (place, error) {
	if sign == ':' {
		id, err := node(ctx, s, what)
		return place{Session: s, scope: turnstone.Scope{Leaf: id}}, err
	}
	r, err := strconv.ParseUint(what, 10, 64)
	if err != nil || r == 0 {
		return place{}, usageError{fmt.Errorf("%q: a revision is a number from 1 on", name)}
	}
	return place{Session: s, scope: turnstone.Scope{At: head.Revision(r)}}, nil
}

// leaf returns the node that a place stands for: the node that it names, or the leaf
// of the session or of the revision. It is zero for an empty conversation.
func (p *place) leaf(ctx context.Context) (graph.ID, error) {
	if !p.scope.Leaf.IsZero() {
		return p.scope.Leaf, nil
	}
	state, err := p.Load(ctx, turnstone.Scope{At: p.scope.At, Last: 1})
	if err != nil {
		return graph.ID{}, err
	}
	return state.Leaf, nil
}
