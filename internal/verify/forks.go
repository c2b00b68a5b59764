package verify

import (
	"context"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A forkEntry is the key of the record that keeps an ancestor as long as a fork exists.
type forkEntry struct{ ancestor, fork head.Incarnation }

// gatherOrigin notes what a fork shares of its ancestors. The scan has met the lifecycle
// record of the fork and its fork entries before: their keys come before that of the origin.
func (v *verifier) gatherOrigin(fork head.Incarnation, o *head.Origin) {
	if n := len(o.Ancestors); n > 0 {
		v.parents[fork] = o.Ancestors[n-1].Incarnation
	}
	life := v.lives[fork]
	lives := life != nil && life.State == head.Live
	for _, a := range o.Ancestors {
		if e := (forkEntry{a.Incarnation, fork}); v.unmatched[e] {
			delete(v.unmatched, e)
		} else {
			v.unmatched[e] = true
		}
		if lives && sharesMore(a, v.shared[a.Incarnation]) {
			v.shared[a.Incarnation] = history.Layer{Inc: a.Incarnation, Last: a.Revision, Nodes: a.Nodes}
		}
	}
}

// sharesMore reports whether a fork shares more of an ancestor than l has.
func sharesMore(a head.Ancestor, l history.Layer) bool {
	if a.Revision != l.Last {
		return a.Revision > l.Last
	}
	return l.Nodes != 0 && (a.Nodes == 0 || a.Nodes > l.Nodes) // 0 stands for all nodes
}

// owners checks that every incarnation that the scan met has a lifecycle record.
func (v *verifier) owners(ctx context.Context) error {
	for inc, key := range v.mentioned {
		if v.lives[inc] != nil {
			continue
		}
		if err := v.recheckOwner(ctx, inc, key); err != nil {
			return err
		}
	}
	return nil
}

// recheckOwner looks again at an incarnation for which the scan found a record, at key, but
// no lifecycle record. Vacuum removes the lifecycle record last.
func (v *verifier) recheckOwner(ctx context.Context, inc head.Incarnation, key []byte) error {
	lifeKey := v.store.Space.Life(inc)
	vs, err := v.store.Engine.Get(ctx, lifeKey, key)
	if err != nil {
		return err
	}
	if vs[0] == nil && vs[1] != nil {
		v.problem(fmt.Errorf("%w, but there is its %s", damage.ErrMissing, recordNames[v.store.Space.Letter(key)]), "lifecycle of %s", v.name(inc))
	} else if life, err := head.DecodeLife(lifeKey, vs[0]); err == nil {
		v.lives[inc] = life // The session is new. The scan has reported a damaged record.
	}
	return nil
}

// forkEntries checks that ancestors have entries for exactly the forks whose origins name
// them.
func (v *verifier) forkEntries(ctx context.Context) error {
	for e := range v.unmatched {
		if err := v.recheckForkEntry(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// recheckForkEntry looks again at a fork and an ancestor. In the scan, only one of the two
// named the other.
func (v *verifier) recheckForkEntry(ctx context.Context, e forkEntry) error {
	space := v.store.Space
	originKey := space.Origin(e.fork)
	vs, err := v.store.Engine.Get(ctx, space.Fork(e.ancestor, e.fork), originKey, space.Life(e.fork), space.Life(e.ancestor))
	if err != nil {
		return err
	}
	hasEntry, hasAncestor := vs[0] != nil, vs[3] != nil
	if vs[1] == nil {
		if hasEntry {
			v.problem(damage.ErrMissing, "origin of %s, which %s lists as a fork", v.name(e.fork), v.name(e.ancestor))
		}
		return nil
	}
	origin, err := head.DecodeOrigin(originKey, vs[1])
	if err != nil {
		return nil // The scan has reported it.
	}
	named := slices.ContainsFunc(origin.Ancestors, func(a head.Ancestor) bool { return a.Incarnation == e.ancestor })
	switch {
	case hasEntry && !named:
		v.problem(fmt.Errorf("%w: its origin does not name the ancestor", damage.ErrHash), "fork entry of %s for its fork %s", v.name(e.ancestor), v.name(e.fork))
	case named && !hasEntry && hasAncestor:
		v.problem(damage.ErrMissing, "fork entry of %s for its fork %s", v.name(e.ancestor), v.name(e.fork))
	case named && !hasAncestor && isLive(space.Life(e.fork), vs[2]):
		// Vacuum removes an ancestor that only deleted forks name.
		v.problem(damage.ErrMissing, "lifecycle of %s, an ancestor of %s", v.name(e.ancestor), v.name(e.fork))
	}
	return nil
}

// isLive reports whether a lifecycle record says that the incarnation lives.
func isLive(key, value []byte) bool {
	life, err := head.DecodeLife(key, value)
	return err == nil && life.State == head.Live
}

// counts compares the numbers in the lifecycle records with the fork entries and the
// tombstones that the scan found. There may be more tombstones than a lifecycle record says.
func (v *verifier) counts(ctx context.Context) error {
	for inc, life := range v.lives {
		if life.Forks == v.forks[inc] && life.Stones <= v.tombstones[inc] {
			continue
		}
		if err := v.recheckCounts(ctx, inc); err != nil {
			return err
		}
	}
	return nil
}

// recheckCounts looks again at the numbers of a lifecycle record.
func (v *verifier) recheckCounts(ctx context.Context, inc head.Incarnation) error {
	life, forks, tombstones, err := v.recount(ctx, inc)
	if err != nil || life == nil {
		return err
	}
	if life.Forks != forks {
		v.problem(fmt.Errorf("%w: %d of %d", damage.ErrMissing, forks, life.Forks), "fork entries of %s", v.name(inc))
	}
	if life.Stones > tombstones {
		v.problem(fmt.Errorf("%w: %d of %d", damage.ErrMissing, tombstones, life.Stones), "tombstones of %s", v.name(inc))
	}
	return nil
}

// recount returns a lifecycle record and the numbers of fork entries and tombstones as
// they stand together. The record is nil if vacuum has removed it, or if it is damaged,
// which the scan has reported.
func (v *verifier) recount(ctx context.Context, inc head.Incarnation) (life *head.Life, forks, tombstones uint64, err error) {
	key := v.store.Space.Life(inc)
	for {
		before, err := v.get(ctx, key)
		if err != nil || before == nil {
			return nil, 0, 0, err
		}
		if forks, err = v.count(ctx, keys.Fork, inc); err != nil {
			return nil, 0, 0, err
		}
		if tombstones, err = v.count(ctx, keys.Tombstone, inc); err != nil {
			return nil, 0, 0, err
		}
		after, err := v.get(ctx, key)
		if err != nil {
			return nil, 0, 0, err
		}
		if string(after) != string(before) {
			continue
		}
		life, _ = head.DecodeLife(key, before)
		return life, forks, tombstones, nil
	}
}

// count returns how many records of a letter an incarnation has.
func (v *verifier) count(ctx context.Context, letter byte, inc head.Incarnation) (n uint64, err error) {
	for _, err := range v.store.Engine.Scan(ctx, v.store.Space.Of(letter, inc)) {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}
