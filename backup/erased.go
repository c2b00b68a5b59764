package backup

import (
	"context"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/push"
)

// erasures are what was erased.
type erasures struct {
	since    map[erasedKey]bool
	living   map[string]bool // the sessions that are there at the newest run
	sessions map[string]bool // those that were erased
	nodes    map[string][]graph.ID
	unknown  []error // of what can't be read
}

// settle finds out which sessions of a run, and which of their nodes, were erased. A session that was restored, or that
// came a second time, has another incarnation and the same genesis. So an erasure is about all sessions of that
// genesis, but for those that live all the same.
func (e *erasures) settle(ctx context.Context, x *index, to push.Peer) error {
	e.sessions, e.nodes = map[string]bool{}, map[string][]graph.ID{}
	by := map[head.CommitID][]*entry{}
	for _, one := range x.sessions {
		if !one.Gone {
			by[one.Genesis] = append(by[one.Genesis], one)
		}
	}
	about := func(k erasedKey, lives func(session string) (bool, error)) error {
		for _, one := range by[k.genesis] {
			if known := x.erased[k]; known != nil && (known.Run < one.Run || known.Run == one.Run && !known.During) {
				continue // What the entry has is what was left.
			}
			if k.session != one.Session {
				alive, err := lives(one.Session)
				if err != nil {
					return err
				}
				if alive {
					continue
				}
			}
			if k.node.IsZero() {
				e.sessions[one.Session] = true
			} else {
				e.nodes[one.Session] = append(e.nodes[one.Session], k.node)
			}
		}
		return nil
	}
	for k := range e.since {
		if err := about(k, func(session string) (bool, error) { return e.living[session], nil }); err != nil {
			return err
		}
	}
	st, ok := to.(*turnstone.Store)
	if !ok {
		return nil
	}
	for one, err := range st.Erasures(ctx) {
		if err != nil {
			return err
		}
		k := (&erasure{Erased: one, Store: st.ID()}).what()
		if e.since[k] {
			continue
		}
		err := about(k, func(session string) (bool, error) {
			_, err := st.SessionByIncarnation(ctx, session)
			if errors.Is(err, turnstone.ErrSessionNotFound) || errors.Is(err, turnstone.ErrSessionDeleted) {
				return false, nil
			}
			return err == nil, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hide tombstones nodes of a session, as far as it has them.
func hide(ctx context.Context, st *scratch, id string, nodes []graph.ID) error {
	s, err := st.Session(ctx, id)
	if err != nil {
		return err
	}
	var there []graph.ID
	for _, n := range nodes {
		switch _, err := s.Node(ctx, n); {
		case err == nil:
			there = append(there, n)
		case !errors.Is(err, turnstone.ErrNodeNotFound):
			return err
		}
	}
	for some := range slices.Chunk(there, turnstone.MaxNodes) {
		if err := s.Tombstone(ctx, some...); err != nil {
			return err
		}
	}
	return nil
}
