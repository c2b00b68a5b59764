package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// infos yields the sessions that o selects, the most recently updated first.
func infos(ctx context.Context, st *turnstone.Store, o turnstone.ListOptions) iter.Seq2[*turnstone.Info, error] {
	return func(yield func(*turnstone.Info, error) bool) {
		for o.Limit = 200; ; {
			page, err := st.List(ctx, o)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page.Sessions {
				if !yield(&page.Sessions[i], nil) {
					return
				}
			}
			if o.After = page.Next; o.After == "" {
				return
			}
		}
	}
}

// session opens the session called name, or the only one whose id begins so.
func session(ctx context.Context, st *turnstone.Store, name string) (*turnstone.Session, error) {
	s, err := st.Session(ctx, name)
	if name == "" || !errors.Is(err, turnstone.ErrSessionNotFound) {
		return s, err
	}
	var ids []string
	for i, lerr := range infos(ctx, st, turnstone.ListOptions{}) {
		if lerr != nil {
			return nil, lerr
		}
		if strings.HasPrefix(i.ID, name) {
			if ids = append(ids, i.ID); len(ids) > 5 {
				break
			}
		}
	}
	switch len(ids) {
	case 0:
		if i := strings.LastIndexAny(name, "@:"); i > 0 {
			if _, serr := st.Session(ctx, name[:i]); serr == nil {
				err = fmt.Errorf("%w (a SESSION is wanted here, not a place in it)", err)
			}
		}
		return nil, err
	case 1:
		return st.Session(ctx, ids[0])
	}
	more := ""
	if len(ids) > 5 {
		ids, more = ids[:5], ", …"
	}
	return nil, fmt.Errorf("%w: several begin with %q: %s%s", turnstone.ErrSessionNotFound, name, strings.Join(ids, ", "), more)
}

// exact opens the session called name, for commands that are not to guess.
func exact(ctx context.Context, st *turnstone.Store, name string) (*turnstone.Session, error) {
	s, err := st.Session(ctx, name)
	if errors.Is(err, turnstone.ErrSessionNotFound) {
		if like, lerr := session(ctx, st, name); lerr == nil {
			err = fmt.Errorf("%w: give the whole id: %s", err, like.ID())
		}
	}
	return s, err
}

// minPrefix is how many characters of a node's id are enough to try.
const minPrefix = 4

// node finds a node of s by its id, the beginning of it, or its key.
func node(ctx context.Context, s *turnstone.Session, name string) (graph.ID, error) {
	n, err := s.NodeByKey(ctx, name)
	if err == nil {
		return n.ID, nil
	}
	if !errors.Is(err, turnstone.ErrNodeNotFound) && !errors.Is(err, turnstone.ErrLimit) {
		return graph.ID{}, err
	}
	if !hexadecimal(name) {
		return graph.ID{}, fmt.Errorf("%w: %q of session %q: give its key, or at least %d characters of its id", turnstone.ErrNodeNotFound, name, s.ID(), minPrefix)
	}
	state, err := s.Load(ctx, turnstone.Scope{Full: true})
	if err != nil {
		return graph.ID{}, err
	}
	var found []graph.ID
	for _, n := range state.Nodes {
		if strings.HasPrefix(n.ID.String(), strings.ToLower(name)) {
			found = append(found, n.ID)
		}
	}
	switch len(found) {
	case 0:
		return graph.ID{}, fmt.Errorf("%w: no node of session %q begins with %q", turnstone.ErrNodeNotFound, s.ID(), name)
	case 1:
		return found[0], nil
	}
	return graph.ID{}, fmt.Errorf("%w: %d nodes of session %q begin with %q: give more of it", turnstone.ErrNodeNotFound, len(found), s.ID(), name)
}

func hexadecimal(s string) bool {
	return len(s) >= minPrefix && strings.Trim(strings.ToLower(s), "0123456789abcdef") == ""
}

// A place is a session, or a revision or node of it.
type place struct {
	*turnstone.Session
	scope turnstone.Scope
	// bare: neither revision nor node were given.
	bare bool
}

const placeForms = "PLACE is SESSION, SESSION@REVISION, or SESSION:NODE. NODE is the beginning of a node's id, or its key;\n" +
	"SESSION is a session's id, or a beginning that no other has."

// find finds what name names. A session whose whole id it is comes first, then a
// place in a session, then a session whose id begins so.
func find(ctx context.Context, st *turnstone.Store, name string) (place, error) {
	s, err := st.Session(ctx, name)
	if !errors.Is(err, turnstone.ErrSessionNotFound) {
		return place{Session: s, bare: true}, err
	}
	for _, open := range []func(context.Context, *turnstone.Store, string) (*turnstone.Session, error){whole, session} {
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
	}
	s, err = session(ctx, st, name)
	return place{Session: s, bare: true}, err
}

func whole(ctx context.Context, st *turnstone.Store, name string) (*turnstone.Session, error) {
	return st.Session(ctx, name)
}

// within is the place at a revision or a node of s.
func within(ctx context.Context, s *turnstone.Session, name string, sign byte, what string) (place, error) {
	if sign == ':' {
		id, err := node(ctx, s, what)
		return place{Session: s, scope: turnstone.Scope{Leaf: id}}, err
	}
	r, err := strconv.ParseUint(what, 10, 64)
	if err != nil || r == 0 {
		return place{}, usageError{fmt.Errorf("%q: revisions are numbers from 1 on", name)}
	}
	return place{Session: s, scope: turnstone.Scope{At: head.Revision(r)}}, nil
}

// leaf returns the node that a place stands for: the leaf of its session, or
// of a revision, or the node that it names. It is zero for an empty conversation.
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
