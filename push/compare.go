package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// A lacking is what the other store lacks of some sessions.
type lacking struct {
	of       []turnstone.Bundled
	diverged []turnstone.Bundled // those that become branches, since the last common commit
	same     int                 // how many sessions it lacks nothing of
	refused  []error             // of those that can't be pushed
}

// compare finds out what the other store lacks of sessions, and of the parents of those that are new there if parents
// is set.
func (p *pushing) compare(ctx context.Context, ids []string, parents bool) (l lacking, err error) {
	pairs, err := p.pairs(ctx, ids)
	if err != nil {
		return l, err
	}
	var missing []string
	for _, id := range ids {
		pair := pairs[id]
		if pair.here == nil { // It was deleted since it was found.
			continue
		}
		if err := p.add(ctx, &l, pair); err != nil {
			return l, err
		}
		if parent := pair.here.Parent; parents && p.o.As == "" && pair.there == nil && parent != "" && !slices.Contains(missing, parent) {
			missing = append(missing, parent)
		}
	}
	missing = slices.DeleteFunc(missing, func(id string) bool {
		return slices.ContainsFunc(l.of, func(b turnstone.Bundled) bool { return b.ID == id })
	})
	if pairs, err = p.pairs(ctx, missing); err != nil {
		return l, err
	}
	for _, id := range missing {
		if pair := pairs[id]; pair.here != nil && pair.there != nil {
			if since, _, err := p.lacks(ctx, pair); err == nil {
				l.of = append(l.of, turnstone.Bundled{ID: id, Since: cmp.Or(since, turnstone.RevisionZero)})
			}
		}
	}
	return l, nil
}

// add adds what the other store lacks of a session.
func (p *pushing) add(ctx context.Context, l *lacking, pair pair) error {
	id := p.there(pair.here.ID)
	since, lacks, err := p.lacks(ctx, pair)
	var diverged *turnstone.DivergedError
	before, tried := p.tried[id]
	switch {
	case errors.As(err, &diverged) && p.o.Branch != "":
		l.diverged = append(l.diverged, turnstone.Bundled{ID: pair.here.ID, Since: diverged.Common.Revision})
	case err != nil && (diverged != nil || errors.Is(err, turnstone.ErrExists)):
		l.refused = append(l.refused, err)
		return nil
	case err != nil:
		return err
	case lacks:
		if pair.there != nil {
			since = cmp.Or(since, turnstone.RevisionZero)
		}
		l.of = append(l.of, turnstone.Bundled{ID: pair.here.ID, Since: since})
	case tried: // An attempt that failed in the end has brought it.
		before.To, before.Changed = pair.there.Revision, true
		p.came(before)
		return nil
	default:
		l.same++
		return nil
	}
	if !tried {
		if before = (turnstone.Unbundled{ID: id, Created: true}); pair.there != nil {
			before = turnstone.Unbundled{ID: id, From: pair.there.Revision}
		}
		p.tried[id] = before
	}
	return nil
}

// A pair is where a session stands in both stores. At of each has the commit at the revision where the other one
// stands, if it is not beyond its own. A session that is not there is nil.
type pair struct{ here, there *turnstone.Standing }

// pairs compares where sessions stand.
func (p *pushing) pairs(ctx context.Context, ids []string) (map[string]pair, error) {
	out := map[string]pair{}
	if len(ids) == 0 {
		return out, nil
	}
	queries := make([]turnstone.StandingQuery, len(ids))
	ask := func(there bool, at func(id string) *turnstone.Standing) (map[string]*turnstone.Standing, error) {
		of := p.from
		if there {
			of = p.to
		}
		for i, id := range ids {
			queries[i] = turnstone.StandingQuery{ID: id}
			if there {
				queries[i].ID = p.there(id)
			}
			if other := at(id); other != nil {
				queries[i].At = []head.Revision{other.Revision}
			}
		}
		found, err := of.Standings(ctx, queries...)
		by := map[string]*turnstone.Standing{}
		for i := range found {
			by[found[i].ID] = &found[i]
		}
		return by, err
	}
	there, err := ask(true, func(string) *turnstone.Standing { return nil })
	if err != nil {
		return nil, err
	}
	here, err := ask(false, func(id string) *turnstone.Standing { return there[p.there(id)] })
	if err != nil {
		return nil, err
	}
	ahead := false
	for _, id := range ids {
		one := pair{here[id], there[p.there(id)]}
		ahead = ahead || one.here != nil && one.there != nil && one.there.Revision > one.here.Revision
		out[id] = one
	}
	if !ahead {
		return out, nil
	}
	if there, err = ask(true, func(id string) *turnstone.Standing { return here[id] }); err != nil {
		return nil, err
	}
	for _, id := range ids {
		one := out[id]
		if now := there[p.there(id)]; one.there != nil && now != nil && now.Point == one.there.Point {
			one.there = now
			out[id] = one
		}
	}
	return out, nil
}

// lacks reports whether the other store lacks something of a session, and since which revision. The error is a
// *DivergedError if the session has diverged, and ErrExists if the other store has another one of the id.
func (p *pushing) lacks(ctx context.Context, of pair) (since head.Revision, lacks bool, err error) {
	here, there := of.here, of.there
	switch {
	case there == nil:
		return 0, true, nil
	case here.Genesis != there.Genesis:
		return 0, false, fmt.Errorf("%w: another session is called %q there", turnstone.ErrExists, there.ID)
	case here.Point == there.Point:
		return here.Revision, here.Rest != there.Rest, nil
	case there.Revision < here.Revision && len(here.At) == 1 && here.At[0] == there.Commit:
		return there.Revision, true, nil
	case there.Revision > here.Revision && len(there.At) == 1 && there.At[0] == here.Commit:
		return here.Revision, here.Rest != there.Rest, nil
	}
	common, err := p.common(ctx, of)
	switch {
	case err != nil:
		return 0, false, err
	case common.Revision == there.Revision: // It was committed to since it was asked.
		return there.Revision, true, nil
	case common.Revision == here.Revision:
		return here.Revision, here.Rest != there.Rest, nil
	}
	return 0, false, &turnstone.DivergedError{Session: there.ID, Here: there.Point, There: here.Point, Common: common}
}

// common returns the last commit that both stores have of a session that has diverged. It asks both for a number of
// commits, evenly apart, again and again.
func (p *pushing) common(ctx context.Context, of pair) (turnstone.Point, error) {
	const asked = 32
	low, high := turnstone.Point{}, min(of.here.Revision, of.there.Revision) // low is common, and high+1 is not
	for low.Revision < high {
		var at []head.Revision
		for i, n := head.Revision(1), min(asked, high-low.Revision); i <= n; i++ {
			at = append(at, low.Revision+(high-low.Revision)*i/n)
		}
		here, err := p.from.Standings(ctx, turnstone.StandingQuery{ID: of.here.ID, At: at})
		if err != nil {
			return turnstone.Point{}, err
		}
		there, err := p.to.Standings(ctx, turnstone.StandingQuery{ID: of.there.ID, At: at})
		if err != nil {
			return turnstone.Point{}, err
		}
		if len(here) != 1 || len(there) != 1 || len(here[0].At) != len(at) || len(there[0].At) != len(at) {
			return turnstone.Point{}, fmt.Errorf("%w: %q", turnstone.ErrSessionDeleted, of.here.ID)
		}
		for i, r := range at {
			if here[0].At[i] != there[0].At[i] {
				high = r - 1
				break
			}
			low = turnstone.Point{Revision: r, Commit: here[0].At[i]}
		}
	}
	return low, nil
}
