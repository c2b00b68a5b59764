package gc_test

import (
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
)

// eraseSession erases a session, by several hosts in turn if one is stopped.
func (x *host) eraseSession() {
	s := x.pick()
	x.erase("session "+s.id, &intent{on: s, removes: true}, func(x *host) (*turnstone.Erasure, error) {
		return x.store.Erase(x.ctx(), s.id, turnstone.KeepChildren, turnstone.EraseOptions{})
	}, func(r *turnstone.Erasure, attempt int) error {
		var holders []string
		secrets := 0
		for _, other := range x.live {
			if slices.Contains(other.ancestors(), s) && slices.ContainsFunc(other.ids(), func(id graph.ID) bool {
				n := s.nodes[id]
				return n != nil && !n.inherited && !other.nodes[id].dead
			}) {
				holders = append(holders, other.id)
			}
		}
		for _, n := range s.nodes {
			if n.secret && !n.inherited && !n.dead && !n.weak && len(n.payload) > 5<<10 {
				secrets++
			}
		}
		for _, id := range holders {
			if !slices.Contains(r.HeldBy, id) {
				return fmt.Errorf("%s holds it, and is not in the receipt", id)
			}
		}
		if attempt == 1 && len(r.HeldBy) == 0 && r.Gone < secrets { // a later one does not know them all
			return fmt.Errorf("%d payloads that nobody else had are gone, the receipt says %d", secrets, r.Gone)
		}
		return x.checkReceipt(r, s)
	})
}

// eraseNode erases a node of a session likewise.
func (x *host) eraseNode() {
	s := x.pick()
	ids := s.ids()
	if len(ids) == 0 {
		return
	}
	id := ids[x.rng.IntN(len(ids))]
	x.erase(fmt.Sprintf("node %.8s of %s", id, s.id), &intent{on: s, stones: []graph.ID{id}}, func(x *host) (e *turnstone.Erasure, err error) {
		err = x.with(x.ctx(), s, func(hd *turnstone.Session) error {
			e, err = hd.Erase(x.ctx(), turnstone.EraseOptions{}, id)
			return err
		})
		return e, err
	}, func(r *turnstone.Erasure, _ int) error {
		for _, other := range x.live {
			n := other.nodes[id]
			shows := n != nil && !n.dead
			if shows && !n.weak && !slices.Contains(r.HeldBy, other.id) || !shows && slices.Contains(r.HeldBy, other.id) {
				return fmt.Errorf("%s shows it: %v, and it is held by %v", other.id, shows, r.HeldBy)
			}
		}
		if len(r.HeldBy) == 0 && s.nodes[id].secret && holds(x.base, s.nodes[id].payload) {
			return errors.New("nobody holds it, and it is there")
		}
		return x.checkReceipt(r, s)
	})
}

// ancestors returns the sessions that a session was forked from.
func (s *shadow) ancestors() (out []*shadow) {
	for s = s.parent; s != nil; s = s.parent {
		out = append(out, s)
	}
	return out
}

// erase calls f until the erasure is complete, and checks the receipt of a call in the
// middle of which nothing happened.
func (x *host) erase(what string, in *intent, f func(*host) (*turnstone.Erasure, error), check func(r *turnstone.Erasure, attempt int) error) {
	for attempt := 1; ; attempt++ {
		if attempt == 1 {
			x.arm(in, 120)
		} else {
			x = x.host(x.base)
			again := *in
			again.happened, again.late = in.happened, 0
			x.calm(&again)
		}
		quiet := len(x.late) == 0
		r, err := f(x)
		unknown := x.ended(fmt.Sprintf("erase %s, attempt %d", what, attempt), err)
		if err == nil {
			if quiet && !x.struck {
				if err := check(r, attempt); err != nil {
					x.t.Fatalf("the receipt %+v of erasing %s: %v", *r, what, err)
				}
			}
			return
		}
		if errors.Is(err, turnstone.ErrSessionNotFound) || errors.Is(err, turnstone.ErrSessionDeleted) || errors.Is(err, turnstone.ErrNodeNotFound) {
			return
		}
		if attempt > 2 || !x.struck && !unknown {
			x.t.Fatalf("erase %s is not complete after %d attempts: %v", what, attempt, err)
		}
	}
}

// checkReceipt checks that a receipt does not contradict itself and that the sessions it
// names exist.
func (x *host) checkReceipt(r *turnstone.Erasure, s *shadow) error {
	if (r.Shared > 0) != (len(r.SharedBy) > 0) || r.Uploads > 0 && !x.uploaded {
		return errors.New("it contradicts itself")
	}
	for _, id := range append(slices.Clone(r.SharedBy), r.HeldBy...) {
		if !slices.ContainsFunc(x.live, func(other *shadow) bool { return other.id == id }) {
			return fmt.Errorf("no session %s lives", id)
		}
	}
	return nil
}
