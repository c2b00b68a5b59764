package push

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
)

// chosen returns the ids of the sessions that are to be pushed, parents before their forks, and the errors of those
// that do not exist.
func (p *pushing) chosen(ctx context.Context) (ids []string, missing []error, err error) {
	o := &p.o
	switch {
	case p.from == nil || p.to == nil:
		return nil, nil, invalid("a store is nil")
	case len(o.Sessions) > 0 && (o.Group != "" || o.All), o.Group != "" && o.All, len(o.Sessions) == 0 && o.Group == "" && !o.All:
		return nil, nil, invalid("want one of Sessions, Group and All")
	case len(o.Sessions) > 0 && !o.ChangedSince.IsZero():
		return nil, nil, invalid("ChangedSince is for a group or all sessions, and sessions are named")
	case o.As != "" && len(o.Sessions) != 1:
		return nil, nil, invalid("As is for one session")
	case len(o.Sessions) > 0:
		return p.named(ctx)
	}
	ids, err = List(ctx, p.from, o.Group, o.ChangedSince)
	return ids, nil, err
}

// List returns the ids of the sessions that were updated at a time or later. If group is not empty, it returns only
// those of that group and of the groups below it. The oldest sessions come first, so each parent comes before its
// forks. A session that is updated while List reads is in the list all the same.
func List(ctx context.Context, of Peer, group string, since time.Time) ([]string, error) {
	type listed struct {
		id      string
		created time.Time
	}
	var all []listed
	seen := map[string]bool{}
	limit := turnstone.MaxPage
	// A session that is updated meanwhile moves to the front of the list, which may be behind the reader: so the front is
	// read again until there is nothing new.
	for more := 1; more > 0; limit = 50 {
		newest := since
		before := len(all)
		o := turnstone.ListOptions{Group: group, Limit: limit}
		for page := true; page; page = o.After != "" {
			got, err := of.List(ctx, o)
			if err != nil {
				return nil, err
			}
			o.After = got.Next
			for i := range got.Sessions {
				info := &got.Sessions[i]
				if info.Updated.Before(since) {
					o.After = "" // The others were updated before.
					break
				}
				if info.Updated.After(newest) {
					newest = info.Updated
				}
				if !seen[info.ID] {
					seen[info.ID] = true
					all = append(all, listed{info.ID, info.Created})
				}
			}
		}
		more = len(all) - before
		since = newest
	}
	slices.SortStableFunc(all, func(a, b listed) int { return a.created.Compare(b.created) })
	ids := make([]string, len(all))
	for i := range all {
		ids[i] = all[i].id
	}
	return ids, nil
}

// named is chosen for sessions that are named.
func (p *pushing) named(ctx context.Context) (ids []string, missing []error, err error) {
	exists := map[string]bool{}
	for some := range slices.Chunk(p.o.Sessions, turnstone.MaxPage) {
		of := make([]turnstone.StandingQuery, len(some))
		for i, id := range some {
			of[i].ID = id
		}
		found, err := p.from.Standings(ctx, of...)
		if err != nil {
			return nil, nil, err
		}
		for i := range found {
			exists[found[i].ID] = true
		}
	}
	for i, id := range p.o.Sessions {
		switch {
		case slices.Contains(p.o.Sessions[:i], id):
			return nil, nil, invalid("session %q twice", id)
		case exists[id]:
			ids = append(ids, id)
		default:
			missing = append(missing, fmt.Errorf("%w: %q", turnstone.ErrSessionNotFound, id))
		}
	}
	return ids, missing, nil
}

func invalid(format string, args ...any) error {
	return &turnstone.InvalidError{Where: "push", Reason: fmt.Sprintf(format, args...)}
}
